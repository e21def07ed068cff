"""Missing files that are needed: the wheel or a file was moved or deleted, or its disk is not mounted.

A slot or lap file is removed only after a checkpoint that does not name it. So a named file that is missing was removed
from outside and may return. It stays named, or the next keeper would remove the returned file as a leftover. Until then
everything else is fired and dealt. A deal writes the puts for it to the lap's file or to its seconds, whichever exists,
and the drops for it to the checkpoint (`unmatched`).

A journal segment is removed only by the holder of keeper.lock, and only when it is covered. So a missing one that was
read and is not covered was removed from outside too. It may have held the cancel of a message that is due, which would
then fire. A keeper that finds this stops; the next keeper continues with the rest.
Invariants: a name leaves the checkpoint because its file is missing only by `repair`.
Journal bytes that were read are covered by a deal, or still there, or their keeper has stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set

from filewheel.disk.directory import Directory
from filewheel.disk.disk import NO_DIRECTORY
from filewheel.disk.quarantine import Damage, Quarantine
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.journal.tail import Tail
from filewheel.laps.window import MISSING, Span
from filewheel.message import ID_MIN, US_PER_S, due_of

log = logging.getLogger(__name__)

NAMED_MAX = 100
"""So many files are named in the log, and noted in quarantine/: a checkpoint may name hundreds of thousands."""


class MissingFiles:
    """The missing files of one wheel. The store's lock guards it."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._lap_of = directory.settings.lap_of
        self._files: dict[str, Span] = {}
        self._in: dict[str, set[str]] = {}
        """Of each directory, the last parts of the names that are missing in it."""
        self.slots: set[int] = set()
        """The seconds whose slot is missing."""
        self.laps: set[int] = set()
        """The laps whose file is missing."""

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def spans(self) -> list[Span]:
        """Return the missing files."""
        return list(self._files.values())

    def add(self, span: Span) -> bool:
        """Note a missing file and log it once; return whether it is new and one of the first NAMED_MAX."""
        if span.name in self._files:
            return False
        self._files[span.name] = span
        directory, _, last = span.name.rpartition("/")
        self._in.setdefault(directory, set()).add(last)
        if span.file is not None:
            span.file.among(self).add(span.file.key)
        if len(self._files) > NAMED_MAX:
            if len(self._files) == NAMED_MAX + 1:
                log.critical("%s: more files are missing; `filewheel verify` names each", self._dir.path)
            return False
        log.critical(
            "%s: the checkpoint names it, and it is not there. "
            "Try: restore the file or mount its disk; `filewheel repair` accepts the loss",
            self._dir.place(span.name),
        )
        return True

    def found(self) -> list[Span]:
        """Return the files that are back and whole, and forget that they were missing.

        Cost: a listing of each directory in which some are missing.
        """
        back = []
        for directory, missing in list(self._in.items()):
            for last in sorted(missing.intersection(self._listed(directory))):
                span = self._files[f"{directory}/{last}"]
                known = self._dir.disk.identity(span.name)
                if known is not None and known[1] + 7 >= span.end:
                    back.append(span)
                    self.forget(span.name)
                    log.warning("%s: it is there again, and in use", self._dir.place(span.name))
        return back

    def _listed(self, directory: str) -> list[str]:
        try:
            return self._dir.disk.listdir(directory)
        except NO_DIRECTORY:
            return []

    def forget(self, name: str) -> None:
        """Forget a file: it is back, or the checkpoint does not name it any more."""
        span = self._files.pop(name, None)
        if span is None:
            return
        directory, _, last = name.rpartition("/")
        self._in[directory].discard(last)
        if not self._in[directory]:
            del self._in[directory]
        if span.file is not None:
            span.file.among(self).discard(span.file.key)

    def near(self) -> set[int]:
        """Return the laps whose file, or the slot of a second, is missing."""
        return self.laps | {self._lap_of(second) for second in self.slots}

    def hides(self, id_: bytes) -> bool:
        """Return whether a missing file may hold the put of an id."""
        second = due_of(id_) // US_PER_S
        return second in self.slots or self._lap_of(second) in self.laps


Listing = Mapping[str, Set[int]]
"""writer → its segments."""


def vanished(directory: Directory, quarantine: Quarantine, span: Span) -> Damaged:
    """Return the error for a missing segment, and note its undealt range in quarantine/."""
    quarantine.note(Damage(span.name, span.start, span.end, MISSING, proven=True))
    return Damaged(
        "it was not dealt yet, and is gone: the wheel was moved or deleted, or the file was removed by hand",
        path=directory.place(span.name),
        hint="put it back, or start the keeper again, which goes on without it; then `filewheel verify`",
    )


def find_vanished(directory: Directory, tails: Mapping[str, Tail], before: Listing, now: Listing) -> Span | None:
    """Return a missing segment that was listed before and is still needed; None when there is none."""
    for writer, segments in before.items():
        lost = segments - now.get(writer, frozenset())
        tail = tails.get(writer)
        if not lost or tail is None or tail.gone:
            continue
        for span in _needed(tail, lost):
            # Check again: a listing beside a writer may miss a name.
            if directory.disk.identity(span.name) is None:
                return span
    return None


def _needed(tail: Tail, segments: Set[int]) -> list[Span]:
    """Return the parts of these segments that are not covered, or may still be written to."""
    found = [Span(p.name, p.start, p.end, ID_MIN) for p in tail.parts(tail.covered, tail.seen) if p.segment in segments]
    segment, offset, _ = tail.seen
    if not found and not tail.ended and offset and segment in segments:
        found.append(Span(layout.segment(tail.writer, segment), offset, offset, ID_MIN))
    return found
