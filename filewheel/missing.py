"""The lap and slot files that the checkpoint names and that are not there, as the keeper of a wheel knows them.

A file is removed only after a checkpoint that does not name it. So one that is named and not there was taken away, or
lies on a disk that is not mounted, and may come back. It stays named, or the next keeper would remove it as a leftover
when it is back; until then everything else is fired and dealt. What a deal would write to it goes elsewhere: puts to
the lap's file or to its seconds, whichever is there, and drops into the checkpoint (`unmatched`).
Invariant: no name leaves the checkpoint because its file is missing, but by `repair` or by a backup that is healed.
"""

from __future__ import annotations

import logging

from filewheel import layout
from filewheel.directory import Directory
from filewheel.message import US_PER_S, due_of
from filewheel.window import Span

log = logging.getLogger(__name__)


class Missing:
    """The missing files of one wheel. The ledger's lock guards it."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._lap_of = directory.settings.lap_of
        self._files: dict[str, Span] = {}
        self.seconds: set[int] = set()
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
        """Take note of a missing file, and warn of it once; tell whether it is new."""
        if span.name in self._files:
            return False
        self._files[span.name] = span
        self._learn()
        log.critical(
            "%s: the checkpoint names it, and it is not there; it stays named. "
            "Try: restore the file or mount its disk, or `filewheel repair`, which accepts the loss",
            self._dir.place(span.name),
        )
        return True

    def found(self) -> list[Span]:
        """Return the files that are whole and there again, and forget that they were missing. Cost: a stat of each."""
        back = []
        for name, span in list(self._files.items()):
            known = self._dir.disk.identity(name)
            if known is not None and known[1] + 7 >= span.end:
                back.append(span)
                self.forget(name)
                log.warning("%s: it is there again, and in use", self._dir.place(name))
        return back

    def forget(self, name: str) -> None:
        """Forget a file: it is there again, or the checkpoint does not name it any more."""
        if self._files.pop(name, None) is not None:
            self._learn()

    def near(self) -> set[int]:
        """Return the laps of which the file, or the slot of a second, is missing."""
        return self.laps | {self._lap_of(second) for second in self.seconds}

    def hides(self, id_: bytes) -> bool:
        """Tell whether a missing file may hold the put of an id."""
        second = due_of(id_) // US_PER_S
        return second in self.seconds or self._lap_of(second) in self.laps

    def _learn(self) -> None:
        last = [name.rpartition("/")[2] for name in self._files]
        self.seconds = {s for s in map(layout.parse_slot, last) if s is not None}
        self.laps = {n for n in map(layout.parse_lap_file, last) if n is not None}
