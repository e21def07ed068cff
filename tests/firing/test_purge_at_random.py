"""`purge` after random acts of producers and keepers: each payload is in the files if it waits, and else in none."""

from __future__ import annotations

import contextlib
import os
import random
import re
from pathlib import Path

import pytest

from filewheel import Keeper, MessageId, NotFound, Wheel
from filewheel.laps import deal
from tests.conftest import assert_whole
from tests.support import FakeClock


class Acts:
    """A wheel, two producers, a keeper now and then, and what they do by chance."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.rng, self.clock = path, random.Random(seed), FakeClock()
        Wheel.create(path, slots=60, clock=self.clock).close()
        if seed % 4 == 0:
            (path / "repeats").touch()
        self.wheel, self.other = (Wheel(path, sync="never", clock=self.clock) for _ in range(2))
        self.keeper: Keeper | None = None
        self.ids: list[MessageId] = []
        self.made = 0

    def payload(self) -> bytes:
        self.made += 1
        return b"payload-%d-" % self.made + b"x" * self.rng.choice([0, 5, 400])

    def enqueue(self) -> None:
        far = self.rng.choice([0, 30, 300, 5000, 10**6])
        some = [self.payload() for _ in range(self.rng.randrange(1, 30))]
        delays = [far + self.rng.random() * self.rng.choice([1, 60, 1000]) for _ in some]
        self.ids += self.rng.choice([self.wheel, self.other]).enqueue_many(some, delay=delays)

    def enqueue_keyed(self) -> None:
        key = f"key {self.rng.randrange(5)}"
        self.ids.append(self.wheel.enqueue(self.payload(), delay=9000, key=key, on_conflict="replace"))

    def cancel(self) -> None:
        some = self.rng.sample(self.ids, min(len(self.ids), self.rng.randrange(1, 20)))
        self.rng.choice([self.wheel, self.other]).cancel_many(some)

    def reschedule(self) -> None:
        with contextlib.suppress(NotFound):
            if self.ids:
                self.ids.append(self.wheel.reschedule(self.rng.choice(self.ids), delay=self.rng.choice([0, 60, 10**5])))

    def fire(self) -> None:
        if self.keeper is None:
            self.keeper = Keeper(self.path, background=False, clock=self.clock)
        for message in self.keeper.claim(self.rng.randrange(1, 20)):
            act = self.rng.choice(["ack", "ack", "nack", "bury", "nothing"])
            if act == "ack":
                self.keeper.ack(message)
            elif act == "nack":
                self.keeper.nack(message, delay=self.rng.choice([0, 5, 7000]))
            elif act == "bury":
                self.keeper.bury(message, reason="by chance")

    def deal(self) -> None:
        if self.keeper is not None:
            finished = self.keeper._head.finished
            deal.Deal(self.keeper._store, spread=self.rng.random() < 0.5, finished=finished).run()

    def deal_cut_off(self) -> None:
        """Have a keeper that dies in its deal, before the commit or after it."""
        self.stop()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                name = self.rng.choice(["prepare_checkpoint", "place_checkpoint"])
                setattr(deal, name, lambda *_: os._exit(0))
                Keeper(self.path, background=False, clock=self.clock).close()
            os._exit(0)
        os.waitpid(child, 0)

    def stop(self) -> None:
        if self.keeper is not None:
            self.keeper.close()
            self.keeper = None

    def wait(self) -> None:
        self.clock.advance(self.rng.choice([0.5, 20, 70, 4000]))

    def drop_dead(self) -> None:
        self.wheel.cancel_many([m.id for m in self.wheel.dead(limit=3)])

    def waiting(self) -> set[bytes]:
        return {m.payload for m in [*self.wheel.list(), *self.wheel.dead()]}

    def found(self) -> set[bytes]:
        files = [p for p in self.path.rglob("*") if p.is_file()]
        return {found for p in files for found in re.findall(rb"payload-\d+-x*", p.read_bytes())}


@pytest.mark.parametrize("seed", range(10))
def test_after_a_purge_the_files_have_what_waits_and_nothing_else(tmp_path: Path, seed: int) -> None:
    acts = Acts(tmp_path / "jobs.wheel", seed)
    some = [acts.enqueue, acts.enqueue, acts.enqueue_keyed, acts.cancel, acts.cancel, acts.reschedule, acts.fire]
    some += [acts.fire, acts.deal, acts.stop, acts.wait, acts.drop_dead, acts.deal_cut_off]
    for _ in range(60):
        acts.rng.choice(some)()
    acts.stop()
    acts.other.close()
    before = acts.waiting()
    assert acts.wheel.purge()
    assert acts.found() == acts.waiting() == before
    acts.wheel.close()
    assert_whole(acts.path)
