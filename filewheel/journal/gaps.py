"""What is missing from a writer's journal, and whether it had been durable: the one judgement of gaps.

Frames are numbered without a gap, so a reader sees which are missing, and which bytes are no frame. Both are normal
after a crash: commits that never completed. A frame that had been durable and is missing is damage. `synced` of the
frames behind tells the two apart: of all of them, because it lags when several threads commit, with an interval, and
with "never", and then only a later frame or the seal speaks of what is missing.

The keeper, a follower, verify and snapshots pass what they read of a writer, in order, to a `Judge`.
Invariant: missing frames are damage if, and only if, a frame that verifies behind them calls one of them durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.disk import is_unreadable
from filewheel.disk.quarantine import Damage
from filewheel.format.frame import Frame, Gap, scan

UNKNOWN = -1
"""The number of the last frame of a journal whose beginning is gone and was forgotten."""


@dataclass(eq=False)
class Missing:
    """Frames of one writer that are not there, between two that are, and where they may have been."""

    first: int
    last: int
    """Below `first` when no frame is missing: the bytes are a commit that never completed."""
    synced: int
    """The last frame that was durable, as far as the frames behind say."""
    places: list[tuple[str, Gap]]
    """Where bytes are no frame; one empty range, before the next frame, when every byte is."""

    @property
    def is_proven(self) -> bool:
        """Whether one of them had been durable."""
        return self.first <= min(self.last, self.synced)

    def overlaps(self, other: Missing) -> bool:
        """Tell whether a frame is missing in both."""
        return self.first <= other.last and other.first <= self.last

    def describe(self) -> str:
        """Say what it is, for people."""
        if self.last < self.first:
            return "a commit that never completed"
        if self.is_proven:
            return f"frames {self.first} to {min(self.last, self.synced)}, which had been durable, cannot be read"
        return f"frames {self.first} to {self.last} are missing: perhaps commits that never completed"

    def damages(self) -> list[Damage]:
        """Return the ranges to be kept aside; none when no frame is missing."""
        if self.last < self.first:
            return []
        return [Damage(name, g.offset, g.end, g.reason, self.is_proven) for name, g in self.places]


class Judge:
    """Judges what is missing from one writer's journal by everything that is read behind it."""

    def __init__(self) -> None:
        self.waits = False
        """Whether the next frame has to be taken even if its number follows."""
        self._passed: list[tuple[str, Gap]] = []
        """What was passed over since the last frame."""
        self._open: list[Missing] = []
        """What is not proven, or not to its end: a later frame may do it."""

    def pass_over(self, name: str, gap: Gap) -> None:
        """Take note of bytes that are no frame."""
        if not gap.blank:  # else it is space that was written ahead
            self._passed.append((name, gap))
            self.waits = True

    def passed(self) -> list[Damage]:
        """Return what was passed over since the last frame: nothing behind it has been read so far."""
        return [Damage(name, g.offset, g.end, g.reason, proven=False) for name, g in self._passed]

    def take(self, name: str, frame: Frame, number: int, synced: int = 0) -> list[Missing]:
        """Judge by the frame behind `number`; return what is found missing before it, and what it proves.

        `synced` is what a frame further on is known to say. What is returned unproven is returned again when it is
        proven.
        """
        synced = max(synced, frame.synced)
        told = []
        for missing in self._open:
            was_proven = missing.is_proven
            missing.synced = max(missing.synced, synced)
            if missing.is_proven and not was_proven:
                told.append(missing)
        count = 0 if number == UNKNOWN else max(0, frame.missing_after(number))
        if count or self._passed:
            nowhere = Gap(frame.offset, frame.offset, f"frames {number + 1} to {number + count} are missing")
            told.append(Missing(number + 1, number + count, synced, self._passed or [(name, nowhere)]))
            self._open.append(told[-1])
        self._open = [m for m in self._open if m.synced < m.last]
        self._passed = []
        self.waits = bool(self._open)
        return told


class Account:
    """Everything that is missing from one writer's journal, as far as it was read."""

    def __init__(self) -> None:
        self.judge = Judge()
        self._missing: dict[int, Missing] = {}

    @property
    def missing(self) -> list[Missing]:
        """What is missing, in the order in which it lay there."""
        return list(self._missing.values())

    def add(self, name: str, item: Frame | Gap, number: int) -> int:
        """Add what comes behind frame `number`, and return the number of the last frame now."""
        if isinstance(item, Gap):
            self.judge.pass_over(name, item)
            return number
        if self.judge.waits or item.is_seal or item.number != number + 1:
            self._missing.update((id(m), m) for m in self.judge.take(name, item, number))
        return item.number


def number_before(checkpoint: Checkpoint, writer: str, segment: int) -> int:
    """Return the number of the last frame before what is read first of a writer, in this segment; or UNKNOWN."""
    covered = checkpoint.positions.get(writer)
    if covered is None:
        return 0 if segment == 1 else UNKNOWN
    # In doubt the position is an old one: the segments behind it may be covered, and removed.
    return covered.number if segment in (1, covered.segment) or not checkpoint.doubt else UNKNOWN


def missing_in(
    directory: Directory, open_file: Callable[[str], int], segments: Iterable[tuple[str, int]], number: int
) -> list[Missing]:
    """Read a writer's segments, each (name, from), behind frame `number`, and return what is missing.

    Cost: every byte of them. Frame numbers begin anew behind a segment that cannot be opened: one that has gone was
    covered meanwhile. Raises OSError.
    """
    account = Account()
    for name, start in segments:
        try:
            fd = open_file(name)
        except OSError as exc:
            if not isinstance(exc, FileNotFoundError) and not is_unreadable(exc):
                raise
            number = UNKNOWN
            continue
        for item in scan(directory.disk, fd, start, directory.disk.size(fd), directory.seed(name)):
            number = account.add(name, item, number)
    return account.missing


def confirmed(
    found: list[Missing],
    directory: Directory,
    open_file: Callable[[str], int],
    segments: list[tuple[str, int]],
    number: int,
) -> list[Missing]:
    """Leave out of what was found what a second look does not find: a look beside a writer may be of two moments.

    What is damaged stays so. Cost: nothing, or once more everything when something is proven. Raises OSError.
    """
    if not any(m.is_proven for m in found):
        return found
    again = [m for m in missing_in(directory, open_file, segments, number) if m.is_proven]
    return [m for m in found if not m.is_proven or any(m.overlaps(a) for a in again)]
