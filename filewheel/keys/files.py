"""The files of the index of unique keys: read, appended to, flushed and replaced, with the locks beside them.

This module does not know which messages are pending. index.py does, and states the rules U1 to U7.

`Unflushed` remembers the files with entries that were written without a flush, for messages that need not be durable
yet. They are flushed with the journal that holds those messages, before it counts as flushed
(docs/adr/0038-a-key-that-is-not-flushed.md). So if a receipt or a later frame calls a message durable, its entry is
durable too.
Invariants: the name of a file is durable before its mark is written (U3). A file whose flush failed or was
interrupted is flushed again before the journal counts as flushed.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence

from filewheel.disk import locks
from filewheel.disk.directory import Directory
from filewheel.disk.flush import flush_file
from filewheel.env import Disk
from filewheel.errors import UNWRITTEN, disk_error
from filewheel.format import layout
from filewheel.keys.bucket import (
    BUCKET_BYTES_MAX,
    ENTRY_BYTES,
    FILL_BYTES,
    end_of,
    is_marked,
    pack_entry,
    pack_mark,
    read_bucket,
)
from filewheel.keys.recent import RECENT_BYTES_MAX, Recent

SYNC_EACH_MAX = 4
"""More files than this are flushed by one `syncfs`: 16 flushes one by one took ten times as long."""


class Unflushed:
    """The buckets with unflushed entries of one handle. Thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._buckets: set[int] = set()

    def add(self, buckets: Iterable[int]) -> None:
        """Note that entries were written to these buckets; before the write, a flush could take the note away."""
        with self._lock:
            self._buckets.update(buckets)

    def flush(self) -> None:
        """Make them durable. Raises OSError. Cost: nothing if there are none."""
        if not self._buckets:
            return
        # A second caller relies on the buckets that the first one took: it waits until they are flushed.
        with self._flushing:
            with self._lock:
                buckets, self._buckets = self._buckets, set()
            try:
                flush_buckets(self._dir, buckets)
            except BaseException:  # an interrupt (Ctrl-C) too
                self.add(buckets)  # mutant: key-unflushed-forgotten
                raise


def flush_buckets(directory: Directory, buckets: Collection[int]) -> None:
    """Make all entries in these buckets, by any writer, and the files' names durable. Raises OSError."""
    disk = directory.disk
    if len(buckets) > SYNC_EACH_MAX:
        disk.sync_all()
        return
    unnamed: list[tuple[int, bytes]] = []
    try:
        for bucket in sorted(buckets):
            name = layout.key_file(bucket)
            seed = directory.seed(name)
            try:
                fd = disk.open(name, "r+")
            except FileNotFoundError:
                continue  # removed by hand
            # The mark of the file of recent entries identifies it: only the holder of its lock writes one.
            unnamed.append((fd, b"" if bucket == layout.KEY_RECENT else pack_mark(seed)))
            disk.fdatasync(fd)
            if is_marked(disk.pread(fd, ENTRY_BYTES, 0), seed):
                disk.close(unnamed.pop()[0])
        if unnamed:
            flush_names(disk)  # mutant: key-flushed-unnamed
            for fd, mark in unnamed:  # this file had its name before the names were flushed
                with contextlib.suppress(OSError):  # without the mark, the next flush flushes the names as well
                    disk.pwrite(fd, mark, 0)
    finally:
        for fd, _ in unnamed:
            disk.close(fd)


def flush_names(disk: Disk) -> None:
    """Make the names of all files of keys durable, and that of their directory."""
    disk.sync_dir(layout.KEYS)  # mutant: key-name-unflushed
    disk.sync_dir("")  # mutant: key-directory-unflushed


_RECENT_FILL_BYTES = 64 * 1024
"""How far zeros are written ahead in the file of recent entries, so that few batches have to commit a new size."""


class KeyFiles:
    """The files of one index. Thread-safe, while the locks are held. Needs no closing."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._salt = directory.settings.salt_bytes
        self._seeds: dict[int, int] = {}
        self._left: dict[int, int] = {}
        """How many bytes a bucket had when it was last compacted by this handle."""
        self.recent = Recent(directory)
        self.unflushed = Unflushed(directory)

    def hash_of(self, key: str) -> bytes:
        """Return the hash by which the index knows a key."""
        return hashlib.blake2b(key.encode(), digest_size=16, key=self._salt).digest()

    def bucket_of(self, key: str) -> int:
        """Return the bucket in which a key is listed."""
        return self.hash_of(key)[0]

    def seed(self, bucket: int) -> int:
        """Return the number that the checksums of a bucket start from."""
        seed = self._seeds.get(bucket)
        if seed is None:
            seed = self._seeds[bucket] = self._dir.seed(layout.key_file(bucket))
        return seed

    def read(self, bucket: int, mode: str = "r") -> bytes:
        """Return a bucket's bytes; none when there is no such file. Raises Damaged, DiskError."""
        name = layout.key_file(bucket)
        try:
            fd = self._disk.open(name, mode)
        except FileNotFoundError:
            return b""
        except OSError as exc:
            raise disk_error(exc, self._dir.place(name)) from exc
        try:
            return read_bucket(self._disk, fd, self._dir.place(name), most_of(bucket))
        except OSError as exc:
            raise disk_error(exc, self._dir.place(name)) from exc
        finally:
            self._disk.close(fd)

    def is_too_long(self, bucket: int) -> bool:
        """Return whether a bucket is longer than one can be, so that nothing reads it."""
        known = self._disk.identity(layout.key_file(bucket))
        return known is not None and known[1] > most_of(bucket)

    # -- locks -----------------------------------------------------------------------------------------------

    def lock(self, held: locks.Held, bucket: int, wait_s: float) -> bool:
        """Take a bucket's lock; return False when another has it for longer than `wait_s`.

        The caller holds the lock of all, shared (U6).
        """
        return held.take(layout.key_lock(bucket), wait_s)

    def lock_all(self, held: locks.Held, wait_s: float, *, shared: bool) -> bool:
        """Take the lock of all buckets, shared or alone; return as `lock` does."""
        return held.take(layout.KEYS_LOCK, wait_s, shared=shared)

    @contextlib.contextmanager
    def locked(self, bucket: int, wait_s: float) -> Iterator[bool]:
        """Hold the locks for replacing a file, in a `with`; yield whether they were taken in time."""
        is_recent = bucket == layout.KEY_RECENT
        with locks.Held(self._dir) as held:
            yield self.lock_all(held, wait_s, shared=not is_recent) and (is_recent or self.lock(held, bucket, wait_s))

    # -- writing, under the lock -----------------------------------------------------------------------------

    def write(
        self,
        by_bucket: Mapping[int, Sequence[tuple[bytes, bytes]]],
        read: Mapping[int, bytes],
        files: MutableMapping[int, int],
        *,
        durable: bool = True,
    ) -> None:
        """Append entries (hash, id) to locked buckets, given as they were read. Durable after `flush`.

        Without `durable` they are flushed with the journal. `files` has the descriptors of open buckets; each is closed
        and removed from it after its write.
        """
        disk = self._disk
        unnamed: list[int] = []
        if durable:
            # mutant: key-name-of-another
            unnamed = [b for b in by_bucket if read[b][:ENTRY_BYTES] != pack_mark(self.seed(b))]
        if unnamed:
            # U3: the process that made or replaced the file may have died before its name was durable.
            for bucket in unnamed:
                if bucket not in files:
                    with disk_errors(self._dir, layout.key_file(bucket)):
                        disk.close(locks.open_made(disk, layout.key_file(bucket)))
            with disk_errors(self._dir, layout.KEYS):
                flush_names(self._disk)
        name = layout.KEYS
        try:
            for bucket, pairs in by_bucket.items():
                name = layout.key_file(bucket)
                fd = files.pop(bucket) if bucket in files else locks.open_made(disk, name)
                try:
                    if bucket in unnamed:
                        disk.pwrite(fd, pack_mark(self.seed(bucket)), 0)
                    self._append(fd, self.seed(bucket), pairs, read[bucket])
                finally:
                    disk.close(fd)
        except OSError as exc:
            raise disk_error(exc, self._dir.place(name)) from exc
        if not durable:
            self.unflushed.add(by_bucket)

    def _append(self, fd: int, seed: int, pairs: Sequence[tuple[bytes, bytes]], old: bytes) -> None:
        data = b"".join([pack_entry(seed, hash_, id_) for hash_, id_ in pairs])
        start = end_of(old, seed)
        end = start + len(data)
        try:
            self._disk.pwrite(fd, data if end <= len(old) else data + bytes(-end % FILL_BYTES), start)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.truncate(fd, start)
            raise

    def enter(self, pairs: Sequence[tuple[bytes, bytes]], *, durable: bool = True) -> None:
        """Append entries (hash, id) to the recent ones, under the lock of all alone. Durable as after `write`."""
        disk, name, seen = self._disk, layout.key_file(layout.KEY_RECENT), self.recent.still()
        with disk_errors(self._dir, name):
            fd = locks.open_made(disk, name)
            try:
                mark = seen.mark
                if not is_marked(mark, self.seed(layout.KEY_RECENT)):  # U3, as in `write`  # mutant: key-recent-unnamed
                    flush_names(self._disk)
                    mark = self.recent.pack_mark()
                    disk.pwrite(fd, mark, 0)
                data = self.recent.pack(pairs)
                end = seen.end + len(data)
                fill = b"" if end <= disk.size(fd) else bytes(-end % _RECENT_FILL_BYTES)
                try:
                    disk.pwrite(fd, data + fill, seen.end)
                except OSError:
                    with contextlib.suppress(OSError):
                        disk.truncate(fd, seen.end)
                    raise
            finally:
                disk.close(fd)
        if not durable:
            self.unflushed.add([layout.KEY_RECENT])
        self.recent.added(seen, mark, pairs, end, data[-ENTRY_BYTES:])

    def flush(self, names: Collection[str]) -> None:
        """Make these files durable."""
        if len(names) > SYNC_EACH_MAX:
            self._disk.sync_all()
            return
        for name in sorted(names):
            # A missing journal was dealt, and is durable.
            with contextlib.suppress(FileNotFoundError):
                flush_file(self._disk, name)

    def replace(self, bucket: int, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Replace a locked bucket by one with exactly these entries (hash, id). Durable on return."""
        name, tmp = layout.key_file(bucket), layout.key_tmp(bucket)
        seed = self.seed(bucket)
        # U4: if a power cut undid a drop, its message would be pending and not listed.
        self._disk.sync_all()  # mutant: key-compacted-unsynced key-merged-unflushed
        fd = self._disk.open(tmp, "w")
        try:
            self._disk.truncate(fd, 0)
            data = bytes(ENTRY_BYTES) + b"".join(pack_entry(seed, h, i) for h, i in pairs)
            self._disk.pwrite(fd, data, 0)
            self._disk.fdatasync(fd)  # mutant: key-compacted-unflushed
            self._disk.rename(tmp, name)
            flush_names(self._disk)
            self._disk.pwrite(fd, self.recent.pack_mark() if bucket == layout.KEY_RECENT else pack_mark(seed), 0)
        finally:
            self._disk.close(fd)
        self._left[bucket] = len(data)


def most_of(bucket: int) -> int:
    """Return how many bytes a file of keys may have."""
    return RECENT_BYTES_MAX if bucket == layout.KEY_RECENT else BUCKET_BYTES_MAX


@contextlib.contextmanager
def disk_errors(directory: Directory, name: str) -> Iterator[None]:
    """Raise an OSError as a DiskError that reports that nothing was written."""
    try:
        yield
    except OSError as exc:
        raise disk_error(exc, directory.place(name), undone=UNWRITTEN) from exc
