"""A handle that is finished raises a new error at each call: a caller that tries again and again holds no memory.

An error that is kept and raised again collects the frames of each caller, and with them all that those callers have.
"""

from __future__ import annotations

import ast
import asyncio
import errno
import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from filewheel import (
    AsyncKeeper,
    AsyncWheel,
    Closed,
    DiskError,
    Fenced,
    FilewheelError,
    Keeper,
    Poisoned,
    Scheduler,
    Wheel,
)
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import anew
from filewheel.journal.settlement import Settlement
from filewheel.kafka import Delivery
from filewheel.live.remembered import Remembered
from tests.support import REPO, FakeClock, FaultyDisk, eventually

TRIES = 100


class Broken:
    """Disks whose flushes of journals fail, once that is wanted."""

    def __init__(self) -> None:
        self.now = False

    def __call__(self, kind: str, name: str) -> None:
        if self.now and kind == "fdatasync" and name.startswith("journal"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    @property
    def env(self) -> Env:
        return SYSTEM.using(disk=lambda path: FaultyDisk(path, self))


class Held:
    """What a caller has while it calls."""


def _frames(exc: BaseException | None) -> int:
    count = 0
    while exc is not None:
        trace = exc.__traceback__
        while trace is not None:
            count, trace = count + 1, trace.tb_next
        exc = exc.__cause__ or exc.__context__
    return count


class Tries:
    """Calls that fail, again and again: how deep their tracebacks are, and what they leave behind."""

    def __init__(self) -> None:
        self.kinds: set[type[BaseException]] = set()
        self._depths: list[int] = []
        self._held: list[weakref.ref[Held]] = []

    def hold(self) -> Held:
        held = Held()
        self._held.append(weakref.ref(held))
        return held

    def failed(self, exc: BaseException) -> None:
        self.kinds.add(type(exc))
        self._depths.append(_frames(exc))

    def check(self) -> None:
        assert len(self._depths) == TRIES
        assert max(self._depths[2:]) <= self._depths[1], self._depths[::100]
        assert max(self._depths) < 100
        gc.collect()
        assert not [ref for ref in self._held if ref() is not None]


def tried(call: Callable[[], object]) -> set[type[BaseException]]:
    """Call a thing that fails; assert that nothing gathers. Returns the classes of the errors."""
    tries = Tries()

    def attempt() -> None:
        held = tries.hold()
        call()
        del held

    for _ in range(TRIES):
        with pytest.raises((FilewheelError, TimeoutError, ValueError)) as caught:
            attempt()
        tries.failed(caught.value)
        del caught
    tries.check()
    return tries.kinds


@pytest.fixture
def broken() -> Broken:
    return Broken()


@pytest.fixture
def poisoned(wheel_dir: Path, broken: Broken) -> Iterator[Wheel]:
    wheel = Wheel(wheel_dir, env=broken.env)
    wheel.enqueue(b"", delay=60, key="k")
    broken.now = True
    with pytest.raises(Poisoned):
        wheel.enqueue(b"", delay=60)
    broken.now = False
    yield wheel
    wheel.close()


CALLS: dict[str, Callable[[Wheel], object]] = {
    "enqueue": lambda wheel: wheel.enqueue(b""),
    "enqueue without a flush": lambda wheel: wheel.enqueue(b"", sync="never"),
    "enqueue with a later flush": lambda wheel: wheel.enqueue(b"", sync=60.0),
    "enqueue with a key": lambda wheel: wheel.enqueue(b"", key="other"),
    "replace": lambda wheel: wheel.enqueue(b"", key="k", on_conflict="replace"),
    "enqueue_many": lambda wheel: wheel.enqueue_many([b"", b""]),
    "cancel": lambda wheel: wheel.cancel(key="k"),
    "reschedule": lambda wheel: wheel.reschedule(key="k", delay=1),
    "schedule": lambda wheel: wheel.schedule("s", 60, b""),
    "flush": lambda wheel: wheel.flush(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wheel_whose_flush_failed_raises_a_new_error_each_time(poisoned: Wheel, name: str) -> None:
    assert tried(lambda: CALLS[name](poisoned)) == {Poisoned}


def test_so_it_does_in_threads_that_share_their_flush(poisoned: Wheel) -> None:
    done: list[Any] = []

    def one() -> None:
        done.append(tried(lambda: poisoned.enqueue(b"", key="other")))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [{Poisoned}] * 3


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_wheel_raises_a_new_error_each_time(wheel_dir: Path, name: str) -> None:
    wheel = Wheel(wheel_dir)
    wheel.close()
    assert tried(lambda: CALLS[name](wheel)) == {Closed}


def test_an_async_wheel_whose_flush_failed_raises_a_new_error_each_time(wheel_dir: Path, broken: Broken) -> None:
    tries = Tries()

    async def attempt(wheel: AsyncWheel) -> None:
        held = tries.hold()
        await wheel.enqueue(b"")
        del held

    async def main() -> None:
        async with AsyncWheel(wheel_dir, env=broken.env) as wheel:
            await wheel.enqueue(b"", delay=60)
            broken.now = True
            for _ in range(TRIES):
                try:
                    await attempt(wheel)
                except FilewheelError as exc:
                    tries.failed(exc)
            broken.now = False

    asyncio.run(main())
    tries.check()
    assert tries.kinds == {Poisoned}


KEEPER_CALLS: dict[str, Callable[[Keeper, bytes], object]] = {
    "claim": lambda keeper, id_: keeper.claim(),
    "begin": lambda keeper, id_: keeper.begin(id_),
    "give_back": lambda keeper, id_: keeper.give_back(id_),
    "check_may_fire": lambda keeper, id_: keeper.check_may_fire(),
    "next_due": lambda keeper, id_: keeper.next_due(),
    "nack": lambda keeper, id_: keeper.nack(id_),
    "bury": lambda keeper, id_: keeper.bury(id_),
    "wait": lambda keeper, id_: keeper.wait(0),
}


@pytest.mark.parametrize("name", KEEPER_CALLS)
@pytest.mark.parametrize("why", [Poisoned("a flush failed"), Fenced("another wheel was promoted")])
def test_a_keeper_that_has_failed_raises_a_new_error_each_time(wheel_dir: Path, name: str, why: FilewheelError) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"")
    keeper = Keeper(wheel_dir, background=False)
    (message,) = keeper.claim()
    why.__cause__ = OSError(errno.EIO, "broken")
    keeper._fail(why)
    assert tried(lambda: KEEPER_CALLS[name](keeper, message.id)) == {type(why)}
    keeper.close()


def test_a_fenced_keeper_that_settles_raises_a_new_error_each_time(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"")
    keeper = Keeper(wheel_dir, background=False)
    (message,) = keeper.claim()
    keeper._fail(Fenced("another wheel was promoted"))
    assert tried(lambda: keeper.settle([Settlement(message.id, "retried")])) == {Fenced}
    keeper.close()


def test_a_keeper_whose_own_flush_failed_raises_a_new_error_each_time(wheel_dir: Path, broken: Broken) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"")
    keeper = Keeper(wheel_dir, background=False, env=broken.env)
    (message,) = keeper.claim()
    broken.now = True
    with pytest.raises(Poisoned):
        keeper.ack(message, sync="always")
    assert tried(lambda: keeper._store.own.flush()) == {Poisoned}
    with pytest.raises(Poisoned):
        keeper.close()


def test_an_async_keeper_that_was_closed_raises_a_new_error_each_time(wheel_dir: Path) -> None:
    tries = Tries()

    async def attempt(keeper: AsyncKeeper) -> None:
        held = tries.hold()
        await keeper.claim()
        del held

    async def main() -> None:
        async with AsyncKeeper(wheel_dir) as keeper:
            await keeper.claim()
        for _ in range(TRIES):
            try:
                await attempt(keeper)
            except FilewheelError as exc:
                tries.failed(exc)

    asyncio.run(main())
    tries.check()


def test_a_scheduler_that_was_fenced_raises_a_new_error_each_time(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)
    with scheduler:
        assert scheduler.wait_until_keeper(60)
        engine = scheduler._engine
        assert engine is not None
        assert engine._keeper is not None
        engine._keeper._fail(Fenced("another wheel was promoted"))
        engine._keeper.wake()
        eventually(lambda: scheduler.state == "fenced")
        assert tried(engine.check) == {Fenced}


def test_a_value_that_cannot_be_made_raises_a_new_error_each_time() -> None:
    def make() -> int:
        raise DiskError("broken", errno=errno.EIO)

    remembered = Remembered(make, FakeClock(), least_s=60)
    assert tried(remembered.get) == {DiskError}


@pytest.mark.parametrize("why", [ValueError("no"), DiskError("broken")])
def test_a_delivery_that_failed_raises_a_new_error_each_time(why: Exception) -> None:
    delivery = Delivery()
    delivery.set_exception(why)
    assert tried(delivery.result) == {type(why)}
    assert delivery.exception() is why


def test_a_delivery_without_an_answer_raises_a_time_out_each_time() -> None:
    delivery = Delivery()
    assert tried(lambda: delivery.result(0)) == {TimeoutError}


def test_a_new_error_has_all_that_the_kept_one_has() -> None:
    cause = OSError(errno.ENOTDIR, "no directory", "x")
    kept = DiskError("broken", errno=errno.EIO, path="/w", hint="look")
    kept.__cause__ = cause
    made = anew(kept)
    assert made is not kept
    assert (str(made), made.errno, made.path, made.hint) == (str(kept), errno.EIO, "/w", "look")
    assert isinstance(made.__cause__, OSError)
    assert (made.__cause__.errno, made.__cause__.filename) == (errno.ENOTDIR, "x")
    assert made.__traceback__ is None
    assert made.__cause__.__traceback__ is None


def test_an_error_of_a_class_that_cannot_be_copied_is_raised_without_its_frames() -> None:
    class Odd(Exception):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(f"{one} {other}")

    with pytest.raises(Odd) as caught:
        raise Odd(1, 2)
    assert anew(caught.value) is caught.value
    assert caught.value.__traceback__ is None


def _kept_errors(path: Path) -> Iterator[str]:
    """Yield where a file raises an error that it has kept: an attribute, or a variable that was one."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        was_attribute = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Raise):
                raised = node.exc
                if isinstance(raised, ast.Attribute) or (isinstance(raised, ast.Name) and raised.id in was_attribute):
                    yield f"{path.relative_to(REPO)}:{node.lineno}"


def test_no_error_that_is_kept_is_raised_itself() -> None:
    allowed = {"filewheel/kafka/client/trouble.py"}  # an error that is being handled, and its cause
    found = [place for path in sorted((REPO / "filewheel").rglob("*.py")) for place in _kept_errors(path)]
    assert [place for place in found if place.partition(":")[0] not in allowed] == []
