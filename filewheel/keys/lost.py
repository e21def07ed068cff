"""Messages of which a power cut may have taken the entry in the index of keys, and left the message.

An entry is written before its message and need be durable only when the message is (docs/adr/0038-a-key-that-is-not-
flushed.md). It is known to be durable where a later frame of the writer calls the message durable (`synced`), or its
seal does, and where a deal has covered the message. A writer that lives has not seen a power cut, so its entries are
there. What is left are the last frames of writers that have gone without a close, until they are dealt.
Invariant: a message that is not yielded was listed when this looked, or is covered: then it is listed when this ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from filewheel.disk.checkpoint import START, Position
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.format.record import ID, key_of, keyed_puts
from filewheel.keys.bucket import Entry, entries
from filewheel.keys.files import KeyFiles
from filewheel.lookup.snapshot import DEAD_FLOOR

Pair = tuple[bytes, bytes]
"""The hash of a key, and an id."""


def lost_entries(directory: Directory, files: KeyFiles) -> dict[bytes, list[bytes]]:
    """Return hash → ids, of what `doubtful_puts` yields and is not listed. Raises OSError, DiskError.

    Memory: a hash and an id for each doubtful message, until the index was read.
    """
    lost: dict[bytes, list[bytes]] = {}
    for pairs in absent(files, pairs_of(files, doubtful_puts(directory))).values():
        for hash_, id_ in pairs:
            lost.setdefault(hash_, []).append(id_)
    return lost


def pairs_of(files: KeyFiles, puts: Iterable[bytes]) -> Iterator[Pair]:
    """Yield the entry that each of some packed puts needs; none for one without a key, and none for a dead letter."""
    for put in puts:
        key = key_of(put) if put[ID] < DEAD_FLOOR else None
        if key is not None:
            yield files.hash_of(key), put[ID]


def absent(files: KeyFiles, pairs: Iterable[Pair]) -> dict[int, list[Pair]]:
    """Return those of some entries that are not in the index, by the bucket that they belong to. Raises DiskError.

    Of a file that is too long to be read none is: no key is taken there before a repair makes it anew, of what waits.
    """
    recent: set[Pair] = set()
    by_bucket: dict[int, dict[Pair, None]] = {}
    for pair in pairs:
        by_bucket.setdefault(pair[0][0], {})[pair] = None
    if by_bucket:
        with contextlib.suppress(Damaged):
            recent = _entries_of(files, layout.KEY_RECENT)  # first: from there they move to the buckets (U7)
    found: dict[int, list[Pair]] = {}
    for bucket, some in by_bucket.items():
        with contextlib.suppress(Damaged):
            listed = _entries_of(files, bucket)
            left = [pair for pair in some if pair not in listed and pair not in recent]
            if left:
                found[bucket] = left
    return found


def _entries_of(files: KeyFiles, bucket: int) -> set[Pair]:
    return {(e.hash, e.id) for e in entries(files.read(bucket), files.seed(bucket)) if isinstance(e, Entry)}


def doubtful_puts(directory: Directory) -> Iterator[bytes]:
    """Yield the puts, packed, that may have a key and whose entry may be lost. Raises OSError.

    Cost: a listing; for each journal of a writer that has gone one read of the headers in its last segment, and the
    bodies of the frames that nothing calls durable. Memory: one frame.
    """
    disk = directory.disk
    checkpoint = directory.checkpoint()
    writers: dict[str, list[int]] = {}
    for last in disk.listdir(layout.JOURNAL):
        parsed = layout.parse_segment(last)
        if parsed is not None:
            writers.setdefault(parsed[0], []).append(parsed[1])
    for writer, numbers in writers.items():
        # In doubt, positions are those of an older checkpoint: what is read too much does no harm.
        covered = START if checkpoint.doubt else checkpoint.positions.get(writer, START)
        # O1: an earlier segment was flushed whole before the last one was made.
        if max(numbers) >= covered.segment:
            yield from _puts_of(directory, writer, max(numbers), covered)


def _puts_of(directory: Directory, writer: str, n: int, covered: Position) -> Iterator[bytes]:
    """Yield the doubtful puts of a writer's last segment; none while it lives."""
    disk = directory.disk
    name = layout.segment(writer, n)
    try:
        fd = disk.open(name, "r")
    except (FileNotFoundError, ForeignFile):
        return  # dealt since it was listed, or nothing of ours
    try:
        if not disk.is_free(fd):
            return
        start, end = covered.offset if n == covered.segment else 0, disk.size(fd)
        seed = directory.seed(name)
        synced = last = 0
        for head in scan(disk, fd, start, end, seed, headers=True):
            if isinstance(head, Frame):
                synced = max(synced, head.synced)
                last = head.number if head.puts else last
        for frame in scan(disk, fd, start, end, seed) if last > synced else ():
            if isinstance(frame, Frame) and frame.number > synced:
                yield from keyed_puts(frame)
    finally:
        disk.close(fd)
