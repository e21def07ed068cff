"""The actors of a world that write and read: producers, with one thread or two, and a reader that takes no lock."""

from __future__ import annotations

import errno

from filewheel.errors import Closed, DiskError, FilewheelError, NotFound, Poisoned, WheelFull
from filewheel.format.settings import Sync
from filewheel.message import MessageId
from filewheel.wheel import Wheel
from tests.model.oracle import Told
from tests.model.process import ProcessDisk
from tests.model.world import World, exact


class Producer:
    """Enqueues, cancels and reschedules at random until the history ends."""

    def __init__(self, world: World, disk: ProcessDisk) -> None:
        self.world = world
        self.oracle = world.oracle
        self.rng = world.rng
        self.disk = disk
        self.wheel: Wheel | None = None
        self.unflushed: list[Told] = []
        """What was enqueued through the present handle with another sync than "always"."""

    def run(self) -> None:
        """Be a producer."""
        while self.world.go_on():
            if self.wheel is None:
                self.wheel = self.world.open_wheel(self.disk)
            try:
                self.act(self.wheel)
            except (Poisoned, DiskError) as exc:
                self.trouble(exc)
        if self.rng.random() < 0.5 and not self.world.is_faulty and self.wheel is not None:
            self.close()
        else:
            self.disk.kill()

    def second_thread(self) -> None:
        """Enqueue through the handle that the first thread has open."""
        while self.world.go_on():
            self.disk.wait_hint(None, 0)
            if self.wheel is not None:
                try:
                    self.enqueue(self.wheel)
                except (Closed, Poisoned, DiskError):
                    continue

    def trouble(self, exc: FilewheelError) -> None:
        """Meet an error: there must be a reason for it. A poisoned handle is done with, any other goes on."""
        if not self.world.is_faulty:
            raise exc
        if isinstance(exc, WheelFull) and self.world.machine.budget_bytes is None:
            assert self.world.faults.get(errno.ENOSPC), exc
        if isinstance(exc, Poisoned):
            self.unflushed.clear()
            self.wheel = None

    def close(self) -> None:
        wheel, self.wheel = self.wheel, None
        assert wheel is not None
        unflushed, self.unflushed = self.unflushed, []
        wheel.close()  # what it could not flush is promised to nobody
        for told in unflushed:
            told.enqueued = True
        self.oracle.told += 1

    def act(self, wheel: Wheel) -> None:
        act = self.rng.random()
        if act < 0.55:
            self.enqueue(wheel)
        elif act < 0.65:
            self.enqueue_many(wheel)
        elif act < 0.8:
            self.cancel(wheel)
        elif act < 0.9:
            self.reschedule(wheel)
        else:
            self.close()

    def draw_sync(self) -> Sync:
        how = self.rng.random()
        return "always" if how < 0.8 else "never" if how < 0.95 else 0.1

    def enqueue(self, wheel: Wheel) -> None:
        due_us = self.world.due()
        told = self.oracle.new(due_us)
        sync = self.draw_sync()
        before = list(self.unflushed)
        id_ = wheel.enqueue(told.payload, at=exact(due_us), sync=sync)
        self.enqueued(told, id_, sync, before)

    def enqueued(self, told: Told, id_: MessageId, sync: Sync, before: list[Told]) -> None:
        self.oracle.enqueued(told, id_, durable=sync == "always")
        self.world.ids.append(id_)
        if sync == "always":
            for earlier in before:  # one journal, one order: what came before is durable too
                earlier.enqueued = True
                if earlier in self.unflushed:
                    self.unflushed.remove(earlier)
        else:
            self.unflushed.append(told)

    def enqueue_many(self, wheel: Wheel) -> None:
        dues = [self.world.due() for _ in range(self.rng.randrange(1, 6))]
        tolds = [self.oracle.new(d) for d in dues]
        ids = wheel.enqueue_many([t.payload for t in tolds], at=[exact(d) for d in dues])
        for told, id_ in zip(tolds, ids, strict=True):
            self.enqueued(told, id_, "always", [])

    def pick(self) -> MessageId | None:
        return self.rng.choice(self.world.ids[-12:]) if self.world.ids else None

    def cancel(self, wheel: Wheel) -> None:
        id_ = self.pick()
        if id_ is None:
            return
        self.oracle.cancelling(id_)
        wheel.cancel(id_)
        self.oracle.is_cancelled(id_)

    def reschedule(self, wheel: Wheel) -> None:
        id_ = self.pick()
        if id_ is None:
            return
        due_us = self.world.due()
        self.oracle.moving(id_, due_us)
        try:
            new = wheel.reschedule(id_, at=exact(due_us))
        except NotFound:
            return
        self.oracle.is_moved(id_, new)
        self.world.ids.append(new)


def read(world: World, disk: ProcessDisk) -> None:
    """List the wheel without a lock while it turns: what was promised before and is not finished after is in it."""
    oracle = world.oracle
    while world.go_on():
        promised = [t for t in oracle.messages.values() if t.enqueued and not t.may_be_gone]
        with world.open_wheel(disk) as wheel:
            found = {m.payload for m in wheel.list()} | {m.payload for m in wheel.list(dead=True)}
        for told in promised:
            if told.payload not in found and not told.may_be_gone and not oracle.is_lossy:
                oracle.violations.append(f"a reader does not see {told.payload!r}")
        for payload in found - oracle.messages.keys():
            oracle.violations.append(f"a reader sees {payload!r}, which nobody enqueued")
