"""`make test` runs a failed test again, alone: what it may forgive, and what it may not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import AGAIN, AT_MOST, compile_once, keep_bytecode
from tests.support import REPO

FAILS_ONCE = """
from pathlib import Path

def test_one():
    seen = Path(__file__).with_name("seen")
    before = seen.exists()
    seen.touch()
    assert before
"""

FAILS_TWICE = """
from pathlib import Path

def test_one():
    seen = Path(__file__).with_name("seen")
    seen.write_text(seen.read_text() + "x" if seen.exists() else "x")
    assert seen.read_text() == "xx"
"""


def suite(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"PYTHONPATH": str(REPO)}
    # Each start of pytest loads every plugin that is installed otherwise, for a second.
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return subprocess.run(
        [sys.executable, "-m", "tests.suite", *arguments, "test_it.py"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_test_that_fails_once_beside_others_is_named_and_does_not_fail_the_run(tmp_path: Path) -> None:
    done = suite(tmp_path, FAILS_ONCE, "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "depend on the load" in done.stdout
    assert done.stdout.rstrip().endswith("test_it.py::test_one")
    (line,) = (tmp_path / AGAIN).read_text().splitlines()
    assert {k: v for k, v in json.loads(line).items() if k != "at"} == {"test": "test_it.py::test_one", "passed": True}


def test_a_test_that_fails_again_alone_fails_the_run(tmp_path: Path) -> None:
    assert suite(tmp_path, FAILS_TWICE).returncode == 1
    assert json.loads((tmp_path / AGAIN).read_text())["passed"] is False


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    text = FAILS_ONCE + "\n".join(f"def test_{n}():\n    assert False\n" for n in range(AT_MOST))
    done = suite(tmp_path, text)
    assert done.returncode == 1
    assert "now alone" not in done.stdout


def test_a_file_that_cannot_be_read_is_not_run_again(tmp_path: Path) -> None:
    done = suite(tmp_path, "import nothing_of_this_name\n")
    assert done.returncode == 2
    assert "now alone" not in done.stdout


def test_a_new_checkout_is_compiled_before_the_run_and_one_that_was_compiled_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    tests = tmp_path / "tests"
    tests.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tests / "test_it.py").write_text("def test_one():\n    pass\n")
    (tests / "test_broken.py").write_text("import nothing_of_this_name\n")
    compile_once(tests)
    names = {path.name.partition(".")[0] for path in tests.glob("__pycache__/*-pytest-*.pyc")}
    assert names == {"test_it", "test_broken"}
    (tests / "test_other.py").write_text("")
    compile_once(tests)
    assert not list(tests.glob("__pycache__/test_other*"))


def test_where_no_bytecode_may_be_written_beside_the_sources_it_is_kept_in_a_folder_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")
    tests, kept = tmp_path / "tests", tmp_path / "kept"
    tests.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tests / "test_it.py").write_text("def test_one():\n    pass\n")
    keep_bytecode(kept)
    compile_once(tests)
    assert not list(tests.rglob("*.pyc"))
    assert len(list(kept.rglob("test_it.*-pytest-*.pyc"))) == 1
    (tests / "test_other.py").write_text("")
    compile_once(tests)
    assert not list(kept.rglob("test_other*"))
