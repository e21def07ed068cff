"""Arguments that are wrong are refused in the call that was given them, by name, and nothing is made or enqueued."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncScheduler, BadArgument, Every, Retry, Scheduler, Wheel

NUMBERS: list[Any] = ["5", -1, True, math.nan, math.inf]
COUNTS: list[Any] = ["5", 0, 2.5, True]
ARGS: list[Any] = [5, "ab", b"x", {"a": 1}, {1}, [object()]]
KWARGS: list[Any] = [5, "ab", [1], {1: 2}]
SYNC: list[Any] = ["zap", -1, 0, True, [], b"x"]
OPTIONS: dict[str, list[Any]] = {
    "key": [5, "", b"x", "x" * 300, True],
    "on_conflict": ["zap", 5, None, "keep"],
    "headers": [5, "x", {1: 2}, {"filewheel.x": "y"}, [("a", "b")]],
    "deadline": ["5", True, [], math.nan],
    "skip_late_s": NUMBERS,
    "coalesce": [5, b"x", [], "x" * 20_000],
    "sync": SYNC,
}
CALL = {"args": ARGS, "kwargs": KWARGS}
RECUR = {
    "when": [-1, 0, "zap", True, None, []],
    "tz": ["Mars", 5, None],
    "name": [5, "", "x" * 300, b"x"],
    "missed": ["zap", 5, None],
    "grace_s": [*NUMBERS, None],
    **CALL,
}
ON: dict[str, list[Any]] = {
    "name": [5, b"x", "x" * 300, ""],
    "where": ["zap", 5, [], "loop"],
    "retry": [5, "x", True, 0],
    "timeout_s": [*NUMBERS, 0],
    "concurrency": COUNTS,
    "rate_per_s": [*NUMBERS, 0],
    "batch": COUNTS,
    "skip_late_s": NUMBERS,
    "coalesce": OPTIONS["coalesce"],
}
SCHEDULER: dict[str, list[Any]] = {
    "threads": [*COUNTS, None],
    "processes": COUNTS,
    "in_flight": [*COUNTS, None],
    "catch_up_per_s": [*NUMBERS, 0],
    "unknown": ["zap", 5, None, []],
    "sync": SYNC,
    "create": [None, 1, "no"],
    "on_jump": ["zap", 5, None, []],
    "metrics": [5, "x"],
}


def work(*args: object, **kwargs: object) -> None:
    """A handler that takes anything."""


def declared(scheduler: Scheduler) -> Any:
    """Return the handler `work` of a scheduler, declared once."""
    return scheduler.on("work")(work)


def recur(scheduler: Scheduler | AsyncScheduler, *, when: Any = "@daily", **given: Any) -> None:
    """Declare recurring work."""
    scheduler.every(when, **given)(work)


def schedule(
    scheduler: Scheduler, *, name: Any = "n", when: Any = "@daily", handler: Any = "work", **given: Any
) -> None:
    """Start recurring work."""
    scheduler.schedule(name, when, handler, **given)


# Each takes a scheduler and the arguments that are wrong.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, list[Any]]]] = {
    "Scheduler": (lambda s, **given: Scheduler(s.path, **given), SCHEDULER),
    "AsyncScheduler": (
        lambda s, **given: AsyncScheduler(s.path, **given),
        {**SCHEDULER, "stop_s": [*NUMBERS, None], "waiting_max": [*COUNTS, None]},
    ),
    "on": (lambda s, **given: s.on(**given)(work), ON),
    "on, async": (lambda s, **given: AsyncScheduler(s.path).on(**given)(work), ON),
    "every": (recur, RECUR),
    "every, async": (lambda s, **given: recur(AsyncScheduler(s.path), **given), RECUR),
    "schedule": (schedule, {**RECUR, "handler": [5, None, "", b"x"]}),
    "unschedule": (lambda s, name: s.unschedule(name), {"name": [5, None, b"x", ""]}),
    "options": (lambda s, **given: declared(s).options(**given), OPTIONS),
    "options, async": (lambda s, **given: AsyncScheduler(s.path).on()(work).options(**given), OPTIONS),
    "after": (lambda s, delay: declared(s).after(delay), {"delay": ["5", True, None, []]}),
    "at": (lambda s, time: declared(s).at(time), {"time": ["5", True, None, []]}),
    "enqueue": (
        lambda s, name="work", **given: s.enqueue(name, **given),
        {**OPTIONS, **CALL, "name": [5, None, b"x", "", []], "delay": ["5", True, []], "at": ["5", True, []]},
    ),
    "enqueue, of what is declared": (
        lambda s, **given: s.enqueue(declared(s), **given), {**OPTIONS, **CALL}
    ),
    "stop": (lambda s, **given: s.stop(**given), {"timeout_s": [*NUMBERS, None]}),
    "run": (lambda s, **given: s.run(**given), {"stop_s": [*NUMBERS, None]}),
    "wait_until_keeper": (lambda s, **given: s.wait_until_keeper(**given), {"timeout_s": ["5", True, math.nan]}),
    "on_event": (
        lambda s, callback=print, **given: s.on_event(callback, **given),
        {"callback": [5, None], "kinds": ["dead", 5, ["zap"], [5]]},
    ),
    "Retry": (
        lambda s, **given: Retry(**given),
        {
            "limit": ["5", -1, 2.5, True, None],
            **{name: [*NUMBERS, None] for name in ("delay_s", "delay_max_s", "jitter")},
            "factor": [*NUMBERS, 0.5, None],
            "never": [KeyError, 5, "x", [KeyError], None, (int,), (5,)],
        },
    ),
    "Every": (lambda s, **given: Every(60, **given), {"start_us": ["5", -1, True, None, 2.5]}),
}  # fmt: skip
EACH = [(name, argument) for name, (_, wrong) in CALLS.items() for argument in wrong]


@pytest.mark.parametrize(("name", "argument"), EACH, ids=lambda value: value)
def test_a_wrong_argument_is_refused_at_once_and_nothing_is_enqueued(wheel_dir: Path, name: str, argument: str) -> None:
    call, wrong = CALLS[name]
    scheduler = Scheduler(wheel_dir)
    for value in wrong[argument]:
        with pytest.raises(BadArgument):
            call(scheduler, **{argument: value})
    scheduler.stop()
    with Wheel(wheel_dir) as wheel:
        assert not wheel.stats().pending


@pytest.mark.parametrize("decorator", ["on", "every"])
def test_what_is_no_function_is_refused_as_a_handler(wheel_dir: Path, decorator: str) -> None:
    scheduler = Scheduler(wheel_dir)
    decorate: Any = scheduler.on("work") if decorator == "on" else scheduler.every(60)
    with pytest.raises(BadArgument, match="a handler is a function"):
        decorate(5)


def test_arguments_by_name_that_are_given_as_positional_ones_are_named(wheel_dir: Path) -> None:
    with pytest.raises(BadArgument, match="not a dict. Try: give those by name as kwargs"):
        Scheduler(wheel_dir).enqueue("work", {"to": "ann"})  # type: ignore[arg-type]


def test_an_enqueue_in_an_event_loop_refuses_the_same(wheel_dir: Path) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(wheel_dir)
        for argument, values in {**OPTIONS, **CALL}.items():
            for value in values:
                with pytest.raises(BadArgument):
                    await scheduler.enqueue("work", **{argument: value})
        with pytest.raises(BadArgument):
            await scheduler.unschedule(5)  # type: ignore[arg-type]
        await scheduler.stop()

    asyncio.run(main())
    with Wheel(wheel_dir) as wheel:
        assert not wheel.stats().pending
