"""Decides for each lap how a heal handles it: copy it, pass over it, delete the backup's files of it, or compare it.

A lap is copied if the backup has little of it, and passed over if both have the same number of bytes. A backup's file
for a lap or second of which the primary has nothing is *absent* there: all its messages were fired or lost. A
comparison reads both wheels' records one by one; it costs more, but writes only the differences. The two checkpoints
decide; no file is opened.
Invariant: a lap that is one file in one wheel and seconds in the other is never copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from filewheel.disk.checkpoint import Checkpoint, lap_end
from filewheel.disk.directory import Directory
from filewheel.laps.slot import File, files_in, lap_floor, slot_files, slot_floor
from filewheel.message import ID_END

_SHARE = 4
"""A lap is copied if the backup has no more than this part of it."""
_SMALL_BYTES = 64 << 10
"""A smaller lap joins the previous comparison, because each step costs some milliseconds."""


@dataclass
class Plan:
    """The next step of a heal: one of three lists; if all are empty, a comparison."""

    hi: bytes
    copy: list[int] = field(default_factory=list)
    """Laps to copy."""
    alike: list[int] = field(default_factory=list)
    """Laps with the same number of bytes in both wheels, which may be the same."""
    absent: list[File] = field(default_factory=list)
    """Files of the second wheel of which the first has nothing."""


@dataclass
class _Part:
    """A lap or a second, and how to handle it."""

    floor: bytes
    size: int
    copy: int | None = None
    alike: int | None = None
    absent: list[File] = field(default_factory=list)

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        return self.copy is not None, self.alike is not None, bool(self.absent)

    @property
    def is_compared(self) -> bool:
        return not any(self.kind)

    def takes(self, other: _Part) -> bool:
        """Return whether another part joins the step that starts with this one."""
        is_small = other.size + sum(file.end for file in other.absent) < _SMALL_BYTES
        return self.kind == other.kind or (self.is_compared and is_small)


@dataclass
class _Lap:
    size: int = 0
    is_file: bool = False
    is_both: bool = False
    """Both one file and seconds, because a part was missing for a while. Such a lap is compared, not copied."""


class LapPlanner:
    """The laps of two wheels at one time."""

    def __init__(self, first: Directory, second: Directory, theirs: Checkpoint) -> None:
        """Read the first wheel's checkpoint. Raises OSError."""
        self._first, self._second = first, second
        self._our, self._their = first.checkpoint(), theirs
        self._is_known = not self._our.doubt and first.settings.slots == second.settings.slots
        self._end = lap_end(first.settings.lap_of)
        self._ours, self._theirs = _sizes(first, self._our), _sizes(second, theirs)

    def floor(self, lap: int) -> bytes:
        """Return the least id of a lap; ID_END after the last."""
        return lap_floor(self._first.settings, lap) if lap < self._end else ID_END

    def can_copy(self, lap: int) -> bool:
        """Return whether a lap can be copied: the first wheel has it, and the second has the same form or nothing."""
        ours, theirs = self._ours.get(lap), self._theirs.get(lap)
        if not self._is_known or ours is None or ours.is_both:
            return False
        return theirs is None or (theirs.is_file == ours.is_file and not theirs.is_both)  # mutant: graft-forms

    def next(self, lo: bytes, size_bytes: int, refused: Set[int], *, by_id: bool = False) -> Plan:
        """Return the step from `lo` on, of about `size_bytes` of the first wheel; `by_id`: no file is absent."""
        plan = Plan(ID_END)
        first: _Part | None = None
        size = 0
        for part in self._parts(lo, refused, by_id=by_id):
            if first is not None and (size >= size_bytes or not first.takes(part)):
                plan.hi = part.floor
                break
            first = first or part
            if first.is_compared:
                size += part.size
                continue
            if part.copy is not None:
                plan.copy.append(part.copy)
            if part.alike is not None:
                plan.alike.append(part.alike)
            plan.absent += part.absent
            size += part.size
        return plan

    def _parts(self, lo: bytes, refused: Set[int], *, by_id: bool) -> Iterator[_Part]:
        """Yield the laps from `lo` on, and the seconds of laps that are seconds in both wheels."""
        for lap in sorted(self._ours.keys() | self._theirs.keys()):
            if self.floor(lap + 1) <= lo:
                continue
            floor, ours, theirs = self.floor(lap), self._ours.get(lap), self._theirs.get(lap)
            size = 0 if ours is None else ours.size
            is_whole = floor >= lo and lap not in refused and self.can_copy(lap)
            if is_whole and (theirs is None or theirs.size * _SHARE <= size):
                yield _Part(floor, size, copy=lap)
            elif is_whole and theirs is not None and theirs.size == size:
                yield _Part(floor, size, alike=lap)
            elif by_id or not self._is_known or theirs is None:
                yield _Part(floor, size)
            elif ours is None and floor >= lo:
                yield _Part(floor, size, absent=files_in(self._second.settings, self._their, lap))
            elif theirs.is_file or (ours is not None and ours.is_file):
                yield _Part(floor, size)
            else:
                yield from self._seconds(lap, lo)

    def _seconds(self, lap: int, lo: bytes) -> Iterator[_Part]:
        slots = self._first.settings.slots
        for second in range(lap * slots, (lap + 1) * slots):
            ours, theirs, floor = self._our.slots.get(second), self._their.slots.get(second), slot_floor(second)
            if slot_floor(second + 1) <= lo:
                continue
            if ours is not None or (theirs is not None and floor < lo):
                yield _Part(floor, 0 if ours is None else ours.end)
            elif theirs is not None:
                yield _Part(floor, 0, absent=[*slot_files(self._second.settings, second, theirs)])


def _sizes(directory: Directory, checkpoint: Checkpoint) -> dict[int, _Lap]:
    found = {lap: _Lap(covered.end, True) for lap, covered in checkpoint.laps.items()}
    for second, covered in checkpoint.slots.items():
        one = found.setdefault(directory.settings.lap_of(second), _Lap())
        one.size += covered.end
        one.is_both = one.is_file
    return found
