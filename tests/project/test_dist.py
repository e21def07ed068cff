"""What `make dist` builds: the same bytes each time, with and without a compiler, and it runs from a local index."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support import REPO

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
BIN = Path(sys.executable).parent


def run(*command: str | Path, cwd: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"} | changed
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def need(*modules: str) -> None:
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing:
        pytest.skip(f"`make .venv/.ready-dist` installs {missing[0]}")


def build(out: Path, **changed: str) -> dict[str, bytes]:
    """Build the source distribution and one wheel; return the names and the bytes."""
    need("build", "ziglang", "auditwheel")
    if not (REPO / ".git").exists():
        pytest.skip("not a git checkout")
    target = f"{os.uname().machine}-glibc"
    options = ("--python", VERSION, "--target", target, "--no-sbom")
    ran = run(sys.executable, REPO / ".ci/dist.py", out, *options, cwd=out.parent, **changed)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {p.name: p.read_bytes() for p in out.iterdir()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("first") / "dist"
    build(out)
    return out


@pytest.fixture(scope="module")
def index(dist: Path) -> Path:
    """A directory with the built files, and the dependencies that an index would have."""
    names = ("click", "msgpack", "wcwidth", "pip")  # pipx looks for a newer pip
    got = run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", dist, *names, cwd=dist)
    if got.returncode:
        pytest.skip(f"the dependencies cannot be downloaded here: {got.stderr.strip().splitlines()[-1]}")
    return dist


def test_two_builds_of_one_commit_have_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    first = {p.name: p.read_bytes() for p in dist.iterdir() if p.name.startswith(("filewheel", "SHA"))}
    before = os.umask(0o077)
    try:
        second = build(tmp_path / "dist", TZ="Asia/Tokyo", LC_ALL="C")
    finally:
        os.umask(before)
    assert {n.rpartition(".")[2] for n in second} == {"gz", "whl", "txt"}
    assert second == first


def test_the_wheel_has_the_compiled_part_for_an_old_c_library(dist: Path) -> None:
    (wheel,) = dist.glob("filewheel-*.whl")
    assert "manylinux_2_17" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        assert [n for n in archive.namelist() if n.startswith("filewheel/native/_loops.") and n.endswith(".so")]


@pytest.mark.parametrize(("compiler", "compiled"), [("cc", True), ("false", False)])
def test_the_source_distribution_builds_with_and_without_a_compiler(
    compiler: str, compiled: bool, dist: Path, tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    (sdist,) = dist.glob("filewheel-*.tar.gz")
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = tmp_path.iterdir()
    ran = run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        tmp_path,
        source,
        cwd=tmp_path,
        CC=compiler,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = "import filewheel.native.compiled as c; print(c.__file__, c.COMPILED)"
    told = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "installed"), FILEWHEEL_PURE="")
    assert told.stdout.split() == [f"{tmp_path}/installed/filewheel/native/compiled.py", str(compiled)], told.stderr


def test_uvx_runs_the_demo_from_the_built_files(index: Path, tmp_path: Path) -> None:
    need("uv")
    options = ("--no-index", "--find-links", index, "--no-config", "--python", sys.executable)
    ran = run(BIN / "uvx", *options, "filewheel", "demo", cwd=tmp_path, UV_CACHE_DIR=str(tmp_path / "cache"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "fired" in ran.stdout + ran.stderr


def test_pipx_runs_the_built_files(index: Path, tmp_path: Path) -> None:
    need("pipx")
    options = ("--backend", "pip", "--python", sys.executable, "filewheel", "--version")
    places = {"PIPX_HOME": str(tmp_path / "pipx"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    ran = run(sys.executable, "-m", "pipx", "run", *options, cwd=tmp_path, **places)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "filewheel" in ran.stdout
