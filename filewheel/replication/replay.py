"""Replay: what a link reads once more that goes on from a bookmark, or has skipped what the journals held.

A place in all journals is no consistent cut: a drop may lie below it, and above it the put that it drops, when they lie
in two journals and one pass read them in that order. Written once more, such a put would stay: its drop may have been
dealt and forgotten, and is not read again. So what is read anew is compared with what is pending now. The same holds
after a skip: the first of its passes may have read the drop of what the second holds.
Invariant: a put that was dropped before its frame was asked for is not given out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format.frame import Frame
from filewheel.format.record import ID, records_of
from filewheel.replication.chunk import pending

PASSES = 2
"""After so many passes everything is given out that was there at the beginning."""
_BYTES = 8 << 20


def still_pending(source: Directory, frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield frames without the puts that are not pending in a wheel any more. Memory: some mebibytes of frames.

    Cost: a reading of the wheel's undealt journals for each 8 MiB of frames. Raises DiskError, Damaged.
    """
    some: list[Frame] = []
    size = 0
    for frame in frames:
        some.append(frame)
        size += len(frame.body)
        if size >= _BYTES:
            yield from _without_gone(source, some)
            some, size = [], 0
    yield from _without_gone(source, some)


def _without_gone(source: Directory, frames: list[Frame]) -> Iterator[Frame]:
    there = pending(source, [p[ID] for frame in frames for p in _puts(frame)])
    for frame in frames:
        puts = _puts(frame)
        kept = [p for p in puts if p[ID] in there]
        if len(kept) == len(puts):
            yield frame
        elif kept or frame.drops:
            records = [*kept, *records_of(frame)[1]]
            ids = [r[ID] for r in records]
            yield replace(frame, body=b"".join(records), puts=len(kept), first=min(ids), last=max(ids))


def _puts(frame: Frame) -> list[bytes]:
    try:
        return records_of(frame)[0] if frame.puts else []
    except Damaged:
        return []  # its checksums hold: it was written like this, and is copied like this
