"""The checkpoint: one frame with the covered length of each lap file and slot file, and the position in each journal.

It names every lap and slot file with its covered length, and for each writer the position up to which its journal is
covered. A file that it does not name does not count: bytes past a covered length belong to a deal that never completed
and are overwritten; a file that reappears after a power cut is removed. So a deal is one transaction, which the
atomic replacement of this file commits (docs/adr/0003-the-checkpoint-is-a-manifest.md). The deal that makes a file is a
part of its name, so a name means the same file for ever (docs/adr/0079-a-name-is-used-once.md).

Replacing it is K1: write a temporary file, flush it, rename it, flush the directory. A link retains the previous
checkpoint. If the newest cannot be read, every file counts as covered to its full size ("doubt"): nothing is lost, but
acknowledged messages may fire again.
Format: docs/format.md, 10.
Invariant: everything that a checkpoint covers is durable before the checkpoint is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from filewheel.disk.disk import NO_DIRECTORY, ForeignFile, is_unreadable
from filewheel.disk.replace import put_in_place, write_aside
from filewheel.env import Disk
from filewheel.errors import Damaged, said
from filewheel.format import layout
from filewheel.format.frame import BODY_BYTES_MAX, FORMAT, HEADER_BYTES, Frame, Scanner, seal
from filewheel.message import ID_BYTES, ID_LIMIT

_LENGTH_END = 1 << 44
"""Longer than any file system's longest file that a wheel could fill."""
_CHECKPOINT_BYTES_MAX = HEADER_BYTES + BODY_BYTES_MAX
Seeds = Callable[[str], int]
LapOf = Callable[[int], int]


class Position(NamedTuple):
    """A place in a writer's journal: after frame `number`, which ends at `offset` of segment `segment`."""

    segment: int
    offset: int
    number: int


START = Position(1, 0, 0)


class Covered(NamedTuple):
    """What is covered of the file of a lap or a second."""

    end: int
    """Its covered length."""
    made: int
    """The deal that made it, which is a part of its name; 0 in format 1."""
    live: int = -1
    """The size of the records in it that a new file would get, about; -1 when that is unknown."""
    others: tuple[Covered, ...] = ()
    """In doubt: other files of the same lap or second, which count too. The first deal makes one of all."""


@dataclass
class Checkpoint:
    """The covered files and journals. `laps` and `slots` map a lap or a second to its file."""

    deal: int = 0
    keeper: str = ""
    """The writer name of this deal's keeper."""
    positions: dict[str, Position] = field(default_factory=dict)
    laps: dict[int, Covered] = field(default_factory=dict)
    slots: dict[int, Covered] = field(default_factory=dict)
    unmatched: list[bytes] = field(default_factory=list)
    """Dropped ids whose put may follow in a journal that was read less far."""
    doubt: str = ""
    """Why the lengths cannot be trusted; empty if they can."""

    @property
    def file_bytes(self) -> int:
        """The covered bytes of all lap and slot files."""
        return sum(covered.end for files in (self.laps, self.slots) for covered in files.values())

    def copy(self) -> Checkpoint:
        """Return an independent copy."""
        return Checkpoint(
            self.deal,
            self.keeper,
            dict(self.positions),
            dict(self.laps),
            dict(self.slots),
            list(self.unmatched),
        )


_ERA_DEALS = 1 << 40


def era_of(deal: int) -> int:
    """Return the era of a deal: how often a keeper of this wheel had begun in doubt before it."""
    return deal // _ERA_DEALS


def next_era(deal: int) -> int:
    """Return the number that a keeper in doubt begins with, after all that may have been in use.

    So a copy sees from the number of a deal whether it lists all files, or those that were there.
    """
    return (era_of(deal) + 1) * _ERA_DEALS


@dataclass
class Found:
    """The existing lap and slot files: each lap or second, and the deal that made the file."""

    laps: set[tuple[int, int]] = field(default_factory=set)
    slots: set[tuple[int, int]] = field(default_factory=set)
    dirs: set[int] = field(default_factory=set)


def lap_end(lap_of: LapOf) -> int:
    """Return the first lap that is later than any due."""
    return lap_of(layout.SECOND_END - 1) + 1


def find_files(disk: Disk, lap_of: LapOf) -> Found:
    """List the lap and slot files of a wheel, named in the manifest or not. Foreign names are skipped.

    Raises OSError when a directory cannot be listed: its files exist and must not count as missing.
    """
    found = Found()
    end = lap_end(lap_of)
    for last in disk.listdir(layout.LAPS):
        file = layout.parse_lap_file(last)
        if file is not None:
            if file[0] < end:
                found.laps.add(file)
            continue
        lap = layout.parse_lap_dir(last)
        if lap is None or lap >= end:
            continue
        try:
            inside = disk.listdir(layout.lap_dir(lap))
        except NO_DIRECTORY:  # mutant: unlisted-missing
            continue  # removed since the listing above, or a foreign file
        found.dirs.add(lap)
        slots = (layout.parse_slot(inner) for inner in inside)
        found.slots.update(slot for slot in slots if slot is not None and lap_of(slot[0]) == lap)
    return found


def unnamed(found: Found, checkpoint: Checkpoint, lap_of: LapOf) -> Iterator[str]:
    """Yield the files that a checkpoint does not name: of an incomplete deal or tick, or an unlink that came back."""
    for file in found.laps - {(lap, covered.made) for lap, covered in checkpoint.laps.items()}:
        yield layout.lap_file(*file)
    for file in found.slots - {(second, covered.made) for second, covered in checkpoint.slots.items()}:
        yield layout.slot(lap_of(file[0]), *file)


def adopt(checkpoint: Checkpoint, disk: Disk, found: Found, lap_of: LapOf) -> None:
    """Without a trusted manifest, take every file at its full size. Loses nothing."""
    checkpoint.laps = _adopted(disk, {file: layout.lap_file(*file) for file in found.laps})
    checkpoint.slots = _adopted(disk, {file: layout.slot(lap_of(file[0]), *file) for file in found.slots})


def _adopted(disk: Disk, names: dict[tuple[int, int], str]) -> dict[int, Covered]:
    """Return what counts as covered of these files: all of each, rounded up to the next frame boundary."""
    covered: dict[int, Covered] = {}
    for number, made in sorted(names):
        known = disk.identity(names[number, made])
        if known is not None and known[1]:
            before = covered.get(number)
            others = () if before is None else (*before.others, before._replace(others=()))
            covered[number] = Covered((known[1] + 7) & ~7, made, others=others)  # mutant: adopted-one
    return covered


def encode(checkpoint: Checkpoint, seed: int) -> bytes:
    """Return the checkpoint file's bytes."""
    body: bytes = msgpack.packb(
        {
            "format": FORMAT,
            "deal": checkpoint.deal,
            "keeper": checkpoint.keeper,
            "positions": {w: list(p) for w, p in sorted(checkpoint.positions.items())},
            "laps": _flat(checkpoint.laps),
            "slots": _flat(checkpoint.slots),
            "unmatched": b"".join(checkpoint.unmatched),
        }
    )
    return seal(body, seed=seed, offset=0, number=checkpoint.deal, synced=0, puts=0, drops=0)


def _flat(files: dict[int, Covered]) -> list[int]:
    return [number for key, c in sorted(files.items()) for number in (key, c.made, c.end, c.live)]


def decode(frame: Frame, path: str, laps_end: int = layout.LAP_END) -> Checkpoint:
    """Read a manifest from the checkpoint's frame. Raises Damaged when its content is not valid."""
    try:
        fields = msgpack.unpackb(frame.body)
        keeper, ids, files_of = fields["keeper"], fields["unmatched"], _files if "format" in fields else _files_of_1
        if type(keeper) is not str or (keeper and not layout.is_writer(keeper)):
            raise ValueError(f"{keeper!r} is not a writer")
        if type(ids) is not bytes or len(ids) % ID_BYTES:
            raise ValueError("the dropped ids are not ids")
        unmatched = [ids[i : i + ID_BYTES] for i in range(0, len(ids), ID_BYTES)]
        if unmatched and max(unmatched) >= ID_LIMIT:
            raise ValueError("a dropped id has a due that no message can have")
        return Checkpoint(
            deal=_number(fields["deal"], 0, layout.DEAL_END),
            keeper=keeper,
            positions={_writer(w): _position(*p) for w, p in fields["positions"].items()},
            laps=files_of(fields["laps"], laps_end),
            slots=files_of(fields["slots"], layout.SECOND_END),
            unmatched=unmatched,
        )
    except Exception as exc:
        raise Damaged(f"not a checkpoint: {exc!r}", path=path) from exc


def _number(value: object, start: int, end: int) -> int:
    if type(value) is int and start <= value < end:
        return value
    raise ValueError(f"{value!r} is not a number from {start} to below {end}")


def _writer(value: object) -> str:
    if type(value) is str and layout.is_writer(value):
        return value
    raise ValueError(f"{value!r} is not a writer")


def _position(segment: object, offset: object, number: object) -> Position:
    # The number is that of the frame's header, or -1 if the start of the journal was missing (tail.UNKNOWN).
    return Position(
        _number(segment, 0, layout.SEGMENT_END), _number(offset, 0, _LENGTH_END), _number(number, -1, 1 << 64)
    )


def _files(flat: list[Any], end: int) -> dict[int, Covered]:
    bounds = (0, end), (0, layout.DEAL_END), (0, _LENGTH_END), (-1, _LENGTH_END)
    for n, (start, stop) in enumerate(bounds):  # column by column: there may be tens of thousands of files
        column = flat[n::4]
        if {*map(type, column)} - {int} or (column and not start <= min(column) <= max(column) < stop):
            raise ValueError(f"a number of a file is not a number from {start} to below {stop}")
    files = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    return {key: Covered(length, made, live) for key, made, length, live in files}


def _files_of_1(flat: list[object], end: int) -> dict[int, Covered]:
    """Read what format 1 has in place of that: each lap or second, and the length of its file."""
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {_number(key, 0, end): Covered(_number(length, 0, _LENGTH_END), 0) for key, length in pairs}


def prepare_checkpoint(disk: Disk, checkpoint: Checkpoint, seeds: Seeds) -> None:
    """Write a manifest to a temporary file and flush it (K1). It has no effect before `place_checkpoint`."""
    # mutant: checkpoint-unflushed checkpoint-in-place
    write_aside(disk, layout.CHECKPOINT_TMP, encode(checkpoint, seeds(layout.CHECKPOINT)))


def place_checkpoint(disk: Disk) -> None:
    """Put the prepared manifest in place. A crash before the rename leaves the old one, after it the new one.

    When this raises, either of the two may be in place.
    """
    # Only a fallback against bit rot: optional on a file system without hard links.
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(layout.CHECKPOINT_OLD)
        disk.link(layout.CHECKPOINT, layout.CHECKPOINT_OLD)  # mutant: no-old-checkpoint
    # mutant: checkpoint-name-unflushed checkpoint-in-place.2
    put_in_place(disk, layout.CHECKPOINT_TMP, layout.CHECKPOINT)


def write_checkpoint(disk: Disk, checkpoint: Checkpoint, seeds: Seeds) -> None:
    """Replace the manifest, durably."""
    prepare_checkpoint(disk, checkpoint, seeds)
    place_checkpoint(disk)


def read_checkpoint(disk: Disk, seeds: Seeds, lap_of: LapOf, path: str) -> Checkpoint:
    """Read the newest manifest that verifies; if it is not the newest one written, `.doubt` has the reason."""
    doubt = ""
    for name in (layout.CHECKPOINT, layout.CHECKPOINT_OLD):
        try:
            checkpoint = read_checkpoint_file(disk, name, seeds, lap_of, f"{path}/{name}")
        except FileNotFoundError:
            doubt = doubt or f"{path}/{name}: missing"
            continue
        except Damaged as exc:
            doubt = doubt or said(exc)
            continue
        checkpoint.doubt = doubt
        return checkpoint
    return Checkpoint(doubt=doubt)


def read_checkpoint_file(
    disk: Disk, name: str, seeds: Seeds, lap_of: LapOf, path: str, *, is_again: bool = False
) -> Checkpoint:
    """Read one checkpoint file. Raises FileNotFoundError, Damaged when it does not verify, OSError.

    A transient error is not damage: the previous checkpoint would fire acknowledged messages again. A bad sector is,
    when a second reading meets it too.
    """
    try:
        fd = disk.open(name, "r")
    except ForeignFile as exc:  # mutant: moment-is-doubt
        raise Damaged(f"cannot be read: {exc.strerror}", path=path) from exc
    try:
        size = min(disk.size(fd), _CHECKPOINT_BYTES_MAX)
        try:
            data = disk.pread(fd, size, 0)
        except OSError as exc:
            if not is_unreadable(exc):
                raise
            if not is_again:
                return read_checkpoint_file(disk, name, seeds, lap_of, path, is_again=True)
            raise Damaged(f"cannot be read: {exc.strerror or exc}", path=path) from exc
    finally:
        disk.close(fd)
    return parse_checkpoint(data, seeds, lap_of, path)


def parse_checkpoint(data: bytes, seeds: Seeds, lap_of: LapOf, path: str) -> Checkpoint:
    """Read the bytes of a checkpoint file. Raises Damaged when they do not verify."""
    reader = Scanner(lambda size, offset: data[offset : offset + size], 0, len(data), seeds(layout.CHECKPOINT))
    item = next(iter(reader), None)
    if not isinstance(item, Frame):
        raise Damaged("the checkpoint fails its checksum", path=path, hint="`filewheel repair`")
    return decode(item, path, lap_end(lap_of))
