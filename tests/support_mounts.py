"""Commands in a mount namespace of their own: without a temporary directory, on a disk of few bytes or files."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import Result, environment, finish
from tests.support import REPO

PLACE = "/mnt"
"""Where a command in the namespace finds the folder of its test."""

NO_TEMPORARY_DIRECTORY = """
for one in /tmp /var/tmp /usr/tmp; do if test -d $one; then mount -t tmpfs -o ro none $one; fi; done
cd /var/tmp
"""
"""Nor is the working directory one."""


@functools.cache
def _may_mount() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "none", PLACE], check=False, capture_output=True
        ).returncode
    )


def start_in(folder: Path, setup: str, *command: object, **options: object) -> subprocess.Popen[str]:
    """Start a command in a mount namespace in which `folder` is PLACE, after the lines of `setup` for the shell."""
    if not _may_mount():
        pytest.skip("this user may make no mount namespace: root may")
    if str(REPO).startswith(("/tmp", "/var/tmp", PLACE)):
        pytest.skip("the checkout lies where the test mounts")
    script = f'set -e\nmount --make-rprivate /\nmount --bind {folder} {PLACE}\n{setup}\nexec "$@"'
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        ["unshare", "-m", "sh", "-c", script, "sh", *map(str, command)], env=environment(), text=True, **options
    )


def filewheel_in(folder: Path, setup: str, *args: object, stdin: str | None = None, code: int = 0) -> Result:
    """Run the command line there, and expect an exit code."""
    options = {} if stdin is None else {"stdin": subprocess.PIPE}
    command = [sys.executable, "-W", "error", "-m", "cli", "-C", f"{PLACE}/w", *args]
    result = finish(start_in(folder, setup, *command, **options), stdin)
    assert result.code == code, result
    return result


def python_in(folder: Path, setup: str, program: str, *args: object) -> Result:
    """Run a Python program there, and expect that it ends well."""
    result = finish(start_in(folder, setup, sys.executable, "-W", "error", "-c", program, *args))
    assert result.code == 0, result
    return result


def filewheel_shell(folder: Path, script: str) -> Result:
    """Run a script of the shell there, with `filewheel` for the command line and $PLACE for the folder."""
    prelude = f'PLACE={PLACE}\nfilewheel() {{ "{sys.executable}" -W error -m cli -C $PLACE/w "$@"; }}\n'
    return finish(start_in(folder, f"set +e\n{prelude}{script}", "true"))
