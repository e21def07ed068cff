"""Ctrl-C before each line of a keeper's close: the next close finishes it, and nothing of the keeper stays."""

from __future__ import annotations

import threading
from pathlib import Path
from types import CodeType

from filewheel import Keeper, Wheel, firing
from filewheel import keeper as keeping
from filewheel.disk import locks
from tests.support import can_be_signalled, interrupted

FOLDER = str(Path(firing.__path__[0]))


def closing(code: CodeType) -> bool:
    """Return whether a function belongs to the close of a keeper."""
    return code.co_filename in {keeping.__file__, locks.__file__} or code.co_filename.startswith(FOLDER)


def test_an_interrupt_before_each_line_of_a_close_leaves_no_thread_and_no_lock(wheel_dir: Path) -> None:
    wheel = Wheel(wheel_dir, sync="never")
    before = set(threading.enumerate())
    line, is_done = 0, False
    while not is_done:
        line += 1
        wheel.enqueue(b"x")
        keeper = Keeper(wheel_dir)
        keeper.ack(next(m for m in keeper.claim()))
        try:
            with interrupted(closing, line, can_be_signalled):
                keeper.close()
                is_done = True
        finally:
            keeper.close()
        assert set(threading.enumerate()) == before, line
    wheel.close()
    assert line > 40
