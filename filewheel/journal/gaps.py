"""Finds frames that are missing from a writer's journal, and decides whether they had been durable.

Frames are numbered without a gap, so a reader sees which frames are missing and which bytes are no frame. Both are
normal after a crash: some commits never completed. But a missing frame that had been durable is damage. `synced` of a
later frame proves it. All later frames are consulted, because `synced` lags when several threads commit, and with an
interval or "never" as `sync`; then only a frame much later, or the seal, covers the missing one.

The keeper, a follower, verify and snapshots pass all that they read of a writer, in order, to a `Judge`.
Format: docs/format.md, 8.
Invariant: missing frames are damage if, and only if, a later frame that verifies calls one of them durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.disk import is_unreadable
from filewheel.disk.quarantine import Damage
from filewheel.format.frame import Frame, Gap
from filewheel.journal.walk import Part, read_parts

UNKNOWN = -1
"""The number before the first frame that is left of a journal, when the checkpoint does not know it."""


@dataclass(eq=False)
class Missing:
    """Missing frames of one writer, between two that are there, and the places where they may have been."""

    first: int
    last: int
    """Below `first` when no frame is missing: the bytes are a commit that never completed."""
    synced: int
    """The last frame that any later frame calls durable."""
    places: list[tuple[str, Gap]]
    """The ranges of bytes that are no frame; one empty range, before the next frame, when there are none."""

    @property
    def is_proven(self) -> bool:
        """Whether one of them had been durable."""
        return self.first <= min(self.last, self.synced)

    def overlaps(self, other: Missing) -> bool:
        """Return whether a frame is missing in both."""
        return self.first <= other.last and other.first <= self.last

    def describe(self) -> str:
        """Return a description for people."""
        if self.last < self.first:
            return "a commit that never completed"
        if self.is_proven:
            return f"frames {self.first} to {min(self.last, self.synced)}, which had been durable, cannot be read"
        return f"frames {self.first} to {self.last} are missing: perhaps commits that never completed"

    def damages(self) -> list[Damage]:
        """Return the ranges for the quarantine; none when no frame is missing."""
        if self.last < self.first:  # mutant: unproven-dropped
            return []
        return [Damage(name, g.offset, g.end, g.reason, self.is_proven) for name, g in self.places]


class Judge:
    """Judges the missing frames of one writer by every frame that is read after them."""

    def __init__(self) -> None:
        self.waits = False
        """Whether the next frame has to be passed to `take` even if no number is missing before it."""
        self._passed: list[tuple[str, Gap]] = []
        """The gaps since the last frame."""
        self._open: list[Missing] = []
        """Missing frames of which some are not proven durable: a later frame may prove it."""

    def pass_over(self, name: str, gap: Gap) -> None:
        """Note bytes that are no frame."""
        if not gap.blank and (name, gap) not in self._passed:  # else it is space that was written ahead
            self._passed.append((name, gap))
            self.waits = True

    def passed(self) -> list[Damage]:
        """Return the gaps since the last frame, as damage that no later frame has proven yet."""
        return [Damage(name, g.offset, g.end, g.reason, proven=False) for name, g in self._passed]

    def take(self, name: str, frame: Frame, number: int, synced: int = 0) -> list[Missing]:
        """Judge by the next frame after `number`; return the frames missing before it, and those newly proven.

        `synced` is that of a frame further on, if one is known. An unproven result is returned again once it is proven.
        """
        synced = max(synced, frame.synced)
        found = []
        for missing in self._open:
            was_proven = missing.is_proven
            missing.synced = max(missing.synced, synced)  # mutant: next-frame-only
            if missing.is_proven and not was_proven:
                found.append(missing)
        count = 0 if number == UNKNOWN else max(0, frame.missing_after(number))
        if count or self._passed:
            nowhere = Gap(frame.offset, frame.offset, f"frames {number + 1} to {number + count} are missing")
            found.append(Missing(number + 1, number + count, synced, self._passed or [(name, nowhere)]))
            self._open.append(found[-1])
        self._open = [m for m in self._open if m.synced < m.last]
        self._passed = []
        self.waits = bool(self._open)
        return found


class Account:
    """All frames that are missing from the part of a writer's journal that was read."""

    def __init__(self) -> None:
        self.judge = Judge()
        self._missing: dict[int, Missing] = {}

    @property
    def missing(self) -> list[Missing]:
        """The missing frames, in the order of the journal."""
        return list(self._missing.values())

    def add(self, name: str, item: Frame | Gap, number: int) -> int:
        """Add the next frame or gap after frame `number`; return the number of the last frame now."""
        if isinstance(item, Gap):
            self.judge.pass_over(name, item)
            return number
        if self.judge.waits or item.is_seal or item.number != number + 1:
            self._missing.update((id(m), m) for m in self.judge.take(name, item, number))
        return item.number


def number_before(checkpoint: Checkpoint, writer: str, segment: int) -> int:
    """Return the number of the last frame before the reading of a writer starts, in this segment; or UNKNOWN."""
    covered = checkpoint.positions.get(writer)
    if covered is None:
        return 0 if segment == 1 else UNKNOWN
    # A checkpoint in doubt has old positions: the segments after them may be covered and removed.
    return covered.number if segment in (1, covered.segment) or not checkpoint.doubt else UNKNOWN


def missing_in(
    directory: Directory, open_file: Callable[[str], int], parts: Iterable[Part], number: int
) -> list[Missing]:
    """Read parts of a writer's journal after frame `number`; return the missing frames.

    Cost: every byte of them. After a segment that cannot be opened the number is unknown: a missing segment was
    covered since. Raises OSError.
    """
    account = Account()

    def on_error(part: Part, exc: OSError) -> None:
        nonlocal number
        if not isinstance(exc, FileNotFoundError) and not is_unreadable(exc):
            raise exc
        number = UNKNOWN

    for part, item in read_parts(directory, open_file, parts, on_error=on_error):
        number = account.add(part.name, item, number)
    return account.missing


def confirmed(
    found: list[Missing],
    directory: Directory,
    open_file: Callable[[str], int],
    parts: list[Part],
    number: int,
) -> list[Missing]:
    """Return the missing frames that a second reading finds too: beside a live writer, one reading spans two moments.

    Damage is still there the second time. Cost: nothing, or a second reading when damage is proven. Raises OSError.
    """
    if not any(m.is_proven for m in found):
        return found
    again = [m for m in missing_in(directory, open_file, parts, number) if m.is_proven]
    return [m for m in found if not m.is_proven or any(m.overlaps(a) for a in again)]
