"""The lap and slot files that the checkpoint names and that are not there, as the keeper of a wheel knows them.

A file is removed only after a checkpoint that does not name it. So one that is named and not there was taken away, or
lies on a disk that is not mounted, and may come back. It stays named, or the next keeper would remove it as a leftover
when it is back; until then everything else is fired and dealt. What a deal would write to it goes elsewhere: puts to
the lap's file or to its seconds, whichever is there, and drops into the checkpoint (`unmatched`).
Invariant: no name leaves the checkpoint because its file is missing, but by `repair` or by a backup that is healed.
"""

from __future__ import annotations

import logging

from filewheel.disk.directory import Directory
from filewheel.disk.disk import NO_DIRECTORY
from filewheel.laps.window import Span
from filewheel.message import US_PER_S, due_of

log = logging.getLogger(__name__)

NAMED_MAX = 100
"""So many files are named in the log, and noted in quarantine/: a checkpoint may name hundreds of thousands."""


class Missing:
    """The missing files of one wheel. The ledger's lock guards it."""

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
        """Take note of a missing file, and warn of it once; tell whether it is new and one of the first NAMED_MAX."""
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
        """Return the files that are whole and there again, and forget that they were missing.

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
        """Forget a file: it is there again, or the checkpoint does not name it any more."""
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
        """Return the laps of which the file, or the slot of a second, is missing."""
        return self.laps | {self._lap_of(second) for second in self.slots}

    def hides(self, id_: bytes) -> bool:
        """Tell whether a missing file may hold the put of an id."""
        second = due_of(id_) // US_PER_S
        return second in self.slots or self._lap_of(second) in self.laps
