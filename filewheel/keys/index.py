"""The index of unique keys: which message holds a key, on disk, shared by all processes.

A key is held by a message that was enqueued with it for as long as the message is pending and is no dead letter. The
index does not say that: it lists, for each key, the ids that may hold it (bucket.py), and whether one of them is
pending is asked of the finder. So ending a message (ack, cancel, death) needs no word here, and an entry of an id that
never lived, or lives no more, is harmless. Rules (docs/adr/0014-unique-keys.md):

U1 Whoever brings a message with a key to life holds the kernel lock of its bucket from the look to the frame.
U2 The entry is durable before the frame is written.
U3 The name of a bucket is durable before an entry in it counts: its first entry says so.
U4 So are the drops of all that had the key before, though they lie in the journals of others; also when the message
   that has it now only moves.
U5 The keeper never waits for a lock here: a producer that has it may have been stopped.
Invariant: every message with a key that lives is listed under it, also after a power cut.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from filewheel.disk import locks
from filewheel.disk.directory import Directory
from filewheel.disk.disk import is_scarce
from filewheel.errors import UNWRITTEN, Damaged, disk_error
from filewheel.format import layout
from filewheel.format.record import unpack_put
from filewheel.headers import KEY
from filewheel.journal.journal import Journal
from filewheel.keys import bucket as keyfile
from filewheel.keys.bucket import (
    BUCKET_BYTES_MAX,
    ENTRY_BYTES,
    FILL_BYTES,
    Entry,
    end_of,
    entries,
    pack_entry,
    pack_mark,
    read_bucket,
)
from filewheel.laps.deal import flush_file
from filewheel.lookup.finder import Finder
from filewheel.lookup.snapshot import DEAD_FLOOR
from filewheel.message import MessageId, due_of

_SYNC_EACH_MAX = 4
"""More files than this are flushed by one `syncfs`: 16 flushes one by one took ten times as long."""
LISTED_MAX = 128
"""A bucket with more entries than this is worth compacting, if it has also doubled."""
LISTED_EACH_MAX = 32
"""So is one with more than this for one key."""
LOOK_BUCKETS = 32
"""How many buckets the keeper looks at each time."""
FILES_MAX = 128
"""How many buckets stay open from a look to the entries; the others are opened twice."""


@dataclass(frozen=True)
class Held:
    """What a look at a key found."""

    id: MessageId | None
    """The message that holds it; None when it is free."""
    put: bytes | None
    """That message, packed."""
    journals: frozenset[str] | None
    """The journals with drops, of what had it before, that may not be durable; None when that is not known."""


class Keys:
    """The index of one wheel. Thread-safe. Needs no closing; memory does not grow with what is in it."""

    def __init__(self, directory: Directory, finder: Finder | None = None) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._finder = finder or Finder(directory)
        self._salt = directory.settings.salt_bytes
        self._turn = 0
        self._left: dict[int, int] = {}
        """How many bytes a bucket had when it was last compacted by this handle."""
        self._seeds: dict[int, int] = {}

    # -- asking ----------------------------------------------------------------------------------------------

    def hash_of(self, key: str) -> bytes:
        """Return what stands for a key in the index."""
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

    def find(self, key: str) -> Held:
        """Return who holds a key, without a lock. Cost: one read of its bucket, and a look of the finder."""
        before: list[bytes] | None = None
        while True:
            ids = self.listed(key)
            held = self._look(key, ids)
            # Whoever moves a message writes its entry first: no new entry means that it has not moved meanwhile.
            if held.id is not None or ids == before:
                return held
            before = ids

    def _look(self, key: str, ids: list[bytes]) -> Held:
        return self._look_all({key: ids})[key]

    def _look_all(self, listed: Mapping[str, list[bytes]]) -> dict[str, Held]:
        """Return who holds each of some keys, of the ids that are listed for it. Cost: one look of the finder."""
        ids = [id_ for some in listed.values() for id_ in some]
        found, unsure = self._finder.look(ids) if ids else ({}, set())
        journals = None if unsure is None else frozenset(unsure)
        return {key: _held(key, some, found, journals) for key, some in listed.items()}

    def listed(self, key: str) -> list[bytes]:
        """Return the ids that are listed for a key, in the order in which they were written."""
        hash_ = self.hash_of(key)
        return keyfile.listed(self.read(hash_[0]), self.seed(hash_[0]), hash_)

    def read(self, bucket: int) -> bytes:
        """Return a bucket's bytes; none when there is no such file. Raises Damaged, DiskError."""
        name = layout.key_file(bucket)
        try:
            fd = self._disk.open(name, "r")
        except FileNotFoundError:
            return b""
        except OSError as exc:
            raise disk_error(exc, self._dir.place(name)) from exc
        try:
            return read_bucket(self._disk, fd, self._dir.place(name))
        except OSError as exc:
            raise disk_error(exc, self._dir.place(name)) from exc
        finally:
            self._disk.close(fd)

    def is_too_long(self, bucket: int) -> bool:
        """Tell whether a bucket is longer than one can be, so that nothing reads it."""
        known = self._disk.identity(layout.key_file(bucket))
        return known is not None and known[1] > BUCKET_BYTES_MAX

    def put_of(self, id_: bytes) -> bytes | None:
        """Return a pending message, packed, by its id."""
        return self._finder.find([id_]).get(id_)

    # -- holding ---------------------------------------------------------------------------------------------

    def hold(self, keys: Iterable[str], *, wait_s: float = locks.WAIT_S) -> Hold:
        """Lock the buckets of some keys, to be used in a `with`. Those that could not be locked in time are `busy`.

        While it is held nobody else brings a message with one of these keys to life. Locks are taken in ascending
        order. Cost: about 10 µs for each bucket.
        """
        return Hold(self, keys, wait_s)

    def lock(self, bucket: int, wait_s: float) -> int | None:
        """Take a bucket's lock; return its descriptor, or None when another has it for longer than `wait_s`."""
        return locks.take(self._dir, layout.key_lock(bucket), wait_s)

    def unlock(self, fd: int) -> None:
        """Let go of a bucket's lock."""
        self._disk.close(fd)

    # -- writing, under the lock -----------------------------------------------------------------------------

    def write(
        self,
        by_bucket: Mapping[int, Sequence[tuple[bytes, bytes]]],
        read: Mapping[int, bytes],
        files: MutableMapping[int, int],
    ) -> None:
        """Append entries (hash, id) to buckets whose locks are held, as they were read. Durable after `flush`.

        `files` has the descriptors of those that are open; each is closed, and taken out, once it was written to.
        """
        disk = self._disk
        unnamed = [b for b in by_bucket if read[b][:ENTRY_BYTES] != pack_mark(self.seed(b))]
        if unnamed:
            # U3: whoever made the file, or put it in place, may have died before its name was durable.
            for bucket in unnamed:
                if bucket not in files:
                    with _told(self._dir, layout.key_file(bucket)):
                        disk.close(locks.open_made(disk, layout.key_file(bucket)))
            with _told(self._dir, layout.KEYS):
                self._settle_names()
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

    def flush(self, names: Collection[str]) -> None:
        """Make what was written to these files durable."""
        if len(names) > _SYNC_EACH_MAX:
            self._disk.sync_all()
            return
        for name in sorted(names):
            # A journal that has gone was dealt, and is durable.
            with contextlib.suppress(FileNotFoundError):
                flush_file(self._disk, name)

    def _settle_names(self) -> None:
        self._disk.sync_dir(layout.KEYS)
        self._disk.sync_dir("")

    # -- compacting ------------------------------------------------------------------------------------------

    def tidy(self, now_us: int, buckets: Iterable[int] | None = None) -> int:
        """Compact what has grown among the next few buckets; return how many were. Never waits for a lock.

        Cost: a look at each of them; for one that has grown, a read, a look of the finder and a few flushes.
        """
        if buckets is None:
            buckets = [(self._turn + i) % layout.KEY_BUCKETS for i in range(LOOK_BUCKETS)]
            self._turn = (self._turn + LOOK_BUCKETS) % layout.KEY_BUCKETS
        done = 0
        for bucket in buckets:
            known = self._disk.identity(layout.key_file(bucket))
            most = max(LISTED_MAX * ENTRY_BYTES, 2 * self._left.get(bucket, 0))
            if known is None or known[1] <= most:
                continue
            fd = self.lock(bucket, 0)
            if fd is not None:
                try:
                    self.compact(bucket, now_us)
                    done += 1
                except Damaged:
                    self._left[bucket] = known[1]  # said once
                    raise
                finally:
                    self.unlock(fd)
        return done

    def compact(self, bucket: int, now_us: int) -> None:
        """Leave out of a bucket, whose lock is held, what cannot hold a key any more.

        Without a look are kept those that are due in the future and the newest of their key; so it costs no walk over
        the backlog.
        """
        seed = self.seed(bucket)
        found = [e for e in entries(self.read(bucket), seed) if isinstance(e, Entry)]
        newest = {e.hash: e.id for e in found}
        asked = {e.id for e in found if due_of(e.id) <= now_us or newest[e.hash] != e.id}
        gone = asked - self._finder.pending(asked)
        self.replace(bucket, list(dict.fromkeys((e.hash, e.id) for e in found if e.id not in gone)))

    def replace(self, bucket: int, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Put a bucket with exactly these entries (hash, id) in place of one whose lock is held. Durable on return."""
        name, tmp = layout.key_file(bucket), layout.key_tmp(bucket)
        seed = self.seed(bucket)
        # U4: a drop that a power cut takes back would bring back a message that is not listed any more.
        self._disk.sync_all()
        fd = self._disk.open(tmp, "w")
        try:
            self._disk.truncate(fd, 0)
            data = bytes(ENTRY_BYTES) + b"".join(pack_entry(seed, h, i) for h, i in pairs)
            self._disk.pwrite(fd, data, 0)
            self._disk.fdatasync(fd)
            self._disk.rename(tmp, name)
            self._settle_names()
            self._disk.pwrite(fd, pack_mark(seed), 0)
        finally:
            self._disk.close(fd)
        self._left[bucket] = len(data)


class Hold:
    """Keys whose buckets are locked, for as long as the `with` lasts. Made by `Keys.hold`. Not thread-safe.

    To take a key: leave it if it is `busy`; `look` who has it; give the new message its id; `note` that; and write the
    frame, which drops whoever had it, before the `with` ends. Its flush may come later.
    """

    def __init__(self, keys: Keys, names: Iterable[str], wait_s: float) -> None:
        self._keys = keys
        self._hashes = {name: keys.hash_of(name) for name in names}
        self._wait_s = wait_s
        self._fds: dict[int, int] = {}
        self._unsure: set[str] | None = set()
        """What is to be flushed before a key is taken (U4); None when everything is."""
        self._looked: set[str] = set()
        self._read: dict[int, bytes] = {}
        """The buckets of the keys that were looked at, until something is written to them."""
        self._files: dict[int, int] = {}
        """Those of them that are still open: to open one takes longer than to read or to write it."""
        self.busy: frozenset[str] = frozenset()
        """The keys whose bucket another has locked: nothing may be decided about them."""

    def __enter__(self) -> Self:
        busy = set()
        try:
            for bucket in sorted({h[0] for h in self._hashes.values()}):
                fd = self._keys.lock(bucket, self._wait_s)
                if fd is None:
                    busy.add(bucket)
                else:
                    self._fds[bucket] = fd
        except BaseException:
            self.release()
            raise
        self.busy = frozenset(name for name, h in self._hashes.items() if h[0] in busy)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let go of the locks. Leaving the `with` does it."""
        try:
            self._close_files()
        finally:
            while self._fds:
                self._keys.unlock(self._fds.popitem()[1])

    def _close_files(self) -> None:
        while self._files:
            self._keys._disk.close(self._files.popitem()[1])

    def look(self, key: str, now_us: int) -> Held:
        """Return who holds a key. It stays true until the lock is let go, but for an ack, a cancel or a death."""
        return self.look_all([key], now_us)[key]

    def look_all(self, names: Iterable[str], now_us: int) -> dict[str, Held]:
        """Return who holds each of some keys, as `look` does. Cost: a read of each bucket, one look of the finder."""
        keys, listed = self._keys, self._listed(names)
        for key, ids in listed.items():
            bucket = self._hashes[key][0]
            if len(ids) > LISTED_EACH_MAX:
                # Also where no keeper runs, the list of a key that is used again and again stays short.
                with _told(keys._dir, layout.key_file(bucket)):
                    keys.compact(bucket, now_us)
                del self._read[bucket]
                if bucket in self._files:  # that one has no name any more
                    keys._disk.close(self._files.pop(bucket))
                listed |= self._listed(k for k in listed if self._hashes[k][0] == bucket)
        self._looked.update(listed)
        found = keys._look_all(listed)
        for held in found.values():
            self._unsure = None if self._unsure is None or held.journals is None else self._unsure | held.journals
        return found

    def _listed(self, names: Iterable[str]) -> dict[str, list[bytes]]:
        """Return the ids that are listed for each key."""
        keys = self._keys
        listed: dict[str, list[bytes]] = {}
        for name in names:
            hash_ = self._hashes[name]
            if hash_[0] not in self._fds:
                raise AssertionError(f"the key {name!r} is not locked")
            listed[name] = keyfile.listed(self._bucket(hash_[0]), keys.seed(hash_[0]), hash_)
        return listed

    def _bucket(self, bucket: int) -> bytes:
        """Return the bytes of a bucket, read once."""
        data = self._read.get(bucket)
        if data is None:
            data = self._read[bucket] = self._read_open(bucket)
        return data

    def _read_open(self, bucket: int) -> bytes:
        """Read a bucket, and leave it open for what may be written to it."""
        disk, name = self._keys._disk, layout.key_file(bucket)
        place = self._keys._dir.place(name)
        try:
            try:
                fd = disk.open(name, "r+")
            except OSError as exc:
                if not self._files or not is_scarce(exc):
                    raise
                self._close_files()  # those are opened again where they are written to
                fd = disk.open(name, "r+")
        except FileNotFoundError:
            return b""
        except OSError as exc:
            raise disk_error(exc, place) from exc
        try:
            return read_bucket(disk, fd, place)
        except OSError as exc:
            raise disk_error(exc, place) from exc
        finally:
            if len(self._files) < FILES_MAX:
                self._files[bucket] = fd
            else:
                disk.close(fd)

    def note(self, pairs: Iterable[tuple[str, bytes]], own: Journal | None = None) -> None:
        """Enter (key, id) for messages that are about to be written: durable on return (U2).

        Each key was looked at before. Durable then are also the drops of what had these keys before (U4). `own` is
        the journal of the caller, which knows what of it was flushed. Cost: a flush for each bucket and such journal.
        """
        keys = self._keys
        by_bucket: dict[int, list[tuple[bytes, bytes]]] = {}
        for key, id_ in pairs:
            if key not in self._looked:
                raise AssertionError(f"the key {key!r} was not looked at")
            hash_ = self._hashes[key]
            by_bucket.setdefault(hash_[0], []).append((hash_, id_))
        keys.write(by_bucket, {bucket: self._bucket(bucket) for bucket in by_bucket}, self._files)
        self._read.clear()
        with _told(keys._dir, layout.KEYS):
            if self._unsure is None:
                keys._disk.sync_all()
            else:
                mine = {n for n in self._unsure if own is not None and layout.is_segment_of(n, own.writer)}
                if mine and own is not None:
                    own.flush()
                keys.flush({layout.key_file(b) for b in by_bucket} | self._unsure - mine)
        self._unsure = set()


def _held(key: str, ids: list[bytes], found: Mapping[bytes, bytes], journals: frozenset[str] | None) -> Held:
    """Return which of the ids that are listed for a key has it, of what was found to be pending."""
    for id_ in reversed(ids):  # the newest is the likely one
        put = found.get(id_)
        if put is not None and id_ < DEAD_FLOOR and key_of(put) == key:
            return Held(MessageId(id_), put, journals)
    return Held(None, None, journals)


@contextlib.contextmanager
def _told(directory: Directory, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise disk_error(exc, directory.place(name), undone=UNWRITTEN) from exc


def key_of(put: bytes) -> str | None:
    """Return the key of a packed put; None when it has none. Cost: a search in its bytes where it has none."""
    if _KEY_BYTES not in put:
        return None
    try:
        return unpack_put(put).headers.get(KEY)
    except Damaged:
        return None


_KEY_BYTES = KEY.encode()
