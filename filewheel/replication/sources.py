"""A primary's journals as they are seen from outside: in journal/, and in retained/ once they are covered.

The primary's keeper moves a segment at any time, between a listing and an open as well. Whoever follows takes both
places for one: journal/ is looked at first, so that a segment that moves meanwhile is seen in one of them. A segment
is read under the name that it was written with, which its checksums are seeded with.
Invariant: a segment that is there during the whole of a listing, wherever, is in it.
"""

from __future__ import annotations

import contextlib

from filewheel.disk.directory import Directory
from filewheel.format import layout
from filewheel.journal.tail import Handles


class SourceHandles(Handles):
    """Segments kept open for reading, by the names that they have in journal/, wherever they lie."""

    def _open_file(self, name: str) -> int:
        try:
            return self._disk.open(name, "r")
        except FileNotFoundError:
            try:
                return self._disk.open(layout.retained(name), "r")
            except NotADirectoryError as exc:
                raise FileNotFoundError(exc.errno, exc.strerror, name) from exc


Listing = dict[str, set[int]]
"""Writer → its segments."""


def list_segments(directory: Directory) -> Listing:
    """Return writer → its segments, those that wait in retained/ too. Cost: two listings. Raises OSError."""
    return list_places(directory)[0]


def list_places(directory: Directory) -> tuple[Listing, Listing]:
    """Return writer → its segments wherever they lie, and writer → those that were in journal/ still."""
    here = directory.disk.listdir(layout.JOURNAL)
    kept: list[str] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # nothing was kept so far
        kept = directory.disk.listdir(layout.RETAINED)
    return _parsed([*here, *kept]), _parsed(here)


def _parsed(names: list[str]) -> Listing:
    listing: Listing = {}
    for last in names:
        parsed = layout.parse_segment(last)
        if parsed is not None:
            listing.setdefault(parsed[0], set()).add(parsed[1])
    return listing
