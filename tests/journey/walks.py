"""Three walks through the public API, cut into steps: a message's life, a backup that follows, a call of the scheduler.

Each walk is played twice in one process, and the second is counted: what is imported or compiled once is no step of a
message. Clock and random bytes are the same in each run, so the files have the same names.
Invariant: a walk calls the public API alone, so that it needs no change when the library becomes shorter.
"""

from __future__ import annotations

import gc
import logging
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filewheel import Keeper, Replicator, Retry, Scheduler, Wheel, add_backup
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.env import Env
from filewheel.testing import FakeClock
from tests.journey.trace import Call, Trace

LIFE = "a message's life"
"""The row that joins the steps of one message: how much a reader has to read."""


class Ordered(OsDisk):
    """The real disk, which lists a directory in the same order on each file system."""

    def listdir(self, name: str = ".") -> list[str]:
        return sorted(super().listdir(name))


class Walk:
    """One play of a walk: a directory, a machine, and the steps so far."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.clock = FakeClock()
        self.env: Env = SYSTEM.using(clock=self.clock, disk=Ordered, entropy=random.Random(1).randbytes)
        self.steps: dict[str, list[Call]] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Count what runs in this block."""
        with Trace() as trace:
            yield
        self.steps[name] = trace.calls


def life(walk: Walk) -> None:
    """Enqueue, cancel, deal, claim, acknowledge, expire and list a few messages."""
    path, env = walk.where / "life.wheel", walk.env
    with walk.step("create"):
        wheel = Wheel.create(path, env=env)
    for _ in range(2):
        wheel.enqueue(b"warm", delay=3600)
    with walk.step("enqueue"):
        wheel.enqueue(b"hello", delay=3600, topic="mail")
    wheel.enqueue(b"warm", delay=3600, key="warm")
    with walk.step("enqueue with a key"):
        wheel.enqueue(b"hello", delay=3600, key="k1")
    first, second = wheel.enqueue(b"z", delay=3600), wheel.enqueue(b"z", delay=3600)
    wheel.cancel(first)
    wheel.enqueue(b"warm", delay=3600, key="k2")
    wheel.cancel(key="k2")
    with walk.step("cancel by id"):
        wheel.cancel(second)
    with walk.step("cancel by key"):
        wheel.cancel(key="k1")
    for n in range(3):
        wheel.enqueue(b"near", delay=3 + n, topic="mail")
        wheel.enqueue(b"far", delay=5000 + n, topic="mail")
    with walk.step("open a keeper"):
        keeper = Keeper(path, background=False, env=env)
    keeper.claim()
    with walk.step("deal, at the close"):
        keeper.close()
    keeper = Keeper(path, background=False, env=env)
    walk.clock.advance(4.5)
    with walk.step("claim"):
        batch = keeper.claim()
    with walk.step("ack"):
        keeper.ack(batch)
    walk.clock.advance(10)
    keeper.ack(keeper.claim())
    with walk.step("deal with expiry, at the close"):
        keeper.close()
    with walk.step("list"):
        list(wheel.list())
    wheel.close()


def backup(walk: Walk) -> None:
    """Bring five messages over to a backup, and look once more."""
    primary, copy, env = walk.where / "primary.wheel", walk.where / "copy.wheel", walk.env
    with Wheel.create(primary, env=env) as wheel:
        for _ in range(5):
            wheel.enqueue(b"before", delay=3600)
    add_backup(primary, copy, env=env)
    with Replicator(copy, env=env) as replicator, Wheel(primary, env=env) as wheel:
        for _ in range(3):
            replicator.once()
        for _ in range(5):
            wheel.enqueue(b"after", delay=3600)
        with walk.step("backup: five messages come over"):
            replicator.once()
        with walk.step("backup: nothing is new"):
            replicator.once()


def scheduler(walk: Walk) -> None:
    """Call a handler that fails once, and whose result is kept."""
    calls = []
    scheduler = Scheduler(walk.where / "jobs.wheel", env=walk.env)

    @scheduler.on("job", retry=Retry(limit=3, delay_s=1), result_for=60)
    def job(x: int) -> int:
        calls.append(x)
        if len(calls) == 1:
            raise ValueError("once")
        return x

    with walk.step("scheduler: after()"):
        job.after(0, 1)
    with walk.step("scheduler: a call, its retry, its result"):
        scheduler.drain()
        walk.clock.advance(5)
        scheduler.drain()
    scheduler.stop()
    assert calls == [1, 1]


WALKS: dict[str, Callable[[Walk], None]] = {"life": life, "backup": backup, "scheduler": scheduler}


def played() -> dict[str, list[Call]]:
    """Play all walks; return the calls of each step, and of the steps of one message together."""
    steps: dict[str, list[Call]] = {}
    logging.getLogger("filewheel").setLevel(logging.CRITICAL + 1)  # a handler fails on purpose
    gc.disable()  # a collection would run the ends of objects in any step
    for name, play in WALKS.items():
        for _ in range(2):
            with tempfile.TemporaryDirectory(prefix="journey-") as where:
                walk = Walk(Path(where))
                play(walk)
        steps |= walk.steps
        if name == "life":
            steps[LIFE] = [call for calls in walk.steps.values() for call in calls]
    return steps
