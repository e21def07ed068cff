"""Moves that a primary has lost: it has a message by its old id, and a backup by its new one.

A retry or a reschedule that was not flushed goes with a power cut; the backup may have it all the same. Then the old id
cannot be added to the backup, because its drop is there, and the new one must not be dropped, or the backup would not
have the message at all. The move is written to the primary once more.
Invariant: what `lost_moves` names was pending by its old id in the primary only, and by its new one in the backup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from filewheel.disk.directory import Directory
from filewheel.format.record import ID, moved, root_of
from filewheel.lookup.snapshot import Snapshot
from filewheel.replication.chunk import pending

Moves = dict[bytes, tuple[bytes, bytes]]
"""New id → (packed put, old id)."""


def lost_moves(source: Directory, target: Directory, ids: Iterable[bytes], given: Mapping[bytes, bytes]) -> Moves:
    """Return, of ids that only the backup has, those of messages that the primary has under another id.

    `given` has what the backup lacked and was given, of what had moved before: first id → present id. What had not has
    its first id still. Raises DiskError, Damaged.
    """
    with Snapshot(target) as snapshot:
        puts = moved(list(snapshot.find(ids).values()))
    found = {put[ID]: (put, given.get(root_of(put), root_of(put))) for put in puts}
    olds = [old for _, old in found.values()]
    swallowed = pending(source, olds) - pending(target, olds)
    return {id_: move for id_, move in found.items() if move[1] in swallowed}
