"""The index of unique keys: which message holds a key, shared by all processes.

A message holds its key while it is pending and no dead letter. Nothing records that. The index lists for each key the
ids that may hold it, and the finder finds which of these are pending. So the end of a message (ack, cancel, death)
changes nothing here, and an entry of an id that has ended is harmless. An undealt message lists itself: its put in the
journal has the key. A deal enters the keys of the messages that it covers in `keys/`. Rules
(docs/adr/0078-the-journal-lists-its-own-keys.md):

U1 A process that writes a message with a key holds the kernel lock of the key from the look to the frame.
U2 The key of each message in a slot or lap file is in `keys/`. A deal enters it in the transaction that covers the put.
U3 So the names of the files in `keys/` are durable before that deal is.
U4 The drops of all former holders of a key are durable before a frame gives it to another message, or moves its holder.
U5 The keeper never waits for the lock of a key: a producer that has it may have been stopped.
U6 Only the process that holds keeper.lock writes to `keys/`, in one thread at a time.
U7 A look reads the checkpoint and the journals first, and `keys/` then, because keys go from the journals to `keys/`.
   What it has read of `keys/` is good until there is another checkpoint: a deal puts one in place, and a rebuild too.
Invariant: every pending message with a key is listed under it, also after a power cut.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.flush import flush_file
from filewheel.errors import Damaged, disk_error, disk_errors
from filewheel.format import layout
from filewheel.format.key_entries import BUCKET_BYTES_MAX, KeyEntry, entries, listed
from filewheel.format.record import ID, key_of
from filewheel.journal.journal import Journal
from filewheel.lookup.finder import Finder
from filewheel.lookup.lru import Lru
from filewheel.lookup.snapshot import DEAD_FLOOR
from filewheel.message import MessageId
from filewheel.roster.roster import read_roster

REMEMBERED_BYTES = 8 << 20
"""How much of the index a handle remembers."""
LISTED_EACH_MAX = 8
"""With more ids of one key, a handle forgets those that have ended."""
SYNC_EACH_MAX = 4
"""More journals than this are flushed by one `syncfs`: 16 flushes one by one took ten times as long."""


class KeyHolder(NamedTuple):
    """The result of looking up a key."""

    id: MessageId | None
    """The message that holds the key; None when it is free."""
    put: bytes | None
    """That message, packed."""


FREE = KeyHolder(None, None)


class Looked(NamedTuple):
    """The result of looking up several keys."""

    holders: dict[str, KeyHolder]
    ids: dict[bytes, list[bytes]]
    """Hash of a key → the ids that are listed for it, ended ones too."""
    ended: dict[bytes, set[bytes]]
    """Those of these that are not pending, where they are many."""
    journals: frozenset[str] | None
    """Journals with drops of former holders that may not be durable; None when that is not known."""


class Keys:
    """The index of one wheel. Thread-safe. Needs no closing; memory does not grow with the backlog."""

    def __init__(self, directory: Directory, finder: Finder | None = None) -> None:
        self.dir = directory
        self._disk = directory.disk
        self._finder = finder or Finder(directory)
        self._checkpoint: Checkpoint | None = None
        self._files: Lru[int, bytes] = Lru()
        """bucket → the bytes of the file, read under this checkpoint. Guarded by the finder's lock, as `_older` is."""
        self._older: bytes | None = None
        """The file of an older version. A keeper moves its entries to the other files; no present version adds any."""
        self.alone = threading.RLock()
        """Held by a thread that takes keys: other threads of this handle wait here, and not for the kernel lock."""
        self.hash_of = directory.settings.key_hash

    # -- asking ----------------------------------------------------------------------------------------------

    def find(self, names: Iterable[str]) -> dict[str, KeyHolder]:
        """Return the holder of each key, without a lock. Cost: one look of the finder; for free keys, two.

        A copy of a wheel has no index (docs/replication.md). There, free keys cost a walk through all messages.
        """
        found: dict[str, KeyHolder] = {}
        before: Mapping[bytes, list[bytes]] = {}
        left = list(names)
        while left:
            hashes = self.hashes_of(left)
            holders, ids, *_ = self.look(hashes)
            found |= holders
            # A message that moved, and whose old id was removed from the index since, is found by another look.
            # mutant: key-one-look
            left = [n for n, hash_ in hashes.items() if holders[n].id is None and ids[hash_] != before.get(hash_)]
            before = ids
        free = {name for name, holder in found.items() if holder.id is None}
        if free and self._is_copy():
            with self._finder.snapshot() as snapshot:
                for put in snapshot.puts():
                    key = key_of(put)
                    if key is not None and key in free:
                        found[key] = KeyHolder(MessageId(put[ID]), put)
        return found

    def _is_copy(self) -> bool:
        """Return whether this is a copy, or may be one: its roster cannot be read."""
        with disk_errors(self.dir.path):
            try:
                roster = read_roster(self._disk, self.dir.path)
            except Damaged:
                return True
        return roster is not None and roster.role != "primary"

    def hashes_of(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the hash of each key."""
        return {name: self.hash_of(name) for name in names}

    def look(self, hashes: Mapping[str, bytes]) -> Looked:
        """Return the holder of each key; `hashes` has the hash of each. Cost: one look of the finder.

        With the locks of the keys held, only an ack, a cancel or a death makes a key free until they are released.
        """
        if not hashes:
            return Looked({}, {}, {}, frozenset())
        ids, puts, journals = self._finder.holders(hashes.values(), self._dealt)
        holders = {name: _holder(name, ids[hash_], puts) if ids[hash_] else FREE for name, hash_ in hashes.items()}
        ended = {h: set(some).difference(puts) for h, some in ids.items() if len(some) > LISTED_EACH_MAX}
        return Looked(holders, ids, ended, None if journals is None else frozenset(journals))

    def ids_of(self, key: str) -> list[bytes]:
        """Return the ids that are listed for a key; of many that have ended only some."""
        return self.look(self.hashes_of([key])).ids[self.hash_of(key)]

    def pending(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return, of these ids, those that are pending."""
        return self._finder.pending(ids)

    def ended(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return, of these ids, those that have ended for sure."""
        return self._finder.ended(ids)

    def put_of(self, id_: bytes) -> bytes | None:
        """Return a pending message, packed, by its id."""
        return self._finder.find([id_]).get(id_)

    def _dealt(self, hashes: Collection[bytes], checkpoint: Checkpoint) -> dict[bytes, list[bytes]]:
        """Return the ids that the files of the index list for each key; all that this checkpoint covers."""
        if self._older is None:
            self._older = self.read(layout.KEY_RECENT)  # first: its entries go to the others
        if checkpoint is not self._checkpoint:
            self._checkpoint, self._files = checkpoint, Lru()  # mutant: key-file-of-before
        files = {bucket: self._file(bucket) for bucket in {hash_[0] for hash_ in hashes}}
        ids: dict[bytes, list[bytes]] = {}
        for hash_ in hashes:
            data = files[hash_[0]]
            ids[hash_] = listed(data, self.seed(hash_[0]), hash_) if hash_ in data else []
            if hash_ in self._older:
                ids[hash_] += listed(self._older, self.seed(layout.KEY_RECENT), hash_)
        return ids

    def _file(self, bucket: int) -> bytes:
        """Return the bytes of a file, as they were read under this checkpoint."""
        data = self._files.get(bucket)
        if data is None:
            data = self.read(bucket)
            self._files.put(bucket, data, len(data))
            self._files.shrink(REMEMBERED_BYTES)
        return data

    # -- files -----------------------------------------------------------------------------------------------

    def seed(self, bucket: int) -> int:
        """Return the number that the checksums of a file start from."""
        return self.dir.seed(layout.key_file(bucket))

    def read(self, bucket: int) -> bytes:
        """Return the bytes of a file; none when there is no such file.

        Raises Damaged when it is too long, DiskError.
        """
        disk, name = self._disk, layout.key_file(bucket)
        try:
            fd = disk.open(name, "r")
            try:
                size = disk.size(fd)
                data = disk.pread(fd, size, 0) if size <= BUCKET_BYTES_MAX else b""
            finally:
                disk.close(fd)
        except FileNotFoundError:
            return b""
        except OSError as exc:
            raise disk_error(exc, self.dir.place(name)) from exc
        if size > BUCKET_BYTES_MAX:
            raise too_long(self.dir, name, size)
        return data

    def is_too_long(self, bucket: int) -> bool:
        """Return whether a file is longer than one can be, so that nothing reads it."""
        known = self._disk.identity(layout.key_file(bucket))
        return known is not None and known[1] > BUCKET_BYTES_MAX

    def entries(self, bucket: int) -> list[KeyEntry]:
        """Return the entries of a file. Raises Damaged, DiskError."""
        return [e for e in entries(self.read(bucket), self.seed(bucket)) if isinstance(e, KeyEntry)]

    # -- taking ----------------------------------------------------------------------------------------------

    def flush_drops(self, looked: Looked, own: Journal) -> None:
        """Make the drops of the former holders of these keys durable, so that they may be taken (U4).

        `own` is the caller's journal, which knows how much of it is durable. Cost: mostly nothing.

        Raises DiskError, Poisoned.
        """
        journals = looked.journals
        mine = frozenset([name for name in journals or () if layout.is_segment_of(name, own.writer)])
        if mine:  # mutant: key-drop-mine-unflushed
            own.flush()
        others = None if journals is None else sorted(journals - mine)
        try:
            if others is None or len(others) > SYNC_EACH_MAX:
                self._disk.sync_all()
            for name in others or ():
                with contextlib.suppress(FileNotFoundError):  # it was dealt, and is durable
                    flush_file(self._disk, name)  # mutant: key-drop-unflushed
        except OSError as exc:
            raise disk_error(exc, self.dir.place(layout.JOURNAL)) from exc
        for hash_, gone in looked.ended.items():
            self._finder.forget_ended(hash_, gone)  # mutant: key-grows


def _holder(key: str, ids: list[bytes], puts: Mapping[bytes, bytes]) -> KeyHolder:
    """Return the holder of a key: the listed id that was found pending with this key."""
    for id_ in reversed(ids):  # the newest is the likely one
        put = puts.get(id_)
        if put is not None and id_ < DEAD_FLOOR and key_of(put) == key:  # mutant: key-collides
            return KeyHolder(MessageId(id_), put)
    return FREE


def too_long(directory: Directory, name: str, size: int) -> Damaged:
    """Return the error for a file of keys that is too long to be one."""
    return Damaged(
        f"{size} bytes are more than a file of keys can have ({BUCKET_BYTES_MAX}): its keys cannot be looked up",
        path=directory.place(name),
        hint="stop the keeper, then `filewheel repair` makes it again",
    )
