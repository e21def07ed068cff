"""Keys that two living messages have: an index that was lost, or emptied, had let the second one take it.

`verify` names both and a person says which of them goes: neither of the two is damaged.
Memory: the recent entries and one bucket, and the ids that stand under one key.
Invariant: what is reported lives, as one snapshot sees it, and has that key in its header.
"""

from __future__ import annotations

from collections.abc import Mapping

from filewheel.disk.directory import Directory
from filewheel.disk.disk import is_unreadable
from filewheel.errors import Damaged, DiskError
from filewheel.format import layout
from filewheel.format.record import key_of
from filewheel.keys.bucket import Entry, entries
from filewheel.keys.files import KeyFiles
from filewheel.lookup.snapshot import DEAD_FLOOR, Snapshot

Ids = dict[bytes, set[bytes]]
"""Hash of a key → the ids that may have it."""


def living_twice(directory: Directory, unlisted: Mapping[bytes, str]) -> dict[str, list[bytes]]:
    """Return key → ids, of the keys that more than one living message has; `unlisted` are id → key beside the index.

    Raises OSError, DiskError. A file that cannot be read is passed over: that is found elsewhere.
    """
    files = KeyFiles(directory)
    recent = _ids_in(files, layout.KEY_RECENT)  # first: from there they move to the buckets
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
            if len(ids) > 1:
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
        if isinstance(entry, Entry):
            found.setdefault(entry.hash, set()).add(entry.id)
    return found
