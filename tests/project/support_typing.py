"""Runs mypy over a program that a test writes. It skips where mypy is missing; .ci/run installs it before the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPO

WRONG = re.compile(r"# wrong: ([\w-]+)")


def check(tmp_path: Path, source: str) -> None:
    """Run mypy over a program: it must find each line that is marked wrong, with its code, and no other."""
    pytest.importorskip("mypy", reason="mypy is not installed: `make .venv/.ready-dev`")
    program = tmp_path / "program.py"
    program.write_text(source)
    marked = {(n, m[1]) for n, line in enumerate(source.splitlines(), 1) if (m := WRONG.search(line))}
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
    command += ["--config-file", str(REPO / "pyproject.toml"), "--cache-dir", str(REPO / ".mypy_cache"), str(program)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=300, check=False)
    found = {(int(m[1]), m[2]) for m in re.finditer(r"program\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)}
    assert found == marked, done.stdout + done.stderr
