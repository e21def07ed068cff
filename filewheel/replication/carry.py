"""Carrying drops over: a promoted wheel is told what the old primary had finished and another backup does not know of.

That other backup may be a little behind: it holds messages that were fired or cancelled in the old primary, whose drops
the promoted wheel has taken in and forgotten, or never needed. When it joins the new primary, what only it has is taken
for what the new primary never got (absorb.py), unless the new primary's journals have a drop of it. So the drops of the
old primary that some backup may lack are written there once more. A drop of what is not there changes nothing.
Invariant: after `carry_drops` every drop that the old primary still has and a backup may lack is durable here, undealt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.format.id_source import Entropy
from filewheel.format.record import records_of
from filewheel.journal.journal import Journal
from filewheel.replication.bundle import Bundle
from filewheel.replication.follows import read_follows
from filewheel.replication.sources import SourceHandles, list_segments

Positions = Mapping[str, Position]


def place_of(backup: Directory, primary: Directory, boot: str) -> Positions:
    """Return how far a backup has followed a primary, for certain: nowhere where that is not known. Raises OSError."""
    found = read_follows(backup.disk, backup.path)
    if found is None or found.primary_wheel != primary.settings.id or not boot or found.boot != boot:
        return {}
    return found.positions


def carry_drops(old: Directory, new: Directory, places: Iterable[Positions], *, entropy: Entropy) -> int:
    """Write the drops of `old` that lie above one of these places into `new`; return how many.

    Nothing deals `new` meanwhile but a primary's keeper, which retains what it has dealt. Cost: a reading of the old
    journals above the places. Raises OSError, DiskError.
    """
    behind = list(places)
    if not behind:
        return 0
    handles = SourceHandles(old)
    with contextlib.closing(Journal(new, entropy=entropy)) as journal:
        bundle = Bundle(journal)
        try:
            for writer, segments in list_segments(old).items():
                from_ = min((place.get(writer, Position(0, 0, 0)) for place in behind), key=lambda p: p[:2])
                for n in sorted(n for n in segments if n >= from_.segment):
                    name = layout.segment(writer, n)
                    with contextlib.suppress(FileNotFoundError):  # every backup has read it
                        fd = handles.get(name)
                        start = from_.offset if n == from_.segment else 0
                        for item in scan(old.disk, fd, start, old.disk.size(fd), old.seed(name)):
                            if isinstance(item, Frame) and item.drops:
                                with contextlib.suppress(Damaged):
                                    bundle.add_records([], records_of(item)[1])
        finally:
            handles.close()
        bundle.write()
        journal.flush()
        return bundle.records
