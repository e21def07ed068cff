"""An index of the frames of one file, and the reader of those frames.

A `FileIndex` knows where each frame is, which ids it may hold, and for some frames which ids it does hold. Frames are
taken together into runs, so that a journal of single messages costs no more than one of batches. A run always knows its
range of ids. Its ids are read when they are first wanted, and may be forgotten again, since the file has them.

`FrameReader` reads the files that one checkpoint names, and the journals above it. A file that is missing under a newer
checkpoint was covered or finished, and the look starts again. A file that is missing under the same checkpoint was
removed by hand, and its messages are not found. The last read frames are kept, up to `RECENT_BYTES`, because messages
that are wanted together are often stored together.
Invariants: the facts about a run come from frames that verified, and its range covers every id in it. `FrameReader`
returns only frames that verified.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

import msgpack

from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format.frame import SMALL_BLOCK, Frame, scan
from filewheel.format.record import DROP_PREFIX, ID, PUT_PREFIX, readable_records, records_of
from filewheel.journal.reader import JournalReader
from filewheel.journal.tail import Tail
from filewheel.lookup.lru import Lru
from filewheel.message import ID_LIMIT
from filewheel.native import compiled

RUN_RECORDS = 8192
RUN_BYTES = 1 << 20
_DROP_BYTES = 21
_REASON = 20
IDS_MAX = 1 << 18
"""How many ids are held in memory: at about 120 bytes each, 30 MiB."""
_LOAD_EACH = 8
_FEW = 8
_GUESS_BYTES = 1 << 10


Ids = tuple[Iterable[bytes], Iterable[bytes]]
"""The ids of a frame's puts, and of its drops."""


@dataclass(slots=True, eq=False)
class FrameRun:
    """Consecutive frames of a file."""

    name: str
    offset: int
    end: int
    first: bytes
    last: bytes
    records: int
    """How many records they hold, by their headers."""
    number: int = 0
    """In a journal: the number of the last frame in it."""
    asked: bool = False
    """Whether it was searched before, and is worth loading."""
    puts: dict[bytes, int] | None = None
    """The ids of its puts, and where the frame of each starts; None while they are not known."""
    drops: set[bytes] = field(default_factory=set)

    def take(self, frame: Frame, ids: Ids | None = None) -> None:
        """Learn the ids of one of its frames, or these; none of a frame with invalid records."""
        assert self.puts is not None
        try:
            puts, drops = ids_of(frame) if ids is None else ids
        except Damaged:
            return
        self.puts.update(dict.fromkeys(puts, frame.offset))
        self.drops.update(drops)

    def forget(self) -> None:
        """Forget the ids."""
        self.puts = None
        self.drops = set()


Hits = list[tuple[FrameRun, list[bytes]]]


class LoadedRuns:
    """The runs whose ids are in memory: no more than `IDS_MAX` ids in all, once a look has ended."""

    def __init__(self) -> None:
        self._runs: Lru[FrameRun, FrameRun] = Lru()
        self._refused = 0

    def __iter__(self) -> Iterator[FrameRun]:
        return self._runs.values()

    @property
    def ids(self) -> int:
        """How many ids are in memory."""
        return self._runs.weight

    @property
    def most(self) -> int:
        """How many ids fit in memory."""
        return IDS_MAX

    def hold(self, run: FrameRun) -> bool:
        """Count the ids of a run that is loaded, or has grown since; return whether more are in memory than fit."""
        self._runs.put(run, run, run.records)
        return self._runs.weight > IDS_MAX

    def use(self, run: FrameRun) -> None:
        """Mark a loaded run as used, so that it stays in memory for longer."""
        if self._runs.weight > IDS_MAX // 2:
            self._runs.get(run)

    def load(self, run: FrameRun, frames: Iterable[Frame]) -> None:
        """Learn a run's ids from its frames; forget the ids of others when there are too many."""
        run.puts = {}
        self.hold(run)
        for frame in frames:
            run.take(frame)
        for other in self._runs.shrink(IDS_MAX):
            other.forget()

    def unload(self, run: FrameRun) -> None:
        """Forget the ids of a run, if they are in memory."""
        if run.puts is not None:
            self._runs.pop(run)
            run.forget()

    def is_worth_loading(self, run: FrameRun) -> bool:
        """Return whether a run that is searched should be loaded: at the second search, while there is room."""
        if not run.asked:
            run.asked = True
            return False
        if self.ids + run.records <= IDS_MAX:
            return True
        # Loading a run costs as much as four searches, and removes another that may be needed as often. One in
        # _LOAD_EACH is enough for the cache to follow the ids that are looked for.
        self._refused = (self._refused + 1) % _LOAD_EACH
        return not self._refused


class KeyIds:
    """The ids that may hold a unique key, by the hash of the key. Memory: 32 bytes for each."""

    def __init__(self) -> None:
        self._by_byte: dict[int, bytearray] = {}

    def add(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Add (hash of a key, id)."""
        for hash_, id_ in pairs:
            self._by_byte.setdefault(hash_[0], bytearray()).extend(hash_ + id_)

    def of(self, hash_: bytes) -> list[bytes]:
        """Return the ids of a key, in the order in which they were added."""
        some, ids = self._by_byte.get(hash_[0], b""), []
        at = some.find(hash_)
        while at >= 0:
            if at % 32 == 0:
                ids.append(bytes(some[at + 16 : at + 32]))
            at = some.find(hash_, at + 1)
        return ids

    def remove(self, hash_: bytes, gone: Set[bytes]) -> None:
        """Remove ids of a key."""
        some = self._by_byte.get(hash_[0], bytearray())
        pairs = [bytes(some[at : at + 32]) for at in range(0, len(some), 32)]
        self._by_byte[hash_[0]] = bytearray().join(p for p in pairs if p[:16] != hash_ or p[16:] not in gone)


class FileIndex:
    """The index of one file, up to `pos`."""

    def __init__(self, name: str, start: int = 0, *, run_bytes: int = RUN_BYTES, tail: Tail | None = None) -> None:
        """`run_bytes` is how much is read at once to learn the ids in it; `tail` reads it, if it is a journal's."""
        self.name = name
        self._run_bytes = run_bytes
        self.tail = tail
        self.pos = start
        """Everything below has been read."""
        self.runs: list[FrameRun] = []
        self.keyed = KeyIds()
        """Of a journal, where keys are listed: the puts with a unique key."""

    def add(self, frame: Frame) -> FrameRun:
        """Add the next frame; return the run that holds it."""
        self.pos = frame.end
        records = frame.puts + frame.drops
        run = self.runs[-1] if self.runs else None
        if run is None or run.records + records > RUN_RECORDS or frame.end - run.offset > self._run_bytes:
            run = FrameRun(self.name, frame.offset, frame.end, frame.first, frame.last, records, number=frame.number)
            self.runs.append(run)
            return run
        run.end = frame.end
        run.first = min(run.first, frame.first)
        run.last = max(run.last, frame.last)
        run.records += records
        run.number = frame.number
        return run

    def hits(self, wanted: list[bytes]) -> Hits:
        """Return the runs that may hold some of these sorted ids, each with those ids."""
        if len(wanted) == 1:
            id_ = wanted[0]
            return [(run, wanted) for run in self.runs if run.first <= id_ <= run.last]
        found = []
        for run in self.runs:
            among = within(wanted, run.first, run.last)
            if among:
                found.append((run, among))
        return found


def within(wanted: list[bytes], first: bytes, last: bytes) -> list[bytes]:
    """Return the sorted ids from `first` to `last`."""
    at = bisect_left(wanted, first)
    if at == len(wanted) or wanted[at] > last:
        return []
    return wanted[at : bisect_right(wanted, last, at)]


def ids_of(frame: Frame) -> Ids:
    """Return the ids of a frame's puts and of its drops. Raises Damaged, as `records_of` does."""
    if not frame.puts and _is_plain_drops(frame):
        body = frame.body
        ids = [body[i : i + 16] for i in range(4, len(body), _DROP_BYTES)]
        if min(ids) >= frame.first and max(ids) <= frame.last < ID_LIMIT:
            return (), ids
    puts, drops = records_of(frame)
    return compiled.ids_of(puts), compiled.ids_of(drops)


def puts_in(frame: Frame, ids: list[bytes]) -> dict[bytes, bytes]:
    """Return the packed puts of these ids from a frame that holds them, by the index."""
    found = {}
    for id_ in ids if len(ids) <= _FEW else ():
        start = PUT_PREFIX + id_
        at = frame.body.find(start)
        # A payload may contain the same bytes; then the frame is unpacked.
        put = _record_at(frame.body, at) if at >= 0 and frame.body.find(start, at + 1) < 0 else None
        if put is not None:
            found[id_] = put
    if len(found) < len(ids):
        among = set(ids)
        found = {r[ID]: r for r in readable_records(frame)[0] if r[ID] in among}
    return found


def _record_at(body: bytes, at: int) -> bytes | None:
    """Return the record that starts here; None when there is none after all."""
    size = _GUESS_BYTES
    while True:
        unpacker = msgpack.Unpacker(None, max_buffer_size=size)
        unpacker.feed(memoryview(body)[at : at + size])
        try:
            unpacker.skip()
        except Exception:  # msgpack raises more than its own errors
            if at + size >= len(body):
                return None
            size *= 16
            continue
        return body[at : at + unpacker.tell()]


def _is_plain_drops(frame: Frame) -> bool:
    """Return whether a body has only plain drops, which need no unpacking."""
    body, count = frame.body, frame.drops
    if not 0 < len(body) == count * _DROP_BYTES:
        return False
    for i in range(4):
        if body[i::_DROP_BYTES] != DROP_PREFIX[i : i + 1] * count:
            return False
    return max(body[_REASON::_DROP_BYTES]) < 0x80


RECENT_BYTES = 8 << 20
"""How much is kept of the frames that were read last."""

Place = tuple[str, int]
"""A file, and where in it a frame starts."""


class FrameReader:
    """Reads frames under one checkpoint. Opens files only through the handles of the present look."""

    def __init__(self, directory: Directory, journals: JournalReader) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._journals = journals
        self._recent: Lru[Place, Frame] = Lru()
        """Those read last."""

    def fd_of(self, name: str) -> int | None:
        """Return an open file; None when it has gone though the checkpoint is the same: by hand.

        Raises FileNotFoundError when there is another checkpoint.
        """
        try:
            return self._journals.handles.get(name)
        except FileNotFoundError:
            if not self._journals.is_current():
                raise
            return None

    def of(self, run: FrameRun, *, lo: bytes | None = None, hi: bytes | None = None) -> Iterator[Frame]:
        """Yield a run's frames, those that verify; only those that may hold an id from `lo` to below `hi`."""
        fd = self.fd_of(run.name)
        if fd is not None:
            end = min(run.end, self._disk.size(fd))
            for item in scan(self._disk, fd, run.offset, end, self._dir.seed(run.name), lo=lo, hi=hi):
                if isinstance(item, Frame):
                    yield item

    def at(self, place: Place) -> Frame | None:
        """Return the frame at a place; None when it cannot be read any more."""
        frame = self._recent.get(place)
        if frame is None:
            frame = self._read(*place)
            if frame is not None and len(frame.body) <= RECENT_BYTES:
                self._recent.put(place, frame, len(frame.body))
                self._recent.shrink(RECENT_BYTES)
        return frame

    def _read(self, name: str, offset: int) -> Frame | None:
        fd = self.fd_of(name)
        if fd is None:
            return None
        size = self._disk.size(fd)
        items = scan(self._disk, fd, offset, size, self._dir.seed(name), resync=False, block_bytes=SMALL_BLOCK)
        item = next(iter(items), None)
        return item if isinstance(item, Frame) else None
