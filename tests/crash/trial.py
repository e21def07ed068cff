"""The trial of a wheel on a disk that becomes full: what is refused, what still works, and how it goes on after.

One process holds a producer and a keeper; the clock stands still unless told otherwise, and housekeeping is done step
by step, so that a trial depends on its random numbers and the disk alone. What was promised is noted as marks, and
judged as those of other processes are.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from filewheel.errors import DiskError, FilewheelError, Poisoned, WheelFull
from filewheel.format.settings import Sync
from filewheel.keeper import Keeper
from filewheel.message import US_PER_S, Message, to_datetime
from filewheel.wheel import Wheel
from tests.crash.campaign import Tally
from tests.crash.kill import left_over, pending_of
from tests.crash.marks import Mark, body, serial_of
from tests.crash.verdict import Promises
from tests.support import FakeClock

SLOTS = 60
TRIES = 120


class Trial:
    """One wheel on one disk."""

    def __init__(self, path: Path, rng: random.Random, tally: Tally) -> None:
        self.path = path
        self.rng = rng
        self.tally = tally
        self.clock = FakeClock()
        self.promises = Promises()
        self.told: list[Mark] = []
        self.lives: dict[str, list[Mark]] = {"producer": self.told}
        self.ids: list[str] = []
        self.serial = 0
        self.now = 0

    def tell(self, kind: str, *what: Any, to: list[Mark] | None = None) -> None:
        """Note what was told; each mark is later than the one before."""
        self.now += 2
        (self.told if to is None else to).append([kind, self.now - 1, self.now, *what])

    def run(self, lefts: Sequence[int], fill: Callable[[int], None], make_room: Callable[[], None]) -> None:
        """Use a wheel; again and again let the disk become full but for `left` bytes, go on, and make room."""
        logging.disable(logging.CRITICAL)
        try:
            self.wheel = Wheel.create(self.path, slots=SLOTS, clock=self.clock)
            has_keeper = self.begin()
            for left in lefts:
                fill(left)
                self.use_it_up()
                if not has_keeper:
                    self.open_keeper()
                    has_keeper = True
                    self.tally.count("first keepers on a full disk")
                self.go_on_full()
                if self.rng.random() < 0.4:
                    self.reopen()
                    self.go_on_full()
                make_room()
                self.go_on()
                self.tally.count("times full")
            self.use_up_the_wheel()
        finally:
            logging.disable(logging.NOTSET)
        self.promises.take(self.lives)
        self.promises.check_drained(pending_of(self.path))
        for text in (*self.promises.violations, *left_over(self.path, SLOTS)):
            self.tally.violation(text)
        self.tally.count("refused", len(self.promises.refused))

    def begin(self) -> bool:
        """Put messages into journals and, mostly, into seconds; tell whether a keeper was opened."""
        for _ in range(6):
            self.enqueue_many(self.rng.randrange(1, 8), refusable=False)
        if self.rng.random() < 0.25:
            return False
        self.open_keeper()
        if self.rng.random() < 0.7:
            self.clock.advance(31)
            self.housekeep()
            self.enqueue_many(3, refusable=False)
        return True

    def open_keeper(self) -> None:
        self.keeper = Keeper(self.path, clock=self.clock, background=False)
        self.fires: list[Mark] = []
        self.lives[f"keeper {len(self.lives)}"] = self.fires
        self.housekeep()

    def use_it_up(self) -> None:
        """Enqueue until the disk is full, and a little more."""
        refusals = 0
        for _ in range(TRIES):
            refusals += not self.enqueue_many(self.rng.choice([1, 1, 1, 4]), refusable=True)
            if refusals > 2:
                return

    def go_on_full(self) -> None:
        """Claim and settle: a keeper has put something aside for that. What a producer cancels may be refused."""
        self.cancel_one()
        self.reschedule_one()
        for _ in range(4):
            self.clock.advance(self.rng.choice([0, 3, 11]))
            for message in self.claim():
                self.settle(message)
            self.housekeep()
        self.cancel_one()

    def reopen(self) -> None:
        """Close everything on the full disk, and open it again."""
        self.close(self.keeper, "the keeper")
        self.close(self.wheel, "the producer")
        self.wheel = Wheel(self.path, clock=self.clock)
        self.open_keeper()

    def go_on(self) -> None:
        """There is room again: the same handles go on."""
        if not self.enqueue_many(2, refusable=True) and not self.enqueue_many(2, refusable=True):
            self.promises.broken("there is room again, and an enqueue is refused")
        if self.rng.random() < 0.5:
            self.clock.advance(31)
        self.housekeep()  # makes a new ballast, if the last was given up

    def use_up_the_wheel(self) -> None:
        """Fire and acknowledge everything; then a last keeper covers what this one wrote."""
        self.close(self.keeper, "the keeper")
        self.close(self.wheel, "the producer")
        self.clock.advance(86_400)
        for _ in range(2):
            self.open_keeper()
            while messages := self.claim(500):
                self.ack(messages)
            self.close(self.keeper, "the last keeper")

    # -- the producer --------------------------------------------------------------------------------------

    def due_us(self) -> int:
        return self.clock.now_us() + round(
            self.rng.choice([-1, 5, 5, 30, 90, 400, 5000]) * self.rng.random() * US_PER_S
        )

    def enqueue_many(self, count: int, *, refusable: bool) -> bool:
        """Enqueue; tell whether that was done."""
        if self.rng.random() < 0.4:
            self.serial += 60 - self.serial % 61  # the next one is large
        new = [(self.serial + i + 1, self.due_us()) for i in range(count)]
        self.serial += count
        serials = [serial for serial, _ in new]
        sync: Sync = self.rng.choice(["always", "never"])
        self.tell("try-put", new)
        try:
            made = self.wheel.enqueue_many(
                [body(s) for s in serials], at=[to_datetime(due) for _, due in new], sync=sync
            )
        except WheelFull:
            self.tell("refused", serials)
            if not refusable:
                self.promises.broken("an enqueue was refused while there was room")
            return False
        except Poisoned:
            # The flush said that the disk is full: unknown, so nothing is promised; another handle goes on.
            self.tally.count("poisoned")
            self.close(self.wheel, "the producer")
            self.wheel = Wheel(self.path, clock=self.clock)
            return False
        ids = [i.hex() for i in made]
        self.tell("put", [list(pair) for pair in zip(serials, ids, strict=True)], sync)
        self.ids += ids
        return True

    def pick(self) -> str | None:
        """Take out an id: each is ended once, so that what a refusal takes back is known."""
        return self.ids.pop(self.rng.randrange(len(self.ids))) if self.ids else None

    def cancel_one(self) -> None:
        id_ = self.pick()
        if id_ is None:
            return
        self.tell("try-end", "cancel", [id_])
        try:
            self.wheel.cancel(bytes.fromhex(id_))
        except WheelFull:
            self.tell("refused-end", [id_])
            return
        except DiskError:  # it is done, and a keeper may not know it yet: nothing is promised
            return
        self.tell("end", "cancel", [id_], "always")

    def reschedule_one(self) -> None:
        id_ = self.pick()
        if id_ is None:
            return
        self.tell("try-end", "move", [id_])
        try:
            new = self.wheel.reschedule(bytes.fromhex(id_), delay=self.rng.randrange(600)).hex()
        except WheelFull:
            self.tell("refused-end", [id_])
            return
        except DiskError:  # it is done, under an id that nobody was told
            return
        self.tell("move", id_, new, "always")

    # -- the keeper ----------------------------------------------------------------------------------------

    def housekeep(self) -> None:
        """Do what the housekeeper's thread does at its next look."""
        house = self.keeper._housekeeper
        house._looked_us = house._retry_us = -(1 << 60)
        try:
            house.step()
        except (OSError, FilewheelError) as exc:
            self.promises.broken(f"housekeeping raised {exc!r}")

    def claim(self, limit: int = 6) -> list[Message]:
        messages = list(self.keeper.claim(limit))
        rows = [[m.id.hex(), m.root.hex() if m.root else None, serial_of(m.payload), m.due_us] for m in messages]
        if rows:
            self.tell("fire", self.clock.now_us(), rows, to=self.fires)
        self.ids = [i for i in self.ids if i not in {row[0] for row in rows}]
        return messages

    def settle(self, message: Message) -> None:
        """Acknowledge, put back or bury: none of them may be refused, however full the disk is."""
        act = self.rng.random()
        try:
            if act < 0.7:
                self.ack([message])
                return
            self.tell("try-end", "move", [message.id.hex()], to=self.fires)
            keeper = self.keeper
            new = keeper.nack(message, delay=5) if act < 0.9 else keeper.bury(message)
            self.tell("move", message.id.hex(), new.hex() if new else None, "never", to=self.fires)
        except FilewheelError as exc:
            self.promises.broken(f"settling a message on a full disk raised {exc!r}")

    def ack(self, messages: list[Message]) -> None:
        ids = [m.id.hex() for m in messages]
        sync: Sync = self.rng.choice(["always", "never"])
        self.tell("try-end", "ack", ids, to=self.fires)
        self.keeper.ack(messages, sync=sync)
        self.tell("end", "ack", ids, sync, to=self.fires)
        self.tally.count("acknowledged", len(ids))

    def close(self, what: Wheel | Keeper, name: str) -> None:
        try:
            what.close()
        except FilewheelError as exc:
            self.promises.broken(f"closing {name} raised {exc!r}")
