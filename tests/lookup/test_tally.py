"""Numbers that are asked for again and again: always what a snapshot counts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Keeper, Stats, Wheel
from filewheel.laps.deal import Deal
from filewheel.lookup.finder import Memory
from filewheel.lookup.stats import stats_of
from tests.support import FakeClock


@pytest.fixture
def wheel(wheel_dir: Path, clock: FakeClock) -> Iterator[Wheel]:
    with Wheel(wheel_dir, clock=clock) as opened:
        opened.stats()  # the first time nothing is remembered
        yield opened


def counted(wheel: Wheel) -> Stats:
    """Count everything."""
    with wheel.snapshot() as snapshot:
        return stats_of(wheel._dir, snapshot)


def remembered(wheel: Wheel) -> Stats:
    """Return what is remembered; it must be, here, and be what is counted."""
    stats = known(wheel)
    assert stats is not None
    assert stats == counted(wheel)
    return stats


def known(wheel: Wheel) -> Stats | None:
    """Return what is remembered, or None."""
    return wheel._finder._look(None, Memory.stats)


def deal(keeper: Keeper, *, spread: bool = True) -> None:
    Deal(keeper._store, spread=spread, finished=keeper._head.finished).run()


def journal_of(wheel: Wheel) -> Path:
    journal = wheel._writer()
    return Path(wheel.path) / "journal" / f"{journal.writer}-{journal.position.segment:06}.log"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_written_moved_rotated_dealt_and_fired_it_is_what_a_snapshot_counts(
    wheel: Wheel, wheel_dir: Path, clock: FakeClock, seed: int
) -> None:
    rng = random.Random(seed)
    ever: list[bytes] = [wheel.enqueue(b"x", delay=500)]
    found = 0
    with (
        Wheel(wheel_dir, clock=clock) as other,
        Keeper(wheel_dir, clock=clock, background=False) as keeper,
    ):
        for _ in range(120):
            act, some = rng.random(), rng.choice([wheel, other])
            if act < 0.3:
                ever.append(
                    some.enqueue(b"x", delay=rng.randrange(300), sync="never", key=rng.choice([None, str(act)]))
                )
            elif act < 0.4:
                ever += some.enqueue_many([b"x"] * 9, delay=[rng.randrange(300) for _ in range(9)], sync="never")
            elif act < 0.55:
                some.cancel_many(rng.sample(ever, min(3, len(ever))), sync="never")  # some of them once more
            elif act < 0.6:
                pending = [m.id for m in some.list(limit=20)]
                if pending:
                    ever.append(some.reschedule(rng.choice(pending), delay=rng.randrange(300), sync="never"))
            elif act < 0.75:
                for message in keeper.claim(4):
                    how = rng.randrange(3)
                    if how == 0:
                        keeper.ack(message)
                    elif how == 1:
                        keeper.nack(message, delay=rng.randrange(90))
                    else:
                        keeper.bury(message)
            elif act < 0.8:
                some._writer().rotate()
            elif act < 0.9:
                clock.advance(rng.randrange(90))
            else:
                deal(keeper, spread=rng.random() < 0.5)
            stats = known(wheel)
            found += stats is not None
            assert stats in (None, counted(wheel))
            assert wheel.stats() == counted(wheel)
    assert found > 100


def test_of_what_was_counted_nothing_is_read_again(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel.enqueue_many([b"x"] * 5000, delay=60)
    assert remembered(wheel).pending == 5000
    read: list[int] = []
    real = wheel._dir.disk.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        read.append(size)
        return real(fd, size, offset)

    monkeypatch.setattr(wheel._dir.disk, "pread", pread)
    assert wheel.stats().pending == 5000
    assert sum(read) < 1000
    wheel.enqueue(b"y", delay=60)
    assert wheel.stats().pending == 5001


def test_a_message_that_is_dropped_twice_is_taken_away_once(wheel: Wheel, wheel_dir: Path, clock: FakeClock) -> None:
    ids = wheel.enqueue_many([b"x"] * 3, delay=60)
    assert remembered(wheel).pending == 3
    with Wheel(wheel_dir, clock=clock) as other:
        for some in (wheel, other, wheel):
            some.cancel(ids[0])
            assert remembered(wheel).pending == 2
    Keeper(wheel_dir, clock=clock).close()
    wheel.cancel(ids[1])
    wheel.cancel(ids[0])
    assert remembered(wheel).pending == 1


def test_a_drop_that_is_read_before_its_message_takes_it_away(wheel: Wheel, wheel_dir: Path, clock: FakeClock) -> None:
    id_ = wheel.enqueue(b"x", delay=60)
    hidden = journal_of(wheel)
    with Wheel(wheel_dir, clock=clock) as other:
        other.cancel(id_)
        # As where the journal with the drop was read and the one with the put not yet.
        hidden.rename(wheel_dir / "aside")
        assert known(wheel) == counted(wheel)
        (wheel_dir / "aside").rename(hidden)
        stats = known(wheel)
        assert stats is not None
        assert stats.pending == counted(wheel).pending == 0


def test_messages_that_were_written_for_another_writer_are_counted_once(
    wheel: Wheel, tmp_path: Path, clock: FakeClock
) -> None:
    with Wheel.create(tmp_path / "other", clock=clock) as other:
        other.enqueue_many([b"x"] * 4, delay=60)
        messages = list(other.list())
    wheel.add(messages)
    wheel.add(messages[:2])
    assert remembered(wheel).pending == 4
    wheel.cancel(messages[0].id)
    wheel.add(messages[:2])
    assert remembered(wheel).pending == 3


@pytest.mark.damages
def test_a_journal_with_damage_is_counted_by_a_snapshot_until_it_is_dealt(
    wheel: Wheel, wheel_dir: Path, clock: FakeClock
) -> None:
    wheel.enqueue_many([b"x"] * 3, delay=60)
    assert remembered(wheel).pending == 3
    at = journal_of(wheel).stat().st_size if not wheel._writer().position.segment else wheel._writer().position.offset
    wheel.enqueue_many([b"y"] * 2, delay=60)
    with journal_of(wheel).open("r+b") as file:
        file.seek(at + 100)
        file.write(b"\xff\xff\xff")
    assert wheel.stats() == counted(wheel)
    wheel.enqueue(b"z", delay=60)
    assert known(wheel) is None
    assert wheel.stats() == counted(wheel)
    assert wheel.stats().damaged == 1
    Keeper(wheel_dir, clock=clock).close()
    assert remembered(wheel).pending == 4


@pytest.mark.damages
def test_a_file_that_goes_missing_is_noticed_and_so_is_its_return(
    wheel: Wheel, wheel_dir: Path, clock: FakeClock
) -> None:
    wheel.enqueue_many([b"x"] * 3, delay=1000)
    wheel.enqueue(b"x", delay=5000)
    Keeper(wheel_dir, clock=clock).close()
    assert remembered(wheel).pending == 4
    lap = sorted((wheel_dir / "laps").glob("*.lap"))[0]
    lap.rename(wheel_dir / "aside")
    assert wheel.stats() == counted(wheel)
    assert wheel.stats().damaged == 1
    (wheel_dir / "aside").rename(lap)
    assert remembered(wheel).pending == 4


@pytest.mark.damages
def test_a_journal_that_is_removed_is_not_counted_any_more(wheel: Wheel, wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as other:
        other.enqueue_many([b"x"] * 3, delay=60)
        wheel.enqueue(b"x", delay=60)
        assert remembered(wheel).pending == 4
        gone = journal_of(other)
    gone.unlink()
    assert wheel.stats() == counted(wheel)
    assert wheel.stats().pending == 1


def test_more_drops_than_are_remembered_are_counted_again(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filewheel.lookup.tally.DROPS_MAX", 5)
    ids = wheel.enqueue_many([b"x"] * 20, delay=60)
    wheel.cancel_many(ids[:5])
    assert remembered(wheel).pending == 15
    wheel.cancel_many(ids[5:8])
    assert remembered(wheel).pending == 12
    assert wheel._finder._memory._tally is None  # type: ignore[union-attr]
