"""Ctrl-C before each line of a claim and of a settlement: no lock of the keeper stays held, and it closes.

Not at the end of a `with`: a test can stop there, and a signal cannot.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest

from filewheel import Keeper, Message, Wheel, firing
from filewheel import keeper as keeping
from filewheel.disk import locks
from tests.support import can_be_signalled, interrupted

FOLDER = str(Path(firing.__path__[0]))
FILES = {keeping.__file__, locks.__file__}


def settling(code: CodeType) -> bool:
    """Return whether a function belongs to a claim or a settlement, or stands between a lock and its `with`."""
    if code.co_filename == contextlib.__file__:  # but not the end of `interrupted` itself
        return "ExitStack" in code.co_qualname or code.co_qualname == "_GeneratorContextManager.__enter__"
    return (code.co_filename in FILES or code.co_filename.startswith(FOLDER)) and code.co_name != "__del__"


def are_free(keeper: Keeper) -> bool:
    """Return whether another thread gets the keeper's locks."""
    got: list[bool] = []

    def take() -> None:
        for lock in (keeper._lock, keeper._settler._moving, keeper._store.own.appender.lock):
            got.append(lock.acquire(timeout=30))
            if got[-1]:
                lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(120)
    return got == [True] * 3


def put_back_and_claim(keeper: Keeper, message: Message) -> None:
    keeper.nack(message)
    keeper.claim(2)


def acknowledge(keeper: Keeper, message: Message) -> None:
    keeper.ack(message, sync="always")


@pytest.mark.parametrize("key", [None, "one"])
@pytest.mark.parametrize("act", [acknowledge, put_back_and_claim])
def test_an_interrupt_before_each_line_of_a_settlement_leaves_no_lock_of_the_keeper_held(
    wheel_dir: Path, act: Callable[[Keeper, Message], None], key: str | None
) -> None:
    with Wheel(wheel_dir, sync="never") as wheel, Keeper(wheel_dir, background=False) as keeper:
        line, is_done = 0, False
        while not is_done:
            line += 1
            wheel.enqueue(b"x", key=key, on_conflict="replace" if key else "reject")
            message = next(m for m in keeper.claim())
            with interrupted(settling, line, can_be_signalled):
                act(keeper, message)
                is_done = True
            assert are_free(keeper), line
        assert line > (20 if act is acknowledge else 80)
