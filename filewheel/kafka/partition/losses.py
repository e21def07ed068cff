"""What a partition's wheel lost of what was taken in: files that were damaged, or removed from outside.

The engine copies what it cannot read to quarantine/ and goes on without it. A partition must not: its next marker would
call done what never went out, for every node. All of it is still in the delay topic, so it is read again from there.
Each loss leaves an item in quarantine/, before the file that had it is removed. A position counts only with the
items that there were when it was written (position.py), so a crash at any line leaves a wheel that is read again.
Invariant: what was noted before this handle was opened is no news: all of it was read again, or is going to be.
"""

from __future__ import annotations

import zlib

from filewheel.disk.directory import Directory
from filewheel.disk.quarantine import items
from filewheel.format import layout
from filewheel.laps.store import Store


def lost_items(directory: Directory) -> frozenset[str]:
    """Return the items in quarantine that are losses. A commit that never completed is none. Raises OSError."""
    return frozenset(str(item["item"]) for item in items(directory) if item.get("proven") is not False)


class KnownLosses:
    """The losses of one open wheel."""

    def __init__(self, store: Store) -> None:
        """Begin with what is in quarantine already. Raises OSError."""
        self._store = store
        self._known = lost_items(store.dir)
        self._seen = (0, 0)
        self._is_news = False

    @property
    def digest(self) -> int:
        """Return what tells one set of known losses from another; 0 if there are none."""
        return zlib.crc32("\n".join(sorted(self._known)).encode())

    @property
    def is_news(self) -> bool:
        """Whether this handle met a loss that was not known when it was opened. Cost: 0.2 µs."""
        aside, missing = self._store.quarantine.aside, self._store.missing
        seen = (len(aside), len(missing))
        if seen != self._seen:
            self._seen = seen
            places = [(damage.name, damage.offset) for damage in list(aside) if damage.proven]
            places += [(span.name, 0) for span in missing.spans()]
            self._is_news |= any(_item(*place) not in self._known for place in places)
        return self._is_news


def _item(name: str, offset: int) -> str:
    return f"{layout.quarantined(name, offset)}.json"
