"""The records of a wheel's files, one by one, with their offsets.

Reads slot files, lap files and journals as they are on disk. Each record has three facts: whether its checksum holds,
whether the message is pending, and whether the checkpoint covers it. Takes no lock; skips a file that disappears.
Invariant: every byte read appears in a record, in a frame without records, or in a bad range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from filewheel.disk.checkpoint import Checkpoint, Position, adopt, find_files, read_checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import HEADER_BYTES, Frame, Gap, scan
from filewheel.format.record import DROP_PREFIX, ID, PUT_PREFIX, split, unpack_drop, unpack_put
from filewheel.laps.slot import covered_of, files_of, slot_floor
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import ID_END, ID_MIN, MessageId
from filewheel.tools.dump import iso


@dataclass
class DissectedRecord:
    """One record of a file, or a range of bytes without one."""

    file: str
    offset: int
    end: int
    frame: int | None
    kind: str
    """put, drop, seal (a frame without records), zeros (preallocated, never used), bad."""
    covered: bool
    id: MessageId | None = None
    live: bool | None = None
    """For a put: whether the message is pending."""
    what: str = ""
    """The topic of a put, the reason of a drop, the fault of a bad range."""

    @property
    def checksum(self) -> str:
        """Whether the frame's checksums hold."""
        return {"bad": "bad", "zeros": "-"}.get(self.kind, "ok")

    @property
    def state(self) -> str:
        """Whether a put is "live" or "dropped"; empty for anything else."""
        return "" if self.live is None else "live" if self.live else "dropped"

    def to_json(self) -> dict[str, Any]:
        """Return it as an object."""
        fields: dict[str, Any] = {
            "file": self.file,
            "offset": self.offset,
            "bytes": self.end - self.offset,
            "frame": self.frame,
            "kind": self.kind,
            "checksum": self.checksum,
            "covered": self.covered,
        }
        if self.id is not None:
            fields |= {"id": str(self.id), "due": None if self.id.is_dead else iso(self.id.due_us)}
        if self.kind == "put":
            fields |= {"topic": self.what, "live": self.live}
        elif self.what:
            fields["reason"] = self.what
        return fields


@dataclass(frozen=True)
class SegmentSummary:
    """A summary of a journal segment."""

    name: str
    bytes: int
    covered: int
    """Bytes from its start that were dealt into laps and slots."""
    frames: int
    puts: int
    drops: int
    bad: int


class Dissector:
    """Reads the files of one wheel."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._checkpoint: Checkpoint = read_checkpoint(
            self._disk, directory.seed, directory.settings.lap_of, directory.path
        )
        if self._checkpoint.doubt:
            lap_of = directory.settings.lap_of
            adopt(self._checkpoint, self._disk, find_files(self._disk, lap_of), lap_of)

    # -- files ---------------------------------------------------------------------------------------------------

    def segments(self) -> list[str]:
        """List the journal segments."""
        names = [n for n in self._disk.listdir(layout.JOURNAL) if layout.parse_segment(n) is not None]
        return [f"{layout.JOURNAL}/{name}" for name in sorted(names)]

    def segment(self, name: str) -> SegmentSummary | None:
        """Read the frame headers of a segment; None when it was removed."""
        frames = puts = drops = bad = 0
        size = 0
        for item in self._scan(name, headers=True):
            if isinstance(item, Frame):
                frames, puts, drops = frames + 1, puts + item.puts, drops + item.drops
            elif not item.blank:
                bad += item.end - item.offset
        known = self._disk.identity(name)
        if known is None:
            return None
        size = known[1]
        return SegmentSummary(name, size, min(self._covered(name), size), frames, puts, drops, bad)

    def files_of(self, second: int) -> list[str]:
        """List the files that may hold messages of this second."""
        floor = slot_floor(second)
        return [file.name for file in files_of(self._dir.settings, self._checkpoint, floor, floor)] + self.segments()

    def _covered(self, name: str) -> int:
        """Return a file's covered length."""
        last = name.rpartition("/")[2]
        segment = layout.parse_segment(last)
        if segment is not None:
            covered = self._checkpoint.positions.get(segment[0], Position(0, 0, 0))
            if segment[1] == covered.segment:
                return covered.offset
            return 1 << 62 if segment[1] < covered.segment else 0
        return covered_of(self._dir.settings, self._checkpoint, name) or 0

    # -- records -------------------------------------------------------------------------------------------------

    def entries(self, names: Iterable[str], lo: bytes = ID_MIN, hi: bytes = ID_END) -> Iterator[DissectedRecord]:
        """Yield the records of some files with ids from `lo` to below `hi`, and every bad range."""
        names = list(names)
        puts: set[bytes] = set()
        for name in names:
            for item in self._scan(name):
                if isinstance(item, Frame) and item.puts:
                    puts.update(i for _, _, i in _records(item) if i is not None and lo <= i < hi)
        with Snapshot(self._dir) as snapshot:
            pending = set(snapshot.find(puts)) if puts else set()
        whole = lo == ID_MIN and hi == ID_END
        for name in names:
            covered = self._covered(name)
            for item in self._scan(name):
                if isinstance(item, Gap):
                    kind = "zeros" if item.blank and item.at_end else "bad"
                    if whole or kind == "bad":
                        what = "" if kind == "zeros" else item.reason
                        yield DissectedRecord(name, item.offset, item.end, None, kind, item.end <= covered, what=what)
                else:
                    yield from self._of_frame(name, item, item.end <= covered, lo, hi, pending, whole)

    def _of_frame(
        self, name: str, frame: Frame, covered: bool, lo: bytes, hi: bytes, pending: set[bytes], whole: bool
    ) -> Iterator[DissectedRecord]:
        if not frame.body and whole:
            yield DissectedRecord(name, frame.offset, frame.end, frame.number, "seal", covered)
        at = frame.offset + HEADER_BYTES
        for start, record, id_ in _records(frame):
            end = at + start + len(record)
            if id_ is None:
                yield DissectedRecord(name, at + start, end, frame.number, "bad", covered, what="not a record")
            elif lo <= id_ < hi:
                entry = DissectedRecord(name, at + start, end, frame.number, "put", covered, MessageId(id_))
                if record[:4] == DROP_PREFIX:
                    entry.kind = "drop"
                    entry.what = unpack_drop(record)[1]
                else:
                    entry.live = id_ in pending
                    try:
                        entry.what = unpack_put(record).topic
                    except Damaged as exc:
                        entry.kind, entry.what = "bad", exc.what
                yield entry

    def _scan(self, name: str, *, headers: bool = False) -> Iterator[Frame | Gap]:
        try:
            fd = self._disk.open(name, "r")
        except (FileNotFoundError, ForeignFile):
            return
        try:
            yield from scan(self._disk, fd, 0, self._disk.size(fd), self._dir.seed(name), headers=headers)
        finally:
            self._disk.close(fd)


def _records(frame: Frame) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield (offset in the body, bytes, id) of a frame's records; the id is None for an invalid record."""
    try:
        records = split(frame.body)
    except Damaged:
        yield 0, frame.body, None
        return
    at = 0
    for record in records:
        known = record[:4] == PUT_PREFIX or (record[:4] == DROP_PREFIX and len(record) == 21)
        yield at, record, record[ID] if known else None
        at += len(record)
