"""What the keeper does to the index of unique keys beside its deals: it compacts files, and rebuilds the index.

Slot and lap files have all that the index says: a key is listed for each of their puts (U2). So `rebuild_keys` makes
the index from one walk over them, for `repair`, and for a wheel that takes over and got no index with its files. It
leaves out nothing that can still be read there.
Invariants: only the process that holds keeper.lock calls this, in one thread at a time (U6). Each file is replaced by a
rename of one that is durable, so a crash leaves the old file or the new one, and what was begun can be begun again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from filewheel.disk.checkpoint import write_checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.quarantine import NOT_DIRECTORY, NOT_FILE, Quarantine, is_foreign, put_aside
from filewheel.disk.replace import put_in_place, write_aside
from filewheel.format import layout
from filewheel.format.key_entries import ENTRY_BYTES, KeyEntry, UnreadableBytes, entries, pack_entry
from filewheel.format.record import keyed_ids
from filewheel.keys.index import Keys
from filewheel.laps.window import Span, spans_of
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import due_of

LISTED_MAX = 128
"""A file with more entries than this is worth compacting, if it has also doubled."""
LOOK_BUCKETS = 32
"""How many files the keeper checks each time."""
HELD_BYTES = 16 << 20
"""How much a rebuild holds in memory; the rest waits in the files that it makes."""
_PAIR_BYTES = 32
_TOO_LONG = "too long"


class Compactor:
    """Compacts the files of an index that have grown. Not thread-safe."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._dir = keys.dir
        self._turn = 0
        self._left: dict[int, int] = {}
        """How many bytes a file had when it was last compacted."""

    def tidy(self, now_us: int, buckets: Iterable[int] | None = None) -> int:
        """Compact the next few files that have grown; return how many.

        Cost: a check of each; for one that has grown, a read, a look of the finder and a few flushes.
        """
        if buckets is None:
            buckets = [(self._turn + i) % layout.KEY_BUCKETS for i in range(LOOK_BUCKETS)]
            self._turn = (self._turn + LOOK_BUCKETS) % layout.KEY_BUCKETS
        done = 0
        if self._dir.disk.identity(layout.key_file(layout.KEY_RECENT)) is not None:
            gathered = _Gathered(self._keys)
            gathered.take_recent()
            gathered.enter()
        for bucket in buckets:
            known = self._dir.disk.identity(layout.key_file(bucket))
            if known is None or known[1] <= max(LISTED_MAX * ENTRY_BYTES, 2 * self._left.get(bucket, 0)):
                continue
            self._left[bucket] = known[1]  # one that cannot be read is reported once
            self.compact(bucket, now_us)
            done += 1
        return done

    def compact(self, bucket: int, now_us: int) -> None:
        """Remove the ids that cannot hold a key any more from a file.

        Ids that are due in the future and the newest id of each key stay without a look, so no backlog is walked.
        """
        found = self._keys.entries(bucket)
        newest = {e.hash: e.id for e in found}
        asked = {e.id for e in found if due_of(e.id) <= now_us or newest[e.hash] != e.id}
        gone = self._keys.ended(asked)  # mutant: key-compacted-blindly
        name, aside = layout.key_file(bucket), layout.key_tmp(bucket)
        data = _packed(self._keys, bucket, dict.fromkeys((e.hash, e.id) for e in found if e.id not in gone))
        if data == self._keys.read(bucket):
            return
        # If a power cut undid a drop, its message would be pending and not listed.
        self._dir.disk.sync_all()  # mutant: key-compacted-unsynced
        write_aside(self._dir.disk, aside, data)  # mutant: key-compacted-unflushed
        put_in_place(self._dir.disk, aside, name)
        self._left[bucket] = len(data)


def unreadable_keys(directory: Directory) -> list[tuple[str, str]]:
    """Return (name, what is wrong) of everything in keys/ that makes calls for messages with a unique key fail.

    Cost: an open of each file there. Raises OSError.
    """
    try:
        names = sorted(directory.disk.listdir(layout.KEYS))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        return [(layout.KEYS, NOT_DIRECTORY)]
    keys, found = Keys(directory), []
    for last in names:
        name, bucket = f"{layout.KEYS}/{last}", layout.parse_key_file(last)
        if bucket is None and not layout.is_key_spare(last):
            continue
        if is_foreign(directory, name):
            found.append((name, NOT_FILE))
        elif bucket is not None and keys.is_too_long(bucket):
            found.append((name, _TOO_LONG))
    return found


def rebuild_keys(directory: Directory, quarantine: Quarantine) -> list[str]:
    """Make the index of unique keys again where it lacks anything; return what was done. Durable on return.

    The caller holds keeper.lock, and nothing deals meanwhile. Producers may take keys. Foreign objects are put aside.
    It ends with the same checkpoint anew, so open handles read the files again (U7). After a crash anywhere, call it
    again. Memory: `HELD_BYTES`, and one file of the index with what it lacks. Cost: a
    read of the slot and lap files; 4 µs for each message with a key.

    Raises OSError, DiskError.
    """
    done = []
    for name, what in unreadable_keys(directory):
        if what == _TOO_LONG:
            directory.disk.unlink(name)
            done.append(f"{name} was {what}, and was made again")
        else:
            done.append(put_aside(directory, quarantine, name, what))
    gathered = _Gathered(Keys(directory))
    gathered.take_recent()
    with Snapshot(directory) as snapshot:
        missing: list[Span] = []
        for span in spans_of(directory, snapshot.checkpoint):
            for frame in snapshot.frames(span, missing=missing):
                for hash_, id_ in keyed_ids(frame, directory.settings.key_hash):
                    gathered.add(hash_, id_)
        checkpoint = snapshot.checkpoint
    entered = gathered.enter()
    if not checkpoint.doubt:
        # Each time: whoever was cut off here before has entered them.
        write_checkpoint(directory.disk, checkpoint, directory.seed)  # mutant: key-rebuilt-unseen
    if entered:
        done.append(f"{entered} keys were entered again")
    return done


class _Gathered:
    """The pairs (hash of a key, id) of a rebuild, by file. What memory may not hold waits in unfinished files."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._disk = keys.dir.disk
        self._pairs: dict[int, bytearray] = {}
        self._held_bytes = 0
        self._spilled: dict[int, int] = {}
        """The bytes of each file that wait."""

    def add(self, hash_: bytes, id_: bytes) -> None:
        """Add the key of a message."""
        self._pairs.setdefault(hash_[0], bytearray()).extend(hash_ + id_)
        self._held_bytes += _PAIR_BYTES
        if self._held_bytes >= HELD_BYTES:
            self._spill()

    def take_recent(self) -> None:
        """Add the entries of the file that filewheel 0.2 made for batches; `enter` removes it."""
        for entry in self._keys.entries(layout.KEY_RECENT):
            self.add(entry.hash, entry.id)

    def _spill(self) -> None:
        self._make_directory()
        for bucket, pairs in self._pairs.items():
            fd = self._disk.open(layout.key_tmp(bucket), "rw")
            try:
                at = self._spilled.get(bucket, 0)
                if not at:
                    self._disk.truncate(fd, 0)  # a crash may have left one
                self._disk.pwrite(fd, bytes(pairs), at)
                self._spilled[bucket] = at + len(pairs)
            finally:
                self._disk.close(fd)
        self._pairs, self._held_bytes = {}, 0

    def enter(self) -> int:
        """Replace the files that lack some of them, or have bytes that are no entry; return how many were lacking."""
        entered, replaced = 0, []
        for bucket in range(layout.KEY_BUCKETS):
            found = list(entries(self._keys.read(bucket), self._keys.seed(bucket)))
            there = dict.fromkeys((e.hash, e.id) for e in found if isinstance(e, KeyEntry))
            new = self._take(bucket)
            lacking = new.keys() - there.keys()
            if lacking or any(isinstance(e, UnreadableBytes) for e in found):
                self._make_directory()
                data = _packed(self._keys, bucket, there | new)
                write_aside(self._disk, layout.key_tmp(bucket), data, flush=False)
                replaced.append(bucket)
            elif bucket in self._spilled:
                self._disk.unlink(layout.key_tmp(bucket))
            entered += len(lacking)
        if replaced:
            self._disk.sync_all()  # mutant: key-rebuilt-unflushed
            for bucket in replaced:
                put_in_place(self._disk, layout.key_tmp(bucket), layout.key_file(bucket), flush=False)
            self._disk.sync_dir(layout.KEYS)
            self._disk.sync_dir("")
        recent = layout.key_file(layout.KEY_RECENT)
        if self._disk.identity(recent) is not None:
            self._disk.unlink(recent)
        return entered

    def _make_directory(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(layout.KEYS)

    def _take(self, bucket: int) -> dict[tuple[bytes, bytes], None]:
        """Return the pairs of a file."""
        pairs = bytes(self._pairs.pop(bucket, b""))
        size = self._spilled.get(bucket, 0)
        if size:
            fd = self._disk.open(layout.key_tmp(bucket), "r")
            try:
                pairs = self._disk.pread(fd, size, 0) + pairs
            finally:
                self._disk.close(fd)
        steps = range(0, len(pairs), _PAIR_BYTES)
        return dict.fromkeys((pairs[at : at + 16], pairs[at + 16 : at + 32]) for at in steps)


def _packed(keys: Keys, bucket: int, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Pack a file with exactly these entries (hash, id)."""
    seed = keys.seed(bucket)
    return b"".join([pack_entry(seed, hash_, id_) for hash_, id_ in pairs])
