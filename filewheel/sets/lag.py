"""How far a copy is behind: what its primary's files have above the ends of its own.

It takes no lock and asks nobody: a file of the copy has the primary's bytes from its beginning, so two sizes tell.
Invariant: a lag of 0 bytes means that the copy had the primary's checkpoint and journals, as of one moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.laps.slot import files_of
from filewheel.message import US_PER_S
from filewheel.roster.far import FarNote
from filewheel.roster.fence import was_in_set
from filewheel.roster.roster import read_roster
from filewheel.sets.forks import read_forks
from filewheel.sets.source import Source, View, frames_in, read_at
from filewheel.sets.target import LOG_START


class Lag(NamedTuple):
    """What a copy lacks."""

    size_bytes: int
    records: int | None
    """The puts and drops in these bytes; None when the copy lacks a deal, in which some may have ended."""
    in_step_us: int
    """When the copy had everything for the last time, to within a second; 0 for a wheel that was no copy yet."""

    def lag_s(self, now_us: int) -> float | None:
        """Return for how long the copy has been behind; None when nobody knows."""
        if not self.size_bytes:
            return 0.0
        return max(0, now_us - self.in_step_us) / US_PER_S if self.in_step_us else None


def lag_of(primary: Directory, copy: Directory) -> Lag:
    """Return how far a copy is behind. Raises Damaged, OSError."""

    def start_of(name: str) -> int:
        known = copy.disk.identity(name)
        if known is None or not name.startswith(layout.JOURNAL):
            return 0 if known is None else known[1] + 7 & ~7
        # Zeros that a mirror's producer wrote ahead are no frames: its journals are compared by their frames.
        return max((frame.end for frame in frames_in(copy, name, known[1], headers=True)), default=0)

    size_bytes, records, now = _behind(primary, start_of)
    mine = copy.checkpoint()
    if (mine.deal, mine.keeper) != (now.checkpoint.deal, now.checkpoint.keeper):
        size_bytes, records = size_bytes + len(now.raw), None
    in_step = read_at(copy, layout.TICKS, 0, LOG_START) or b""
    return Lag(size_bytes, records, int.from_bytes(in_step, "big"))


def lag_of_far(primary: Directory, note: FarNote) -> Lag:
    """Return how far a copy at a URL is behind, by the note of its replicator. Raises Damaged, OSError."""
    size_bytes, records, now = _behind(primary, lambda name: note.sizes.get(name, 0))
    if (note.deal, note.keeper) != (now.checkpoint.deal, now.checkpoint.keeper):
        size_bytes, records = size_bytes + len(now.raw), None
    return Lag(size_bytes, records, note.in_step_us)


def _behind(primary: Directory, start_of: Callable[[str], int]) -> tuple[int, int | None, View]:
    """Return the bytes and the records above where a copy's files end, and the view of the primary."""
    source = Source(primary)
    try:
        view = source.look()
        size_bytes = 0
        records: int | None = 0
        for name, end in view.sizes.items():
            start = start_of(name)
            if start < end:
                found = frames_in(primary, name, end, start, headers=True)  # none when it is over since
                count = sum(frame.puts + frame.drops for frame in found)
                if not count and name.startswith(layout.JOURNAL):
                    continue  # the end of a journal, which says only that there is no more
                size_bytes += end - start
                records = (records or 0) + count
    finally:
        source.close()
    return size_bytes, records, view


def why_no_copy(copy: Directory) -> str:
    """Return why a copy cannot go on as it is, and is to be copied anew; an empty string if it can.

    Without its checkpoint, its forks or its roster nobody knows which bytes of which history count. Cost: three small
    files. Raises OSError.
    """
    try:
        if copy.checkpoint().doubt:
            return f"{layout.CHECKPOINT} is missing, or fails its checksum"
        read_forks(copy)
        if read_roster(copy.disk, copy.path) is None and was_in_set(copy.disk):
            return f"{layout.ROSTER} is missing"
        return ""
    except Damaged as exc:
        name = (exc.path or "").removeprefix(f"{copy.path}/")
        return f"{name}: {exc.what}"


def missing_files(directory: Directory) -> list[str]:
    """Return the missing or too short files of a wheel's checkpoint. Cost: a stat of each file. Raises OSError."""
    while True:
        checkpoint = directory.checkpoint()
        missing = []
        for file in files_of(directory.settings, checkpoint):
            known = directory.disk.identity(file.name)
            if known is None or known[1] + 7 < file.end:
                missing.append(file.name)
        # A file is removed only after a checkpoint that no longer names it.
        if not missing or directory.checkpoint().deal == checkpoint.deal:
            return missing
