"""Campaign: clocks that step, stop, leap and sleep, while messages are enqueued, fired, dealt and finished.

A round is one life of a wheel on a modelled machine whose wall clock is set by anybody: seconds and decades forward and
back, over the ends of 32-bit counts, into the year 9999, in jitter, through suspends that the steady clock counts or
does not. What has to hold is read off the clock at the moment of the claim, and off what callers were told.
Invariant: nothing is early by the clock of that moment, nothing is lost, and nothing fires twice in one keeper's life.
"""

from __future__ import annotations

import logging
import random
from typing import Any

from filewheel.disk.disk import SYSTEM
from filewheel.errors import BadArgument
from filewheel.keeper import Keeper
from filewheel.laps.deal import Deal
from filewheel.message import DUE_END_US, US_PER_S, MessageId, to_datetime
from filewheel.wheel import Wheel
from tests.crash.campaign import Campaign, Tally
from tests.model.machine import Machine
from tests.model.process import ProcessDisk
from tests.model.tiny import SLOTS
from tests.model.world import START_US, ModelClock, make_wheel

YEAR_S = 31_556_952
STARTS_US = [START_US, START_US, 86_400 * US_PER_S, (2**31 - 40) * US_PER_S, (2**32 - 40) * US_PER_S]
STEPS_S = [1, 1, 7, SLOTS, SLOTS, 3599, 3601, 86_400, 30 * 86_400, YEAR_S, 10 * YEAR_S]
LEAPS_US = [2**31 * US_PER_S, 2**32 * US_PER_S, DUE_END_US - 100 * US_PER_S, 253_370_764_800 * US_PER_S]
"""2038, 2106, the last minutes and the first of the year 9999."""
FIRST_US, LAST_US = 3600 * US_PER_S, DUE_END_US - 2 * US_PER_S


class Life:
    """One life of a wheel under a clock that nobody keeps."""

    def __init__(self, number: int, tally: Tally) -> None:
        self.rng = random.Random(f"clock {number}")
        self.tally = tally
        self.clock = ModelClock(self.rng.choice(STARTS_US))
        self.machine = Machine()
        self.on_jump = self.rng.choice(["fire", "fire", "hold"])
        self.counts_sleep = self.rng.random() < 0.5
        self.due: dict[bytes, int] = {}
        """payload → due, of what is pending."""
        self.claimed: dict[bytes, MessageId] = {}
        """payload → id, of what the present keeper has handed out."""
        self.serial = 0
        make_wheel(self.machine, self.clock, self.rng.randbytes)
        self.wheel = self._wheel()
        self.keeper, self.disk = self._keeper()

    def _wheel(self) -> Wheel:
        disk = ProcessDisk(self.machine)
        return Wheel(
            "model.wheel", clock=self.clock, env=SYSTEM.using(disk=lambda path: disk, entropy=self.rng.randbytes)
        )

    def _keeper(self) -> tuple[Keeper, ProcessDisk]:
        disk = ProcessDisk(self.machine)
        keeper = Keeper(
            "model.wheel",
            clock=self.clock,
            env=SYSTEM.using(disk=lambda path: disk, entropy=self.rng.randbytes),
            background=False,
            on_jump=self.on_jump,
        )
        self.claimed.clear()
        return keeper, disk

    # -- what happens ----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Let one thing happen."""
        act = self.rng.random()
        if act < 0.3:
            self.enqueue()
        elif act < 0.5:
            self.claim()
        elif act < 0.62:
            self.finish()
        elif act < 0.7:
            self.deal()
        elif act < 0.75:
            self.restart()
        else:
            self.move()

    def enqueue(self) -> None:
        now = self.clock.wall_us
        ahead_s = self.rng.choice([-YEAR_S, -SLOTS, -1, 0, 0, 1, 2, 5, SLOTS, 4 * SLOTS, 86_400, YEAR_S, 40 * YEAR_S])
        due = min(max(now + ahead_s * US_PER_S + self.rng.randrange(US_PER_S), 0), DUE_END_US - 1)
        self.serial += 1
        payload = b"%d" % self.serial
        self.wheel.enqueue(payload, at=to_datetime(due))
        self.due[payload] = due
        self.tally.count("messages")

    def claim(self, limit: int = 1000) -> int:
        batch = self.keeper.claim(limit)
        now = self.clock.wall_us
        for message in batch:
            due = self.due.get(message.payload)
            if due is None:
                self.tally.violation(f"{message!r} fired, and was finished or never enqueued")
            elif message.payload in self.claimed:
                self.tally.violation(f"{message!r} fired twice in one keeper's life")
            elif due > now or message.due_us != due:
                self.tally.violation(f"{message!r} is due at {due}, and fired at {now}")
            self.claimed[message.payload] = message.id
        if self.on_jump == "fire" and len(batch) < limit:
            late = [p for p, due in self.due.items() if due <= now and p not in self.claimed]
            self.tally.check(not late, f"{late} are due at {now}, and were not handed out")
        return len(batch)

    def finish(self) -> None:
        for payload, id_ in list(self.claimed.items()):
            act = self.rng.random()
            if act < 0.5:
                self.keeper.ack(id_)
                del self.due[payload], self.claimed[payload]
            elif act < 0.6:
                delay_s = self.rng.choice([0, 1, SLOTS, YEAR_S])
                try:
                    new = self.keeper.nack(id_, delay=delay_s)
                except BadArgument:  # in the last year of all
                    continue
                assert new is not None
                self.due[payload] = new.due_us
                # While a jump is held, a delay counts by the time that really passes: the keeper fires by it.
                now = self.clock.wall_us if self.on_jump == "fire" else self.keeper.now_us()
                self.tally.check(now <= self.clock.wall_us, "the keeper fires by a time ahead of the clock")
                self.tally.check(new.due_us == now + delay_s * US_PER_S, "put back to another time")
                del self.claimed[payload]
            elif act < 0.64:
                self.keeper.bury(id_)
                del self.due[payload], self.claimed[payload]

    def deal(self) -> None:
        how = self.rng.random()
        if how < 0.5:
            self.keeper._housekeeper._looked_us = -(1 << 60)
            self.keeper._housekeeper._dirty = True
            self.keeper._housekeeper.step()
        else:
            Deal(self.keeper._store, spread=how < 0.8, finished=self.keeper._head.finished).run()

    def restart(self) -> None:
        how = self.rng.random()
        if how < 0.4:
            self.keeper.close()
        else:
            self.disk.kill()
        self.keeper, self.disk = self._keeper()
        if how < 0.2:
            self.wheel.close()
            self.wheel = self._wheel()

    def move(self) -> None:
        """Move the clock; count it."""
        how = self.rng.random()
        if how < 0.3:
            self.advance(self.rng.choice([1, 1, 2, 5, 30, SLOTS, 3 * SLOTS]))
            return
        self.tally.count("clock steps")
        if how < 0.7:
            self.set(self.clock.wall_us + self.rng.choice([-1, 1]) * self.rng.choice(STEPS_S) * US_PER_S)
        elif how < 0.8:
            for _ in range(20):
                self.set(self.clock.wall_us + self.rng.randrange(-50_000, 60_000))
                self.claim(2)
        elif how < 0.85:
            self.set(self.rng.choice(LEAPS_US) + self.rng.randrange(-3, 3) * US_PER_S)
        elif how < 0.95:
            slept = self.rng.choice([10, 7200, 86_400])
            self.set(self.clock.wall_us + slept * US_PER_S)
            self.clock.run_us += slept * US_PER_S * self.counts_sleep
        else:  # frozen: it stands, whatever happens
            for _ in range(5):
                self.enqueue()
                self.claim()

    def advance(self, seconds: int) -> None:
        self.set(self.clock.wall_us + seconds * US_PER_S)
        self.clock.run_us += seconds * US_PER_S

    def set(self, us: int) -> None:
        self.clock.wall_us = min(max(us, FIRST_US), LAST_US)

    # -- the end ---------------------------------------------------------------------------------------------

    def end(self) -> None:
        """When everything is due, everything fires once, and then nothing is left."""
        self.set(max([self.clock.wall_us, *self.due.values()]) + US_PER_S)
        late = {p for p, due in self.due.items() if due > self.clock.wall_us}  # in the last second of all
        self.keeper.close()
        self.keeper, self.disk = self._keeper()
        while self.claim(self.rng.randrange(1, 50)):
            pass
        lost = self.due.keys() - self.claimed.keys() - late
        self.tally.check(not lost, f"{sorted(lost)} are lost")
        self.keeper.ack(list(self.claimed.values()))
        for payload in self.claimed:
            self.due.pop(payload, None)
        self.keeper.close()
        self.keeper, self.disk = self._keeper()
        self.claim()
        kept = self.machine.root.entries["quarantine"]
        self.tally.check(not kept.entries, "false damage")  # type: ignore[union-attr]


def play(number: int, tally: Tally, rig: Any) -> None:
    """Play one life."""
    logging.disable(logging.CRITICAL)
    try:
        life = Life(number, tally)
        for _ in range(life.rng.randrange(40, 160)):
            life.step()
            if tally.violations:
                return
        life.end()
    finally:
        logging.disable(logging.NOTSET)


CAMPAIGN = Campaign(
    name="clock",
    title="clocks that step, stop, leap and sleep",
    play=play,
    share=0.01,
    targets={"clock steps": 100_000},
)
