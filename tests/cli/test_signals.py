"""Signals that come late, or early: the exit code stays a documented one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli import reload
from filewheel import Wheel
from tests.cli.support import finish, start
from tests.support import eventually

# Sends itself one more signal when its exit handlers run: the verb has ended then.
LATE = """
import atexit, os, signal, sys
from cli import main, signals

keep = signals.until_exit
def keep_and_signal():
    keep()
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
if sys.argv.pop(1) == "before":
    main.until_exit = keep_and_signal
else:
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
main.main()
"""

APP = """
from filewheel import Scheduler

scheduler = Scheduler("jobs.wheel")
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["run", "work"])
def test_a_signal_behind_the_last_one_does_not_change_the_exit_code(tmp_path: Path, verb: str, when: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    wheel = Wheel.create(tmp_path / "jobs.wheel")
    words = ["-C", "jobs.wheel", "run"] if verb == "run" else ["work", "app:scheduler"]
    process = start(command=[sys.executable, "-c", LATE, when, *words], cwd=tmp_path)
    with wheel:
        assert eventually(wheel.has_keeper)
        process.terminate()
        assert finish(process).code == 0


def test_a_child_of_reload_that_does_not_handle_the_signal_yet_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start_child(argv: Sequence[str]) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[0]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reload, "_start", start_child)
    assert reload.work_again_and_again([], 1.0) == 0
    assert started[0].poll() == -signal.SIGTERM
