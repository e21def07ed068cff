"""Counting in wheels that may hold a message twice: what is told is how many messages there are."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.laps.deal import Deal
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import ID_MIN
from filewheel.replication.backup_keeper import BackupKeeper
from filewheel.replication.lap_copy import LapCopy
from filewheel.replication.promote import promote
from filewheel.replication.reconcile import GiveBack
from filewheel.roster.repeats import may_repeat
from filewheel.roster.roster import Mode
from tests.replication.support_sets import Place, place

__all__ = ["place"]


def counted(path: Path) -> list[int]:
    """Count in every way, once and again: by a snapshot, by what is remembered, by time, by topic."""
    with Wheel(path) as wheel:
        found = [wheel.stats().pending for _ in range(3)]
        by_time = wheel.histogram([0, 4_000_000_000])
        return [*found, by_time.before + sum(by_time.counts) + by_time.after, sum(wheel.topics().values())]


def deal(path: Path, place: Place) -> None:
    with Keeper(path, wait=False, background=False, clock=place.clock) as keeper:
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()


def records_in(path: Path) -> int:
    """Count the puts that stand in the files of laps, by their headers."""
    with Snapshot(open_directory(path, write=False)) as snapshot:
        spans = [s for s in snapshot._spans_for([bytes(m.id) for m in snapshot.messages()]) if "journal" not in s.name]
        return sum(frame.puts for span in spans for frame in snapshot.headers(span))


@pytest.mark.parametrize("mode", ["ship", "mirror"])
def test_what_a_heal_and_a_producer_both_brought_counts_once(place: Place, mode: Mode) -> None:
    place.make_set(place.b, mode=mode)
    place.enqueue(place.a, "one", "two", "three", delay=3000)
    place.level(place.a)
    (place.b / "follows.json").unlink()  # it heals once more
    place.enqueue(place.a, "four", delay=3000)
    place.level(place.a)
    assert len(place.waiting(place.b)) == 4
    assert counted(place.b) == [4] * 5
    assert counted(place.a) == [4] * 5


def test_a_mirror_that_is_added_to_a_wheel_in_use_counts_each_message_once(place: Place) -> None:
    place.make(place.a)
    with Wheel(place.a, clock=place.clock) as wheel:
        wheel.enqueue(b"before", delay=3000)
        place.make_set(place.b, mode="mirror")
        for _ in range(3):
            wheel.enqueue(b"after", delay=3000)
        place.level(place.a)
        deal(place.a, place)
        place.level(place.a)
        assert counted(place.b) == [4] * 5
    place.level(place.a)
    assert counted(place.b) == [4] * 5


def test_a_primary_that_no_promotion_concerns_is_counted_by_headers(place: Place) -> None:
    place.make_set(place.b)
    assert not may_repeat(open_directory(place.a, write=False))
    assert may_repeat(open_directory(place.b, write=False))


def test_what_a_wheel_deals_again_without_a_checkpoint_counts_once(place: Place) -> None:
    place.make(place.a)
    with Wheel(place.a, clock=place.clock) as wheel:
        ids = [wheel.enqueue(b"x", delay=3000 + n % 2) for n in range(6)]
        deal(place.a, place)
        for name in ("checkpoint", "checkpoint.old"):
            (place.a / name).write_bytes(b"?" * 200)
        deal(place.a, place)
        assert records_in(place.a) == 2 * len(ids)
        assert counted(place.a) == [6] * 5
    assert may_repeat(open_directory(place.a, write=False))


def test_a_primary_that_was_given_back_what_it_could_not_read_counts_each_message_once(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "one", "two", delay=3000)
    deal(place.a, place)
    primary = open_directory(place.a, write=True, env=SYSTEM.using(clock=place.clock))
    with Snapshot(primary) as snapshot:
        puts = list(snapshot.puts())
    back = GiveBack(primary)
    back.write([(puts, [])])
    assert counted(place.a) == [2] * 5
    back.close()
    deal(place.a, place)
    assert records_in(place.a) == 4
    assert counted(place.a) == [2] * 5
    primary.disk.release()


def test_a_fenced_primary_that_rejoins_counts_what_its_journal_and_a_heal_brought_once(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "one", "two", "three", delay=3000)
    place.level(place.a)
    promote(place.b, env=SYSTEM.using(clock=place.clock), wait_s=0)
    with contextlib.closing(BackupKeeper(str(place.a), env=SYSTEM.using(clock=place.clock))) as keeper:
        graft = LapCopy(open_directory(place.b, write=False), keeper)
        graft.begin()
        plan = graft.plan(ID_MIN)
        assert graft.copy(plan.copy, ID_MIN, plan.hi).copied == 3
        assert counted(place.a) == [3] * 5  # nothing of its journal is dealt
    assert counted(place.a) == [3] * 5


def test_what_two_journals_bring_to_one_deal_is_written_once(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "one", "two", delay=3000)
    primary = open_directory(place.a, write=True, env=SYSTEM.using(clock=place.clock))
    with Snapshot(primary) as snapshot:
        puts = list(snapshot.puts())
    back = GiveBack(primary)
    back.write([(puts, [])])
    back.close()
    deal(place.a, place)
    assert records_in(place.a) == 2
    assert counted(place.a) == [2] * 5
    primary.disk.release()
