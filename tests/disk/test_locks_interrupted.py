"""Ctrl-C before each line of the calls that hold kernel locks: none stays locked when the call has ended.

Not within `__del__`, where an exception ends nothing, nor at the end of a `with` of a thread lock: a test can stop
there, and a signal cannot.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest

from filewheel import MessageId, Wheel
from filewheel.disk import directory, disk, locks
from filewheel.format import layout
from filewheel.keys import unique
from tests.support import interrupted

OF_A_FILE = {"close", "_free", "lock", "unlock", "_forget_lock"}
LOCKING = {disk.OsDisk.close.__code__.co_filename: OF_A_FILE, unique.__file__: {"holding"}}
WHOLE = {locks.open_made.__code__.co_filename}


def is_locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def locking(code: CodeType) -> bool:
    """Return whether a function takes or releases the lock of a file."""
    if code.co_filename in WHOLE:
        return code.co_name != "__del__"
    return code.co_name in LOCKING.get(code.co_filename, ())


def held_below(path: Path) -> list[str]:
    """The locks of ids and keys that somebody holds."""
    found = [*path.glob("ids/*.lock"), *path.glob("keys/*.lock")]
    assert found
    return [str(one.relative_to(path)) for one in found if is_locked(one)]


def lines_interrupted(among: Callable[[CodeType], bool], call: Callable[[], object], check: Callable[[], None]) -> int:
    """Interrupt a call before each of its lines, checking after each time; return how many lines there are."""
    line, is_done = 0, False
    while not is_done:
        line += 1
        with interrupted(among, line):
            call()
            is_done = True
        check()
    return line - 1


def cancel(wheel: Wheel, id_: MessageId) -> None:
    wheel.cancel(id_)


def reschedule(wheel: Wheel, id_: MessageId) -> None:
    wheel.reschedule(id_, delay=70)


def take_key(wheel: Wheel, id_: MessageId) -> None:
    wheel.enqueue(b"x", delay=60, key="one", on_conflict="replace")


def take_keys(wheel: Wheel, id_: MessageId) -> None:
    names = [f"key {n}" for n in range(40)]
    wheel.enqueue_many([b"x"] * len(names), delay=60, keys=names, on_conflict="replace")


@pytest.mark.parametrize("act", [cancel, reschedule, take_key, take_keys])
def test_an_interrupt_before_each_line_of_a_call_with_locks_leaves_none_held(
    wheel_dir: Path, act: Callable[[Wheel, MessageId], None]
) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        ids = [wheel.enqueue(b"x", delay=60)]
        act(wheel, ids[0])  # makes the files of the locks

        def call() -> None:
            act(wheel, ids[-1])

        def check() -> None:
            assert not held_below(wheel_dir)
            ids.append(wheel.enqueue(b"x", delay=60))

        ids.append(wheel.enqueue(b"x", delay=60))
        assert lines_interrupted(locking, call, check) > 50


def test_an_interrupt_before_each_line_of_a_create_does_not_keep_the_next_one_waiting(tmp_path: Path) -> None:
    place = tmp_path / "made"

    def call() -> None:
        Wheel.create(place).close()

    def check() -> None:
        assert not place.exists() or not is_locked(place)
        shutil.rmtree(place, ignore_errors=True)

    makes = {directory.create_directory.__code__, directory._alone.__wrapped__.__code__}  # type: ignore[attr-defined]
    assert lines_interrupted(lambda code: code in makes or locking(code), call, check) > 20


def test_locks_whose_release_was_interrupted_before_it_began_are_free_when_nobody_has_them(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        held = locks.HeldLocks(directory.open_directory(wheel_dir, write=True))
        locks.take_ids(held, [wheel.enqueue(b"x", delay=60)], 0)
        assert held_below(wheel_dir)
        del held
        assert not held_below(wheel_dir)


def test_an_interrupt_in_the_unlock_of_a_close_closes_the_file(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(fd: int, operation: int) -> None:
        raise KeyboardInterrupt

    place = wheel_dir / layout.id_lock(0)
    with Wheel(wheel_dir):
        there = disk.OsDisk(str(wheel_dir))
        fd = locks.open_made(there, layout.id_lock(0))
        assert there.lock(fd, wait=False)
        assert is_locked(place)
        with monkeypatch.context() as patch:
            patch.setattr(disk.fcntl, "flock", interrupt)
            with pytest.raises(KeyboardInterrupt):
                there.close(fd)
        assert not is_locked(place)
