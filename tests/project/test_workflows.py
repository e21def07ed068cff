"""The workflows of a public CI call only what the checkout has; what an action does is not seen from here."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPO

yaml = pytest.importorskip("yaml", reason="no PyYAML here to read the workflows with")
WORKFLOWS = sorted((REPO / ".github/workflows").glob("*.yml"))
ALLOWED = {"apk", "mkdir", "mv"}
"""Commands of the system."""


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


def commands(path: Path) -> list[list[str]]:
    lines = [line for step in steps(path) for line in step.get("run", "").splitlines()]
    return [shlex.split(part) for line in lines for part in line.split("&&")]


def check(command: list[str]) -> None:
    """Assert that a command can be called in this checkout."""
    name, *rest = command
    if name == "make":
        ran = subprocess.run(["make", "-n", *rest], cwd=REPO, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    elif re.fullmatch(r"(\.venv/bin/)?python", name):
        assert rest[0] == "-m"
        assert importlib.util.find_spec(rest[1]) is not None, rest[1]
        for argument in rest[2:]:
            assert not argument.startswith("tests/") or (REPO / argument).exists(), argument
    elif name.startswith("."):
        assert (REPO / name).stat().st_mode & 0o100, name
    else:
        assert name in ALLOWED, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_each_command_of_a_workflow_exists(path: Path) -> None:
    found = commands(path)
    assert found
    for command in found:
        check(command)


@pytest.mark.parametrize(
    "command",
    ["make deploy", "python -m nothing_like_it", ".ci/walk", "python -m pytest tests/test_nothing.py", "curl x"],
)
def test_a_command_that_does_not_exist_would_be_noticed(command: str) -> None:
    with pytest.raises((AssertionError, FileNotFoundError)):
        check(shlex.split(command))


def test_the_matrix_is_what_the_package_is_built_for() -> None:
    source = (REPO / ".ci/dist.py").read_text()
    built = re.findall(r'"(3\.\d+)"', source.partition("VERSIONS = ")[2].partition("\n")[0])
    jobs = {path.stem: yaml.safe_load(path.read_text())["jobs"] for path in WORKFLOWS}
    assert jobs["ci"]["test"]["strategy"]["matrix"]["python"] == built
    (setup,) = (s for s in jobs["release"]["build"]["steps"] if "setup-python" in s.get("uses", ""))
    assert sorted(setup["with"]["python-version"].split()) == built
    classifiers = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["classifiers"]
    assert [c.rpartition(" ")[2] for c in classifiers if " :: 3." in c] == built


def test_only_the_upload_may_ask_for_a_token_and_no_secret_is_named() -> None:
    for path in WORKFLOWS:
        text = path.read_text()
        assert "secrets." not in text
        found = yaml.safe_load(text)
        assert found["permissions"] == {"contents": "read"}
        asking = [n for n, job in found["jobs"].items() if "permissions" in job]
        assert asking == (["publish"] if path.stem == "release" else [])
