"""Ids that are not found because they may lie where the wheel is damaged: nobody can say what became of them.

A message that fired, was cancelled or moved is not found either, and only the bytes that are missing could tell.
Invariant: no command says that a message has ended when the file that would hold it could not be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from filewheel import MessageId, Wheel
from filewheel.format.record import ID, root_of
from filewheel.keys.index import Keys
from filewheel.laps.window import MISSING
from filewheel.lookup.snapshot import DEAD_FLOOR
from filewheel.message import ID_END

from .failure import Failure
from .show.output import Output
from .show.text import count

_NAMED = 3
_LOOKED_AT = 1_000_000


def lost_of(
    wheel: Wheel, ids: Sequence[MessageId], asked: int = 1, *, subject: str = "", done: str = ""
) -> Failure | None:
    """Return the failure, exit code 12, of ids that were not found where something is damaged; None where nothing is.

    `asked` is how many ids were looked for, `subject` names them otherwise, and `done` says what was done for them all
    the same. Cost: reads the undealt journals, and the files of the ids.
    """
    if not ids:
        return None
    with wheel.snapshot() as snapshot:
        # A message with a drop has ended, whatever is damaged; a cancel has just written one of each itself.
        ended = snapshot.dropped(ids)
        left = list(ids) if done else [i for i in ids if i not in ended]
        damage = list(snapshot.damage)
    if not left or not damage:
        return None
    names = list(dict.fromkeys(d.name for d in damage))
    files = ", ".join(names[:_NAMED]) + (f" and {count(len(names) - _NAMED, 'more file')}" if names[_NAMED:] else "")
    is_missing = all(d.reason == MISSING for d in damage)
    state = ("is " if len(names) == 1 else "are ") + ("missing" if is_missing else "damaged")
    hint = "restore what is missing, or mount its disk, and try again; `filewheel repair` accepts the loss"
    what = subject or (str(left[0]) if asked == 1 else f"{len(left):,} of {asked:,} ids")
    whose = "it" if asked == 1 else "them"
    return Failure(
        "damaged", f"{what} cannot be found, and {files}, which may hold {whose}, {state}{done}",
        hint=hint if is_missing else "`filewheel verify` says what is lost",
    )  # fmt: skip


def key_lost(out: Output, wheel: Wheel, key: str) -> Failure | None:
    """Return the failure of a key that nobody holds when a message that had it lies where something is damaged."""
    directory = out.directory()
    try:
        ids = [MessageId(id_) for id_ in Keys(directory).listed(key)]
    finally:
        directory.disk.release()
    return lost_of(wheel, ids, 0, subject=f"the messages with the key {key!r}")


def not_pending(wheel: Wheel, id_: MessageId) -> Failure:
    """Return the failure of an id that is not pending: it names the id that the message has now, if it has one.

    Cost: reads the dead letters, and what is pending, up to a million of each.
    """
    with wheel.snapshot() as snapshot:
        for dead, puts in ((True, snapshot.puts(DEAD_FLOOR, ID_END)), (False, snapshot.puts())):
            for put in islice(puts, _LOOKED_AT):
                if root_of(put) == id_ and put[ID] != id_:
                    new = MessageId(put[ID])
                    what = f"{id_} is a dead letter now, {new}" if dead else f"{id_} has moved: it is {new} now"
                    return Failure("not-found", what, hint=f"`filewheel inspect {new}` shows it")
    return Failure(
        "not-found", f"{id_} is not pending: it fired, was cancelled, has moved, or is another wheel's",
        hint="`filewheel inspect list` shows what is pending, with --dead the dead letters",
    )  # fmt: skip
