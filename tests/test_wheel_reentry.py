"""A call in the middle of another of the same thread, as of a signal handler: it works or is refused."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from filewheel import FilewheelError, Reentered, Wheel
from filewheel.disk.disk import SYSTEM
from tests.conftest import assert_whole
from tests.support import FaultyDisk, seeds


@contextmanager
def never_for_ever(seconds: int = 60) -> Iterator[None]:
    """Have what waits for itself end with an error."""

    def too_long(*_: object) -> None:
        raise AssertionError("it waits for itself")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def interrupted_at(moment: int, call: Callable[[], object]) -> Iterator[list[int]]:
    """Make a call at the n-th step of the library's code; yield a list that holds how many there were."""
    steps = [0]

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "call":
            if "/filewheel/" not in frame.f_code.co_filename:
                return None
            frame.f_trace_opcodes = True
        elif event == "opcode":
            steps[0] += 1
            if steps[0] == moment:
                call()
        return step

    sys.settrace(step)
    try:
        yield steps
    finally:
        sys.settrace(None)


SYNCS = ["always", "never", 30.0]


@pytest.mark.parametrize("inner", SYNCS)
@pytest.mark.parametrize("outer", SYNCS)
def test_an_enqueue_in_the_middle_of_another_works_or_is_refused_and_both_are_where_their_ids_say(
    wheel_dir: Path, outer: Any, inner: Any
) -> None:
    made: list[str] = []
    outcomes = {"works": 0, "refused": 0}
    with Wheel(wheel_dir) as wheel, never_for_ever():
        wheel.enqueue(b"first", delay=600, sync=outer)

        def nested() -> None:
            try:
                made.append(wheel.enqueue(b"nested", delay=600, sync=inner))
                outcomes["works"] += 1
            except Reentered:
                outcomes["refused"] += 1

        moment, steps = 1, [1]
        while moment <= steps[0]:
            with interrupted_at(moment, nested) as steps:
                made.append(wheel.enqueue(b"outer", delay=600, sync=outer))
            moment += 1 if outer == "never" else 3
        assert {m.id for m in wheel.list() if m.payload != b"first"} == set(made)
        assert len(set(made)) == len(made)
    assert outcomes["works"] > 10
    assert outcomes["refused"] > 10 or outer != "always"
    assert_whole(wheel_dir)


@pytest.mark.parametrize("inner", ["enqueue", "cancel", "close", "flush", "many"])
def test_any_call_in_the_middle_of_the_first_enqueue_of_a_handle_or_of_a_cancel_does_no_harm(
    wheel_dir: Path, inner: str
) -> None:
    made: set[str] = set()
    gone: set[str] = set()
    unsure: set[str] = set()
    with Wheel(wheel_dir) as seed:
        ids = list(seed.enqueue_many([b"%d" % n for n in range(600)], delay=600))
    made.update(ids)
    with never_for_ever():
        for part in ("enqueue", "cancel"):
            moment, steps = 1, [1]
            while moment <= steps[0]:
                wheel = Wheel(wheel_dir, sync="never")

                def nested(wheel: Wheel = wheel) -> None:
                    try:
                        if inner == "enqueue":
                            made.add(wheel.enqueue(b"nested", delay=600))
                        elif inner == "many":
                            made.update(wheel.enqueue_many([b"nested"] * 3, delay=600))
                        elif inner == "cancel":
                            id_ = ids.pop()
                            if wheel.cancel(id_):
                                gone.add(id_)
                        else:
                            getattr(wheel, inner)()
                    except Reentered:
                        pass

                victim = ids.pop()
                with interrupted_at(moment, nested) as steps:
                    try:
                        if part == "enqueue":
                            made.add(wheel.enqueue(b"outer", delay=600))
                        elif wheel.cancel(victim):
                            gone.add(victim)
                    except FilewheelError:
                        assert inner == "close"  # as when another thread closes it
                        unsure.add(victim)
                wheel.close()
                moment += max(1, steps[0] // seeds(12, all_of=60).stop)
    with Wheel(wheel_dir) as wheel:
        assert {m.id for m in wheel.list()} - unsure == made - gone - unsure
    assert_whole(wheel_dir)


class NeverWaited(threading.Condition):
    """A condition of a test with one thread: a wait for it would never end."""

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError("it waits for itself")


@pytest.mark.parametrize("inner", ["enqueue", "enqueue, not flushed", "cancel", "flush", "close"])
def test_a_call_in_the_middle_of_a_flush_of_its_own_thread_is_refused_and_does_not_wait(
    wheel_dir: Path, inner: str
) -> None:
    refused: list[str] = []

    def in_flush(kind: str, name: str) -> None:
        if kind == "fdatasync" and name.startswith("journal/") and armed:
            armed.clear()
            with pytest.raises(Reentered):
                calls[inner]()
            refused.append(inner)

    armed: list[bool] = []
    env = SYSTEM.using(disk=lambda path: FaultyDisk(path, in_flush))
    with Wheel(wheel_dir, env=env) as wheel:
        first = wheel.enqueue(b"first", delay=600)
        calls: dict[str, Callable[[], object]] = {
            "enqueue": lambda: wheel.enqueue(b"nested", delay=600),
            "enqueue, not flushed": lambda: wheel.enqueue(b"nested", delay=600, sync="never"),
            "cancel": lambda: wheel.cancel(first),
            "flush": wheel.flush,
            "close": wheel.close,
        }
        assert wheel._journal is not None
        wheel._journal.appender._changed = NeverWaited(wheel._journal.appender.lock)
        armed.append(True)
        wheel.enqueue(b"outer", delay=600)
        assert refused == [inner]
        wheel.enqueue(b"last", delay=600)
        assert sorted(m.payload for m in wheel.list()) == [b"first", b"last", b"outer"]
    assert_whole(wheel_dir)
