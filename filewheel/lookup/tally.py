"""The number of pending messages, kept in step with the journals.

All messages are counted once, at a cut. Then only new frames count. A put adds one, since its id is new. A drop
subtracts one if its put exists and no other drop did.
Invariant: the counts are those of a snapshot at the same cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.format import layout
from filewheel.lookup.snapshot import DEAD_FLOOR, Snapshot
from filewheel.lookup.stats import Counter, Known

DROPS_MAX = 1 << 18
"""How many drops are remembered at most."""


class Tally:
    """Counts what is pending in a wheel. Not thread-safe."""

    def __init__(self, pending: int, dead: int, drops: set[bytes], files: list[list[str]]) -> None:
        self._counts = [pending, dead]
        self._drops = drops
        """Those that have taken their message away, or met none."""
        self._new: set[bytes] = set()
        """Those whose messages were not looked for yet."""
        self.files = files
        """The listings of laps/ and its directories at the time of the count."""

    @classmethod
    def of(cls, directory: Directory, snapshot: Snapshot, known: Known) -> Self:
        """Count a snapshot. Raises OSError."""
        files = list_laps(directory, snapshot.checkpoint)
        counter = Counter(directory, snapshot, known)
        pending, dead = counter.count()
        return cls(pending, dead, counter.drops, files)

    def take(self, puts: Iterable[bytes], drops: Iterable[bytes]) -> None:
        """Take the ids of a new frame of a journal, whose puts have new ids."""
        pending = [i for i in puts if i not in self._drops]
        dead = sum(i >= DEAD_FLOOR for i in pending)
        self._counts[0] += len(pending) - dead
        self._counts[1] += dead
        self._new.update(drops)

    @property
    def is_full(self) -> bool:
        """Whether more drops are remembered than should be."""
        return len(self._new) + len(self._drops) > DROPS_MAX

    def counts(self, has_put: Callable[[set[bytes]], set[bytes]]) -> list[int]:
        """Return how many are pending, and how many are dead letters; `has_put` looks for the dropped messages."""
        new = self._new - self._drops
        for id_ in has_put(new) if new else ():
            self._counts[id_ >= DEAD_FLOOR] -= 1
        self._drops |= new
        self._new = set()
        return self._counts


def list_laps(directory: Directory, checkpoint: Checkpoint) -> list[list[str]]:
    """List the directories of a checkpoint's files, to notice a file that was removed by hand. Raises OSError."""
    laps = sorted({directory.settings.lap_of(second) for second in checkpoint.slots})
    names = [layout.LAPS, *map(layout.lap_dir, laps)]
    return [sorted(directory.disk.listdir(name)) for name in names]
