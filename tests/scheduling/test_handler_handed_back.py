"""Work that a function hands back instead of doing it: it is done, it has failed, or the function is refused.

A call is acknowledged because its work was done. A coroutine, a generator or a future that is returned is no work.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import logging
import multiprocessing.pool
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import AsyncMock, MagicMock

import pytest

from filewheel import AsyncScheduler, BadArgument, Job, Retry, Scheduler
from filewheel.message import REASON
from tests.scheduling import process_targets
from tests.scheduling.stage import dead_letters, waiting
from tests.support import FakeClock, eventually

ONCE = Retry(limit=0)
done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> Iterator[None]:
    done.clear()
    yield
    done.clear()


async def work(name: str) -> None:
    done.append(name)


def iterated(name: str) -> Iterator[None]:
    done.append(name)
    yield


async def iterated_async(name: str) -> AsyncIterator[None]:
    done.append(name)
    yield


class Worker:
    async def __call__(self, name: str) -> None:
        done.append(name)


class Iterating:
    def __call__(self, name: str) -> Iterator[None]:
        yield


class Own:
    """An awaitable of a library."""

    def __await__(self) -> Iterator[None]:
        yield


def plainly_wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The usual decorator that forgets about coroutine functions."""

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def without_parentheses(times: int) -> Callable[..., Any]:
    """A decorator with arguments that is used without its parentheses: `times` is the function."""

    def decorate(name: str) -> Callable[..., Any]:
        return lambda: done.append(name)

    return decorate


class Sent(NamedTuple):
    name: str
    how: Any


HANDED_BACK: dict[str, Callable[..., Any]] = {
    "coroutine of a lambda": lambda name: work(name),
    "coroutine of a decorator's wrapper": plainly_wrapped(work),
    "generator of a wrapper": plainly_wrapped(lambda name: iterated(name)),
    "generator expression": lambda name: (done.append(n) for n in [name]),
    "async generator": lambda name: iterated_async(name),
    "map": lambda name: map(done.append, [name]),
    "filter": lambda name: filter(done.append, [name]),
    "future of a pool": lambda name: concurrent.futures.Future(),
    "awaitable": lambda name: Own(),
    "context manager": contextlib.contextmanager(lambda name: iterated(name)),
    "async context manager": contextlib.asynccontextmanager(lambda name: iterated_async(name)),
    "function": without_parentheses(work),  # type: ignore[arg-type]
    "partial": lambda name: functools.partial(done.append, name),
    "method": lambda name: done.append,
    "list of coroutines": lambda name: [work(name), work(name)],
    "tuple of a map": lambda name: (1, map(done.append, [name])),
    "dict of coroutines": lambda name: {name: work(name)},
    "set of futures": lambda name: {concurrent.futures.Future()},
    "named tuple of a coroutine": lambda name: Sent(name, work(name)),
    "deque of coroutines": lambda name: collections.deque([work(name)]),
    "result of a pool": lambda name: multiprocessing.pool.ApplyResult(SimpleNamespace(_cache={}), None, None),
    "zip": lambda name: zip([name], map(done.append, [name]), strict=True),
    "thread that was not started": lambda name: threading.Thread(target=done.append, args=(name,)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", HANDED_BACK)
def test_a_call_in_a_thread_that_hands_its_work_back_has_failed(scheduler: Scheduler, kind: str) -> None:
    scheduler.on("x", retry=ONCE)(HANDED_BACK[kind]).enqueue("ann")
    assert scheduler.drain() == 1
    (dead,) = dead_letters(scheduler)
    assert dead.headers[REASON].startswith("TypeError: the handler returned work that is not done, a ")
    assert "runners" not in dead.attempts[0].details
    assert not done


@pytest.mark.parametrize("kind", HANDED_BACK)
def test_a_batch_that_hands_its_work_back_has_failed(scheduler: Scheduler, kind: str) -> None:
    scheduler.on("x", retry=ONCE, batch=10)(lambda jobs: HANDED_BACK[kind](jobs[0].args[0]))
    scheduler.enqueue("x", ["ann"])
    assert scheduler.drain() == 1
    assert len(dead_letters(scheduler)) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", HANDED_BACK)
def test_a_coroutine_function_that_hands_other_work_back_has_failed(scheduler: Scheduler, kind: str) -> None:
    @scheduler.on("x", retry=ONCE)
    async def x(name: str) -> Any:
        return HANDED_BACK[kind](name)

    x.enqueue("ann")
    assert scheduler.drain() == 1
    (dead,) = dead_letters(scheduler)
    assert dead.headers[REASON].startswith("TypeError: the handler returned work that is not done, a ")
    assert not done


@pytest.mark.parametrize(
    "function", [lambda name: work(name), plainly_wrapped(work), functools.partial(work), Worker(), AsyncMock(work)]
)
def test_what_a_handler_in_the_loop_makes_is_awaited(scheduler: Scheduler, function: Callable[..., Any]) -> None:
    scheduler.on("x", where="loop")(function)
    scheduler.enqueue("x", ["ann"])
    assert scheduler.drain() == 1
    assert done == ["ann"] or function.await_count == 1
    assert not waiting(scheduler.wheel)


def test_a_task_that_a_handler_in_the_loop_returns_is_awaited(scheduler: Scheduler) -> None:
    scheduler.on("x", where="loop")(lambda name: asyncio.ensure_future(work(name)))
    scheduler.enqueue("x", ["ann"])
    assert (scheduler.drain(), done) == (1, ["ann"])


@pytest.mark.parametrize(
    "function", [functools.partial(Worker()), functools.partial(work), Worker(), Worker().__call__]
)
def test_a_coroutine_function_runs_in_the_loop_however_it_is_wrapped(
    scheduler: Scheduler, function: Callable[..., Any]
) -> None:
    handler = scheduler.on("x")(function)
    assert handler.terms.where == "loop"
    scheduler.enqueue("x", ["ann"])
    assert (scheduler.drain(), done) == (1, ["ann"])


@pytest.mark.parametrize("where", [None, "thread", "process", "loop"])
@pytest.mark.parametrize(
    "function", [iterated, iterated_async, functools.partial(iterated), Iterating(), Iterating().__call__]
)
def test_a_function_with_yield_is_no_handler(scheduler: Scheduler, function: Any, where: Any) -> None:
    with pytest.raises(BadArgument, match="is no handler: it returns a generator"):
        scheduler.on("x", where=where)(function)


@pytest.mark.parametrize(
    "value", [None, 0, "text", [1], {"a": 1}, {"f": len}, [print], MagicMock(), Path("x"), iter([1])]
)
def test_a_call_that_returns_any_other_value_has_ended_well(scheduler: Scheduler, value: object) -> None:
    scheduler.on("x")(lambda: value)
    scheduler.enqueue("x")
    assert scheduler.drain() == 1
    assert not waiting(scheduler.wheel)
    assert not dead_letters(scheduler)


def test_hooks_see_that_the_work_was_handed_back(scheduler: Scheduler) -> None:
    seen: list[str] = []

    @scheduler.around
    def session(jobs: list[Job]) -> Iterator[None]:
        try:
            yield
        except TypeError:
            seen.append("rolled back")
            raise
        seen.append("committed")

    scheduler.on("x", retry=ONCE)(lambda name: work(name)).enqueue("ann")
    scheduler.drain()
    assert seen == ["rolled back"]


def test_a_call_in_a_process_that_hands_its_work_back_has_failed(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w", processes=1)
    scheduler.on("x", where="process", retry=ONCE)(process_targets.hand_back)
    scheduler.enqueue("x", ["ann"])
    with scheduler:
        eventually(lambda: len(dead_letters(scheduler)) == 1)
        assert "returned work that is not done, a coroutine" in dead_letters(scheduler)[0].headers[REASON]


class HookObject:
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def __call__(self, jobs: list[Job]) -> Iterator[None]:
        self.seen.append("hook")
        yield


class AsyncHookObject(HookObject):
    async def __call__(self, jobs: list[Job]) -> AsyncIterator[None]:  # type: ignore[override]
        self.seen.append("hook")
        yield


@pytest.mark.parametrize(
    "make",
    [
        HookObject,
        lambda seen: functools.partial(HookObject(seen)),
        lambda seen: plainly_wrapped(HookObject(seen).__call__),
    ],
)
def test_a_hook_surrounds_the_call_whatever_makes_its_generator(scheduler: Scheduler, make: Any) -> None:
    seen: list[str] = []
    scheduler.around(make(seen))
    scheduler.on("x")(lambda: seen.append("call"))
    scheduler.enqueue("x")
    assert (scheduler.drain(), seen) == (1, ["hook", "call"])


@pytest.mark.parametrize("make", [AsyncHookObject, lambda seen: plainly_wrapped(AsyncHookObject(seen).__call__)])
def test_an_async_hook_surrounds_the_coroutine_whatever_makes_its_generator(scheduler: Scheduler, make: Any) -> None:
    seen: list[str] = []
    scheduler.around(make(seen))

    @scheduler.on("x")
    async def x() -> None:
        seen.append("call")

    x.enqueue()
    assert (scheduler.drain(), seen) == (1, ["hook", "call"])


@pytest.mark.parametrize("function", [work, iterated, iterated_async, Worker(), functools.partial(work)])
@pytest.mark.parametrize("name", ["encode", "decode"])
def test_a_codec_of_coroutine_or_generator_functions_is_refused(tmp_path: Path, name: str, function: Any) -> None:
    with pytest.raises(BadArgument, match=f"^{name} is a plain function, and .* returns a "):
        Scheduler(tmp_path / "w", **{name: function})


@pytest.mark.filterwarnings("error")
def test_an_encode_that_hands_back_a_coroutine_refuses_the_enqueue(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w", encode=lambda value: work("encoded"))
    with pytest.raises(BadArgument, match="encode= cannot store"):
        scheduler.enqueue("x", [object()])
    scheduler.stop()


@pytest.mark.filterwarnings("error")
def test_a_decode_that_hands_back_a_coroutine_fails_the_call(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w", clock=FakeClock(), decode=lambda value, hint: work("decoded"))

    @scheduler.on("x", retry=ONCE)
    def x(name: str) -> None:
        done.append(name)

    x.enqueue("ann")
    scheduler.drain()
    assert "decode= returned work that is not done" in dead_letters(scheduler)[0].headers[REASON]
    assert not done
    scheduler.stop()


@pytest.mark.parametrize("function", [work, iterated, iterated_async, Worker(), functools.partial(work), AsyncMock()])
def test_a_subscriber_without_a_loop_is_a_plain_function(scheduler: Scheduler, function: Any) -> None:
    with pytest.raises(BadArgument, match="^a subscriber is a plain function, and .* returns a "):
        scheduler.on_event(function)


@pytest.mark.filterwarnings("error")
def test_a_subscriber_that_hands_a_coroutine_back_is_logged_once(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.on_event(lambda event: work("told"), ["enqueued"])
    for _ in range(3):
        scheduler.enqueue("x")
    (said,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert "a subscriber of enqueued failed" in said.message
    assert "returned work that is not done, a coroutine" in str(said.exc_info and said.exc_info[1])


@pytest.mark.parametrize("kind", ["coroutine function", "lambda", "object"])
def test_a_coroutine_of_a_subscriber_of_an_async_scheduler_is_awaited(tmp_path: Path, kind: str) -> None:
    told: list[str] = []

    async def tell(event: Any) -> None:
        await asyncio.sleep(0)
        told.append(event.kind)

    class Teller:
        async def __call__(self, event: Any) -> None:
            await tell(event)

    subscribers: dict[str, Callable[[Any], Awaitable[None]]] = {
        "coroutine function": tell,
        "lambda": lambda event: tell(event),
        "object": Teller(),
    }

    async def main() -> None:
        scheduler = AsyncScheduler(tmp_path / "w")
        scheduler.on_event(subscribers[kind], ["enqueued"])
        await scheduler.enqueue("x")
        while not told:
            await asyncio.sleep(0.01)
        await scheduler.stop()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert told == ["enqueued"]


def test_a_subscriber_of_an_async_scheduler_with_yield_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="a generator"):
        AsyncScheduler(tmp_path / "w").on_event(iterated)


def test_an_event_before_the_loop_is_known_is_logged_for_a_subscriber_that_needs_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = AsyncScheduler(tmp_path / "w")
    scheduler.on_event(work, ["enqueued"])  # type: ignore[arg-type]
    scheduler.blocking.enqueue("x")
    assert "a subscriber of enqueued failed" in caplog.text
    scheduler.blocking.stop()
