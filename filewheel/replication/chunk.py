"""A chunk: what two wheels have in common, and what not, in a range of ids.

The second wheel is read before the first: a message that travels from the first to the second may then seem to be
missing, which is harmless, and never to be too much. Each chunk is read anew, so a walk over a wheel in use sees each
part as it is when the walk comes to it. Memory: one chunk.
Invariant: what is in `extra` was pending in the second, and after that not in the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from filewheel.directory import Directory
from filewheel.message import ID_END, id_after
from filewheel.record import ID
from filewheel.snapshot import Snapshot

CHUNK_RECORDS = 50_000
CHUNK_BYTES = 16 << 20


@dataclass
class Chunk:
    """A range of ids in two wheels."""

    lo: bytes
    hi: bytes
    """The next chunk begins here; ID_END after the last."""
    count: int = 0
    """How many messages of the first lie in it."""
    missing: list[bytes] = field(default_factory=list)
    """Packed puts that the second lacks."""
    extra: list[bytes] = field(default_factory=list)
    """Ids that only the second has."""
    damaged: bool = False
    """Something of the first could not be read: it may lack what it has not."""


def compare(first: Directory, second: Directory, lo: bytes, *, records: int = CHUNK_RECORDS) -> Chunk:
    """Compare two wheels from `lo` on, dead letters included. Takes no lock. Cost: about 2 µs a message.

    Raises DiskError, Damaged.
    """
    with Snapshot(second) as snapshot:
        theirs, hi = _take(snapshot.puts(lo, ID_END), records)
        there = [put[ID] for put in theirs]
    del theirs
    with Snapshot(first) as snapshot:
        ours, cut = _take(snapshot.puts(lo, hi), records)
        damaged = any(d.proven for d in snapshot.damage)
    if cut < hi:
        hi = cut
        there = [i for i in there if i < hi]
    known = set(there)
    here = {put[ID] for put in ours}
    return Chunk(
        lo,
        hi,
        len(ours),
        [put for put in ours if put[ID] not in known],
        [i for i in there if i not in here],
        damaged,
    )


def _take(puts: Iterator[bytes], records: int) -> tuple[list[bytes], bytes]:
    """Take what fits in a chunk; return it, and where it ends."""
    taken: list[bytes] = []
    size = 0
    for put in puts:
        taken.append(put)
        size += len(put)
        if len(taken) >= records or size >= CHUNK_BYTES:
            return taken, id_after(put[ID])
    return taken, ID_END


def pending(directory: Directory, ids: Iterable[bytes]) -> set[bytes]:
    """Return, of these ids, those that are pending in a wheel. Raises DiskError, Damaged."""
    return look(directory, ids)[0]


def look(directory: Directory, ids: Iterable[bytes]) -> tuple[set[bytes], set[str]]:
    """Return, of these ids, those that are pending in a wheel, and the files in which some may be that cannot be read.

    Raises DiskError, Damaged.
    """
    wanted = list(ids)
    if not wanted:
        return set(), set()
    with Snapshot(directory) as snapshot:
        return set(snapshot.find(wanted)), {damage.name for damage in snapshot.damage}


def dropped(directory: Directory, ids: Iterable[bytes]) -> set[bytes]:
    """Return, of these ids, those of which a drop lies in a wheel. Raises DiskError, Damaged."""
    wanted = list(ids)
    if not wanted:
        return set()
    with Snapshot(directory) as snapshot:
        return snapshot.dropped(wanted)
