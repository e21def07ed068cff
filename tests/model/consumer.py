"""The actor of a world that is its keeper, or waits to be."""

from __future__ import annotations

from filewheel.errors import FilewheelError
from filewheel.keeper import Keeper
from filewheel.laps.deal import Deal
from filewheel.message import US_PER_S, MessageId
from tests.model.process import ProcessDisk
from tests.model.world import World


class Consumer:
    """Claims, acknowledges, puts back, deals and expires, in any order, until the history ends."""

    def __init__(self, world: World, disk: ProcessDisk) -> None:
        self.world = world
        self.oracle = world.oracle
        self.rng = world.rng
        self.disk = disk
        self.claimed: list[MessageId] = []
        self.lets_wait = False
        """What it claims begins later."""

    def run(self) -> None:
        """Be the keeper; one that meets an I/O error ends, and the standby takes over."""
        try:
            self.keep()
        except (FilewheelError, OSError):
            if not self.world.is_faulty:
                raise
            self.disk.kill()

    def keep(self) -> None:
        keeper = self.world.open_keeper(self.disk)
        while self.world.go_on():
            act = self.rng.random()
            if act < 0.4:
                self.claim(keeper)
            elif act < 0.6 and self.claimed:
                self.finish_one(keeper, self.claimed.pop(self.rng.randrange(len(self.claimed))))
            elif act < 0.75:
                self.housekeep(keeper)
            elif act < 0.9:
                spread = self.rng.random() < 0.8
                Deal(keeper._store, spread=spread, finished=keeper._head.finished).run()
            else:
                self.world.move_clock()
        if self.rng.random() < 0.5:
            keeper.close()
            self.oracle.flushed()
        else:
            self.disk.kill()

    def claim(self, keeper: Keeper) -> None:
        cancelled = set(self.oracle.cancelled)
        held = self.oracle.held_since()
        batch = keeper.claim(self.rng.randrange(1, 6), begun=not self.lets_wait)
        self.oracle.handed_out(len(batch), held)
        now = self.world.clock.wall_us
        ids = [message.id for message in batch if self.oracle.fired(message, now, cancelled)]
        self.oracle.violations += [f"{i} was handed out while it was claimed" for i in ids if i in self.claimed]
        self.claimed += ids

    def begin(self, keeper: Keeper) -> None:
        """Begin some of what was claimed a while ago, and finish most of it."""
        some = self.claimed[: self.rng.randrange(1, 4)]
        cancelled = set(self.oracle.cancelled)
        held = self.oracle.held_since()
        stopped = keeper.begin(some)
        self.oracle.handed_out(len(some) - len(stopped), held)
        self.oracle.begun(self.disk, some, stopped, cancelled)
        self.claimed = self.claimed[len(some) :]
        for id_ in some:
            if id_ not in stopped and self.rng.random() < 0.8:
                self.finish_one(keeper, id_)

    def finish_one(self, keeper: Keeper, id_: MessageId) -> None:
        told = self.oracle.of(id_)
        how = self.rng.random()
        if how < 0.65:
            told.may_be_gone = True
            durable = self.rng.random() < 0.3
            keeper.ack(id_, sync="always" if durable else "never")
            told.acked.add(id_)
            if durable:
                self.oracle.finish(id_)
            else:
                self.oracle.unflushed.append(id_)
            return
        if how < 0.9:
            delay = self.rng.choice([0, 0, 1, 3, 70])
            told.dues.add(self.world.clock.wall_us + delay * US_PER_S)
            new = keeper.nack(id_, delay=delay)
        else:
            new = keeper.bury(id_)
        if id_ in keeper._settler.later:
            return  # it waits for a lock that a producer has, and is what it was
        told.acked.add(id_)
        if new is not None:  # else it was cancelled meanwhile, and its drop is the canceller's to flush
            self.oracle.wins(id_, "retry or burial")
            self.oracle.unflushed.append(id_)
            self.oracle.of_id[new] = told.payload

    def housekeep(self, keeper: Keeper) -> None:
        unflushed, self.oracle.unflushed = self.oracle.unflushed, []
        keeper._housekeeper._dirty = True
        keeper._housekeeper._looked_us = -(1 << 60)
        try:
            keeper._housekeeper.step()
        except BaseException:
            self.oracle.unflushed = unflushed + self.oracle.unflushed
            raise
        for id_ in unflushed:
            self.oracle.finish(id_)
