"""Every public call gets every kind of wrong argument: it raises an error of the library, or takes the argument.

The calls and their arguments come from the signatures, so a new argument is swept too. An asynchronous call words the
error as its synchronous sibling does.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import filewheel
from filewheel import (
    AsyncKeeper,
    AsyncWheel,
    Every,
    FilewheelError,
    Keeper,
    Retry,
    RetryLater,
    Scheduler,
    Settlement,
    Wheel,
)
from filewheel.testing import FakeClock
from tests.odd_times import ODD

VALUES: list[Any] = [
    10**30, -(10**30), 10**400, 10**5000, 2**63, -1, 0, 1e300, -1e300, math.nan, math.inf, True, None,
    timedelta.max, timedelta.min, datetime.max, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC),
    "5", "", "\ud800", "x\0y", b"x", object(), int, [], [1], [10**400], [math.nan], {}, {1: 2}, *ODD,
    ["\ud800"], {"\ud800": 1}, {"x": "\ud800"},
]  # fmt: skip
NOT_SWEPT = {"self", "wait", "known", "progress"}
"""Waits without end, and types that only the library makes."""


def swept(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a call."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.kind in kinds and p.name not in NOT_SWEPT]


def given(name: str, value: object, needed: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of one call: those that it needs, and the one in question."""
    without = {"key": "id_", "at": "delay"}.get(name)
    return {**{n: v for n, v in needed.items() if n != without}, name: value}


def words_of(call: Callable[[], Any]) -> str:
    """Make a call; return the words of its error, or nothing. An error of another kind fails the test."""
    try:
        made = call()
        if hasattr(made, "__next__"):
            list(islice(made, 2))
        if hasattr(made, "close") and not inspect.iscoroutinefunction(made.close):
            made.close()
    except FilewheelError as exc:
        return f"{type(exc).__name__}: {exc.what}"
    return ""


def sweep(function: Callable[..., Any], needed: dict[str, Any], *, leave: Collection[str] = ()) -> None:
    """Call a function with each value for each of its arguments."""
    for name in swept(function):
        for value in [] if name in leave else VALUES:
            words_of(partial(function, **given(name, value, needed)))


MADE: dict[str, Callable[..., Any]] = {
    "Wheel": lambda p: Wheel,
    "Wheel.create": lambda p: Wheel.create,
    "Wheel.open_or_create": lambda p: Wheel.open_or_create,
    "AsyncWheel": lambda p: AsyncWheel,
    "AsyncKeeper": lambda p: AsyncKeeper,
    "Scheduler": lambda p: Scheduler,
    "Replicator": lambda p: filewheel.Replicator,
    "Standby": lambda p: filewheel.Standby,
    "promote": lambda p: filewheel.promote,
    "rejoin": lambda p: filewheel.rejoin,
    "set_status": lambda p: filewheel.set_status,
}


@pytest.mark.parametrize("name", MADE)
def test_a_call_that_opens_a_wheel_raises_only_errors_of_the_library(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(wheel_dir.parent)  # some values are names of new wheels
    path = {"AsyncWheel": "wheel", "AsyncKeeper": "keeper"}.get(name, "path")  # these take an open one too
    sweep(MADE[name](wheel_dir), {path: wheel_dir})


def test_a_keeper_raises_only_errors_of_the_library(wheel_dir: Path) -> None:
    sweep(partial(Keeper, wheel_dir, wait=False), {}, leave=["path", "wait"])


def test_members_of_a_set_raise_only_errors_of_the_library(wheel_dir: Path) -> None:
    backup = wheel_dir.parent / "backup"
    sweep(filewheel.add_backup, {"primary": wheel_dir, "path": backup}, leave=["path"])
    sweep(filewheel.remove_backup, {"primary": wheel_dir, "which": str(backup)})


CALLS = {
    "enqueue": {"payload": b"x"}, "enqueue_many": {"payloads": [b"x"]}, "cancel": {"id_": ""}, "cancel_many": {},
    "revive": {"ids": []}, "dead": {},
    "clear": {"topic": "none"}, "update": {"key": "a key", "payload": b"x"}, "reschedule": {"id_": "", "delay": 5},
    "get": {"id_": ""}, "peek": {}, "list": {}, "next_due": {}, "stats": {}, "running": {}, "history": {},
    "schedules": {}, "pause": {}, "resume": {}, "paused": {},
    "overdue": {}, "is_drained": {},
    "schedule": {"name": "n", "when": 60}, "schedule_many": {"schedules": []}, "edit_schedule": {"name": "n"},
    "unschedule": {"name": "n"},
    "kill": {"id_": ""}, "purge": {},
}  # fmt: skip
"""The calls that both a Wheel and an AsyncWheel have."""
SYNC_ONLY: dict[str, dict[str, Any]] = {
    "check_message": {"payload": b"x"}, "histogram": {"edges": []}, "topics": {}, "add": {"messages": []},
    "has_keeper": {}, "roster": {}, "snapshot": {}, "flush": {},
}  # fmt: skip
OTHER = {"close", "create", "open_or_create", "is_new", "notes", "path", "payload_bytes_max"}
ONLY_ASYNC = {"open", "due", "keeper"}
FIRING = {"ack": {"what": []}, "nack": {"message": b"x"}, "bury": {"message": b"x"}, "settle": {"settlements": []},
          "begin": {"what": []}, "claim": {}}  # fmt: skip


def test_the_sweep_has_every_public_call() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Wheel) == CALLS.keys() | SYNC_ONLY.keys() | OTHER
    assert public(AsyncWheel) == CALLS.keys() | {"flush"} | ONLY_ASYNC | (OTHER - {"notes"})
    rest = {"directory", "pid", "now_us", "holds", "may_begin", "unbegin", "give_back", "has_passed_over", "close",
            "check_may_fire", "observer", "unwritten", "next_due", "wake", "wait", "batches",
            "set_worker", "stalled_s", "paused", "is_drained", "check_drained"}  # fmt: skip
    assert public(Keeper) - rest == FIRING.keys()


@pytest.mark.parametrize("name", [*CALLS, *SYNC_ONLY])
def test_a_wheel_raises_only_errors_of_the_library(wheel_dir: Path, name: str) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        sweep(getattr(wheel, name), {**CALLS, **SYNC_ONLY}[name])


@pytest.mark.parametrize("name", [*CALLS, *FIRING])
def test_an_asynchronous_call_words_a_wrong_argument_as_its_sibling_does(wheel_dir: Path, name: str) -> None:
    with Wheel(wheel_dir, sync="never") as made:
        needed = {**CALLS, **FIRING}[name]
        needed = {**needed, "id_": str(made.enqueue(b"x", delay=3600))} if "id_" in needed else needed

    async def words_of_async(target: object, given: dict[str, Any]) -> str:
        try:
            found = getattr(target, name)(**given)
            if inspect.isasyncgen(found):
                [_ async for _ in found]
            else:
                await found
        except FilewheelError as exc:
            return f"{type(exc).__name__}: {exc.what}"
        return ""

    arguments = [
        given(argument, value, needed) for argument in swept(getattr(Wheel if name in CALLS else Keeper, name))
        for value in VALUES
    ]  # fmt: skip

    async def all_async() -> list[str]:
        async with AsyncWheel(wheel_dir) if name in CALLS else AsyncKeeper(wheel_dir) as target:
            return [await words_of_async(target, one) for one in arguments]

    with Wheel(wheel_dir) if name in CALLS else Keeper(wheel_dir, background=False) as target:
        words = [words_of(partial(getattr(target, name), **one)) for one in arguments]
    for one, sync_text, async_text in zip(arguments, words, asyncio.run(all_async()), strict=True):
        if not any(words.startswith(("KeyHeld", "NotFound")) for words in (sync_text, async_text)):
            assert sync_text == async_text, one.keys()


def test_a_scheduler_raises_only_errors_of_the_library(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)

    @scheduler.on("known")
    def known(*args: object) -> None: ...

    sweep(partial(scheduler.enqueue, "known"), {}, leave=["name"])
    for number, name in enumerate(set(swept(scheduler.on)) - {"name"}):
        for at, value in enumerate(VALUES):
            words_of(lambda n=f"{number}-{at}", o={name: value}: scheduler.on(n, **o)(lambda *args: None))
    for value in VALUES:
        for call in (
            scheduler.on,
            scheduler.unschedule,
            scheduler.stop,
            scheduler.on_event,
            scheduler.wait_until_keeper,
        ):
            words_of(partial(call, value))
    sweep(known.map, {"calls": [1]})
    sweep(scheduler.list, {})
    sweep(scheduler.get, {"id_": ""})
    sweep(scheduler.reschedule, {"id_": "", "delay": 5})
    sweep(scheduler.cancel_all, {})
    for value in VALUES:
        words_of(partial(scheduler.result, value))
        if not isinstance(value, (int, float)) or not 0 < value < 1e9:  # it would wait
            words_of(partial(scheduler.result, "", timeout_s=value))
    sweep(Retry, {})
    sweep(Settlement, {"id": b"", "what": "retried"})
    sweep(RetryLater, {"delay": 1})
    sweep(FakeClock, {})
    sweep(FakeClock().advance, {"by": 1})
    sweep(FakeClock().set, {"time": datetime.now(UTC)})
    sweep(Every, {"interval_s": 1})
    scheduler.stop()
