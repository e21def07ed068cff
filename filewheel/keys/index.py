"""The index of unique keys: which message holds a key, on disk, shared by all processes.

A message holds its key while it is pending and no dead letter. The index does not record that: it lists for each key
the ids that may hold it (bucket.py), and the finder finds which of these are pending. So the end of a message (ack,
cancel, death) changes nothing here, and an entry of an id that never existed or has ended is harmless. Rules
(docs/adr/0014-unique-keys.md):

U1 A process that writes a message with a key holds the kernel lock of the key's bucket from the lookup to the frame.
U2 The entry is written before the frame. It is durable before the frame is written, or where the message need not be
   durable yet, before anything reports it durable (docs/adr/0038-a-key-that-is-not-flushed.md).
U3 The name of a bucket is durable before an entry in it counts: its first entry says so.
U4 The drops of all former holders of the key are durable before then too, also those in journals of other writers, and
   also when the present holder only moves.
U5 The keeper never waits for a lock here: a producer that has it may have been stopped.
U6 The holder of a bucket's lock also holds the lock of all, shared. A batch that holds that lock alone needs no other,
   and enters its keys in the file of recent entries (docs/adr/0037-one-file-of-recent-keys.md).
U7 An entry leaves that file only when it is durable in its bucket, or compacted. So a lookup reads that file first.
Invariant: every pending message with a key is listed under it, or found by `lost`, also after a power cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from filewheel.disk import locks
from filewheel.disk.directory import Directory
from filewheel.disk.disk import is_scarce, is_unreadable
from filewheel.errors import Damaged, DiskError, disk_error
from filewheel.format import layout
from filewheel.format.record import key_of
from filewheel.journal.journal import Journal
from filewheel.keys import bucket as keyfile
from filewheel.keys.bucket import ENTRY_BYTES, KeyEntry, entries, read_bucket
from filewheel.keys.files import KeyFiles, disk_errors
from filewheel.keys.lost import lost_entries
from filewheel.keys.recent import RECENT_ENTRIES_MAX
from filewheel.lookup.finder import Finder
from filewheel.lookup.snapshot import DEAD_FLOOR
from filewheel.message import MessageId, due_of

MANY = 5
"""A call with so many keys tries to take the lock of all alone."""
PATIENCE_S = 0.02
"""How long it waits, unless the last try failed: about as long as it takes with the other locks."""
LISTED_MAX = 128
"""A bucket with more entries than this is worth compacting, if it has also doubled."""
LISTED_EACH_MAX = 32
"""So is a bucket with more than this for one key."""
LOOK_BUCKETS = 32
"""How many buckets the keeper checks each time."""
FILES_MAX = 128
"""How many buckets stay open from lookup to write; the others are opened twice."""


class KeyHolder(NamedTuple):
    """The result of looking up a key."""

    id: MessageId | None
    """The message that holds the key; None when it is free."""
    put: bytes | None
    """That message, packed."""
    journals: frozenset[str] | None
    """Journals with drops of former holders that may not be durable; None when that is not known."""


class Keys(KeyFiles):
    """The index of one wheel. Thread-safe. Needs no closing; memory does not grow with the index."""

    def __init__(self, directory: Directory, finder: Finder | None = None) -> None:
        super().__init__(directory)
        self._finder = finder or Finder(directory)
        self._turn = 0
        self._lost: dict[bytes, list[bytes]] | None = None
        self.is_patient = True
        """The last batch that waited for the lock of all got it in time."""

    # -- asking ----------------------------------------------------------------------------------------------

    def find(self, key: str) -> KeyHolder:
        """Return the holder of a key, without a lock. Cost: one read of its bucket, and a look of the finder."""
        before: list[bytes] | None = None
        lost = self.lost().get(self.hash_of(key), [])
        while True:
            ids = lost + self.listed(key)  # mutant: key-lost-unread
            held = self._look(key, ids)
            # A move writes its entry first, so without a new entry the message has not moved since.
            if held.id is not None or ids == before:  # mutant: key-one-look
                return held
            before = ids

    def find_all(self, keys: Iterable[str]) -> dict[str, KeyHolder]:
        """Return the holder of each key, without a lock. Cost: a read of each bucket, and one look for all."""
        found = self._look_all({key: self.listed(key) for key in keys})
        return {key: self.find(key) if held.id is None else held for key, held in found.items()}

    def _look(self, key: str, ids: list[bytes]) -> KeyHolder:
        return self._look_all({key: ids})[key]

    def _look_all(self, listed: Mapping[str, list[bytes]]) -> dict[str, KeyHolder]:
        """Return the holder of each key, among its listed ids. Cost: one look of the finder."""
        ids = [id_ for some in listed.values() for id_ in some]
        found, unsure = self._finder.look(ids) if ids else ({}, set())
        journals = None if unsure is None else frozenset(unsure)
        free = KeyHolder(None, None, journals)
        return {key: _held(key, some, found, free) if some else free for key, some in listed.items()}

    def listed(self, key: str) -> list[bytes]:
        """Return the ids that are listed for a key, in the order in which they were written."""
        hash_ = self.hash_of(key)
        # mutant: key-recent-last
        recent = self.recent.listed([hash_], is_still=False).get(hash_, [])  # first: entries move to the buckets
        return keyfile.listed(self.read(hash_[0]), self.seed(hash_[0]), hash_) + recent  # mutant: key-recent-last.2

    def lost(self) -> Mapping[bytes, list[bytes]]:
        """Return hash → ids that count as listed, though a power cut removed it. Read only once. Raises DiskError.

        An open process has seen no power cut, so one look before the first use is enough. The result stays in memory;
        the deal that covers such a message enters it.
        """
        if self._lost is None:
            with disk_errors(self._dir, layout.JOURNAL):
                self._lost = lost_entries(self._dir, self)  # mutant: key-lost-unseen
        return self._lost

    def put_of(self, id_: bytes) -> bytes | None:
        """Return a pending message, packed, by its id."""
        return self._finder.find([id_]).get(id_)

    # -- holding ---------------------------------------------------------------------------------------------

    def hold(self, keys: Iterable[str], *, wait_s: float = locks.WAIT_S) -> LockedKeys:
        """Lock the buckets of some keys, to be used in a `with`. Those that could not be locked in time are `busy`.

        While they are locked, no other process can write a message with one of these keys. The lock of all is taken
        before those of buckets, and those in ascending order. Cost: about 17 µs for each; many keys share one.
        """
        return LockedKeys(self, keys, wait_s)

    # -- compacting ------------------------------------------------------------------------------------------

    def tidy(self, now_us: int, buckets: Iterable[int] | None = None) -> int:
        """Compact the next few buckets that have grown; return how many. Never waits for a lock.

        Cost: a check of each; for one that has grown, a read, a look of the finder and a few flushes.
        """
        if buckets is None:
            buckets = [(self._turn + i) % layout.KEY_BUCKETS for i in range(LOOK_BUCKETS)]
            self._turn = (self._turn + LOOK_BUCKETS) % layout.KEY_BUCKETS
        done = 0
        for bucket in (layout.KEY_RECENT, *buckets):
            known = self._disk.identity(layout.key_file(bucket))
            most = max(LISTED_MAX * ENTRY_BYTES, 2 * self._left.get(bucket, 0))
            if bucket == layout.KEY_RECENT:
                most = max(RECENT_ENTRIES_MAX // 2 * ENTRY_BYTES, most)
            if known is None or known[1] <= most:
                continue
            with self.locked(bucket, 0) as is_locked:
                try:
                    if is_locked and bucket == layout.KEY_RECENT:
                        self.merge()
                    elif is_locked:
                        self.compact(bucket, now_us)
                    done += is_locked
                except Damaged:
                    self._left[bucket] = known[1]  # logged once
                    raise
        return done

    def merge(self) -> None:
        """Move the recent entries to their buckets; the caller holds the lock of all alone. Durable on return."""
        found = entries(self.read(layout.KEY_RECENT), self.seed(layout.KEY_RECENT))
        by_bucket: dict[int, dict[tuple[bytes, bytes], None]] = {}
        for entry in found:
            if isinstance(entry, KeyEntry):
                by_bucket.setdefault(entry.hash[0], {})[entry.hash, entry.id] = None
        read: dict[int, bytes] = {}
        for bucket in by_bucket:
            try:
                read[bucket] = self.read(bucket, "r+")
            except Damaged:
                pass  # no key of it can be taken; its entries stay
            except DiskError as exc:
                if not isinstance(exc.__cause__, OSError) or not is_unreadable(exc.__cause__):
                    raise
        self.write({bucket: list(by_bucket[bucket]) for bucket in read}, read, {})
        # U7: everything is flushed before the new file takes the name.
        self.replace(  # mutant: key-merged-away
            layout.KEY_RECENT, [pair for bucket in by_bucket.keys() - read.keys() for pair in by_bucket[bucket]]
        )

    def compact(self, bucket: int, now_us: int) -> None:
        """Remove ids that cannot hold a key any more from a bucket, or the recent entries, whose lock is held.

        Ids that are due in the future and the newest id of each key stay without a lookup, so no backlog is walked.
        """
        seed = self.seed(bucket)
        found = [e for e in entries(self.read(bucket), seed) if isinstance(e, KeyEntry)]
        newest = {e.hash: e.id for e in found}
        asked = {e.id for e in found if due_of(e.id) <= now_us or newest[e.hash] != e.id}
        gone = asked - self._finder.pending(asked)  # mutant: key-compacted-blindly
        self.replace(bucket, list(dict.fromkeys((e.hash, e.id) for e in found if e.id not in gone)))


class LockedKeys:
    """Keys whose buckets are locked, for as long as the `with` lasts. Made by `Keys.hold`. Not thread-safe.

    To take a key: stop if it is `busy`; `look` up its holder; give the new message its id; `note` that; and write the
    frame, which drops the former holder, before the `with` ends. The flush may come later.
    """

    def __init__(self, keys: Keys, names: Iterable[str], wait_s: float) -> None:
        self._keys = keys
        self._hashes = {name: keys.hash_of(name) for name in names}
        self._wait_s = wait_s
        self._held = locks.Held(keys._dir)
        """The lock of all (U6), and those of the buckets."""
        self._is_alone = False
        """The lock of all is held alone."""
        self._buckets: set[int] = set()
        """The locked buckets."""
        self._unsure: set[str] | None = set()
        """The journals to be flushed before a key is taken (U4); None for all of them."""
        self._looked: set[str] = set()
        self._read: dict[int, bytes] = {}
        """The bytes of the buckets of looked-up keys, until they are written to."""
        self._files: dict[int, int] = {}
        """Those still open: opening one takes longer than reading or writing it."""
        self.busy: frozenset[str] = frozenset()
        """The keys whose bucket another process has locked: nothing may be decided about them."""

    def __enter__(self) -> Self:
        busy: set[int] = set()
        try:
            if not self._hashes or (len(self._hashes) >= MANY and self._take_all()):
                return self
            has_all = self._keys.lock_all(self._held, self._wait_s, shared=True)  # mutant: key-all-unshared
            for bucket in sorted({h[0] for h in self._hashes.values()}):
                is_locked = has_all and self._keys.lock(self._held, bucket, self._wait_s)
                (self._buckets if is_locked else busy).add(bucket)
        except BaseException:
            self.release()
            raise
        self.busy = frozenset(name for name, h in self._hashes.items() if h[0] in busy)
        return self

    def _take_all(self) -> bool:
        """Take the lock of all alone, if it is free soon."""
        wait_s = min(self._wait_s, PATIENCE_S if self._keys.is_patient else 0)
        self._is_alone = self._keys.lock_all(self._held, wait_s, shared=False)  # mutant: key-all-not-alone
        self._keys.is_patient = self._is_alone or (not wait_s and self._keys.is_patient)
        return self._is_alone

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Release the locks. Leaving the `with` does it."""
        try:
            self._close_files()  # mutant: key-files-stay-open
        finally:
            self._held.close()
            self._buckets.clear()
            self._is_alone = False

    def _close_files(self) -> None:
        while self._files:
            self._keys._disk.close(self._files.popitem()[1])

    def look(self, key: str, now_us: int) -> KeyHolder:
        """Return the holder of a key. Until the lock is released, only an ack, a cancel or a death ends that."""
        return self.look_all([key], now_us)[key]

    def look_all(self, names: Iterable[str], now_us: int) -> dict[str, KeyHolder]:
        """Return the holder of each key, as `look` does. Cost: a read of each bucket, one look of the finder."""
        keys, names = self._keys, list(names)
        listed, long = self._listed(names)
        for bucket in long:
            # Even without a keeper, the list of a frequently used key stays short.
            with disk_errors(keys._dir, layout.key_file(bucket)):
                keys.compact(bucket, now_us)
            self._read.pop(bucket, None)
            if bucket in self._files:  # that file was replaced  # mutant: key-file-of-before
                keys._disk.close(self._files.pop(bucket))
        if long:
            listed, _ = self._listed(names)
        self._looked.update(listed)
        found = keys._look_all(listed)
        for journals in {held.journals for held in found.values()}:
            self._unsure = None if self._unsure is None or journals is None else self._unsure | journals
        return found

    def _listed(self, names: Iterable[str]) -> tuple[dict[str, list[bytes]], set[int]]:
        """Return the ids listed for each key, and the files to compact because a key in them has too many."""
        keys = self._keys
        lost = keys.lost()  # before a file is read: a message dealt since is listed there
        hashes = {name: self._hashes[name] for name in names}
        recent = keys.recent.listed(list(hashes.values()), is_still=True)  # mutant: key-recent-unread
        listed: dict[str, list[bytes]] = {}
        long: set[int] = set()
        for name, hash_ in hashes.items():
            bucket = hash_[0]
            if not self._is_alone and bucket not in self._buckets:
                raise AssertionError(f"the key {name!r} is not locked")
            data = self._bucket(bucket)
            ids = keyfile.listed(data, keys.seed(bucket), hash_) if hash_ in data else []
            if len(ids) > LISTED_EACH_MAX:  # mutant: key-grows
                long.add(bucket)
            late = recent.get(hash_)
            if late is not None:
                ids += late
                if self._is_alone and len(late) > LISTED_EACH_MAX:
                    long.add(layout.KEY_RECENT)
            listed[name] = lost.get(hash_, []) + ids  # mutant: key-lost-taken
        return listed, long

    def _bucket(self, bucket: int) -> bytes:
        """Return the bytes of a bucket, read once."""
        data = self._read.get(bucket)
        if data is None:
            data = self._read[bucket] = self._keys.read(bucket) if self._is_alone else self._read_open(bucket)
        return data

    def _read_open(self, bucket: int) -> bytes:
        """Read a bucket, and leave it open for a later write."""
        disk, name = self._keys._disk, layout.key_file(bucket)
        place = self._keys._dir.place(name)
        try:
            try:
                fd = disk.open(name, "r+")
            except OSError as exc:
                if not self._files or not is_scarce(exc):  # mutant: key-files-scarce
                    raise
                self._close_files()  # they are opened again for writing
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

    def note(self, pairs: Iterable[tuple[str, bytes]], own: Journal | None = None, *, durable: bool = True) -> None:
        """Enter (key, id) for messages that are about to be written (U2): if `durable`, flushed on return.

        Each key was looked up before. On return the drops of their former holders are durable (U4). `own` is the
        caller's journal, which knows how much of it is flushed; entries that need not be durable yet are flushed with
        it. Cost: a flush for each bucket and such journal.
        """
        keys = self._keys
        enters: list[tuple[bytes, bytes]] = []
        for key, id_ in pairs:
            if key not in self._looked:
                raise AssertionError(f"the key {key!r} was not looked at")
            enters.append((self._hashes[key], id_))
        if not enters:
            return
        by_bucket: dict[int, list[tuple[bytes, bytes]]] = {}
        # A larger batch would be merged soon, and into as many buckets.
        if self._is_alone and len(enters) <= RECENT_ENTRIES_MAX // 4:
            by_bucket[layout.KEY_RECENT] = enters
            if keys.recent.still().end // ENTRY_BYTES + len(enters) > RECENT_ENTRIES_MAX:  # mutant: key-recent-endless
                keys.merge()
            keys.enter(enters, durable=durable)
        else:
            for hash_, id_ in enters:
                by_bucket.setdefault(hash_[0], []).append((hash_, id_))
            read = {bucket: self._bucket(bucket) for bucket in by_bucket}
            keys.write(by_bucket, read, self._files, durable=durable)
        self._read.clear()
        with disk_errors(keys._dir, layout.KEYS):
            if self._unsure is None:
                keys._disk.sync_all()
            else:
                mine = {n for n in self._unsure if own is not None and layout.is_segment_of(n, own.writer)}
                if mine and own is not None:  # mutant: key-drop-mine-unflushed
                    own.flush()
                # mutant: key-entry-unflushed key-recent-unflushed
                entered = {layout.key_file(b) for b in by_bucket} if durable else set()
                keys.flush(entered | self._unsure - mine)  # mutant: key-drop-unflushed
        self._unsure = set()


def _held(key: str, ids: list[bytes], found: Mapping[bytes, bytes], free: KeyHolder) -> KeyHolder:
    """Return the holder of a key: the listed id that was found pending with this key."""
    for id_ in reversed(ids):  # the newest is the likely one
        put = found.get(id_)
        if put is not None and id_ < DEAD_FLOOR and key_of(put) == key:  # mutant: key-collides
            return free._replace(id=MessageId(id_), put=put)
    return free
