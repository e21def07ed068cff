"""Mends a primary and its copy from each other: each has the other's bytes.

Where the primary put damaged bytes aside, the frames of the copy at that place are what it lost (`Mending`). Their
messages are given back, unless they have ended. This comes before the copy gets a checkpoint that does not name the
file any more. A scrub compares all that both should have, block by block. A frame that verifies at the primary alone is
written into the copy, at its place; one that verifies in the copy alone was lost by the primary. A named file that the
primary does not have takes its place again by a rename.
Invariant: nothing is written over bytes that verify.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any
from zlib import crc32

from filewheel.disk.directory import Directory
from filewheel.disk.quarantine import items
from filewheel.format import layout
from filewheel.format.record import ID, readable_records
from filewheel.laps.slot import file_named, files_of
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import US_PER_S, id_floor
from filewheel.roster.roster import roster_locked
from filewheel.sets.giving import Giver
from filewheel.sets.source import digests, frames_in, read_at
from filewheel.sets.target import DirectoryTarget, Part

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
GIVEN_AT_ONCE = 10_000
STEP_BYTES = 16 << 20
"""About so many bytes are compared in one step."""
PARTS_AT_ONCE = 512
_Frames = dict[int, tuple[int, int]]
"""Offset → (end, checksum of the content)"""


class Mending:
    """Gives a primary back what its quarantine says that it lost. Not thread-safe. The copy's lock is held."""

    def __init__(self, primary: Directory, copy: Directory) -> None:
        """What is in the quarantine now is looked at too: the copy may have been away when it was put there."""
        self._primary, self._copy = primary, copy
        self._seen: set[str] = set()

    def run(self, missing: Iterable[str] = ()) -> int:
        """Give back what new items in the quarantine are of, and what these files of the copy hold; return how many.

        Raises OSError, FilewheelError. Cost: a listing.
        """
        count = sum(self._give_file(name) for name in missing)
        names = {last for last in self._primary.disk.listdir(layout.QUARANTINE) if last.endswith(".json")}
        if not names - self._seen:
            return count
        found: dict[bytes, bytes] = {}
        for item in items(self._primary):
            if str(item["item"]).rpartition("/")[2] not in self._seen:
                found |= self._lost(item)
        self._seen = names
        return count + give(self._primary, self._copy, found)

    def _give_file(self, name: str) -> int:
        count, puts = 0, dict[bytes, bytes]()
        for put in self._puts_of(name):
            puts[put[ID]] = put
            if len(puts) >= GIVEN_AT_ONCE:
                count += give(self._primary, self._copy, puts)
                puts = {}
        return count + give(self._primary, self._copy, puts)

    def _puts_of(self, name: str) -> Iterator[bytes]:
        """Yield what the copy has in a file, and what else is pending there that belongs into it."""
        for frame in frames_in(self._copy, name, 1 << 62):
            yield from readable_records(frame)[0]
        file = file_named(self._copy.settings, name)
        if file is not None:
            start, end = file.seconds
            with Snapshot(self._copy) as snapshot:
                yield from snapshot.puts(id_floor(start * US_PER_S), id_floor(end * US_PER_S))

    def _lost(self, item: dict[str, Any]) -> dict[bytes, bytes]:
        """Return the puts that the copy has at the place of an item."""
        name, start, end = (item.get(field) for field in ("name", "offset", "end"))
        if type(name) is not str or type(start) is not int or type(end) is not int:
            return {}  # the note is torn: a scrub finds the place
        if layout.parse_segment(name.rpartition("/")[2]) is None and file_named(self._copy.settings, name) is None:
            return {}
        puts: dict[bytes, bytes] = {}
        for frame in frames_in(self._copy, name, 1 << 62):
            if frame.offset < end and frame.end > start:
                puts |= {put[ID]: put for put in readable_records(frame)[0]}
        return puts


def give(primary: Directory, copy: Directory, puts: dict[bytes, bytes]) -> int:
    """Give a primary those of these messages that are pending in the copy; return how many. Durable on return."""
    if not puts:
        return 0
    with Snapshot(copy) as snapshot:
        pending = snapshot.find(puts)
    with contextlib.closing(Giver(primary, "given back")) as giver:
        count = giver.give(pending.values())
        giver.flush()
    if count:
        log.warning("%s: %d messages that were lost there were given back from %s", primary.path, count, copy.path)
    return count


class Scrub:
    """One comparison. Not thread-safe. The copy's lock is held."""

    def __init__(self, primary: Directory, target: DirectoryTarget, sizes: dict[str, int]) -> None:
        """Compare these files, as far as both have them."""
        self._primary, self._target, self._copy = primary, target, target.dir
        self._parts = self._all(sizes)
        self.healed = 0
        """Frames of the copy that were written again."""
        self.returned = 0
        """Messages that were given back to the primary."""

    def step(self) -> bool:
        """Compare some more; return whether there is more to compare. Raises OSError, FilewheelError."""
        done = 0
        for size in self._parts:
            done += size
            if done >= STEP_BYTES:
                return True
        return False

    def _all(self, sizes: dict[str, int]) -> Iterator[int]:
        """Compare all files, some blocks at a time; yield how many bytes were read."""
        parts: list[Part] = []
        size_bytes = 0
        for name, size in sizes.items():
            for start in range(0, size, BLOCK_BYTES):
                parts.append((name, start, min(size, start + BLOCK_BYTES)))
                size_bytes += parts[-1][2] - start
                if size_bytes >= STEP_BYTES or len(parts) >= PARTS_AT_ONCE:
                    self._compare(parts, sizes)
                    yield size_bytes
                    parts, size_bytes = [], 0
        self._compare(parts, sizes)
        yield size_bytes

    def _compare(self, parts: list[Part], sizes: dict[str, int]) -> None:
        done: set[str] = set()
        pairs = zip(parts, digests(self._primary, parts), self._target.digests(parts), strict=True)
        for (name, _, _), ours, theirs in pairs:
            if name in done or ours == theirs:
                continue
            done.add(name)
            if ours is None:
                self._put_back(name)
            elif theirs is not None:  # if it is not there, the next tick copies it
                self._mend(name, sizes[name])

    def _put_back(self, name: str) -> None:
        """Give the primary back a file that its checkpoint names."""
        named = {file.name for file in files_of(self._primary.settings, self._primary.checkpoint())}
        if name in named and self._primary.disk.identity(name) is None:
            restore(self._primary, self._copy, name)

    def _mend(self, name: str, size: int) -> None:
        ours, theirs = frames_of_both(self._primary, self._copy, name, 0, size)
        healed = [(at, end) for at, (end, _) in ours.items() if at not in theirs]
        if healed:
            fd = self._copy.disk.open(name, "rw")
            try:
                for start, end in healed:
                    self._copy.disk.pwrite(fd, read_at(self._primary, name, start, end) or b"", start)
                self._copy.disk.fdatasync(fd)
            finally:
                self._copy.disk.close(fd)
            self.healed += len(healed)
            log.warning("%s: %d damaged frames were written again", self._copy.place(name), len(healed))
        if theirs.keys() - ours.keys() and self._primary.disk.identity(name) is not None:
            lost: dict[bytes, bytes] = {}
            for frame in frames_in(self._copy, name, size):
                if frame.offset not in ours:
                    lost |= {put[ID]: put for put in readable_records(frame)[0]}
            self.returned += give(self._primary, self._copy, lost)


def blocks(
    primary: Directory, copy: Directory, name: str, start: int, end: int
) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Yield (offset, bytes of the primary, bytes of the copy) of a part of a file; None where there is no file.

    The copy is read first: the primary has had these bytes before.
    """
    for at in range(start, end, BLOCK_BYTES):
        stop = min(end, at + BLOCK_BYTES)
        theirs, ours = read_at(copy, name, at, stop), read_at(primary, name, at, stop)
        if ours is not None and theirs is not None:
            size = max(len(ours), len(theirs))  # one may end inside the padding of its last frame
            ours, theirs = ours.ljust(size, b"\0"), theirs.ljust(size, b"\0")
        yield at, ours, theirs


def frames_of_both(primary: Directory, copy: Directory, name: str, start: int, end: int) -> tuple[_Frames, _Frames]:
    """Return the frames that verify in a part of a file, at the primary and in the copy."""
    theirs, ours = (
        {f.offset: (f.end, crc32(f.body)) for f in frames_in(wheel, name, end, start)} for wheel in (copy, primary)
    )
    return ours, theirs


def adopt(primary: Directory, copy: Directory, name: str, start: int) -> int:
    """Give a primary what a segment of a copy holds from an offset on; return how many messages. Durable on return.

    The primary lost that, or a power cut took it before it was confirmed: nobody can tell which (M7).
    """
    count = 0
    with contextlib.closing(Giver(primary, "given back")) as giver:
        for frame in frames_in(copy, name, 1 << 62):
            if frame.offset >= start:
                count += giver.adopt(frame)
        giver.flush()
    log.warning("%s: %s was not whole; %d messages of it were given back", primary.path, name, count)
    return count


def restore(primary: Directory, copy: Directory, name: str) -> None:
    """Put a file of a copy in its place at the primary, durably. Raises OSError."""
    with roster_locked(primary.disk):  # another copy may have it too
        fd = primary.disk.open(layout.SMALL_TMP, "w")
        try:
            start = 0
            while data := read_at(copy, name, start, start + BLOCK_BYTES):
                primary.disk.pwrite(fd, data, start)
                start += len(data)
            primary.disk.fdatasync(fd)
        finally:
            primary.disk.close(fd)
        parent = name.rpartition("/")[0]
        with contextlib.suppress(FileExistsError):
            primary.disk.mkdir(parent)
            primary.disk.sync_dir(parent.rpartition("/")[0])
        primary.disk.rename(layout.SMALL_TMP, name)
        primary.disk.sync_dir(parent)
    log.warning("%s: it was missing, and was put back from %s", primary.place(name), copy.path)
