"""The processes of the campaign of cancels: those that enqueue and change their minds, and those that fire.

A round fires in one of four ways: a Scheduler, an AsyncScheduler, `due()`, or `filewheel run --jobs`. Whatever a call
has to wait for (threads, turns, rates, processes, a loop) is short, so most of what is cancelled waits in memory.
Invariant: a call that ends a message is marked before it is tried, and when it has returned, with what it said.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from cli.main import cli
from filewheel.aio import AsyncWheel
from filewheel.errors import KeyHeld, NotFound
from filewheel.headers import ARGS
from filewheel.keeper import Keeper
from filewheel.message import US_PER_S, Message
from filewheel.scheduling.aio import AsyncScheduler
from filewheel.scheduling.call import MSGPACK, pack_call, unpack_call
from filewheel.scheduling.job import Job, current_job
from filewheel.scheduling.retry import Retry
from filewheel.scheduling.scheduler import Scheduler
from filewheel.wheel import Wheel
from tests.crash import called
from tests.crash.actors import Actor
from tests.crash.called import FOLDER, OWNER, Calls, work

KEYS = 6
LATER_S = 3600
PULSE_S = 0.02
PROCESSES = 2
NO_MORE = 20
"""So often a producer forks at most, and its children not at all."""
AGAIN = Retry(limit=50, delay_s=0.005, delay_max_s=0.02)
TOPICS = ("threads", "limited", "rated", "processes", "many", "loop", "rated-loop")


def serial_of(message: Message) -> int:
    """Return the serial of a message, whether it is a call or not."""
    how = message.headers.get(ARGS)
    return int(message.payload) if how is None else int(unpack_call(message.payload, how)[0][0])


# -- those that change their minds ---------------------------------------------------------------------------------


class Plain(Actor):
    """Enqueues messages, and cancels, moves and replaces its own and those of others."""

    is_call = False
    forks = 0

    def run(self) -> None:
        self.ids: list[tuple[str, int]] = []
        self.wheel = Wheel(self.path, sync="never")
        while self.lasts():
            self.act()
            time.sleep(self.rng.random() * 0.008)
        self.wheel.close()

    def act(self) -> None:
        acts = [self.enqueue, self.enqueue, self.cancel, self.cancel_many, self.cancel_key, self.reschedule]
        acts += [self.reschedule_key, self.replace, self.update]
        if self.rng.random() < 0.01 and self.forks < NO_MORE:
            self.fork()
        else:
            self.rng.choice(acts)()

    def fork(self) -> None:
        """Have a child go on with a handle of its own for a while."""
        self.forks += 1
        if os.fork():
            return
        try:
            self.serial += self.forks * 4000  # no serial comes twice
            self.forks = NO_MORE
            self.until = min(self.until, time.monotonic() + 0.2)
            self.run()
        finally:
            os._exit(0)

    def an_id(self) -> tuple[str, int] | None:
        """Draw a message: one of its own, or one that waits, whoever enqueued it."""
        if self.rng.random() < 0.25:
            found = list(self.wheel.list(limit=30))
            if found:
                message = self.rng.choice(found)
                return str(message.id), serial_of(message)
        return self.rng.choice(self.ids[-60:]) if self.ids else None

    def a_key(self, *, ends: bool = True) -> str:
        """Draw a key; what has one of the last is moved at most."""
        return f"k{self.rng.randrange(KEYS - 2 if ends else KEYS)}"

    def delay(self) -> float:
        return self.rng.choice([0, 0, 0, 0.05, 0.3, LATER_S])

    def put(self, key: str | None, on_conflict: str) -> None:
        """Enqueue one message; a key that is held is no error."""
        self.serial += 1
        serial, given = self.serial, {"delay": self.delay()}
        if key is not None:
            given |= {"key": key, "on_conflict": on_conflict}
        self.marks.tell("try-put", serial, key)
        since = time.monotonic_ns()
        with contextlib.suppress(KeyHeld):
            id_ = str(self.wheel.enqueue(self.payload(serial), **self.topic(), **given))
            self.marks.tell("put", serial, id_, key, on_conflict, since=since)
            self.ids.append((id_, serial))

    def payload(self, serial: int) -> bytes:
        return pack_call([serial, PROCESSES], {}) if self.is_call else b"%d" % serial

    def topic(self) -> dict[str, Any]:
        return {"topic": self.rng.choice(TOPICS), "headers": {ARGS: MSGPACK}} if self.is_call else {}

    def enqueue(self) -> None:
        for _ in range(self.rng.choice([1, 3, 8])):
            self.put(self.a_key(ends=False) if self.rng.random() < 0.3 else None, "reject")

    def replace(self) -> None:
        key = self.a_key()
        self.marks.tell("try-end-key", key)
        self.put(key, "replace")

    def update(self) -> None:
        self.serial += 1
        key = self.a_key()
        self.marks.tell("try-end-key", key)
        self.marks.tell("try-put", self.serial, key)
        since = time.monotonic_ns()
        with contextlib.suppress(NotFound):
            id_ = str(self.wheel.update(key=key, payload=self.payload(self.serial), delay=self.delay()))
            self.marks.tell("put", self.serial, id_, key, "replace", since=since)
            self.ids.append((id_, self.serial))

    def cancel(self) -> None:
        drawn = self.an_id()
        if drawn is not None:
            self.marks.tell("try-cancel", [drawn])
            since = time.monotonic_ns()
            done = self.wheel.cancel(drawn[0])
            self.marks.tell("cancel", [drawn], [drawn[0]] if done else [], since=since)

    def cancel_many(self) -> None:
        some = {d[0]: d for d in (self.an_id() for _ in range(6)) if d is not None}
        self.marks.tell("try-cancel", list(some.values()))
        since = time.monotonic_ns()
        done = self.wheel.cancel_many(some)
        self.marks.tell("cancel", list(some.values()), [str(i) for i in done], since=since)

    def cancel_key(self) -> None:
        key = self.a_key()
        self.marks.tell("try-end-key", key)
        since = time.monotonic_ns()
        self.wheel.cancel(key=key)
        self.marks.tell("cancel-key", key, since=since)

    def reschedule(self) -> None:
        drawn = self.an_id()
        if drawn is not None:
            since = time.monotonic_ns()
            with contextlib.suppress(NotFound, KeyHeld):
                new = str(self.wheel.reschedule(drawn[0], delay=self.delay()))
                self.marks.tell("move", drawn[0], new, drawn[1], since=since)
                self.ids.append((new, drawn[1]))

    def reschedule_key(self) -> None:
        key = self.a_key(ends=False)
        since = time.monotonic_ns()
        with contextlib.suppress(NotFound):
            self.wheel.reschedule(key=key, delay=self.delay())
            self.marks.tell("move-key", key, since=since)


class OfCalls(Plain):
    """The same with calls of handlers."""

    is_call = True


# -- those that fire -----------------------------------------------------------------------------------------------


class Fires(Actor):
    """Fires, or stands by; a pulse says how far this process has come."""

    def run(self) -> None:
        os.environ |= {FOLDER: str(self.folder), OWNER: str(os.getpid())}
        self.calls = Calls(str(self.folder), os.getpid())
        self.marks.tell("start", os.getpid())
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # processes of a pool complain when this one is killed
        threading.Thread(target=self.pulse, daemon=True).start()
        self.fire()

    @property
    def folder(self) -> Path:
        return self.path.parent / "marks"

    def pulse(self) -> None:
        """Note that time passes here, and leave a child of a fork now and then, that lives on for a while."""
        while True:
            time.sleep(PULSE_S)
            self.marks.tell("pulse", os.getpid())
            if self.rng.random() < 0.005 and not os.fork():
                time.sleep(0.3)
                os._exit(0)

    def fire(self) -> None:
        raise NotImplementedError


class FiresCalls(Fires):
    """A Scheduler."""

    def fire(self) -> None:
        scheduler = Scheduler(self.path, **self.sizes(), processes=PROCESSES)
        self.define(scheduler)
        scheduler.start()
        while self.lasts():
            time.sleep(0.01)
        scheduler.stop(0.2)

    def sizes(self) -> dict[str, Any]:
        self.threads = self.rng.choice([1, 2, 3])
        return {"threads": self.threads, "in_flight": self.rng.choice([10, 60, 400]), "sync": "never"}

    def define(self, scheduler: Any) -> None:
        """Register a handler of each kind."""
        threads, calls, rng = {"threads": self.threads}, self.calls, self.rng
        limit, rate = rng.choice([1, 2]), rng.choice([5, 20, 60])

        def plain(rooms: dict[str, int]) -> Any:
            def call(serial: int, _: int) -> None:
                with calls.noted(rooms, (str(current_job().id), serial)):
                    if work(serial):
                        raise ValueError("try again")

            return call

        async def in_loop(serial: int, _: int) -> None:
            with calls.noted({"loop": limit}, (str(current_job().id), serial), slot=""):
                await asyncio.sleep(serial % 7 * 0.008)

        def many(jobs: list[Job]) -> None:
            with calls.noted(threads, *[(str(job.id), job.args[0]) for job in jobs]):
                work(jobs[0].args[0])

        scheduler.on("threads", retry=AGAIN)(plain(threads))
        scheduler.on("limited", retry=AGAIN, concurrency=limit)(plain({**threads, "limited": limit}))
        scheduler.on("rated", retry=AGAIN, rate_per_s=rate)(plain(threads))
        scheduler.on("processes", retry=AGAIN, where="process")(called.in_process)
        scheduler.on("many", retry=AGAIN, batch=rng.choice([2, 7]))(many)
        scheduler.on("loop", retry=AGAIN, concurrency=limit)(in_loop)

        async def rated_in_loop(serial: int, _: int) -> None:
            with calls.noted({}, (str(current_job().id), serial), slot=""):
                await asyncio.sleep(0)

        scheduler.on("rated-loop", retry=AGAIN, rate_per_s=rate)(rated_in_loop)


class FiresCallsInLoop(FiresCalls):
    """An AsyncScheduler."""

    def fire(self) -> None:
        asyncio.run(self.main())

    async def main(self) -> None:
        scheduler = AsyncScheduler(self.path, **self.sizes(), processes=PROCESSES)
        self.define(scheduler)
        await scheduler.start()
        while self.lasts():
            await asyncio.sleep(0.01)
        await scheduler.stop(0.2)


class FiresDue(Fires):
    """Tasks that iterate over `due()`."""

    def fire(self) -> None:
        asyncio.run(self.main())

    async def main(self) -> None:
        async with AsyncWheel(self.path) as wheel:
            tasks = [asyncio.create_task(self.consume(wheel, f"task {n}")) for n in range(self.rng.choice([1, 3]))]
            while self.lasts():
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def consume(self, wheel: AsyncWheel, slot: str) -> None:
        limit = self.rng.choice([5, 100])
        while True:
            async for message in wheel.due(limit):
                serial = serial_of(message)
                with self.calls.noted({}, (str(message.id), serial), slot=f"{os.getpid()} {slot}"):
                    await asyncio.sleep(serial % 7 * 0.003)
                    if self.rng.random() < 0.03:
                        break  # it is put back


class FiresCommands(Fires):
    """`filewheel run --jobs N -- COMMAND`."""

    def fire(self) -> None:
        jobs = str(self.rng.choice([1, 2, 4]))
        command = [sys.executable, "-I", "-S", called.__file__, str(self.folder), str(os.getpid()), jobs]
        options = ["--jobs", jobs, "--retries", "50", "--backoff", "0.01s..0.05s"]
        os.dup2(2, 1)
        cli.main(["-C", str(self.path), "run", *options, "--", *command], standalone_mode=False)


class EndsCalls(FiresCalls):
    """Fires until nothing is due any more, with nothing to wait for."""

    def fire(self) -> None:
        scheduler = Scheduler(self.path, threads=3, sync="never")

        def call(serial: int, _: int) -> None:
            with self.calls.noted({}, (str(current_job().id), serial)):
                pass

        for topic in TOPICS:
            scheduler.on(topic)(call)
        with scheduler, Wheel(self.path) as wheel:
            while any(m.due_us < time.time_ns() // 1000 + LATER_S // 2 * US_PER_S for m in wheel.list()):
                time.sleep(0.02)


class Ends(Fires):
    """The same with a Keeper."""

    def fire(self) -> None:
        with Keeper(self.path) as keeper, Wheel(self.path) as wheel:
            while any(m.due_us < time.time_ns() // 1000 + LATER_S // 2 * US_PER_S for m in wheel.list()):
                for message in keeper.claim(100):
                    if not keeper.begin(message):
                        with self.calls.noted({}, (str(message.id), serial_of(message))):
                            keeper.ack(message)
                keeper.wait(0.02)
