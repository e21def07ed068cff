"""Bygone files: those of a backup for laps and seconds of which its primary has nothing at all.

Mostly all in them was fired while the backup was away; to look into each of their messages would take as long as to
write them. They are told from files that the primary has lost as suspects are (suspects.py): twice, some time apart.
Invariant: a file that `absent` returns overlaps with no file that the wheel's checkpoint names, and with no put in its
journals, at a time when the checkpoint was beyond doubt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection

from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format.record import moved, records_of
from filewheel.laps.slot import File
from filewheel.laps.window import span_of
from filewheel.lookup.snapshot import Snapshot
from filewheel.native.compiled import ids_of
from filewheel.replication.whole import Range


def absent(directory: Directory, files: Collection[File]) -> tuple[list[File], set[str]]:
    """Return, of another wheel's files, those of which this one has nothing; and the names of what it cannot read.

    Cost: a reading of the checkpoint and the journals. Raises DiskError, Damaged.
    """
    if not files:
        return [], set()
    ordered = sorted(files, key=lambda file: file.range)
    with Snapshot(directory) as snapshot:
        checkpoint = snapshot.checkpoint
        if checkpoint.doubt:
            return [], set()
        met = _met_by_puts(snapshot, [file.range for file in ordered])
        in_seconds = {directory.settings.lap_of(second) for second in checkpoint.slots}
        left = [
            file
            for n, file in enumerate(ordered)
            if n not in met
            and file.lap not in checkpoint.laps
            and (file.lap not in in_seconds if file.is_lap else file.key not in checkpoint.slots)
        ]
        return left, {damage.name for damage in snapshot.damage}


def _met_by_puts(snapshot: Snapshot, ranges: list[Range]) -> set[int]:
    """Return which of these ranges, which are in order, hold a put of the journals."""
    floors = [lo for lo, _ in ranges]
    met: set[int] = set()
    for span in snapshot.journals:
        for frame in snapshot.frames(span):
            if not frame.puts or frame.last < floors[0] or frame.first >= ranges[-1][1]:
                continue
            try:
                ids = ids_of(records_of(frame)[0])
            except Damaged:
                ids = []  # its keeper puts it aside, and then it is damage
            for id_ in ids:
                n = bisect_right(floors, id_) - 1
                if n >= 0 and id_ < ranges[n][1]:
                    met.add(n)
    return met


def moved_in(directory: Directory, files: Collection[File]) -> tuple[list[bytes], int]:
    """Return the ids of the messages in files that had moved before, and how many messages there are in all.

    Cost: about 0.3 µs a message. Raises DiskError.
    """
    ids: list[bytes] = []
    count = 0
    with Snapshot(directory) as snapshot:
        for file in files:
            for frame in snapshot.frames(span_of(file), missing=[]):
                count += frame.puts
                try:
                    ids += ids_of(moved(records_of(frame)[0]))
                except Damaged:
                    continue  # it makes no sense: the keeper puts it aside
    return ids, count
