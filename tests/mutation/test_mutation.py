"""What is changed in a night, and how the list of survivors is made. mutmut itself is not run here."""

from __future__ import annotations

import subprocess
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.mutation import __main__ as mutation
from tests.support import REPO


def test_each_folder_and_each_file_of_its_tests_is_there() -> None:
    for folder, tests in mutation.TESTS.items():
        assert (REPO / "filewheel" / folder).is_dir(), folder
        assert all((REPO / test).exists() for test in tests), tests


def test_without_a_change_the_folders_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mutation, "REPO", tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    first = datetime(2027, 1, 1, tzinfo=UTC)
    nights = [mutation.tonight(first + timedelta(days=n)) for n in range(len(mutation.TESTS))]
    assert sorted(nights) == sorted(mutation.TESTS)


def test_the_folder_of_which_most_lines_changed_is_the_one_of_tonight(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mutation, "REPO", tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    subprocess.run([*git, "init", "-q"], check=True)
    for name, lines in (("filewheel/laps/deal.py", 3), ("filewheel/keys/index.py", 5), ("cli/main.py", 9)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n" * lines)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    assert mutation.tonight() == "keys"


def test_a_file_is_changed_with_the_tests_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\n")
    mutation.configure(tmp_path, ["schedules/cron.py", "keys"])
    config = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["mutmut"]
    assert config["only_mutate"] == ["filewheel/schedules/cron.py", "filewheel/keys/*"]
    assert config["pytest_add_cli_args_test_selection"] == ["tests/keys", "tests/schedules"]
    assert config["do_not_mutate_patterns"] == mutation.LEFT_OUT


def test_what_git_knows_is_copied_and_nothing_else(tmp_path: Path) -> None:
    mutation.copy(tmp_path)
    assert (tmp_path / "filewheel/wheel.py").read_bytes() == (REPO / "filewheel/wheel.py").read_bytes()
    assert not (tmp_path / ".venv").exists()
