"""Failures of ids that are not pending: a damaged file may hold them, or they have moved, or they have ended.

Invariant: no command reports a message as ended when the file that would hold it is unreadable.
"""

from __future__ import annotations

from collections.abc import Sequence

from filewheel import MessageId, Wheel
from filewheel.tools.absent import hidden, ids_with_key, moved_to

from . import times
from .failure import Failure
from .show.runs import ended_words
from .show.text import count

_NAMED = 3
_LOOKED_AT = 1_000_000


def lost_of(
    wheel: Wheel, ids: Sequence[MessageId], asked: int = 1, *, subject: str = "", done: str = ""
) -> Failure | None:
    """Return the failure, exit code 12, of ids that damage may hide; otherwise None.

    `asked` is the number of requested ids, `subject` replaces the ids in the text, and `done` reports a change that was
    made anyway. Cost: reads the undealt journals, and the files of the ids.
    """
    # A cancel writes a drop for each id: this drop does not prove that the message had ended before.
    found = hidden(wheel, ids, ended_too=bool(done))
    if found is None:
        return None
    names = found.files
    files = ", ".join(names[:_NAMED]) + (f" and {count(len(names) - _NAMED, 'more file')}" if names[_NAMED:] else "")
    state = ("is " if len(names) == 1 else "are ") + ("missing" if found.are_missing else "damaged")
    hint = "restore what is missing, or mount its disk, and try again; `filewheel repair` accepts the loss"
    what = subject or (str(found.ids[0]) if asked == 1 else f"{len(found.ids):,} of {asked:,} ids")
    whose = "it" if asked == 1 else "them"
    return Failure(
        "damaged", f"{what} cannot be found, and {files}, which may hold {whose}, {state}{done}",
        hint=hint if found.are_missing else "`filewheel verify` says what is lost",
    )  # fmt: skip


def key_lost(wheel: Wheel, key: str) -> Failure | None:
    """Return the failure of a key that no message holds, if a damaged file may hide its message."""
    return lost_of(wheel, ids_with_key(wheel, key), 0, subject=f"the messages with the key {key!r}")


def not_pending(wheel: Wheel, id_: MessageId) -> Failure:
    """Return the failure of an id that is not pending: it names the message's current id, or how its attempt ended.

    Cost: reads the history, and up to a million dead letters and pending messages each.
    """
    ended = next((one for one in wheel.history(id=id_) if one.id == id_), None)
    new = moved_to(wheel, id_ if ended is None else ended.first_id, _LOOKED_AT)
    if new is not None and new != id_:
        what = f"{id_} is a dead letter now, {new}" if new.is_dead else f"{id_} has moved: it is {new} now"
        again = f", `filewheel dead revive {new}` revives it" if new.is_dead else ""
        return Failure("not-found", what, hint=f"`filewheel inspect {new}` shows it{again}")
    if ended is not None:
        return Failure(
            "not-found", f"{id_} is not pending: {ended_words(ended, times.now_us())}",
            hint=f"`filewheel history {ended.first_id}` shows each attempt",
        )  # fmt: skip
    return Failure(
        "not-found", f"{id_} is not pending: it fired, was cancelled, has moved, or is another wheel's",
        hint="`filewheel inspect list` shows what is pending, `filewheel dead list` the dead letters",
    )  # fmt: skip
