"""A partition for tests, and a log that is read into it as the service does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.partition.packing import LogPut
from filewheel.kafka.partition.partition import Chunk, Partition
from filewheel.kafka.partition.position import RecordOrigin
from filewheel.kafka.records.fate import id_of, offset_of
from filewheel.laps.window import Budget as Budget
from filewheel.message import US_PER_S
from filewheel.tools.verify import verify
from tests.support import START_US, FakeClock

SOURCE = RecordOrigin("cluster-1", "delay", 3)


def a_put(
    offset: int,
    due_s: float,
    *,
    key: bytes | None = None,
    cancels: bool = False,
    start_us: int = START_US,
    unless_due_s: float | None = None,
) -> LogPut:
    """Return a record that is due so many seconds after the start; its payload names its offset."""
    due_us = start_us + round(due_s * US_PER_S)
    unless_us = -1 if unless_due_s is None else start_us + round(unless_due_s * US_PER_S)
    return LogPut(offset, due_us, "target", (b"%d" % offset).ljust(8), 1_700_000, key, cancels, unless_us)


def env_at(clock: FakeClock) -> Env:
    return SYSTEM.using(clock=clock)


def open_partition(path: Path, clock: FakeClock, *, keyed: bool = False, source: RecordOrigin = SOURCE) -> Partition:
    return Partition(path, source, keyed=keyed, env=env_at(clock))


def offsets(chunk: Chunk) -> list[int]:
    """Return the offsets of a chunk's messages, and check that each payload is that of its id."""
    found = [int(message.payload) for message in chunk.messages]
    assert found == [offset_of(message.id) for message in chunk.messages]
    return found


def pending(path: Path) -> list[int]:
    """Return the offsets of what waits in a wheel, as any reader sees it."""
    with Wheel(path) as wheel:
        return sorted(offset_of(message.id) for message in wheel.list())


@dataclass
class Log:
    """The log of one partition, its marker, and what went out: the part of a service that a wheel cannot see."""

    puts: list[LogPut] = field(default_factory=list)
    marker: Marker = field(default_factory=Marker)
    fired: list[int] = field(default_factory=list)
    start_us: int = START_US

    def add(self, due_s: float, *, key: bytes | None = None, cancels: bool = False) -> int:
        offset = len(self.puts) * 2  # as after transactions: each second offset is a control record
        self.puts.append(a_put(offset, due_s, key=key, cancels=cancels, start_us=self.start_us))
        return offset

    @property
    def end(self) -> int:
        return len(self.puts) * 2

    def waiting(self) -> set[int]:
        """Return the offsets that have neither gone out nor been replaced."""
        last: dict[bytes, int] = {p.key: p.offset for p in self.puts if p.key is not None}
        alive = {p.offset for p in self.puts if not p.cancels and (p.key is None or last[p.key] == p.offset)}
        return {o for o in alive if o not in self.fired}

    def take_over(self, partition: Partition) -> int:
        """Apply the marker and read the log to its end; return the offset that this began with."""
        partition.apply(self.marker)
        start = max(partition.ingested, self.marker.low)
        partition.advance(start)
        self.read(partition)
        return start

    def read(self, partition: Partition, most: int = 1 << 30) -> None:
        puts = [put for put in self.puts if put.offset >= partition.ingested][:most]
        partition.take_in(puts)
        if not puts or puts[-1] is self.puts[-1]:
            partition.advance(self.end)

    def fire(self, partition: Partition, limit: int = 1000, on_sent: Callable[[], None] = lambda: None) -> list[int]:
        """Send one chunk, publish its marker, settle it."""
        chunk = partition.next_chunk(limit)
        if chunk.ids:
            self.fired += offsets(chunk)
            self.marker = self.marker.after_chunk(chunk.ingested, chunk.last_id).with_low(partition.low())
            on_sent()
            partition.settle(chunk)
        return offsets(chunk)


def ids_of(puts: Sequence[LogPut]) -> list[bytes]:
    return [id_of(put.due_us, put.offset) for put in puts]


def check_whole(path: Path) -> None:
    """Check that `verify` finds nothing wrong with a wheel."""
    report = verify(open_directory(path, write=False))
    assert not report.damage, report.damage


def killed(partition: Partition) -> None:
    """Leave a partition as a killed process does: what it wrote is there, its locks are free."""
    keeper = partition._keeper
    keeper._begins.close()
    keeper._keeper_lock.release()
    segment = keeper._store.own.appender.lender.writer.segment
    if segment is not None:
        segment.release()
