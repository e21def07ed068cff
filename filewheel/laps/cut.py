"""A cut: a position in every journal, and the undealt records below it.

A deal covers the records of its cut. Reading stops at a chunk, so the memory of a deal does not grow with the journals;
the cut is then below the positions that were read. The checkpoint carries a drop below the cut whose put may be above
it (D1); one more pass over the journals finds these drops.
Invariant: every put and drop between the covered position and the cut is in it, once.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from filewheel.disk.checkpoint import Checkpoint, Position
from filewheel.disk.quarantine import Damage
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame
from filewheel.format.record import add_puts, keyed_ids, readable_records
from filewheel.journal.tail import Handles, Tail
from filewheel.journal.walk import read_part
from filewheel.laps.missing import vanished
from filewheel.laps.store import Store
from filewheel.laps.window import Span
from filewheel.message import ID_LIMIT, ID_MIN, US_PER_S, due_of, id_after
from filewheel.native.compiled import PutTable, ids_of

Files = tuple[set[int], set[int]]
"""(seconds, laps): those whose slot file or lap file is meant."""


@dataclass
class Cut:
    """The position where a deal stops in each journal, and the records below."""

    positions: dict[str, Position] = field(default_factory=dict)
    puts: PutTable = field(default_factory=PutTable)
    drops: dict[bytes, bytes] = field(default_factory=dict)
    """id → packed drop."""
    drop_frames: list[Frame] = field(default_factory=list)
    """Frames of drops only. A frame is unpacked only when it meets a put or a file."""
    ended: set[str] = field(default_factory=set)
    """Ended writers whose whole journal is below the cut."""
    keyed: dict[bytes, bytes] = field(default_factory=dict)
    """id → hash of the key, of the puts with a unique key."""
    size_bytes: int = 0
    records: int = 0
    put_records: int = 0

    def add(self, frame: Frame, hash_of: Callable[[str], bytes]) -> None:
        """Add a frame's records. Raises Damaged when they are invalid."""
        self.size_bytes += frame.end - frame.offset
        self.records += frame.puts + frame.drops
        self.put_records += frame.puts
        if not frame.puts and frame.drops and frame.last < ID_LIMIT:
            self.drop_frames.append(frame)
            return
        drops = add_puts(self.puts, frame)
        if drops:
            self.drops.update(zip(ids_of(drops), drops, strict=True))
        for hash_, id_ in keyed_ids(frame, hash_of):
            self.keyed[id_] = hash_

    def take_apart(
        self, base: Checkpoint, puts: PutTable, coming: set[bytes] | None, finished: Files, slots: int
    ) -> None:
        """Take the drops out of the frames that meet a put (one of these, or one to come) or a file.

        Most acknowledgements meet neither: their second has fired and its file is removed. Unpacking each would cost
        memory and time for nothing. With `coming` unknown, all are unpacked.
        """
        if not self.drop_frames:
            return
        later = sorted(coming or ())
        seconds = sorted(base.slots.keys() - finished[0])
        laps = sorted(base.laps.keys() - finished[1])
        for frame in self.drop_frames:
            low, high = due_of(frame.first) // US_PER_S, due_of(frame.last) // US_PER_S
            if (
                coming is None
                or puts.find(frame.first, 0) < puts.find(id_after(frame.last), 0)
                or _meets(later, frame.first, frame.last)
                or _meets(seconds, low, high)
                or _meets(laps, low // slots, high // slots)
            ):
                drops = readable_records(frame)[1]
                self.drops.update(zip(ids_of(drops), drops, strict=True))


def take_cut(store: Store, limits: dict[str, Position], chunk_bytes: int, chunk_records: int) -> Cut:
    """Read the journals from their covered positions up to `limits`, or as much as one chunk holds."""
    cut = Cut()
    # The keepers' journals come last, the present one's after the former one's: their drops have puts elsewhere.
    order = sorted(limits, key=lambda w: (w == store.own.writer, w == store.checkpoint.keeper, w))
    for writer in order:
        tail = store.tails[writer]
        position = tail.covered
        if cut.size_bytes < chunk_bytes and cut.records < chunk_records:
            for end, frame in frames_of(store, tail, tail.covered, limits[writer]):
                try:
                    cut.add(frame, store.dir.settings.key_hash)
                except Damaged as exc:
                    # Its checksums hold, so it was written like this: to quarantine/ before its journal is removed.
                    name = layout.segment(writer, end.segment)
                    store.quarantine.keep(Damage(name, frame.offset, frame.end, exc.what, proven=True))
                position = end  # mutant: late-chunk
                if cut.size_bytes >= chunk_bytes or cut.records >= chunk_records:
                    break
            else:
                position = limits[writer]
        cut.positions[writer] = position
        # K3: a claim beside this may have read more than `limits` until the writer ended; `seen` is final since then.
        if tail.ended and position == tail.seen:  # mutant: ended-meanwhile
            cut.ended.add(writer)
    return cut


def puts_above(store: Store, cut: Cut, chunk_bytes: int) -> set[bytes] | None:
    """Return the ids of all puts above the cut, after one more pass; None when they are too many to hold.

    A drop is written after its put, so once every drop below the cut is older than a whole pass over the journals,
    its put is below the cut, in a file, among these, or nowhere (D1).
    """
    with store.lock:
        store.ingest()  # mutant: one-look
        above = {w: t.seen for w, t in store.tails.items() if not t.gone}
    ids: set[bytes] = set()
    size = 0
    for writer, limit in above.items():
        tail = store.tails[writer]
        for _, frame in frames_of(store, tail, cut.positions.get(writer, tail.covered), limit):
            size += frame.end - frame.offset
            if size > chunk_bytes:
                return None
            if frame.puts:  # mutant: later-drops
                ids.update(ids_of(readable_records(frame)[0]))
    return ids


def dropped_above(store: Store, cut: Cut, seen: Mapping[str, Position], puts: PutTable) -> set[bytes]:
    """Return, of these puts, those with a drop between the cut and `seen`. Cost: a reading of the journals there.

    Where the journals are durable up to `seen`, such a drop is read again whatever happens, so its put is not needed.
    """
    found: set[bytes] = set()
    for writer, limit in seen.items():  # mutant: short-unflushed
        tail = store.tails[writer]
        for _, frame in frames_of(store, tail, cut.positions.get(writer, tail.covered), limit):
            if frame.drops and puts.find(frame.first, 0) < puts.find(id_after(frame.last), 0):
                found |= puts.having(ids_of(readable_records(frame)[1]))
    return found


def frames_of(store: Store, tail: Tail, start: Position, limit: Position) -> Iterator[tuple[Position, Frame]]:
    """Yield a journal's frames between two positions, and where each ends. Raises Damaged when a segment is missing."""
    with contextlib.closing(Handles(store.dir, limit=1)) as handles:
        for part in tail.parts(start, limit):
            try:
                fd = handles.get(part.name)
            except FileNotFoundError:
                # Only a deal removes a segment, and no other runs: to skip it would cover its records.
                # mutant: vanished-dealt
                raise vanished(store.dir, store.quarantine, Span(part.name, part.start, part.end, ID_MIN)) from None
            for item in read_part(store.dir, fd, part):
                if isinstance(item, Frame):
                    yield Position(part.segment, item.end, item.number), item


def _meets(numbers: Sequence[Any], low: Any, high: Any) -> bool:
    """Return whether a sorted list holds something from low to high."""
    at = bisect_left(numbers, low)
    return at < len(numbers) and bool(numbers[at] <= high)
