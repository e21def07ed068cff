"""What real processes do to a wheel: produce, keep, look; each tells by its marks what the wheel promised it.

They run until they are killed, or close after a while of their own accord. Times are real ones; laps, segments, deals
and budgets are made so small that a wheel of a few seconds meets all their edges.
Invariant: whatever may end a message is marked before it is tried, and again when it has returned.
"""

from __future__ import annotations

import abc
import contextlib
import queue
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filewheel.disk.directory
import filewheel.firing.housekeeper
import filewheel.format.settings
import filewheel.laps.tidy
import filewheel.wheel
from filewheel.disk.directory import open_directory
from filewheel.env import SystemClock
from filewheel.errors import NotFound
from filewheel.format.settings import Sync
from filewheel.journal.journal import Journal
from filewheel.keeper import Keeper
from filewheel.laps.deal import Deal
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S, Message, to_datetime
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.crash.marks import Marks, body, serial_of

LAP_S = 2
DRAIN_AHEAD_S = 86_400


class AheadClock(SystemClock):
    """The machine's clock, with the wall set ahead: so that a wheel can be drained without waiting."""

    def now_us(self) -> int:
        return super().now_us() + DRAIN_AHEAD_S * US_PER_S


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Make laps, segments, fills and chunks small, and deals frequent, in this process and those that it forks."""
    patches: list[tuple[Any, str, Any]] = []

    def patch(target: Any, name: str, value: Any) -> None:
        patches.append((target, name, getattr(target, name)))
        setattr(target, name, value)

    def defaults(function: Any, **values: Any) -> None:
        patch(function, "__kwdefaults__", {**function.__kwdefaults__, **values})

    defaults(Journal.__init__, segment_bytes=6000, fill_bytes=2000)
    defaults(Deal.__init__, chunk_records=80)
    for module in (filewheel.format.settings, filewheel.disk.directory, filewheel.wheel):
        patch(module, "check_limits", lambda slots, payload_bytes_max: None)
    patch(filewheel.laps.tidy, "TIDY_SEGMENTS", 8)
    house = filewheel.firing.housekeeper
    for name, value in (
        ("DEAL_BYTES", 20_000),
        ("DEAL_PUTS", 100),
        ("DEAL_SEGMENTS", 6),
        ("DEAL_FINISHED", 3),
        ("LITTLE_BYTES", 2_000),
        ("LITTLE_FILES", 3),
    ):
        patch(house, name, value)
    patch(house, "DEAL_AGE_US", 300_000)
    patch(house, "LOOK_US", 40_000)
    try:
        yield
    finally:
        for target, name, value in reversed(patches):
            setattr(target, name, value)


@dataclass
class Actor(abc.ABC):
    """One process: what it is given."""

    path: Path
    marks: Marks
    rng: random.Random
    serial: int
    """Its payloads have serials from this one on."""
    until: float
    """When it closes of its own accord, by the monotonic clock."""
    sync: Sync | None = None
    """How it enqueues; None for a mixture."""

    def drawn_sync(self) -> Sync:
        return self.sync or self.rng.choice(["always", "never", "never", 0.02])

    def lasts(self) -> bool:
        return time.monotonic() < self.until

    @abc.abstractmethod
    def run(self) -> None:
        """Do what this role does, until the time is up."""


# -- producers -----------------------------------------------------------------------------------------------------


class Producer(Actor):
    """Enqueues, cancels and reschedules."""

    def run(self) -> None:
        self.ids: list[str] = []
        rng = self.rng
        wheel = Wheel(self.path)
        while self.lasts():
            act = rng.random()
            if act < 0.5:
                self.enqueue(wheel)
            elif act < 0.65:
                self.enqueue_many(wheel)
            elif act < 0.79:
                self.cancel(wheel)
            elif act < 0.91:
                self.reschedule(wheel)
            elif act < 0.95:
                time.sleep(rng.random() * 0.02)
            else:
                self.close(wheel, "flush" if rng.random() < 0.3 else "close")
                if wheel._closed:
                    wheel = Wheel(self.path)
            time.sleep(rng.random() * 0.006)
        self.close(wheel, "close")

    def due_us(self) -> int:
        """Draw a due: mostly soon, some past, some in later laps, some that only the drain will see."""
        now = time.time_ns() // 1000
        kind = self.rng.random()
        if kind < 0.2:
            return now - self.rng.randrange(US_PER_S)
        if kind < 0.7:
            return now + self.rng.randrange(US_PER_S)
        if kind < 0.9:
            return now + self.rng.randrange(6 * US_PER_S)
        return now + self.rng.randrange(3600 * US_PER_S)

    def new(self) -> tuple[int, int]:
        self.serial += 1
        return self.serial, self.due_us()

    def enqueue(self, wheel: Wheel) -> None:
        serial, due_us = self.new()
        sync = self.drawn_sync()
        self.marks.tell("try-put", [[serial, due_us]])
        since = time.monotonic_ns()
        id_ = wheel.enqueue(body(serial), at=to_datetime(due_us), sync=sync)
        self.marks.tell("put", [[serial, id_.hex()]], sync, since=since)
        self.ids.append(id_.hex())

    def enqueue_many(self, wheel: Wheel) -> None:
        new = [self.new() for _ in range(self.rng.randrange(1, 20))]
        sync = self.drawn_sync()
        self.marks.tell("try-put", new)
        since = time.monotonic_ns()
        made = wheel.enqueue_many([body(s) for s, _ in new], at=[to_datetime(d) for _, d in new], sync=sync)
        ids = [i.hex() for i in made]
        self.marks.tell("put", [[s, i] for (s, _), i in zip(new, ids, strict=True)], sync, since=since)
        self.ids += ids

    def pick(self) -> str | None:
        return self.rng.choice(self.ids[-40:]) if self.ids else None

    def cancel(self, wheel: Wheel) -> None:
        id_ = self.pick()
        if id_ is None:
            return
        sync = self.drawn_sync()
        self.marks.tell("try-end", "cancel", [id_])
        since = time.monotonic_ns()
        wheel.cancel(bytes.fromhex(id_), sync=sync)
        self.marks.tell("end", "cancel", [id_], sync, since=since)

    def reschedule(self, wheel: Wheel) -> None:
        id_ = self.pick()
        if id_ is None:
            return
        sync = self.drawn_sync()
        due_us = self.due_us()
        self.marks.tell("try-end", "move", [id_])
        since = time.monotonic_ns()
        try:
            new = wheel.reschedule(bytes.fromhex(id_), at=to_datetime(due_us), sync=sync).hex()
        except NotFound:
            return
        self.marks.tell("move", id_, new, sync, since=since)
        self.ids.append(new)

    def close(self, wheel: Wheel, how: str) -> None:
        since = time.monotonic_ns()
        getattr(wheel, how)()
        self.marks.tell("durable", since=since)


# -- keepers -------------------------------------------------------------------------------------------------------


class KeeperActor(Actor):
    """Waits to be the keeper, then fires; two consumers settle what it hands out."""

    drains = False

    def run(self) -> None:
        keeper = Keeper(
            self.path,
            budget=Budget(records=self.rng.choice([60, 500]), bytes=1 << 20),
            clock=AheadClock() if self.drains else SystemClock(),
        )
        self.marks.tell("own")
        work: queue.SimpleQueue[list[Message] | None] = queue.SimpleQueue()
        seeds = [self.rng.random() for _ in range(2)]
        consumers = [threading.Thread(target=self.consume, args=(keeper, work, s)) for s in seeds]
        for thread in consumers:
            thread.start()
        while self.lasts():
            messages = self.claim(keeper, 50)
            if messages:
                work.put(messages)
            else:
                keeper.wait(0.02)
        for _ in consumers:
            work.put(None)
        for thread in consumers:
            thread.join()
        self.close(keeper)

    def claim(self, keeper: Keeper, limit: int) -> list[Message]:
        since = time.monotonic_ns()
        batch = keeper.claim(limit)
        now_us = (AheadClock() if self.drains else SystemClock()).now_us()
        messages = list(batch)
        if messages:
            rows = [[m.id.hex(), m.root.hex() if m.root else None, serial_of(m.payload), m.due_us] for m in messages]
            self.marks.tell("fire", now_us, rows, since=since)
        return messages

    def consume(self, keeper: Keeper, work: queue.SimpleQueue[list[Message] | None], seed: float) -> None:
        try:
            rng = random.Random(seed)
            while (messages := work.get()) is not None:
                self.settle_batch(keeper, messages, rng)
        except BaseException as exc:
            self.marks.tell("error", repr(exc))
            raise

    def settle_batch(self, keeper: Keeper, messages: list[Message], rng: random.Random) -> None:
        """Acknowledge most together, some alone; put some back; leave a few as they are."""
        time.sleep(rng.random() * 0.02)
        together = [m for m in messages if rng.random() < 0.7]
        apart = [m for m in messages if m not in together]
        self.ack(keeper, together, rng)
        for message in apart:
            act = rng.random()
            if act < 0.4:
                self.ack(keeper, [message], rng)
            elif act < 0.85:
                self.move(keeper, message, rng, dead=act > 0.78)

    def ack(self, keeper: Keeper, messages: list[Message], rng: random.Random) -> None:
        if not messages:
            return
        sync = rng.choice(["always", "never", "never"])
        ids = [m.id.hex() for m in messages]
        self.marks.tell("try-end", "ack", ids)
        since = time.monotonic_ns()
        keeper.ack(messages, sync=sync)
        self.marks.tell("end", "ack", ids, sync, since=since)

    def move(self, keeper: Keeper, message: Message, rng: random.Random, *, dead: bool) -> None:
        sync = rng.choice(["always", "never", "never"])
        self.marks.tell("try-end", "move", [message.id.hex()])
        since = time.monotonic_ns()
        if dead:
            new = keeper.bury(message, reason="drawn", sync=sync)
        else:
            new = keeper.nack(message, delay=rng.choice([0, 0.05, 0.4, 3, 100]), sync=sync)
        if message.id in keeper._settler.later:
            return  # it waits for a lock that a producer has, and is what it was: nothing is promised so far
        self.marks.tell("move", message.id.hex(), new.hex() if new else None, sync, since=since)

    def close(self, keeper: Keeper) -> None:
        since = time.monotonic_ns()
        self.marks.tell("disown")
        keeper.close()
        self.marks.tell("durable", since=since)


class Drain(KeeperActor):
    """The last keeper: fires and acknowledges everything there is, whenever it is due."""

    drains = True

    def run(self) -> None:
        keeper = Keeper(self.path, clock=AheadClock())
        self.marks.tell("own")
        while messages := self.claim(keeper, 500):
            self.ack(keeper, messages, self.rng)
        self.close(keeper)


class Looker(Actor):
    """Looks all the time, without a lock: whatever happens beside it, nothing looks damaged."""

    def run(self) -> None:
        while self.lasts():
            with Wheel(self.path) as wheel:
                for message in wheel.list():
                    if serial_of(message.payload) < 0:
                        self.marks.tell("error", f"a reader saw {message.payload[:40]!r}")
            directory = open_directory(self.path, write=False)
            damage = verify(directory).damage
            directory.disk.release()
            if damage:
                self.marks.tell("error", f"verify beside running processes finds {damage[0]}")
            time.sleep(0.05)
