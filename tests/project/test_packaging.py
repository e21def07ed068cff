"""The package: what is built holds all that is on disk, and its command exists."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import filewheel
from tests.support import REPO

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())


def test_every_package_on_disk_is_in_the_wheel() -> None:
    directories = PROJECT["tool"]["setuptools"]["package-dir"]
    found = set()
    for name in ("filewheel", "filewheel_cli"):
        top = REPO / directories[name]
        for init in top.rglob("__init__.py"):
            inner = init.parent.relative_to(top).parts
            found.add(".".join((name, *inner)))
    declared = set(PROJECT["tool"]["setuptools"]["packages"])
    assert declared - {"filewheel_cli.samples"} == found
    assert list((REPO / directories["filewheel_cli.samples"]).glob("*.jsonl"))


def test_the_version_is_one_literal() -> None:
    version = subprocess.run(
        [sys.executable, "-m", "cli", "--version"], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout
    assert filewheel.__version__ in version


def test_both_packages_are_typed() -> None:
    assert (REPO / "filewheel" / "py.typed").exists()
    assert (REPO / "cli" / "py.typed").exists()


def test_the_installed_command_is_the_one_in_the_checkout() -> None:
    try:
        importlib.metadata.distribution("filewheel")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("filewheel is not installed here: .ci/run installs the built wheel and runs it")
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="filewheel")
    assert entry.value == "filewheel_cli.main:main"


def test_the_top_level_holds_only_what_was_agreed() -> None:
    allowed = {"filewheel", "cli", "tests", "data", "docs", "pyproject.toml", "README.md", "Makefile", "LICENSE"}
    allowed |= {"CHANGELOG.md", "MANIFEST.in", "build", "dist"}
    listed = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("not a git checkout")
    top = {Path(line).parts[0] for line in listed.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= allowed
