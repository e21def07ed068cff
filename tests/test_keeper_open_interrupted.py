"""Ctrl-C before each line that opens a keeper: its lock is free afterwards."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.keeper_lock import KeeperLock
from tests.support import interrupted


@pytest.mark.parametrize("line", range(1, 39))
def test_an_interrupt_before_each_line_that_opens_a_keeper_leaves_its_lock_free(wheel_dir: Path, line: int) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"due", delay=0)
    threads = set(threading.enumerate())
    made: list[Keeper] = []
    with interrupted({Keeper.__init__.__code__, KeeperLock.take.__code__}.__contains__, line):
        made.append(Keeper(wheel_dir, wait=False))
    assert not made
    assert not set(threading.enumerate()) - threads
    with Keeper(wheel_dir, wait=False) as keeper:
        assert [m.payload for m in keeper.claim()] == [b"due"]


def test_an_interrupt_while_the_thread_of_a_keeper_starts_ends_that_thread_before_the_files_are_closed(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "filewheel-housekeeper":
            raise KeyboardInterrupt

    threads = set(threading.enumerate())
    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        Keeper(wheel_dir, wait=False)
    assert not set(threading.enumerate()) - threads
