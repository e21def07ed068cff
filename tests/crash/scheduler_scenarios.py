"""The scenarios of the sweep with a scheduler: jobs that succeed, are tried again, die, go on in transactions, recur.

`drain` calls what is due in the calling thread, so each run makes the same calls. It says how many messages it has
settled; where that is every call that was made, what became of each is durable, and is promised. The scenario with
threads promises less, for nobody is told there what was written.
What a handler sees is told as claims are (promises.py); a retry is a move, an occurrence a move to a later time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import filewheel.scheduling.engine
from filewheel import FilewheelError, Keeper, Message, Retry, Scheduler, Wheel, current_job
from filewheel.message import US_PER_S
from filewheel.scheduling.call import pack_call
from tests.crash.actor import Actor, Fact
from tests.crash.promises import text_of
from tests.crash.scenarios import Scenario, dealt

RETRY_S = 5
EVERY_S = 60
_KNOWN_DUES = 20
_QUIET_S = 0.03
_THREADS_S = 1.0


class Jobs(Actor):
    """One process that enqueues, and runs a scheduler."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._scheduler: Scheduler | None = None
        self._failed_once: set[str] = set()
        self._done: list[tuple[str, Fact]] = []
        """What is promised when what became of it is durable: the kind of mark, and the mark."""
        self._calls = 0
        self._called_s = 0.0
        self._recurs = ""

    def draw(self) -> None:
        """Have the scheduler's own handles draw what this one draws, for good: for a process that does nothing else."""
        for kind in (Wheel, Keeper):
            init: Any = kind.__init__
            init.__kwdefaults__ = {**init.__kwdefaults__, "entropy": self.entropy}

    # -- handles ---------------------------------------------------------------------------------------------

    def wheel(self) -> Wheel:
        """Return the wheel that the scheduler enqueues into."""
        return self.scheduler().wheel

    def scheduler(self) -> Scheduler:
        """Return the scheduler."""
        if self._scheduler is None:
            self._scheduler = self._defined()
        return self._scheduler

    def close(self, *, lost: bool = False) -> None:
        """Stop the scheduler too."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            try:
                scheduler.stop()
            except FilewheelError as exc:
                self._raised("stop", exc, {})
            except Exception:
                self._bare("stop")
        super().close(lost=lost)

    def _defined(self) -> Scheduler:
        scheduler = Scheduler(self.path, threads=1, create=False, clock=self.clock)
        again = Retry(limit=1, delay_s=RETRY_S, factor=1, jitter=0)

        @scheduler.on(name="t", retry=again)
        def first(payload: bytes) -> None:
            with self._called():
                self._play(payload.decode(), link)

        @scheduler.on(retry=again)
        def link(name: str) -> None:
            with self._called():
                pass

        @scheduler.every(EVERY_S)
        @scheduler.on(name="tick", retry=again)
        def tick() -> None:
            with self._called():
                pass

        if not self._recurs:
            self._recur(scheduler)
        return scheduler

    def _recur(self, scheduler: Scheduler) -> None:
        """Say what the occurrences look like: there is one as soon as something was drained."""
        (schedule,) = scheduler._schedules.values()
        self._recurs = text_of(schedule.payload)
        at_us = self.clock.now_us()
        for _ in range(_KNOWN_DUES):
            at_us = schedule.definition.after(at_us)
            self.say({"op": "enqueue", "phase": "begin", "payloads": [self._recurs], "dues": [at_us]})

    # -- handlers --------------------------------------------------------------------------------------------

    def _play(self, name: str, link: Any) -> None:
        """Do what a job of this name does: by its number it succeeds, fails once or always, or goes on."""
        number = int(name.strip(".")[1:])
        if number % 4 == 0 and name not in self._failed_once:
            self._failed_once.add(name)
            raise ValueError("try again")
        if number % 4 == 1:
            raise ValueError("never")
        if number % 4 == 2:
            payload = text_of(pack_call([name], {})[0])
            self.say({"op": "enqueue", "phase": "begin", "payloads": [payload], "dues": [self.clock.now_us()]})
            with current_job().transaction():
                id_ = link.after(0, name)
            self._done.append(("enqueue", {"payloads": [payload], "ids": [id_.hex()], "sync": "always"}))

    @contextlib.contextmanager
    def _called(self) -> Iterator[None]:
        """Say that a job is called, and what comes of it."""
        message: Message = current_job().message
        id_, payload, now_us = message.id.hex(), text_of(message.payload), self.clock.now_us()
        self._calls += 1
        self._called_s = time.monotonic()
        self.say({"op": "claim", "phase": "end", "now": now_us, "fired": [[id_, payload, message.due_us]]})
        moved = {"ids": [id_], "new": None, "sync": "always"}
        try:
            yield
        except Exception:
            self.say({"op": "nack", "phase": "begin", "ids": [id_], "due": now_us + RETRY_S * US_PER_S})
            self.say({"op": "bury", "phase": "begin", "ids": [id_]})
            self._done.append(("nack", moved))
            raise
        if payload == self._recurs:
            self._done.append(("nack", moved))
        else:
            self.say({"op": "ack", "phase": "begin", "ids": [id_]})
            self._done.append(("ack", moved))

    # -- firing ----------------------------------------------------------------------------------------------

    def drain(self, *, seconds: float = 0) -> None:
        """Let time pass, then call what is due."""
        self.clock.advance(seconds)

        def call(given: Fact) -> None:
            self._done, self._calls = [], 0
            settled = self.scheduler().drain()
            if settled == self._calls:
                for op, mark in self._done:
                    self.say({"op": op, "phase": "end", **mark})

        if self.do("drain", call) is not None:
            living = self.look("get", lambda w: w.get(key="filewheel.every:tick"))
            if living is not None:
                mark = {"payloads": [self._recurs], "ids": [living.id.hex()], "sync": "always"}
                self.say({"op": "enqueue", "phase": "end", **mark})

    def fire(self, *, seconds: float = 0) -> None:
        """Let time pass, then fire in threads until nothing happens any more."""
        self.clock.advance(seconds)

        def call(given: Fact) -> None:
            self._calls = 0
            self._called_s = begun_s = time.monotonic()
            scheduler = self.scheduler()
            scheduler.start()
            while (now_s := time.monotonic()) < begun_s + _THREADS_S:
                if self._calls and now_s > self._called_s + _QUIET_S:
                    break
                time.sleep(0.002)
            self._scheduler = None
            scheduler.stop()

        self.do("fire", call)


@contextlib.contextmanager
def hasty() -> Iterator[None]:
    """Have a scheduler that met trouble try again at once."""
    module: Any = filewheel.scheduling.engine
    before = module._PAUSE_S
    module._PAUSE_S = 0.01
    try:
        yield
    finally:
        module._PAUSE_S = before


# -- running --------------------------------------------------------------------------------------------------------


def jobs(actor: Jobs) -> None:
    """Drain: jobs of every kind, their retries, and two occurrences."""
    actor.enqueue(0)
    actor.enqueue(0, 0, 0, 0, 0)
    actor.drain()
    actor.enqueue(3)
    actor.drain(seconds=RETRY_S)
    actor.cancel(actor.ids[-1])
    actor.drain(seconds=70)
    actor.drain(seconds=RETRY_S + EVERY_S)


def threads(actor: Jobs) -> None:
    """Fire with threads, then drain what is left."""
    actor.enqueue(0, 0, 0, 0, 0)
    actor.fire()
    actor.enqueue(1)
    actor.fire(seconds=RETRY_S + EVERY_S)
    actor.drain(seconds=RETRY_S)


SCHEDULER_SCENARIOS = {
    s.name: s
    for s in (
        Scenario("jobs", jobs, dealt),
        Scenario("job-threads", threads, dealt),
    )
}
