"""Entries of the index of keys that a power cut may have lost although their messages survived.

An entry is written before its message, and must be durable only when the message is (docs/adr/0038-a-key-that-is-not-
flushed.md). It is known to be durable when a later frame of the writer calls the message durable (`synced`), when a
seal follows it, and when a deal has covered the message. A live writer has seen no power cut, so its entries exist.
Only the last frames of writers that ended without a close are doubtful, until a deal covers them.

`lost_entries` finds their missing entries for a process that opens the index. `Relisted` writes them again for a deal,
because no process reads the journal of a covered message again: before a deal commits, it flushes the files with
doubtful entries, and enters the missing ones of writers that had ended when this keeper started. It waits for no lock
(U5). A message that cannot be entered now stays in its journal.
Invariants: a message that `doubtful_puts` does not yield is listed when this looks, or is covered, and then is listed
when this ends. Every message that a checkpoint covers has a durable entry.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence

from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.errors import Damaged, FilewheelError
from filewheel.format import layout
from filewheel.format.frame import Frame
from filewheel.format.record import ID, key_of, keyed_puts
from filewheel.journal.walk import Part, list_segments, parts_above, read_part
from filewheel.keys.bucket import KeyEntry, entries
from filewheel.keys.files import SYNC_EACH_MAX, KeyFiles, flush_buckets
from filewheel.laps.store import Doubtful
from filewheel.lookup.snapshot import DEAD_FLOOR

Pair = tuple[bytes, bytes]
"""The hash of a key, and an id."""


def lost_entries(directory: Directory, files: KeyFiles) -> dict[bytes, list[bytes]]:
    """Return hash → ids of the doubtful messages that are not listed. Raises OSError, DiskError.

    Memory: a hash and an id for each doubtful message, until the index was read.
    """
    lost: dict[bytes, list[bytes]] = {}
    for pairs in absent(files, pairs_of(files, doubtful_puts(directory))).values():
        for hash_, id_ in pairs:
            lost.setdefault(hash_, []).append(id_)
    return lost


def pairs_of(files: KeyFiles, puts: Iterable[bytes]) -> Iterator[Pair]:
    """Yield the index entry of each packed put; none for a put without a key or a dead letter."""
    for put in puts:
        key = key_of(put) if put[ID] < DEAD_FLOOR else None
        if key is not None:
            yield files.hash_of(key), put[ID]


def absent(files: KeyFiles, pairs: Iterable[Pair]) -> dict[int, list[Pair]]:
    """Return the entries that the index lacks, by bucket. Raises DiskError.

    Skips a file that is too long to be read: no key of it can be taken before a repair makes it again.
    """
    recent: set[Pair] = set()
    by_bucket: dict[int, dict[Pair, None]] = {}
    for pair in pairs:
        by_bucket.setdefault(pair[0][0], {})[pair] = None
    if by_bucket:
        with contextlib.suppress(Damaged):
            recent = _entries_of(files, layout.KEY_RECENT)  # first: entries move from it to the buckets (U7)
    found: dict[int, list[Pair]] = {}
    for bucket, some in by_bucket.items():
        with contextlib.suppress(Damaged):
            listed = _entries_of(files, bucket)
            left = [pair for pair in some if pair not in listed and pair not in recent]
            if left:
                found[bucket] = left
    return found


def _entries_of(files: KeyFiles, bucket: int) -> set[Pair]:
    return {(e.hash, e.id) for e in entries(files.read(bucket), files.seed(bucket)) if isinstance(e, KeyEntry)}


def doubtful_puts(directory: Directory) -> Iterator[bytes]:
    """Yield the packed puts that may have a key whose entry is lost. Raises OSError.

    Cost: a listing; for each writer that has ended, the headers of its last segment, and the bodies of the frames
    that nothing calls durable. Memory: one frame.
    """
    checkpoint = directory.checkpoint()
    # In doubt, positions are those of an older checkpoint; reading too much does no harm.
    positions = {} if checkpoint.doubt else checkpoint.positions
    # O1: an earlier segment was flushed whole before the last one was made.
    last = {writer: {max(segments)} for writer, segments in list_segments(directory).items()}
    for part in parts_above(last, positions):
        yield from _puts_of(directory, part)


def _puts_of(directory: Directory, part: Part) -> Iterator[bytes]:
    """Yield the doubtful puts of a writer's last segment; none while it lives."""
    disk = directory.disk
    try:
        fd = disk.open(part.name, "r")
    except (FileNotFoundError, ForeignFile):
        return  # dealt since it was listed, or not a regular file
    try:
        if not disk.is_free(fd):
            return
        synced = last = 0
        for head in read_part(directory, fd, part, headers=True):
            if isinstance(head, Frame):
                synced = max(synced, head.synced)
                last = head.number if head.puts else last
        for frame in read_part(directory, fd, part) if last > synced else ():
            if isinstance(frame, Frame) and frame.number > synced:
                yield from keyed_puts(frame)
    finally:
        disk.close(fd)


log = logging.getLogger(__name__)


class Relisted:
    """The index as a deal uses it. For one deal at a time; not thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._keys = KeyFiles(directory)
        self.gone: Collection[str] = frozenset()
        """Writers that had ended when this keeper started."""
        self._buckets: set[int] = set()
        """The buckets of all doubtful messages in this cut."""

    def enter(self, doubtful: Doubtful) -> set[str]:
        """Enter the missing keys of writers that had ended; return the writers whose keys could not all be entered.

        The entries are durable after `flush`.
        """
        self._buckets = set()
        held: set[str] = set()
        for writer, frames in doubtful.items():
            if writer not in self.gone:
                # It was alive when this keeper started, so it wrote after the last power cut: its entries exist.
                self._note_buckets(frames)
                continue
            pairs = list(self._pairs(frames))
            self._buckets.update(hash_[0] for hash_, _ in pairs)
            if not self._enter_all(pairs):  # mutant: key-dealt-unlisted
                held.add(writer)
        return held

    def flush(self) -> None:
        """Make the entries of all doubtful messages durable. Raises OSError."""
        if self._buckets:
            flush_buckets(self._dir, {*self._buckets, layout.KEY_RECENT})

    def _note_buckets(self, frames: Iterable[Frame]) -> None:
        for hash_, _ in self._pairs(frames):
            self._buckets.add(hash_[0])
            if len(self._buckets) > SYNC_EACH_MAX:
                return  # everything is flushed at once

    def _pairs(self, frames: Iterable[Frame]) -> Iterator[Pair]:
        return pairs_of(self._keys, (put for frame in frames for put in keyed_puts(frame)))

    def _enter_all(self, pairs: Sequence[Pair]) -> bool:
        """Enter the missing entries; return whether all of them exist now."""
        try:
            entered = [self._enter(bucket, some) for bucket, some in absent(self._keys, pairs).items()]
        except FilewheelError as exc:
            log.warning("%s: keys are not entered, and their messages stay in the journal: %s", self._dir.path, exc)
            return False
        return all(entered)

    def _enter(self, bucket: int, pairs: Sequence[Pair]) -> bool:
        """Enter the missing entries of a bucket; return whether its lock was free."""
        keys = self._keys
        with keys.locked(bucket, 0) as is_locked:  # mutant: key-dealt-waiting
            if is_locked:
                for left in absent(keys, pairs).values():  # some may have been entered since
                    keys.write({bucket: left}, {bucket: keys.read(bucket)}, {}, durable=False)
            return is_locked  # mutant: key-busy-dealt
