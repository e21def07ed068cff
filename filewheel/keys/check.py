"""Checks of the index of unique keys, for `verify`.

They find bytes that are no entry, and pending messages in slot and lap files that the index does not list: another
message could take their key. `repair` lists those. They also find keys that two pending messages have, because a lost
or emptied index let the second take it: neither message is damaged, so `verify` names both and a person decides.

The index is read one file at a time, and the wheel is searched only for messages that are not listed or are listed
together: most of them ended. Memory: one batch, the undealt keys, one file, and the findings.
Invariant: each message found is pending in one snapshot, is no dead letter, and has the key in its header.
"""

from __future__ import annotations

from collections.abc import Callable

from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile, is_unreadable
from filewheel.errors import Damaged, DiskError
from filewheel.format import layout
from filewheel.format.key_entries import UnreadableBytes, entries
from filewheel.format.record import key_of
from filewheel.keys.index import Keys
from filewheel.lookup.snapshot import DEAD_FLOOR, Snapshot
from filewheel.message import KEY, Message, MessageId

Ids = dict[bytes, set[bytes]]
"""Hash of a key → the ids that may have it."""


def living_twice(directory: Directory, beside: Ids) -> dict[str, list[bytes]]:
    """Return key → ids for each key of several living messages; `beside` adds ids that the files do not list.

    Raises OSError, DiskError. An unreadable file is skipped: another check reports it.
    """
    keys = Keys(directory)
    for hash_, id_ in _pairs_in(keys, layout.KEY_RECENT) or ():
        beside.setdefault(hash_, set()).add(id_)
    suspects: set[bytes] = set()
    files = {bucket for last in _names(directory) if (bucket := layout.parse_key_file(last)) is not None}
    for bucket in {hash_[0] for hash_ in beside} | files - {layout.KEY_RECENT}:
        found: Ids = {hash_: set(ids) for hash_, ids in beside.items() if hash_[0] == bucket}
        for hash_, id_ in _pairs_in(keys, bucket) or ():
            found.setdefault(hash_, set()).add(id_)
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


def _names(directory: Directory) -> list[str]:
    """Return the names of the files of the index; none before the first key."""
    try:
        return sorted(directory.disk.listdir(layout.KEYS))
    except (FileNotFoundError, NotADirectoryError):  # tools/places.py reports the second
        return []


def _pairs_in(keys: Keys, bucket: int) -> set[tuple[bytes, bytes]] | None:
    """Return the (hash, id) that a file has; None when it cannot be read."""
    try:
        return {(e.hash, e.id) for e in keys.entries(bucket)}
    except Damaged:
        return None  # too long: another check reports it, and `repair` makes the whole file again
    except DiskError as exc:
        if not isinstance(exc.__cause__, OSError) or not is_unreadable(exc.__cause__):
            raise
        return None  # another check reports it; no key of it can be taken


_BATCH = 50_000
FOREIGN = "not a file of filewheel's; it is left alone"
Add = Callable[[str, str, int, int, str, str], None]
"""Called with (kind, file, offset, end, problem, remedy) for each finding."""


class Unlisted:
    """Collects messages that have a key, and finds those that are in a slot or lap file and not listed (U2)."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._keys = Keys(directory)
        self._batch: dict[int, dict[bytes, tuple[bytes, str]]] = {}
        """bucket → id → (hash, key)."""
        self._size = 0
        self._found: dict[bytes, str] = {}
        self.beside: Ids = {}
        """Those that no file has to list, or that none lists."""

    def add(self, message: Message, *, is_undealt: bool) -> None:
        """Add a message; most have no key. An undealt one lists itself."""
        key = message.headers.get(KEY)
        if key is None or message.id >= DEAD_FLOOR:
            return
        if is_undealt:
            self.beside.setdefault(self._keys.hash_of(key), set()).add(bytes(message.id))
        else:
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
        recent = _pairs_in(self._keys, layout.KEY_RECENT) if batch else set()  # first: it goes to the others
        for bucket, some in batch.items():
            listed = None if recent is None else _pairs_in(self._keys, bucket)
            if recent is None or listed is None:
                continue
            for id_, (hash_, key) in some.items():
                if (hash_, id_) not in listed and (hash_, id_) not in recent:  # mutant: unlisted-unseen
                    suspects[id_] = key
        if suspects:
            with Snapshot(self._dir) as snapshot:
                living = snapshot.find(suspects)
            for id_ in living:
                self._found[id_] = suspects[id_]
                self.beside.setdefault(self._keys.hash_of(suspects[id_]), set()).add(id_)


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
        for key, ids in sorted(living_twice(directory, unlisted.beside).items()):
            what = f"the key {key!r} is that of {len(ids)} living messages: {', '.join(str(MessageId(i)) for i in ids)}"
            add("note", layout.KEYS, 0, 0, what, "cancel all of them but one, by id")
    for last in _names(directory):
        name = f"{layout.KEYS}/{last}"
        bucket = layout.parse_key_file(last)
        if bucket is not None:
            _check_file(directory, bucket, add)
        elif not layout.is_key_spare(last):
            add("note", name, 0, 0, FOREIGN, "")


def _check_file(directory: Directory, bucket: int, add: Add) -> None:
    name = layout.key_file(bucket)
    try:
        data = Keys(directory).read(bucket)
    except Damaged as exc:
        add("damage", name, 0, 0, exc.what, exc.hint or "")
        return
    except DiskError as exc:
        if not isinstance(exc.__cause__, OSError):
            raise
        if not isinstance(exc.__cause__, ForeignFile):  # tools/places.py reports those
            add("damage", name, 0, 0, unreadable(exc.__cause__), "")
        return
    for item in entries(data, directory.seed(name)):
        if isinstance(item, UnreadableBytes):
            # A torn entry looks the same. It matters only when a living message is not listed, which is reported.
            add("note", name, item.offset, item.end, "no entry: one that never completed, or damage", "")


def unreadable(exc: OSError) -> str:
    """Return as text why a file cannot be read; raise a temporary error, which is no finding."""
    if not is_unreadable(exc):
        raise exc
    return f"cannot be read: {exc.strerror or exc}"
