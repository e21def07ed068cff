"""A primary's journals read from outside, while its keeper deals, keeps what is covered, and writers come and go."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.disk.quarantine import Damage
from filewheel.format.record import DROP_PREFIX, ID, records_of, unpack_put
from filewheel.journal.tail import Tail
from filewheel.laps.deal import Deal
from filewheel.replication.primary_journals import SegmentHandles, list_all_segments
from filewheel.roster.retention import Retention
from filewheel.roster.roster import Member, Roster, change_roster
from tests.support import FakeClock


class Interrupted(OsDisk):
    """A real disk that lets others do something before each of its calls."""

    def __init__(self, path: str, between: Callable[[], None]) -> None:
        super().__init__(path)
        self._between = between

    def open(self, name: str, mode: str) -> int:
        self._between()
        return super().open(name, mode)

    def listdir(self, name: str) -> list[str]:
        self._between()
        return super().listdir(name)

    def is_free(self, fd: int) -> bool:
        self._between()
        return super().is_free(fd)

    def size(self, fd: int) -> int:
        self._between()
        return super().size(fd)


class Primary:
    """A primary at work: what its producers and its keeper do at random, and what of it must be read."""

    def __init__(self, path: Path, seed: int, retain_bytes: int = 1 << 30) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.clock = FakeClock()
        member = Member(f"{path}.backup", "b" * 32)
        roster = Roster("5" * 32, 1, "primary", os.fspath(path), "a" * 32, (member,), retain_bytes=retain_bytes)
        change_roster(open_directory(path, write=True), lambda _: roster)
        self.keeper = self._open()
        self.wheels = [Wheel(path, clock=self.clock)]
        self.puts: list[bytes] = []
        self.drops: list[bytes] = []
        self.ids: list[bytes] = []

    def _open(self) -> Keeper:
        return Keeper(self.path, background=False, clock=self.clock)

    def act(self) -> None:
        """Do something."""
        self.rng.choices(
            [self.enqueue, self.cancel, self.fire, self.rotate, self.end, self.begin, self.deal, self.restart],
            [8, 2, 2, 3, 1, 1, 5, 0.3],
        )[0]()

    def enqueue(self) -> None:
        if self.wheels:
            payload = b"%d" % len(self.puts)
            delay = self.rng.choice([0, 30, 7200])
            self.ids.append(self.rng.choice(self.wheels).enqueue(payload, delay=delay, sync="never"))
            self.puts.append(payload)

    def cancel(self) -> None:
        if self.wheels and self.ids:
            id_ = self.ids.pop(self.rng.randrange(len(self.ids)))
            self.rng.choice(self.wheels).cancel(id_)  # written also when it has fired already
            self.drops.append(bytes(id_))

    def fire(self) -> None:
        batch = self.keeper.claim(3)
        self.drops += [bytes(i) for i in batch.ids]
        self.keeper.ack(batch)
        self.clock.advance(5)

    def rotate(self) -> None:
        for wheel in self.wheels:
            if wheel._journal is not None and wheel._journal.position.offset:
                wheel._journal.rotate()

    def end(self) -> None:
        if self.wheels:
            self.wheels.pop(self.rng.randrange(len(self.wheels))).close()

    def begin(self) -> None:
        if len(self.wheels) < 3:
            self.wheels.append(Wheel(self.path, clock=self.clock))

    def deal(self) -> None:
        keeper = self.keeper
        keeper._store.ingest(test_locks=True)
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()

    def restart(self) -> None:
        self.keeper.close()
        self.keeper = self._open()

    def close(self) -> None:
        while self.wheels:
            self.end()
        self.keeper.close()


class Reader:
    """Follows all journals from outside, and may be killed and go on from its positions."""

    def __init__(self, path: Path, between: Callable[[], None]) -> None:
        self.dir = open_directory(path, write=False, env=SYSTEM.using(disk=lambda p: Interrupted(p, between)))
        self._between = between
        self.positions: dict[str, Position] = {}
        self.frames: dict[str, list[int]] = {}
        self.puts: list[bytes] = []
        self.drops: list[bytes] = []
        self.trouble: list[Damage | str] = []
        self.start()

    def start(self) -> None:
        self.handles = SegmentHandles(self.dir, limit=2)
        self.tails = {w: Tail(self.dir, self.handles, w, p) for w, p in self.positions.items()}

    def look(self) -> bool:
        """Read what has come; tell whether anything had."""
        count = sum(map(len, self.frames.values()))
        for writer in list_all_segments(self.dir):
            if writer not in self.tails:
                self.tails[writer] = Tail(self.dir, self.handles, writer)
        for tail in self.tails.values():
            self.follow(tail)
            self.positions[tail.writer] = tail.seen
        return sum(map(len, self.frames.values())) > count

    def follow(self, tail: Tail) -> None:
        def present() -> set[int]:
            return list_all_segments(self.dir).get(tail.writer, set())

        for frame in tail.poll(present, test_lock=True, on_damage=self.trouble.append, on_foreign=self.trouble.append):
            self._between()
            if not frame.is_seal:
                self.frames.setdefault(tail.writer, []).append(frame.number)
            puts, drops = records_of(frame)
            self.puts += [unpack_put(p).payload for p in puts]
            self.drops += [d[ID] for d in drops]
            assert all(d.startswith(DROP_PREFIX) for d in drops)

    def release(self) -> int:
        """Remove what was read; return how many segments that were."""
        keeping = Retention(self.dir, limit_bytes=0)
        read = [n for n in keeping.names() if self._was_read(n[:8], int(n[9:-4]))]
        keeping.release(read)
        return len(read)

    def _was_read(self, writer: str, n: int) -> bool:
        tail = self.tails.get(writer)
        return tail is not None and (n < tail.seen.segment or tail.ended)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_keeper_moves_meanwhile_every_frame_is_read_once_and_in_order(wheel_dir: Path, seed: int) -> None:
    primary = Primary(wheel_dir, seed)
    left = 250

    def between() -> None:
        nonlocal left
        while left > 0 and primary.rng.random() < 0.45:
            left -= 1
            primary.act()

    reader = Reader(wheel_dir, between)
    released = 0
    while left > 0:
        between()
        reader.look()
        if primary.rng.random() < 0.3:
            released += reader.release()
        if primary.rng.random() < 0.1:
            reader.handles.close()
            reader.start()
    primary.close()
    while reader.look():
        pass
    assert all(tail.ended for tail in reader.tails.values())
    assert not reader.trouble
    assert sorted(reader.puts, key=int) == primary.puts
    assert sorted(reader.drops) == sorted(primary.drops)
    for numbers in reader.frames.values():
        assert numbers == list(range(1, len(numbers) + 1))
    assert released + reader.release() > 10
    assert list_all_segments(reader.dir) == {}
    assert Retention(reader.dir, limit_bytes=0).overflow() == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_reader_from_which_a_segment_was_taken_finds_the_counter_changed(wheel_dir: Path, seed: int) -> None:
    primary = Primary(wheel_dir, seed, retain_bytes=2_000)
    left = 120

    def between() -> None:
        nonlocal left
        while left > 0 and primary.rng.random() < 0.6:
            left -= 1
            primary.act()

    reader = Reader(wheel_dir, between)
    counter = Retention(reader.dir, limit_bytes=0)
    seen = [0]
    while left > 0:
        puts = len(primary.puts)
        while reader.look():
            pass
        seen.append(counter.overflow())
        if seen[-1] != seen[-2]:
            reader.puts += primary.puts  # healed
        assert set(primary.puts[:puts]) <= set(reader.puts)
    assert seen[-1] > 0
    primary.close()
