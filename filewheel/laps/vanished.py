"""Journal segments that are gone though they are still needed: the wheel was moved or deleted, or a file was.

Only the holder of the keeper's lock removes segments, and only covered ones. So one that it has read, that is not
covered, and that is gone was taken away. It may have held the cancel of what is due: to go on as if it had held
nothing would fire that. Whoever meets one stops; the next keeper goes on with what is there.
Invariant: what was read of a journal is covered by a deal, or still there, or its keeper has stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from filewheel.disk.directory import Directory
from filewheel.disk.quarantine import Damage, Quarantine
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.journal.tail import Tail
from filewheel.laps.window import MISSING, Span
from filewheel.message import ID_MIN

Listing = Mapping[str, Set[int]]
"""writer → its segments."""


def vanished(directory: Directory, quarantine: Quarantine, span: Span) -> Damaged:
    """Return the error for a segment that is gone, and note in quarantine/ what of it was not dealt."""
    quarantine.note(Damage(span.name, span.start, span.end, MISSING, proven=True))
    return Damaged(
        "it was not dealt yet, and is gone: the wheel was moved or deleted, or the file was removed by hand",
        path=directory.place(span.name),
        hint="put it back, or start the keeper again, which goes on without it; then `filewheel verify`",
    )


def find_vanished(directory: Directory, tails: Mapping[str, Tail], before: Listing, now: Listing) -> Span | None:
    """Return a segment that was listed before, is not there now, and is still needed; None when there is none."""
    for writer, segments in before.items():
        lost = segments - now.get(writer, frozenset())
        tail = tails.get(writer)
        if not lost or tail is None or tail.gone:
            continue
        for span in _needed(tail, lost):
            # A look again: a listing beside a writer may miss a name.
            if directory.disk.identity(span.name) is None:
                return span
    return None


def _needed(tail: Tail, segments: Set[int]) -> list[Span]:
    """Return what of these segments is not covered, or may be written to."""
    found = [Span(name, lo, hi, ID_MIN) for n, name, lo, hi in tail.spans(tail.covered, tail.seen) if n in segments]
    segment, offset, _ = tail.seen
    if not found and not tail.ended and offset and segment in segments:
        found.append(Span(layout.segment(tail.writer, segment), offset, offset, ID_MIN))
    return found
