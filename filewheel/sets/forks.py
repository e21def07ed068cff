"""The forks of a line: what a wheel held at the moment when it became the primary.

A promotion notes for each writer the last message that is in the copy. The messages of a writer are copied in their
order, so the copy had all before it. A message of the old primary with a later number was never here: it is absorbed.
One with an earlier number that is not pending here now has ended here. The note does not depend on deals, offsets or
laps, which both wheels go on to change.

The file `forks` has every promotion of the line. It is copied first in each tick. So the forks of a wheel say whose
history its files are: a wheel whose forks are not those of its primary is absorbed, cleared and copied anew.
Invariant: a fork is durable before the new primary deals or deletes anything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgpack

from filewheel.disk.directory import Directory
from filewheel.disk.replace import replace_file
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, Scanner, scan, seal
from filewheel.format.record import ID, readable_records
from filewheel.journal.tail import Handles
from filewheel.journal.walk import list_segments, parts_above, read_parts
from filewheel.laps.slot import files_of
from filewheel.roster.roster import roster_locked

log = logging.getLogger(__name__)

FORKS_MAX = 16
"""Earlier promotions are forgotten: of a wheel that missed so many, everything is compared."""
_SEQ_BITS = 30
_WRITER_BITS = 40


@dataclass(frozen=True)
class Fork:
    """One promotion."""

    epoch: int
    wheel: str
    """The id of the wheel that became the primary."""
    known: dict[int, int] = field(default_factory=dict)
    """Writer → the last number of a message of it that the wheel had."""

    def knows(self, id_: bytes) -> bool:
        """Return whether the wheel had this message, or had had it."""
        writer, number = maker(id_)
        return number <= self.known.get(writer, -1)


def maker(id_: bytes) -> tuple[int, int]:
    """Return the writer that made an id, and its number in the writer's sequence."""
    low = int.from_bytes(id_[7:], "big")
    return low >> _SEQ_BITS & (1 << _WRITER_BITS) - 1, low & (1 << _SEQ_BITS) - 1


def read_forks(directory: Directory) -> list[Fork]:
    """Return the promotions of a wheel's line, the first one first. Raises Damaged, OSError."""
    try:
        fd = directory.disk.open(layout.FORKS, "r")
    except FileNotFoundError:
        return []
    try:
        data = directory.disk.pread(fd, directory.disk.size(fd), 0)
    finally:
        directory.disk.close(fd)
    reader = Scanner(lambda size, at: data[at : at + size], 0, len(data), directory.seed(layout.FORKS))
    item = next(iter(reader), None)
    if not isinstance(item, Frame):
        raise Damaged("it fails its checksum", path=directory.place(layout.FORKS), hint="copy that of another wheel")
    found = msgpack.unpackb(item.body, strict_map_key=False)
    return [Fork(epoch, wheel, known) for epoch, wheel, known in found]


def write_forks(directory: Directory, forks: list[Fork]) -> None:
    """Replace the forks of a wheel. On return they are durable. Raises OSError."""
    body: bytes = msgpack.packb([[f.epoch, f.wheel, f.known] for f in forks[-FORKS_MAX:]])
    frame = seal(body, seed=directory.seed(layout.FORKS), offset=0, number=1, synced=0, puts=1, drops=0)
    replace_file(directory.disk, layout.FORKS, layout.SMALL_TMP, frame)


def names_of(forks: list[Fork]) -> list[tuple[int, str]]:
    """Return which promotions these are."""
    return [(fork.epoch, fork.wheel) for fork in forks]


def first_not_in(forks: list[Fork], theirs: list[Fork]) -> Fork | None:
    """Return the first promotion of a line that another wheel has not seen; None when it has seen all."""
    seen = names_of(theirs)
    first = next((fork for fork in forks if (fork.epoch, fork.wheel) not in seen), None)
    # One that was forgotten may be before the first: that had more than the wheel which became the primary then.
    return replace(first, known={}) if len(forks) >= FORKS_MAX and first is forks[0] else first


def line_of(directory: Directory, epoch: int) -> list[Fork]:
    """Return a wheel's forks up to an epoch: a promotion that did not end may have noted another one."""
    return [fork for fork in forks_if_whole(directory) if fork.epoch <= epoch]


def forks_if_whole(directory: Directory) -> list[Fork]:
    """Return a wheel's forks; none if they cannot be read: then all that it has is compared. Raises OSError."""
    try:
        return read_forks(directory)
    except Damaged as exc:
        log.warning("%s", exc)
        return []


def note_fork(directory: Directory, epoch: int, before: int) -> None:
    """Note what a settled copy of epoch `before` holds, before it becomes the primary in `epoch`.

    A copy that filewheel 0.2 made got no messages in their order. Cost: all of it is read once. Raises OSError.
    """
    known = held(directory) if directory.disk.identity(layout.FOLLOWS) is None else {}
    fork = Fork(epoch, directory.settings.id, known)
    write_forks(directory, [*line_of(directory, before), fork])


def add_known(directory: Directory, known: dict[int, int]) -> None:
    """Add to each fork what another wheel had: it was given, or had ended there, and is not to be given twice (W15).

    Two wheels may be absorbed at the same time. Raises Damaged, OSError.
    """
    with roster_locked(directory.disk):
        write_forks(directory, [replace(f, known=merged(f.known, known)) for f in read_forks(directory)])


def merged(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    """Return the later number of each writer."""
    return one | {writer: max(number, one.get(writer, -1)) for writer, number in other.items()}


def held(directory: Directory) -> dict[int, int]:
    """Return for each writer the last number of a message that is in a wheel's files, ended or not. Raises OSError."""
    known: dict[int, int] = {}
    for frame in frames_of(directory):
        for put in readable_records(frame)[0] if frame.puts else ():
            writer, number = maker(put[ID])
            if number > known.get(writer, -1):
                known[writer] = number
    return known


def frames_of(directory: Directory, lost: set[str] | None = None) -> Iterator[Frame]:
    """Yield every frame of a wheel that counts, once a keeper has no more to write. Raises OSError.

    The names of damaged and missing files are added to `lost`.
    """
    lost = set() if lost is None else lost
    handles, checkpoint = Handles(directory), directory.checkpoint()
    try:
        for file in files_of(directory.settings, checkpoint):
            try:
                fd = handles.get(file.name)
            except FileNotFoundError:
                lost.add(file.name)
                continue
            end = 0
            for item in scan(directory.disk, fd, 0, file.end, directory.seed(file.name)):
                if isinstance(item, Frame) and item.offset == end:
                    end = item.end
                if isinstance(item, Frame):
                    yield item
            if end < file.end:
                lost.add(file.name)
        parts = parts_above(list_segments(directory), checkpoint.positions)
        for part, found in read_parts(directory, handles.get, parts):
            if isinstance(found, Frame):
                yield found
            elif not (found.blank or found.at_end):
                lost.add(part.name)
    finally:
        handles.close()
