"""Those that fire in the campaign of cancels: a Scheduler, an AsyncScheduler, `due()`, or `filewheel run --jobs`.

Whatever a call has to wait for (threads, turns, rates, processes, a loop, commands) is short, so most of what is
cancelled waits in memory. Each call notes its begin first of all (called.py).
Invariant: where a handler can run once only, or in so many places at once, its line says so.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from cli.main import cli
from filewheel.aio.wheel import AsyncWheel
from filewheel.keeper import Keeper
from filewheel.message import US_PER_S
from filewheel.scheduling.aio import AsyncScheduler
from filewheel.scheduling.job import Job, current_job
from filewheel.scheduling.outcome import Retry
from filewheel.scheduling.scheduler import Scheduler
from filewheel.wheel import Wheel
from tests.crash import called
from tests.crash.actors import Actor
from tests.crash.called import FOLDER, OWNER, Calls, work
from tests.crash.cancellers import LATER_S, PROCESSES, TOPICS, serial_of

PULSE_S = 0.02
AGAIN = Retry(limit=50, delay_s=0.005, delay_max_s=0.02)


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

    def ends(self) -> None:
        """Note that from now on this is no keeper for certain."""
        self.marks.tell("ends", os.getpid())

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
        self.ends()
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
        self.ends()
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
            self.ends()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def consume(self, wheel: AsyncWheel, slot: str) -> None:
        limit = self.rng.choice([5, 100])
        while True:
            async for message in wheel.due(limit):
                serial = serial_of(message)
                with self.calls.noted({}, (str(message.id), serial), slot=f"{os.getpid()} {slot} may put back"):
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
