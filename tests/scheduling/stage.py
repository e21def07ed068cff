"""A scheduler whose time and whose handlers' ends a test decides: no thread, no sleep.

Built of the engine's own parts, so that the wiring is the one that programs get; only the runners are others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filewheel import Keeper, Message, Scheduler, Wheel
from filewheel.scheduling.dispatcher import Dispatcher
from filewheel.scheduling.runners.runner import Call, Finish, Runner, run
from tests.support import FakeClock


class Manual:
    """Keeps calls until a test ends them."""

    starts_anywhere = False

    def __init__(self, finish: Finish, clock: FakeClock, wheel: str) -> None:
        self._finish = finish
        self._clock = clock
        self._wheel = wheel
        self.calls: list[Call] = []
        self.begun: list[tuple[int, Message]] = []
        """All that ever began: when, and what."""
        self.given_up: list[Call] = []

    def start(self, call: Call) -> None:
        call.begun_us = self._clock.steady_us() or 1
        self.begun += [(self._clock.now_us(), m) for m in call.messages]
        self.calls.append(call)

    def end(self, count: int | None = None) -> None:
        """Run so many of the calls, the oldest first; all by default."""
        count = len(self.calls) if count is None else count
        for call in self.calls[:count]:
            outcomes = run(call, self._clock, self._wheel)
            if call.end():
                call.outcomes, call.ended_us = outcomes, self._clock.steady_us()
                self._finish(call)
        del self.calls[:count]

    def quiet(self) -> None:
        pass

    def busy(self) -> int:
        return len(self.calls)

    def give_up(self, call: Call) -> str:
        self.given_up.append(call)
        return ""

    def stop(self) -> None:
        pass


class Stage:
    """A keeper, a dispatcher and a runner that is told what to do."""

    def __init__(self, scheduler: Scheduler, clock: FakeClock, keeper: Keeper) -> None:
        engine = scheduler._new_engine()
        runners: dict[str, Runner] = {}
        self.scheduler = scheduler
        self.clock = clock
        self.keeper = keeper
        self.dispatcher: Dispatcher = engine._dispatcher(keeper, runners)
        self.runner = Manual(self.dispatcher.finish, clock, scheduler.path)
        runners |= dict.fromkeys(("loop", *scheduler._limits.places), self.runner)

    def step(self) -> None:
        """Let the dispatcher do all that it can do now."""
        while self.dispatcher.step(claim=True):
            pass

    def finish(self, count: int | None = None) -> None:
        """End calls, and let the dispatcher see it."""
        self.runner.end(count)
        self.step()

    def run(self, seconds: float, step_s: float = 0.1) -> None:
        """Let time pass; every call ends at once."""
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            self.step()
            while self.runner.calls:
                self.finish()

    @property
    def running(self) -> list[str]:
        """The payloads' handlers that run now."""
        return [c.handler.name for c in self.runner.calls]


@contextlib.contextmanager
def stage(path: Path, clock: FakeClock, scheduler: Scheduler, **options: Any) -> Iterator[Stage]:
    """Set up a stage on a wheel."""
    with Keeper(path, clock=clock, background=False, **options) as keeper:
        yield Stage(scheduler, clock, keeper)


def make(path: Path, clock: FakeClock, **options: Any) -> Scheduler:
    """Make a scheduler with a clock that a test moves."""
    return Scheduler(path, clock=clock, **options)


def dead_letters(scheduler: Scheduler) -> list[Message]:
    """Return the dead letters."""
    return list(scheduler.wheel.list(dead=True))


def waiting(wheel: Wheel) -> list[Message]:
    """Return what waits."""
    return list(wheel.list())


def counted(scheduler: Scheduler) -> dict[str, int]:
    """Return what was counted, without zeros."""
    from filewheel.metrics.metrics import EVENTS

    totals = {event: sum(scheduler.metrics.counts(event).values()) for event in EVENTS}
    return {event: n for event, n in totals.items() if n}
