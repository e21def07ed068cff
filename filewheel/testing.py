"""For the tests of programs that use filewheel: a fake clock, and functions that let time pass without waiting.

With a FakeClock as `clock=` of a scheduler, `advance` and `run_until` go from one due time to the next and call the due
handlers in the calling thread. A week of retries, chains and schedules runs in order, in milliseconds, without sleep,
threads or a test framework.
Invariant: at each call of a handler the clock shows its due time, or a later one if a rate held the call back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar, overload

from filewheel.checks import check_path
from filewheel.env import Clock
from filewheel.errors import BadArgument, FilewheelError
from filewheel.message import to_datetime
from filewheel.scheduling.aio import AsyncScheduler
from filewheel.scheduling.dispatcher import Dispatcher
from filewheel.scheduling.scheduler import Scheduler, WheelOpener
from filewheel.timespec import at_us, check_due, delay_us
from filewheel.wheel import Wheel

START = datetime(2029, 1, 1, tzinfo=UTC)
"""The default start of a clock: a Monday, at midnight."""
STEPS_MAX = 10_000
AnyScheduler = TypeVar("AnyScheduler", Scheduler, AsyncScheduler)


class TooManySteps(FilewheelError):
    """The clock did not reach the wanted time within the limit of steps."""


class FakeClock:
    """A clock that moves only on a call: `clock=` of a Wheel, a Keeper or a Scheduler."""

    def __init__(self, start: datetime | None = None) -> None:
        """Start at a time, by default Monday, 1 January 2029, midnight UTC. Raises BadArgument for a naive one."""
        self._wall_us = check_due(at_us(START if start is None else start))
        self._steady_us = 1
        self._watching: list[weakref.WeakMethod[Callable[[], None]]] = []

    @property
    def now(self) -> datetime:
        """The current time in UTC."""
        return to_datetime(self._wall_us)

    def now_us(self) -> int:
        """Return the current time in microseconds since the epoch."""
        return self._wall_us

    def steady_us(self) -> int:
        """Return the elapsed time in microseconds from an arbitrary start."""
        return self._steady_us

    def advance(self, by: float | timedelta) -> None:
        """Move forward by seconds or a timedelta. Calls no handler; the function `advance` does both.

        Raises BadArgument for a negative time; `set` moves the clock back.
        """
        by_us = delay_us(by)
        if by_us < 0:
            raise BadArgument(f"time does not pass backwards: {by!r}", hint="clock.set(...) sets the clock back")
        self._move(check_due(self._wall_us + by_us))

    def set(self, time: datetime) -> None:
        """Show another time. A later one lets time pass; an earlier one puts the clock back.

        Raises BadArgument for a naive datetime.
        """
        self._move(check_due(at_us(time)))

    def watch(self, moved: Callable[[], None]) -> None:
        """Call a bound method after each move, in the thread that moves the clock, for as long as its object lives."""
        self._watching = [one for one in self._watching if one() is not None]
        self._watching.append(weakref.WeakMethod(moved))

    def _move(self, wall_us: int) -> None:
        self._steady_us += max(0, wall_us - self._wall_us)
        self._wall_us = wall_us
        for watching in self._watching:
            moved = watching()
            if moved is not None:
                moved()

    def __repr__(self) -> str:
        return f"<FakeClock {self.now.isoformat()}>"


@contextlib.contextmanager
def redirected(scheduler: AnyScheduler, path: str | os.PathLike[str], clock: Clock) -> Iterator[AnyScheduler]:
    """Let a scheduler that a module defines use another wheel and another clock, inside of the block.

    The handlers and schedules stay, and so do all references to them. At the end the scheduler is as it was, and the
    wheel at `path`, which is made if it is missing, is closed. An AsyncScheduler is to be stopped before that.

    Raises BadArgument when the scheduler has been started.
    """
    plain = scheduler.blocking if isinstance(scheduler, AsyncScheduler) else scheduler
    if plain.state != "stopped":
        raise BadArgument("this scheduler was started: it fires or stands by", hint="start it in the block, or not")
    where = check_path(path)
    env = plain._env.using(clock=clock)
    Wheel.open_or_create(where, env=env).close()  # so that no warning is logged that it was missing
    changes: list[tuple[object, dict[str, object]]] = [
        (
            plain,
            {
                "_path": where,
                "_env": env,
                "_clock": env.clock,
                "_wheel": None,
                "_wheel_pid": 0,
                "_opener": WheelOpener(where, create=True, sync=None, on_flush=plain._telemetry.flushed, env=env),
            },
        ),
    ]
    if isinstance(scheduler, AsyncScheduler):
        prepare = scheduler._prepare
        again = partial(prepare.func, where, **{**prepare.keywords, "env": env})
        changes.append(
            (
                scheduler,
                {
                    "_clock": env.clock,
                    "_prepare": again,
                    "_wheel": None,
                    "_home": None,
                    "_opening": asyncio.Lock(),
                    "_ending": None,
                },
            )
        )
    before = [(one, {name: getattr(one, name) for name in names}) for one, names in changes]
    for one, names in changes:
        vars(one).update(names)
    try:
        yield scheduler
    finally:
        plain.stop(0)
        for one, names in before:
            vars(one).update(names)


@overload
def advance(
    scheduler: Scheduler, clock: FakeClock, seconds: float | timedelta, *, steps_max: int = STEPS_MAX
) -> int: ...
@overload
def advance(
    scheduler: AsyncScheduler, clock: FakeClock, seconds: float | timedelta, *, steps_max: int = STEPS_MAX
) -> Awaitable[int]: ...
def advance(
    scheduler: Scheduler | AsyncScheduler,
    clock: FakeClock,
    seconds: float | timedelta,
    *,
    steps_max: int = STEPS_MAX,
) -> int | Awaitable[int]:
    """Advance the clock, and call everything that becomes due (see run_until)."""
    by_us = delay_us(seconds)
    if by_us < 0:
        raise BadArgument(f"time does not pass backwards: {seconds!r}")
    until = to_datetime(check_due(clock.now_us() + by_us))
    if isinstance(scheduler, AsyncScheduler):
        return run_until(scheduler, clock, until, steps_max=steps_max)
    return run_until(scheduler, clock, until, steps_max=steps_max)


@overload
def run_until(scheduler: Scheduler, clock: FakeClock, until: datetime, *, steps_max: int = STEPS_MAX) -> int: ...
@overload
def run_until(
    scheduler: AsyncScheduler, clock: FakeClock, until: datetime, *, steps_max: int = STEPS_MAX
) -> Awaitable[int]: ...
def run_until(
    scheduler: Scheduler | AsyncScheduler, clock: FakeClock, until: datetime, *, steps_max: int = STEPS_MAX
) -> int | Awaitable[int]:
    """Go from one due time to the next up to `until`, and call the due messages; return how many were settled.

    A settled message was acknowledged, put back for another attempt, or buried. Messages that are due now, and at
    `until`, are called too; then the clock shows `until`. For an AsyncScheduler, await the result; coroutines run in
    that loop. A handler's time-out is real time, and ends coroutines only. The scheduler must not have been started.

    Raises BadArgument when the clock is not the scheduler's, or is past `until`; TooManySteps after `steps_max` steps
    (about three for each due time); Locked when another process fires.
    """
    plain = scheduler.blocking if isinstance(scheduler, AsyncScheduler) else scheduler
    end_us = check_due(at_us(until))
    if plain._clock is not clock:
        raise BadArgument("the scheduler uses another clock", hint="Scheduler(path, clock=clock)")
    if end_us < clock.now_us():
        raise BadArgument(f"the clock shows {clock.now} already, which is past {until}")
    if isinstance(scheduler, AsyncScheduler):
        return scheduler._inline(partial(_run, plain, clock, end_us, steps_max))
    return _run(plain, clock, end_us, steps_max)


def _run(scheduler: Scheduler, clock: FakeClock, end_us: int, steps_max: int) -> int:
    arrived = False
    with scheduler._inline_engine().inline() as dispatcher:
        for _ in range(steps_max):
            if dispatcher.step(claim=True):
                continue
            next_us = _next_us(scheduler, dispatcher, clock.now_us())
            if next_us is None or next_us > end_us:
                clock._move(max(end_us, clock.now_us()))  # a handler may have moved the clock
                arrived = True
                break
            clock._move(next_us)
    if not arrived:  # raised here, so that the calls so far are settled
        raise TooManySteps(
            f"{steps_max} steps led to {clock.now} only, on the way to {to_datetime(end_us)}",
            hint="look for a handler that always enqueues itself again, or raise steps_max=",
        )
    return dispatcher.settled


def _next_us(scheduler: Scheduler, dispatcher: Dispatcher, now_us: int) -> int | None:
    """Return the next time with work. Messages due by now were called, or a rate limit delays them."""
    due = [message.due_us for message in scheduler.wheel.list(after=to_datetime(now_us + 1), limit=1)]
    held_us = dispatcher.next_us(now_us)
    return min(due if held_us is None else [*due, held_us], default=None)
