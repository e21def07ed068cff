"""The files that hold what waits: one for a lap that is far, one for each second of a lap that is near.

Both are runs of frames, written only by the keeper, appended to at the length that the manifest calls covered and
deleted whole. The records of one append are sorted, and cut into frames of at most FRAME_BYTES, so that a reader of
a dense second can step over the frames that hold nothing it wants.
Invariant: below its covered length a file holds exactly the frames of completed deals; what lies above is not read.
"""

from __future__ import annotations

from collections.abc import Sequence

from filewheel.disk.directory import Directory
from filewheel.format import layout
from filewheel.format.frame import portions, seal
from filewheel.format.record import ID
from filewheel.message import US_PER_S, id_floor
from filewheel.native.compiled import Puts

FRAME_BYTES = 1 << 17


def frames(puts: Sequence[bytes], drops: Sequence[bytes], *, seed: int, offset: int, number: int) -> bytes:
    """Return the frames, from `offset` of the file on, for sorted puts and sorted drops."""
    out: list[bytes] = []
    for records, are_puts in ((puts, True), (drops, False)):
        body = b"".join(records)
        whole = [(0, len(records))] if records else []
        cuts = whole if len(body) <= FRAME_BYTES else portions([*map(len, records)], FRAME_BYTES)
        for start, end in cuts:
            frame = seal(
                body if len(cuts) == 1 else b"".join(records[start:end]),
                seed=seed,
                offset=offset,
                number=number,
                synced=0,
                puts=end - start if are_puts else 0,
                drops=0 if are_puts else end - start,
                first=records[start][ID],
                last=records[end - 1][ID],
            )
            offset += len(frame)
            out.append(frame)
    return out[0] if len(out) == 1 else b"".join(out)


def frames_of(puts: Puts, part: tuple[int, int], *, seed: int, offset: int, number: int) -> bytes:
    """Return the frames, from `offset` of the file on, for a range of sorted puts."""
    return puts.frames(*part, seed, offset, number, FRAME_BYTES)


def slot_name(directory: Directory, second: int) -> str:
    """Name the file of a second."""
    return layout.slot(directory.settings.lap_of(second), second)


def slot_floor(second: int) -> bytes:
    """Return the smallest id that belongs to a second."""
    return id_floor(second * US_PER_S)


def lap_floor(directory: Directory, lap: int) -> bytes:
    """Return the smallest id that belongs to a lap."""
    return id_floor(lap * directory.settings.slots * US_PER_S)
