"""Counting in wheels that may hold a message twice: what is told is how many messages there are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.journal.journal import Journal
from filewheel.laps.deal import Deal
from filewheel.lookup.snapshot import Snapshot
from filewheel.roster.repeats import may_repeat, note_repeats
from tests.sets.support_sets import Place, place

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
        return sum(frame.puts for span in spans for frame in snapshot.frames(span, headers=True))


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


def write_again(place: Place, *, first: Callable[[], object] = lambda: None) -> None:
    """Write what is pending once more, as a race of two that give a primary something back would."""
    place.enqueue(place.a, "one", "two", delay=3000)
    primary = open_directory(place.a, write=True, env=SYSTEM.using(clock=place.clock))
    with Snapshot(primary) as snapshot:
        puts = list(snapshot.puts())
    first()
    note_repeats(primary.disk)
    with contextlib.closing(Journal(primary)) as journal:
        journal.append(puts, len(puts))
    primary.disk.release()


def test_a_message_in_a_journal_that_a_file_has_already_counts_once(place: Place) -> None:
    place.make(place.a)
    write_again(place, first=lambda: deal(place.a, place))
    assert counted(place.a) == [2] * 5
    deal(place.a, place)
    assert records_in(place.a) == 4
    assert counted(place.a) == [2] * 5


def test_what_two_journals_bring_to_one_deal_is_written_once(place: Place) -> None:
    place.make(place.a)
    write_again(place)
    deal(place.a, place)
    assert records_in(place.a) == 2
    assert counted(place.a) == [2] * 5
