"""Slot and lap files: one file for each second of a near lap, one file for a whole lap that is far.

Messages wait in these files. A `File` knows its name, its range of ids and its covered length; no other code
parses such a name. `files_of` lists the files that a checkpoint names.

Both kinds are runs of frames. Only the keeper writes them: it appends at the covered length and deletes whole files.
The deal that makes a file is a part of its name, so no name is used for two files.
The records of one append are sorted and cut into frames of at most FRAME_BYTES, so that a reader of a dense second can
step over frames without a wanted id.
Format: docs/format.md, 9.
Invariant: below its covered length a file holds exactly the frames of completed deals. Bytes above it are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from filewheel.disk.checkpoint import Checkpoint, Covered
from filewheel.format import layout
from filewheel.format.frame import portions, seal
from filewheel.format.record import ID
from filewheel.format.settings import Settings
from filewheel.message import ID_END, ID_MIN, US_PER_S, due_of, id_floor
from filewheel.native.compiled import PutTable

FRAME_BYTES = 1 << 17
Numbers = TypeVar("Numbers", bound=Collection[int], covariant=True)


class Named(Protocol[Numbers]):
    """Laps and seconds: those of a checkpoint, with the file of each, or those of missing files."""

    @property
    def laps(self) -> Numbers:
        """The laps that have one file."""

    @property
    def slots(self) -> Numbers:
        """The seconds that have a file."""


@dataclass(frozen=True, slots=True)
class File:
    """The file of one second, or the one file of a lap."""

    is_lap: bool
    key: int
    """The number of the file in a checkpoint: its second or lap."""
    lap: int
    seconds: tuple[int, int]
    """The seconds that belong to the file: from, to."""
    end: int
    """The covered length."""
    made: int
    """The deal that made it."""

    @property
    def name(self) -> str:
        """The file's name in the wheel's directory."""
        return layout.lap_file(self.lap, self.made) if self.is_lap else layout.slot(self.lap, self.key, self.made)

    @property
    def floor(self) -> bytes:
        """The least id that belongs to the file."""
        return id_floor(self.seconds[0] * US_PER_S)

    @property
    def range(self) -> tuple[bytes, bytes]:
        """The ids that belong to the file: from, to."""
        low, high = self.seconds
        return slot_floor(low), slot_floor(high)

    def among(self, named: Named[Numbers]) -> Numbers:
        """Return the slots or laps of a checkpoint or a listing, for its kind: `file.key in file.among(checkpoint)`."""
        return named.laps if self.is_lap else named.slots


def slot_file(settings: Settings, second: int, covered: Covered) -> File:
    """Return the file of a second."""
    return File(False, second, settings.lap_of(second), (second, second + 1), covered.end, covered.made)


def lap_file(settings: Settings, lap: int, covered: Covered) -> File:
    """Return the file of a lap."""
    seconds = lap * settings.slots, (lap + 1) * settings.slots
    return File(True, lap, lap, seconds, covered.end, covered.made)


def slot_files(settings: Settings, second: int, covered: Covered) -> list[File]:
    """Return the file of a second; in doubt all of them."""
    return [slot_file(settings, second, one) for one in (*covered.others, covered)]


def lap_files(settings: Settings, lap: int, covered: Covered) -> list[File]:
    """Return the file of a lap; in doubt all of them."""
    return [lap_file(settings, lap, one) for one in (*covered.others, covered)]


def file_named(settings: Settings, name: str) -> File | None:
    """Return the slot or lap file of this name, without a length; None for the name of anything else."""
    last = name.rpartition("/")[2]
    slot, lap = layout.parse_slot(last), layout.parse_lap_file(last)
    if slot is not None:
        return slot_file(settings, slot[0], Covered(0, slot[1]))
    return None if lap is None else lap_file(settings, lap[0], Covered(0, lap[1]))


def second_of(settings: Settings, id_: bytes) -> str:
    """Return a name for the second of an id, whatever file has it: for the report of a damaged record."""
    second = due_of(id_) // US_PER_S
    return layout.slot(settings.lap_of(second), second, 0)


def covered_of(settings: Settings, checkpoint: Checkpoint, name: str) -> int | None:
    """Return the covered length of a slot or lap file; None unless the checkpoint names it."""
    file = file_named(settings, name)
    covered = None if file is None else file.among(checkpoint).get(file.key)
    if file is None or covered is None or file.name != name:
        return None
    return next((one.end for one in (covered, *covered.others) if one.made == file.made), None)


def files_of(settings: Settings, checkpoint: Checkpoint, lo: bytes = ID_MIN, hi: bytes = ID_END) -> Iterator[File]:
    """Yield a checkpoint's files that may hold ids from `lo` to below `hi`; seconds first, each in no order."""
    low, high = due_of(lo) // US_PER_S, due_of(hi) // US_PER_S
    for second, covered in checkpoint.slots.items():
        if low <= second <= high:
            for one in (*covered.others, covered):
                yield slot_file(settings, second, one)
    low, high = settings.lap_of(low), settings.lap_of(high)
    for lap, covered in checkpoint.laps.items():
        if low <= lap <= high:
            for one in (*covered.others, covered):
                yield lap_file(settings, lap, one)


def files_in(settings: Settings, checkpoint: Checkpoint, lap: int) -> list[File]:
    """Return the files of a lap that a checkpoint names, in the order of their seconds."""
    found: list[File] = [*lap_files(settings, lap, checkpoint.laps[lap])] if lap in checkpoint.laps else []
    for second in settings.seconds_of(lap):
        if second in checkpoint.slots:
            found += slot_files(settings, second, checkpoint.slots[second])
    return found


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


def frames_of(puts: PutTable, part: tuple[int, int], *, seed: int, offset: int, number: int) -> bytes:
    """Return the frames, from `offset` of the file on, for a range of sorted puts."""
    return puts.frames(*part, seed, offset, number, FRAME_BYTES)


def slot_floor(second: int) -> bytes:
    """Return the smallest id that belongs to a second."""
    return id_floor(second * US_PER_S)


def lap_floor(settings: Settings, lap: int) -> bytes:
    """Return the smallest id that belongs to a lap."""
    return slot_floor(lap * settings.slots)
