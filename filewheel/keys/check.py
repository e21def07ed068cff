"""Checks of the index of unique keys, for `verify` and `repair`.

They find bytes that are no entry, and pending messages that the index does not list: another message could take their
key. `repair` lists those. They also find keys that two pending messages have, because a lost or emptied index let the
second take it: neither message is damaged, so `verify` names both and a person decides.

The index is read one bucket at a time, and the wheel is searched only for messages that are not listed or are listed
together: most of them ended. Memory: one batch, the recent entries, one bucket, and the findings.
Invariant: each message found is pending in one snapshot, is no dead letter, and has the key in its header; its index
entry is written before the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile, is_unreadable
from filewheel.errors import Damaged, DiskError
from filewheel.format import layout
from filewheel.format.record import key_of
from filewheel.keys.bucket import KeyEntry, Unreadable, entries, read_bucket
from filewheel.keys.files import KeyFiles, most_of
from filewheel.keys.index import Keys
from filewheel.lookup.snapshot import DEAD_FLOOR, Snapshot
from filewheel.message import KEY, Message, MessageId

Ids = dict[bytes, set[bytes]]
"""Hash of a key → the ids that may have it."""


def living_twice(directory: Directory, unlisted: Mapping[bytes, str]) -> dict[str, list[bytes]]:
    """Return key → ids for each key of several living messages; `unlisted` adds id → key to the index.

    Raises OSError, DiskError. An unreadable file is skipped: another check reports it.
    """
    files = KeyFiles(directory)
    recent = _ids_in(files, layout.KEY_RECENT)  # first: entries move from it to the buckets
    for id_, key in unlisted.items():
        recent.setdefault(files.hash_of(key), set()).add(id_)
    beside: dict[int, list[bytes]] = {}
    for hash_ in recent:
        beside.setdefault(hash_[0], []).append(hash_)
    suspects: set[bytes] = set()
    for bucket in range(layout.KEY_BUCKETS):
        found = _ids_in(files, bucket)
        for hash_ in beside.get(bucket, ()):
            found.setdefault(hash_, set()).update(recent[hash_])
        for ids in found.values():
            if len(ids) > 1:  # mutant: key-twice-unsaid
                suspects |= ids
    if not suspects:
        return {}
    by_key: dict[str, list[bytes]] = {}
    with Snapshot(directory) as snapshot:
        for id_, put in snapshot.find(suspects).items():
            key_ = key_of(put)
            if key_ is not None and id_ < DEAD_FLOOR:
                by_key.setdefault(key_, []).append(id_)
    return {key: sorted(ids) for key, ids in by_key.items() if len(ids) > 1}


def _ids_in(files: KeyFiles, bucket: int) -> Ids:
    found: Ids = {}
    try:
        data = files.read(bucket)
    except Damaged:
        return found
    except DiskError as exc:
        if not isinstance(exc.__cause__, OSError) or not is_unreadable(exc.__cause__):
            raise
        return found
    for entry in entries(data, files.seed(bucket)):
        if isinstance(entry, KeyEntry):
            found.setdefault(entry.hash, set()).add(entry.id)
    return found


_BATCH = 50_000
FOREIGN = "not a file of filewheel's; it is left alone"
Add = Callable[[str, str, int, int, str, str], None]
"""Called with (kind, file, offset, end, problem, remedy) for each finding."""


class Unlisted:
    """Collects messages with a key, and finds those that are not listed."""

    def __init__(self, directory: Directory, *, with_recent: bool = True) -> None:
        """Without `with_recent`, only the entries in the buckets count."""
        self._dir = directory
        self._keys = Keys(directory)
        self._with_recent = with_recent
        self._batch: dict[int, dict[bytes, tuple[bytes, str]]] = {}
        """bucket → id → (hash, key)."""
        self._size = 0
        self._found: dict[bytes, str] = {}
        self._lost = self._lost_ids()  # first: a message dealt after this is listed before the search

    def _lost_ids(self) -> frozenset[bytes]:
        """Return the ids in journals whose index entries a power cut removed."""
        try:
            return frozenset(id_ for ids in self._keys.lost().values() for id_ in ids)
        except DiskError as exc:
            if not isinstance(exc.__cause__, OSError) or not is_unreadable(exc.__cause__):
                raise
            return frozenset()  # another check reports it

    def add(self, message: Message) -> None:
        """Add a message; most have no key."""
        key = message.headers.get(KEY)
        if key is not None and message.id < DEAD_FLOOR:
            hash_ = self._keys.hash_of(key)
            self._batch.setdefault(hash_[0], {})[bytes(message.id)] = (hash_, key)
            self._size += 1
            if self._size >= _BATCH:
                self._ask()

    def found(self) -> dict[bytes, str]:
        """Return id → key of the living messages that are not listed. Raises DiskError."""
        self._ask()
        return self._found

    def bucket_of(self, key: str) -> str:
        """Return the file that a key belongs to."""
        return layout.key_file(self._keys.hash_of(key)[0])

    def _ask(self) -> None:
        suspects: dict[bytes, str] = {}
        batch, self._batch, self._size = self._batch, {}, 0
        # Before the buckets: entries move from it to them (U7).  # mutant: unlisted-recent-last
        recent = self._entries_of(layout.KEY_RECENT) if batch and self._with_recent else set()
        for bucket, some in batch.items():  # mutant: unlisted-recent-last.2
            listed = None if recent is None else self._entries_of(bucket)
            if recent is None or listed is None:
                continue
            for id_, (hash_, key) in some.items():
                if (hash_, id_) not in listed and (hash_, id_) not in recent:  # mutant: unlisted-unseen
                    suspects[id_] = key
        suspects = {id_: key for id_, key in suspects.items() if id_ not in self._lost}  # mutant: key-lost-is-damage
        if suspects:
            with Snapshot(self._dir) as snapshot:
                living = snapshot.find(suspects)
            self._found.update((i, key) for i, key in suspects.items() if i in living)

    def _entries_of(self, bucket: int) -> set[tuple[bytes, bytes]] | None:
        """Return the (hash, id) that a file has; None when it cannot be read."""
        try:
            data = self._keys.read(bucket)
        except Damaged:
            return None  # too long: another check reports it, and `repair` makes the whole file again
        except DiskError as exc:
            if not isinstance(exc.__cause__, OSError) or not is_unreadable(exc.__cause__):
                raise
            return None  # another check reports it; no key of it can be taken
        seed = self._dir.seed(layout.key_file(bucket))
        return {(e.hash, e.id) for e in entries(data, seed) if isinstance(e, KeyEntry)}


def check_keys(directory: Directory, unlisted: Unlisted | None, add: Add) -> None:
    """Check the index of unique keys, which the first key creates; report its problems.

    Raises DiskError, and OSError when a later read may succeed.
    """
    by_file: dict[str, int] = {}
    if unlisted is not None:
        for key in unlisted.found().values():
            name = unlisted.bucket_of(key)
            by_file[name] = by_file.get(name, 0) + 1
    for name, count in sorted(by_file.items()):
        what = f"{count} living messages are not listed under their unique keys, which may be taken twice"
        add("damage", name, 0, 0, what, "filewheel repair")
    if unlisted is not None:
        for key, ids in sorted(living_twice(directory, unlisted.found()).items()):
            what = f"the key {key!r} is that of {len(ids)} living messages: {', '.join(str(MessageId(i)) for i in ids)}"
            add("note", layout.KEYS, 0, 0, what, "cancel all of them but one, by id")
    try:
        names = directory.disk.listdir(layout.KEYS)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        return  # tools/places.py reports it
    for last in sorted(names):
        name = f"{layout.KEYS}/{last}"
        bucket = layout.parse_key_file(last)
        if bucket is not None:
            _check_file(directory, bucket, add)
        elif not layout.is_key_spare(last):
            add("note", name, 0, 0, FOREIGN, "")


def _check_file(directory: Directory, bucket: int, add: Add) -> None:
    disk, name = directory.disk, layout.key_file(bucket)
    try:
        fd = disk.open(name, "r")
    except (FileNotFoundError, ForeignFile):
        return  # tools/places.py reports the latter
    except OSError as exc:
        add("damage", name, 0, 0, unreadable(exc), "")
        return
    try:
        data = read_bucket(disk, fd, directory.place(name), most_of(bucket))
    except Damaged as exc:
        add("damage", name, 0, 0, exc.what, exc.hint or "")
        return
    finally:
        disk.close(fd)
    for item in entries(data, directory.seed(name)):
        if isinstance(item, Unreadable):
            # A torn entry looks the same. It matters only when a living message is not listed, which is reported.
            add("note", name, item.offset, item.end, "no entry: one that never completed, or damage", "")


def unreadable(exc: OSError) -> str:
    """Return as text why a file cannot be read; raise a temporary error, which is no finding."""
    if not is_unreadable(exc):
        raise exc
    return f"cannot be read: {exc.strerror or exc}"
