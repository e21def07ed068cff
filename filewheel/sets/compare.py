"""Compares each backup of a set with its primary, byte for byte: `filewheel backup verify`.

A backup is a copy: what counts in each of its files is the beginning of the primary's file of that name. It counts up
to the length that the backup's checkpoint covers, and in journals from there to the last byte that is written.
No lock is taken. The backup's bytes are read before the primary's, which only grow; a difference counts when it is
there again in a second look, and when no tick in the backup's log is still to mend it.
Invariant: a report of "in step" means that all that counts at the primary was read at both ends, and was the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from filewheel.checks import check_path
from filewheel.disk.checkpoint import START, Checkpoint, parse_checkpoint
from filewheel.disk.directory import Directory, opened
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import FilewheelError, disk_errors, said_of
from filewheel.format import layout
from filewheel.journal.walk import list_segments
from filewheel.laps.slot import files_of
from filewheel.roster.roster import Member, Mode
from filewheel.sets.copy import is_covered
from filewheel.sets.forks import names_of, read_forks
from filewheel.sets.remote import place_opened
from filewheel.sets.scrub import BLOCK_BYTES, blocks, frames_of_both
from filewheel.sets.source import read_at
from filewheel.sets.status import MemberStatus, find_primary, member_status
from filewheel.sets.target import Tick, committed

_TRIES = 3
"""A difference is looked at so often: a tick or a producer may be in the middle of a write."""

Progress = Callable[[int, int], None]
"""Called with (bytes that were compared, bytes in all)."""


@dataclass(frozen=True)
class Mismatch:
    """A file of a backup that is not the beginning of the primary's."""

    name: str
    offset: int
    """Where the first difference begins."""
    damaged: Literal["primary", "backup", "both", "neither"]
    """The side that cannot be read there. Neither: both can, and they have different histories."""
    what: str


@dataclass(frozen=True)
class BackupCheck:
    """The result of comparing one backup."""

    status: MemberStatus
    compared_bytes: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    why: str = ""
    """Why it could not be compared; an empty string when it was."""

    @property
    def state(self) -> Literal["in step", "behind", "differs", "unknown"]:
        """The answer. Unknown: it could not be compared, or not with all that the primary has."""
        if self.mismatches or self.status.is_broken:
            return "differs"
        if self.why or self.status.lag_bytes is None:
            return "unknown"
        return "behind" if self.status.lag_bytes else "in step"


def verify_backups(
    path: str | os.PathLike[str], *, progress: Progress | None = None, env: Env = SYSTEM
) -> list[BackupCheck]:
    """Compare each backup of this wheel's set with the primary, byte for byte. Takes no lock, and changes nothing.

    A replicator, a keeper and producers may run. Cost: a read of all that counts in each backup, and of as much of the
    primary for each. Raises BadArgument when the wheel is in no set, NoWheel when no primary can be read, DiskError.
    """
    where = check_path(path)
    with disk_errors(where):
        primary, roster = find_primary(where, env)
        with opened(primary, env) as ours:
            return [_check(ours, member, progress, env) for member in roster.members]


def _check(ours: Directory, member: Member, progress: Progress | None, env: Env) -> BackupCheck:
    status = member_status(ours, member, env)
    if not status.reachable or status.is_broken or not member.is_wheel:
        return BackupCheck(status, why=status.why or "its files are not on this machine")
    try:
        with place_opened(member.path, env=env) as theirs:
            if theirs.settings.salt != ours.settings.salt or names_of(read_forks(theirs)) != names_of(read_forks(ours)):
                return BackupCheck(status, why="it is of another line than the primary, and is copied anew")
            run = Comparison(ours, theirs, member.mode, progress)
            found = list(run.mismatches())
    except (FilewheelError, OSError) as exc:
        return BackupCheck(status, why=said_of(exc, member.path))
    return BackupCheck(status, run.compared_bytes, found)


class Comparison:
    """One comparison of a primary and a copy of the same line."""

    def __init__(self, primary: Directory, copy: Directory, mode: Mode, progress: Progress | None = None) -> None:
        self._primary, self._copy, self._mode, self._progress = primary, copy, mode, progress
        self._begun = Checkpoint()
        """The copy's checkpoint at the beginning."""
        self.compared_bytes = 0

    def mismatches(self) -> Iterator[Mismatch]:
        """Yield the first difference of each file. Raises Damaged, OSError."""
        checkpoint = self._begun = self._checkpoint()
        theirs = self._primary.checkpoint()
        if checkpoint.deal > theirs.deal or (checkpoint.deal == theirs.deal and checkpoint.keeper != theirs.keeper):
            yield Mismatch(layout.CHECKPOINT, 0, "neither", f"deal {checkpoint.deal} is not the primary's")
            return
        parts = dict(self._parts(checkpoint))
        total = sum(end - start for start, end in parts.values())
        for name, (start, end) in parts.items():
            found = None
            for _ in range(_TRIES):
                found = self._compare(name, start, end)
                if found is None:
                    break
            if found is not None:
                yield found
            self.compared_bytes += end - start
            if self._progress is not None:
                self._progress(self.compared_bytes, total)

    def _checkpoint(self) -> Checkpoint:
        """Return the copy's checkpoint; that of its log, if a tick was cut short. Raises Damaged, OSError."""
        lap_of, place = self._copy.settings.lap_of, self._copy.place(layout.CHECKPOINT)
        raw = b""
        for tick in committed(self._copy):
            raw = tick.checkpoint or raw
        return parse_checkpoint(raw, self._copy.seed, lap_of, place) if raw else self._copy.checkpoint()

    def _parts(self, checkpoint: Checkpoint) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield what counts in the copy: each file, with the beginning and the end of the part."""
        for file in files_of(self._copy.settings, checkpoint):
            yield file.name, (0, file.end)
        for writer, segments in list_segments(self._copy).items():
            covered = checkpoint.positions.get(writer, START)
            for n in sorted(segments):
                if n >= covered.segment:
                    name, start = layout.segment(writer, n), covered.offset if n == covered.segment else 0
                    yield name, (start, max(start, _end_of(self._copy, name)))

    def _compare(self, name: str, start: int, end: int) -> Mismatch | None:
        """Compare a part of a file; return the first difference."""
        for at, ours, theirs in blocks(self._primary, self._copy, name, start, end):
            if ours == theirs:
                continue
            if theirs is None or ours is None:
                return self._judge_missing(name, is_ours=ours is None)
            ticks = list(committed(self._copy))
            if ours != _patched(theirs, name, at, ticks):
                first = next(n for n in range(len(ours)) if ours[n] != theirs[n])
                return self._judge(name, at + first, start, end)
        return None

    def _judge_missing(self, name: str, *, is_ours: bool) -> Mismatch | None:
        """Return the difference that a file makes which is missing at one side, unless it is over since."""
        wheel, checkpoint = (self._primary, self._primary.checkpoint()) if is_ours else (self._copy, self._checkpoint())
        named = {file.name for file in files_of(wheel.settings, checkpoint)}
        is_over = name not in named
        if is_ours and name.startswith(layout.JOURNAL):
            # A tick that has its checkpoint in place removes it next, or did: its log is asked first.
            is_going = any(name in tick.gone for tick in committed(self._copy))
            is_gone = is_going or self._copy.disk.identity(name) is None
            is_over = is_gone or is_covered(name, self._begun, checkpoint)
        return None if is_over else Mismatch(name, 0, "primary" if is_ours else "backup", "the file is missing")

    def _judge(self, name: str, offset: int, start: int, end: int) -> Mismatch | None:
        """Return the difference that a part with other bytes makes, unless no frame is there at either side."""
        ours, theirs = frames_of_both(self._primary, self._copy, name, start, end)
        for at in sorted(ours.keys() | theirs.keys()):
            if at not in theirs:
                return Mismatch(name, at, "backup", "a frame fails its checksum")
            if at not in ours:
                return Mismatch(name, at, "primary", "a frame fails its checksum, or is not there")
            if ours[at] != theirs[at]:
                return Mismatch(name, at, "neither", "the frames are others than the primary's")
        if self._mode == "mirror" and name.startswith(layout.JOURNAL):
            return None  # a tick leaves out of a mirror what does not verify
        return Mismatch(name, offset, "both", "the bytes are no frame at either side")


def _patched(data: bytes, name: str, at: int, ticks: list[Tick]) -> bytes:
    """Return a block of a copy as a replay of its log would leave it."""
    block = bytearray(data)
    for tick in ticks:
        for segment, offset, part in tick.parts:
            low, high = max(at, offset), min(at + len(block), offset + len(part))
            if segment == name and low < high:
                block[low - at : high - at] = part[low - offset : high - offset]
    return bytes(block)


def _end_of(directory: Directory, name: str) -> int:
    """Return where the zeros begin that a segment ends with: they were written ahead. 0 when it is not there."""
    known = directory.disk.identity(name)
    end = 0 if known is None else known[1]
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        data = (read_at(directory, name, start, end) or b"").rstrip(b"\0")
        if data:
            return start + len(data)
        end = start
    return 0
