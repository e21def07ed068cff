"""The follower: whatever writers do while it reads, no drop comes before its put, and everything comes once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, ID, RESCHEDULED, pack_drop, records_of
from filewheel.journal.journal import Journal
from filewheel.message import US_PER_S, MessageId
from filewheel.replication.follower import Follower
from filewheel.replication.shipping import still_pending
from tests.support import FakeClock
from tests.support_set import make_set
from tests.support_wheel import a_put

DUE_US = 1_800_009_000 * US_PER_S


class Busy(OsDisk):
    """A disk on which others go on writing between two calls of its reader."""

    act: Callable[[], None] | None = None

    def _others(self) -> None:
        if self.act is not None:
            act, self.act = self.act, None  # what they do reads, too
            act()
            self.act = act

    def listdir(self, name: str) -> list[str]:
        self._others()
        return super().listdir(name)

    def open(self, name: str, mode: str) -> int:
        self._others()
        return super().open(name, mode)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._others()
        return super().pread(fd, size, offset)

    def is_free(self, fd: int) -> bool:
        self._others()
        return super().is_free(fd)


class Primary:
    """A primary with writers that a test drives, and what they have written: every put, drop and move."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.entropy = random.Random(-seed).randbytes
        self.path = path / "primary.wheel"
        make_set(self.path, path / "backup.wheel")
        self.dir = open_directory(self.path, write=True)
        self.writers: list[Journal] = []
        self.clock = FakeClock()
        self.live: list[MessageId] = []
        self.puts: set[bytes] = set()
        self.drops: set[bytes] = set()
        self.moves: dict[bytes, bytes] = {}
        self.keeper = Keeper(self.path, wait=False, background=False, clock=self.clock)

    def writer(self, rng: random.Random) -> Journal:
        if len(self.writers) < 3 or rng.random() < 0.05:
            self.writers.append(self.open_writer())
        return rng.choice(self.writers)

    def open_writer(self) -> Journal:
        return Journal(replace(self.dir, env=SYSTEM.using(entropy=self.entropy)), segment_bytes=2000, fill_bytes=0)

    def put(self, journal: Journal) -> MessageId:
        id_ = journal.new_id(DUE_US)
        journal.write([a_put(id_)], 1)
        self.puts.add(id_)
        self.live.append(id_)
        return id_

    def cancel(self, journal: Journal, id_: MessageId) -> None:
        self.live.remove(id_)
        journal.write([pack_drop(id_, CANCELLED)], 0)
        self.drops.add(id_)

    def move(self, journal: Journal, id_: MessageId) -> MessageId:
        self.live.remove(id_)
        new = journal.new_id(DUE_US)
        journal.write([pack_drop(id_, RESCHEDULED), a_put(new)], 1)
        self.drops.add(id_)
        self.puts.add(new)
        self.live.append(new)
        self.moves[id_] = new
        return new

    def act(self, rng: random.Random) -> None:
        """Do something at random: the last message is the likely one to be cancelled or moved, by another writer."""
        what = rng.random()
        target = self.live[-1] if self.live and rng.random() < 0.7 else rng.choice(self.live) if self.live else None
        if target is None or what < 0.35:
            self.put(self.writer(rng))
        elif what < 0.6:
            self.cancel(self.writer(rng), target)
        elif what < 0.85:
            self.move(self.writer(rng), target)
        elif what < 0.88 and self.writers:
            self.writers.pop(rng.randrange(len(self.writers))).close()
        elif what < 0.9 and self.writers:
            self.tear(self.writers.pop(rng.randrange(len(self.writers))))
        elif what < 0.93:
            self.deal()

    def tear(self, journal: Journal) -> None:
        """End a writer in the middle of a frame."""
        writer = journal.appender.lender.writer
        segment = writer.segment
        if segment is not None:
            os.pwrite(segment.fd, b"\xf5FW1" + b"torn" * 20, segment.offset)
            segment.offset += 8  # so that it does not count as empty
            os.close(segment.fd)
            writer.segment = None

    def deal(self) -> None:
        """Have the keeper deal: what is covered goes to retained/."""
        self.clock.advance(0.3)
        self.keeper._store.ingest(test_locks=True)
        self.keeper._housekeeper.deal_all()

    def close(self) -> None:
        for journal in self.writers:
            journal.close()
        self.writers = []
        self.keeper.close()


class Copy:
    """What was given out, checked with each frame."""

    def __init__(self, primary: Primary) -> None:
        self.primary = primary
        self.puts: list[bytes] = []
        self.drops: list[bytes] = []

    def take(self, frame: Frame) -> None:
        puts, drops = ([bytes(r[ID]) for r in found] for found in records_of(frame))
        self.puts += puts
        for drop in drops:
            assert drop in self.puts, "a drop came before its put"
            if drop in self.primary.moves:
                assert self.primary.moves[drop] in puts, "a move was taken apart"
        self.drops += drops


def follow(follower: Follower, copy: Copy, us: int) -> None:
    for frame in follower.step(us):
        copy.take(frame)


@pytest.mark.parametrize("seed", range(15))
def test_whatever_is_written_while_it_reads_everything_comes_once_and_no_drop_before_its_put(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    primary = Primary(tmp_path, seed)
    disk = Busy(str(primary.path))
    follower = Follower(Directory(str(primary.path), disk, primary.dir.settings))
    copy = Copy(primary)
    disk.act = lambda: primary.act(rng) if rng.random() < 0.2 else None
    for turn in range(120):
        follow(follower, copy, turn * rng.choice([1000, 150_000, 300_000]))
        for _ in range(rng.randrange(4)):
            primary.act(rng)
    disk.act = None
    for turn in range(4):
        follow(follower, copy, (1000 + turn) * US_PER_S)
    primary.close()
    assert len(copy.drops) > 50, "the test shows little"
    assert sorted(copy.puts) == sorted(primary.puts)
    assert sorted(copy.drops) == sorted(primary.drops)
    assert follower.is_idle
    assert not follower.vanished
    follower.close()


@pytest.mark.parametrize("seed", range(10))
def test_from_the_positions_at_any_point_nothing_is_missing_and_nothing_that_was_dropped_comes_back(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    primary = Primary(tmp_path, seed)
    disk = Busy(str(primary.path))
    directory = Directory(str(primary.path), disk, primary.dir.settings)
    pending: set[bytes] = set()
    follower = Follower(directory)
    noted = follower.positions()
    replays = us = 0
    disk.act = lambda: primary.act(rng) if rng.random() < 0.2 else None
    for _ in range(60):
        us += rng.choice([1000, 300_000])
        step = follower.step(us)
        killed = rng.random() < 0.2
        for frame in still_pending(directory, step) if replays else step:
            puts, drops = records_of(frame)
            pending |= {bytes(p[ID]) for p in puts}
            # What a backup has dealt it has forgotten: a put that comes after its drop stays.
            pending -= {bytes(d[ID]) for d in drops}
            if killed and rng.random() < 0.3:
                break
        replays = max(0, replays - 1)
        if killed:
            follower.close()
            follower = Follower(directory, noted)
            replays = 2
        elif rng.random() < 0.4:
            noted = follower.positions()
        for _ in range(rng.randrange(4)):
            primary.act(rng)
    disk.act = None
    for turn in range(4):
        step = follower.step(us + (1 + turn) * US_PER_S)
        for frame in still_pending(directory, step) if turn < replays else step:
            puts, drops = records_of(frame)
            pending |= {bytes(p[ID]) for p in puts}
            pending -= {bytes(d[ID]) for d in drops}
    follower.close()
    primary.close()
    assert pending == set(primary.live)


def test_a_message_that_was_moved_from_writer_to_writer_within_a_pass_comes_in_the_order_of_its_moves(
    tmp_path: Path,
) -> None:
    primary = Primary(tmp_path)
    writers = sorted((primary.open_writer() for _ in range(8)), key=lambda j: j.writer)
    primary.writers = writers
    follower = Follower(open_directory(primary.path, write=False))
    copy = Copy(primary)
    id_ = primary.put(writers[-1])
    for n in range(1, 50):
        id_ = primary.move(writers[-1 - n % 8], id_)
    primary.cancel(writers[0], id_)
    follow(follower, copy, 0)
    assert copy.drops == []
    follow(follower, copy, 1)
    assert len(copy.drops) == 50
    follower.close()
    primary.close()


def test_what_was_put_and_dropped_while_it_was_skipped_is_not_given_out_without_its_drop(tmp_path: Path) -> None:
    primary = Primary(tmp_path)
    one, other = sorted((primary.open_writer() for _ in range(2)), key=lambda j: j.writer)
    primary.writers = [one, other]
    kept = primary.put(one)
    primary.put(other)
    disk = Busy(str(primary.path))
    follower = Follower(Directory(str(primary.path), disk, primary.dir.settings))
    first = next(iter(follower._handles._disk.listdir("journal")))
    earlier, later = (one, other) if first.startswith(one.writer) else (other, one)
    original = follower._poll
    done: list[MessageId] = []

    def poll(tail, listing, test_locks):  # type: ignore[no-untyped-def]
        yield from original(tail, listing, test_locks)
        if tail.writer == earlier.writer and not done:
            done.append(primary.put(earlier))
            primary.cancel(later, done[0])

    follower._poll = poll  # type: ignore[method-assign]
    follower.skip()
    pending: set[bytes] = set()
    for turn in range(3):
        for frame in follower.step(turn):
            puts, drops = records_of(frame)
            pending |= {bytes(p[ID]) for p in puts}
            pending -= {bytes(d[ID]) for d in drops}
    assert done, "the test shows nothing"
    assert kept not in pending
    assert done[0] not in pending
    follower.close()
    primary.close()


def test_of_what_it_has_given_out_it_keeps_nothing(tmp_path: Path) -> None:
    primary = Primary(tmp_path)
    with Wheel(primary.path, sync="never") as wheel:
        follower = Follower(open_directory(primary.path, write=False))
        for turn in range(20):
            ids = wheel.enqueue_many([b"x"] * 5000, delay=5000)
            wheel.cancel_many(ids[:2500])
            for _ in follower.step(turn):
                pass
            assert len(follower._held) <= 20
    for turn in range(3):
        for _ in follower.step(US_PER_S + turn):
            pass
    assert not follower._held
    assert not follower._tails
    primary.deal()
    primary.deal()
    for name in os.listdir(primary.path / "retained"):
        os.unlink(primary.path / "retained" / name)
    for _ in follower.step(9 * US_PER_S):
        pass
    assert not follower._ended
    assert not follower._segment_losses._read
    assert not follower.vanished
    follower.close()
    primary.close()


@pytest.mark.parametrize("when", ["before it is covered", "after it was covered", "long after"])
def test_a_journal_that_goes_is_told_unless_the_checkpoint_covered_it(tmp_path: Path, when: str) -> None:
    primary = Primary(tmp_path)
    journal = primary.open_writer()
    primary.put(journal)
    follower = Follower(open_directory(primary.path, write=False))
    for _ in follower.step(0):
        pass
    name = f"{journal.writer}-000001.log"
    journal.close()
    if when != "before it is covered":
        primary.deal()
        for _ in range(3 if when == "long after" else 0):
            # The checkpoint has forgotten the writer (K4), and is no newer when the backups have read the segment.
            other = primary.open_writer()
            primary.put(other)
            other.close()
            primary.deal()
            for _ in follower.step(0):
                pass
        os.unlink(primary.path / "retained" / name)
        assert not follower.has_lost()
    else:
        os.unlink(primary.path / "journal" / name)
        assert follower.has_lost()
    for _ in follower.step(1):
        pass
    assert follower.vanished == ({journal.writer} if when == "before it is covered" else set())
    follower.close()
    primary.close()
