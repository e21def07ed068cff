"""Whole sets at random: producers, a keeper, links, promotions, returns and losses, one thing at a time by a seed.

The oracle: what was enqueued and shipped before the wheel that took it was lost, or was in a wheel that was never lost,
fires at least once or waits; at each moment one wheel may fire; in the end all wheels are equal.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from filewheel import Wheel
from filewheel.disk.disk import SYSTEM
from filewheel.roster import fence
from filewheel.roster.roster import Mode
from filewheel.sets.members import add_backup, remove_backup
from filewheel.sets.promote import promote
from filewheel.sets.rejoin import rejoin
from tests.sets.support_sets import Place, place
from tests.support import seeds

__all__ = ["place"]

STEPS = 14


class World:
    """A set, and what was promised of its messages."""

    def __init__(self, place: Place, seed: int, mode: Mode = "ship") -> None:
        self.place = place
        self.mode: Mode = mode
        self.rng = random.Random(seed)
        self.primary = place.a
        self.backups = [place.b, place.c]
        self.fenced: list[Path] = []
        self.must: set[str] = set()
        """What has to fire, or wait."""
        self.at_risk: set[str] = set()
        """What only the present primary has."""
        self.away: dict[Path, set[str]] = {}
        """For each wheel that was fenced, what only it has."""
        self.fired: Counter[str] = Counter()
        self.count = 0
        place.make_set(*self.backups, mode=mode)

    def enqueue(self) -> None:
        names = [f"m{self.count + n}" for n in range(self.rng.randrange(1, 5))]
        self.count += len(names)
        self.place.enqueue(self.primary, *names, delay=self.rng.choice([0, 0, 3000]))
        self.at_risk.update(names)

    def fire(self) -> None:
        found = self.place.fire(self.primary)
        self.fired.update(found)
        self.at_risk -= set(found)

    def level(self) -> None:
        assert [r.error for r in self.place.level(self.primary)] == [""] * len(self.backups)
        if self.backups:
            self.must |= self.at_risk
            self.at_risk = set()

    def promote(self) -> None:
        if self.backups:
            self.level()  # a backup that is joining may not be promoted
            self.enqueue()
            seen = self.rng.random() < 0.5
            self._put_in_its_place(seen=seen)

    def _put_in_its_place(self, *, seen: bool) -> None:
        old, new = self.primary, self.rng.choice(self.backups)
        if not seen:
            old.rename(old.with_name("away"))
        done = promote(new, env=SYSTEM.using(clock=self.place.clock), wait_s=0)
        assert done.caught_up == seen
        if not seen:
            old.with_name("away").rename(old)
        if seen:
            self.must |= self.at_risk
        else:
            self.away[old] = self.at_risk
        self.at_risk = set()
        self.fenced.append(old)
        self.backups.remove(new)
        self.primary = new

    def come_back(self) -> None:
        if self.fenced:
            old = self.fenced.pop(self.rng.randrange(len(self.fenced)))
            rejoin(old, env=SYSTEM.using(clock=self.place.clock))
            self.at_risk |= self.away.pop(old, set())
            self.backups.append(old)

    def lose(self) -> None:
        """Lose the primary for good; an empty directory takes its place as a backup."""
        if self.backups:
            self.level()
            old = self.primary
            self.enqueue()
            self.at_risk = set()
            shutil.rmtree(old)
            self.primary = self.rng.choice(self.backups)
            promote(self.primary, env=SYSTEM.using(clock=self.place.clock), wait_s=0)
            self.backups.remove(self.primary)
            remove_backup(self.primary, str(old), env=SYSTEM.using(clock=self.place.clock))
            add_backup(self.primary, old, mode=self.mode, env=SYSTEM.using(clock=self.place.clock))
            self.backups.append(old)

    def end(self) -> None:
        while self.fenced:
            self.come_back()
        self.level()
        self.fire()
        self.level()
        waits = set(self.place.payloads(self.primary))
        assert self.must <= set(self.fired) | waits
        for path in self.backups:
            assert self.place.waiting(path) == self.place.waiting(self.primary), path
        assert self.place.may_fire() == [self.primary]


def assert_counted(path: Path) -> None:
    """Assert that each way to count a wheel counts what a walk over it shows, when asked once and again."""
    with Wheel(path) as wheel:
        here = {bytes(m.id) for m in wheel.list()}
        dead = {bytes(m.id) for m in wheel.list(dead=True)}
        for _ in range(3):  # the first time a snapshot counts, then what is remembered
            stats = wheel.stats()
            assert (stats.pending, stats.dead) == (len(here), len(dead)), path
        found = wheel.histogram([0, 4_000_000_000])
        assert found.before + sum(found.counts) + found.after == len(here), path
        assert sum(wheel.topics().values()) == len(here), path


@pytest.mark.parametrize(
    ("mode", "seed"),
    [*(("ship", n) for n in (*seeds(5, all_of=12), 117)), *(("mirror", n) for n in seeds(4, all_of=10))],
)
def test_whatever_happens_to_a_set_what_was_promised_fires_and_each_wheel_counts_what_it_lists(
    place: Place, seed: int, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "_FENCE_S", 0.0)
    world = World(place, seed, mode)
    acts = [world.enqueue, world.enqueue, world.fire, world.level, world.promote, world.come_back, world.lose]
    for _ in range(STEPS):
        world.rng.choice(acts)()
        assert place.may_fire() == [world.primary]
        for path in place.wheels():
            assert_counted(path)
    world.end()
    for path in place.wheels():
        assert_counted(path)
