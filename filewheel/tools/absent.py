"""Ids that are not pending: check whether damage hides them, and find a message's current id.

A message that fired, was cancelled or moved is not pending either; only the unreadable bytes would show the cause.
Invariant: an id is reported as hidden only when no drop of it can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from filewheel.disk.directory import opened
from filewheel.format.record import ID, root_of
from filewheel.keys.index import Keys
from filewheel.laps.window import MISSING
from filewheel.lookup.snapshot import DEAD_FLOOR
from filewheel.message import ID_END, MessageId
from filewheel.reader import Reader


@dataclass(frozen=True)
class Hidden:
    """Ids that unreadable files of a wheel may hold."""

    ids: list[MessageId]
    files: list[str]
    """The unreadable files."""
    are_missing: bool
    """Whether each of these files is missing."""


def hidden(wheel: Reader, ids: Sequence[MessageId], *, ended_too: bool = False) -> Hidden | None:
    """Return those of these ids that damage may hide, or None; with `ended_too`, also those that have a drop.

    Cost: reads the undealt journals, and the files of the ids.
    """
    if not ids:
        return None
    with wheel.snapshot() as snapshot:
        ended = snapshot.dropped(ids)
        left = list(ids) if ended_too else [i for i in ids if i not in ended]
        damage = list(snapshot.damage)
    if not left or not damage:
        return None
    return Hidden(left, list(dict.fromkeys(d.name for d in damage)), all(d.reason == MISSING for d in damage))


def moved_to(wheel: Reader, id_: MessageId, limit: int) -> MessageId | None:
    """Return the current id of the message that once had this id; None when it has ended, or never existed here.

    Cost: reads up to `limit` dead letters, and as many pending messages.
    """
    with wheel.snapshot() as snapshot:
        for puts in (snapshot.puts(DEAD_FLOOR, ID_END), snapshot.puts()):
            for put in islice(puts, limit):
                if root_of(put) == id_ and put[ID] != id_:
                    return MessageId(put[ID])
    return None


def ids_with_key(wheel: Reader, key: str) -> list[MessageId]:
    """Return the ids that the index lists for a unique key, ended ones too."""
    with opened(wheel.path) as directory:
        return [MessageId(id_) for id_ in Keys(directory).ids_of(key)]
