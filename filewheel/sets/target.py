"""The place of a copy: a directory on another disk. A tick arrives there whole or not at all.

The bytes of laps and slots are written in place: nothing counts above the lengths that the copy's checkpoint covers.
All else that a tick brings is one entry of `ticks`, a log: parts of journals, a checkpoint, small files, and the names
to remove. One flush of the log makes the tick durable, however many writers it is of. Then its steps are done, and the
log begins anew once they are durable themselves. `replay` does the steps of the log again; each may be done twice.
So a copy is, after `replay`, as a crash of its primary could have left that: to open it is to recover.
Invariant: a checkpoint is in place only with every byte that it covers, and with the journals above it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgpack

from filewheel.disk.checkpoint import START, Checkpoint, find_files, parse_checkpoint, place_checkpoint, unnamed
from filewheel.disk.directory import Directory
from filewheel.disk.disk import NO_DIRECTORY
from filewheel.disk.replace import write_aside
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, scan, seal
from filewheel.journal.tail import Handles
from filewheel.journal.walk import list_segments
from filewheel.laps.slot import files_of
from filewheel.sets.source import digests, frames_in

LOG_START = 8
"""The log begins behind the time at which the copy had everything for the last time."""
LOG_BYTES_MAX = 8 << 20
"""The log begins anew above this, after a flush of all that its ticks have written."""
TAIL_BYTES = 4096
"""So much of the end of each file is compared after a keeper has changed."""
SYNC_EACH_MAX = 16
"""With more files than these, all of the file system is flushed at once."""


@dataclass
class Tick:
    """The steps of one tick, in the order in which they are done."""

    parts: list[tuple[str, int, bytes]] = field(default_factory=list)
    """(segment, offset, bytes)"""
    cuts: list[tuple[str, int]] = field(default_factory=list)
    """(segment, size): bytes above are removed."""
    small: list[tuple[str, bytes]] = field(default_factory=list)
    """(name, content)"""
    checkpoint: bytes = b""
    gone: list[str] = field(default_factory=list)
    """Files to remove."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.parts or self.cuts or self.small or self.checkpoint or self.gone)

    @property
    def ends_log(self) -> bool:
        """Whether a step is not just an append."""
        return bool(self.cuts or self.small or self.checkpoint or self.gone)

    def pack(self) -> bytes:
        """Return the tick as bytes."""
        packed: bytes = msgpack.packb([self.parts, self.cuts, self.small, self.checkpoint, self.gone])
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> Tick:
        """Read the bytes of a tick."""
        found: list[Any] = msgpack.unpackb(data)
        return cls(*found)


Part = tuple[str, int, int]
"""A part of a file: its name, where it begins, where it ends."""


@dataclass
class Held:
    """What a copy has."""

    checkpoint: bytes
    files: dict[str, int]
    """The lap and slot files that it names, with the length that need not be copied again."""
    journals: dict[str, int]
    """The same for segments."""


class CopyTarget(Protocol):
    """The place of a copy, as `Copy` uses it. `Target` says what each call does."""

    gives_back: bool
    """Whether what it has alone can be given to the primary."""

    @property
    def place(self) -> str: ...
    def start(self) -> Held: ...
    def files(self, checkpoint: Checkpoint) -> dict[str, int]: ...
    def differs(self, primary: Directory, files: list[tuple[str, int]]) -> bool: ...
    def segments(self) -> list[str]: ...
    def has_frames(self, name: str, start: int) -> bool: ...
    def put(self, name: str, offset: int, data: bytes) -> None: ...
    def begin(self) -> None: ...
    def add(self, tick: Tick) -> None: ...
    def commit(self, tick: Tick) -> None: ...
    def beat(self) -> None: ...
    def close(self) -> None: ...


class DirectoryTarget(CopyTarget, Protocol):
    """The same in a directory, here or on another machine."""

    dir: Directory

    def digests(self, parts: list[Part]) -> list[bytes | None]: ...


class Target:
    """A copy in a directory. The caller holds its lock. Not thread-safe."""

    gives_back = True

    def __init__(self, directory: Directory, check: Callable[[], None] | None = None) -> None:
        """`check` raises when the directory is no copy of this primary any more; called before each tick is written."""
        self.dir, self.disk = directory, directory.disk
        self._check = check
        self._files = Handles(directory, mode="rw")
        self._put: set[str] = set()
        """Lap and slot files, and directories with new names, to be flushed before the next tick counts."""
        self._done: set[str] = set()
        """The same of the ticks in the log, to be flushed before it begins anew."""
        self._log = -1
        self._begin = self._last = self._log_end = LOG_START
        """Where in the log this tick begins, its last part, and the next one."""
        self._number = self._parts = 0
        """The number of the last part, and how many parts this tick has so far."""

    @property
    def place(self) -> str:
        """The path of the copy."""
        return self.dir.path

    def start(self) -> Held:
        """Replay the log, and return what the copy has. Raises Damaged when its checkpoint does not verify, OSError."""
        self._number = replay(self.dir)
        raw = _content(self.dir, layout.CHECKPOINT)
        settings = self.dir.settings
        checkpoint = parse_checkpoint(raw, self.dir.seed, settings.lap_of, self.dir.place(layout.CHECKPOINT))
        for name in unnamed(find_files(self.disk, settings.lap_of), checkpoint, settings.lap_of):
            if self.disk.identity(name) is not None:
                self.disk.unlink(name)  # mutant: copy-unnamed-stays
        journals = {}
        for writer, segments in list_segments(self.dir).items():
            covered = checkpoint.positions.get(writer, START)
            for n in segments:
                name = layout.segment(writer, n)
                journals[name] = self._end_of(name, covered.offset if n == covered.segment else 0)
        return Held(raw, self.files(checkpoint), journals)

    def files(self, checkpoint: Checkpoint) -> dict[str, int]:
        """Return the lap and slot files of a checkpoint, with what is there of each. Cost: a stat of each."""
        found = {}
        for file in files_of(self.dir.settings, checkpoint):
            known = self.disk.identity(file.name)
            found[file.name] = file.end if known is not None and known[1] + 7 & ~7 >= file.end else 0
        return found

    def _end_of(self, name: str, start: int) -> int:
        """Return where the first frames of a segment end that follow each other."""
        reader = scan(self.disk, self._files.get(name), start, 1 << 62, self.dir.seed(name), resync=False)
        for _ in reader:
            pass
        return reader.pos

    def has_frames(self, name: str, start: int) -> bool:
        """Return whether a segment has a frame at an offset or behind it. Cost: a read of what is there."""
        if self.disk.identity(name) is None:
            return False
        fd = self._files.get(name)
        found = scan(self.disk, fd, start, self.disk.size(fd), self.dir.seed(name))
        return any(isinstance(item, Frame) for item in found)

    def digests(self, parts: list[Part]) -> list[bytes | None]:
        """Return a digest of each part of a file that the copy has; None where it has no such file."""
        return digests(self.dir, parts)

    def differs(self, primary: Directory, files: list[tuple[str, int]]) -> bool:
        """Return whether a file has another frame here than at the primary, at one place: no damage is that."""
        return differ(primary, self, files)

    def segments(self) -> list[str]:
        """Return the segments that are there; a file that has gone is opened anew."""
        found = [layout.segment(writer, n) for writer, numbers in list_segments(self.dir).items() for n in numbers]
        self._files.keep(found)
        self._done -= {name for name in self._done if name.startswith(f"{layout.JOURNAL}/")}.difference(found)
        return found

    def put(self, name: str, offset: int, data: bytes) -> None:
        """Write to a lap or slot file, above the length that counts. Not durable before the next `commit`."""
        self._write(name, offset, data, self._put)

    def beat(self) -> None:
        """Write down that the copy has everything now. Not durable. Raises OSError."""
        self._open_log()
        self.disk.pwrite(self._log, self.dir.env.clock.now_us().to_bytes(LOG_START, "big"), 0)

    def begin(self) -> None:
        """Begin a tick: the parts of one that was not committed are written over."""
        self._number -= self._parts  # mutant: tick-half-begun
        self._parts, self._log_end = 0, self._begin

    def add(self, tick: Tick) -> None:
        """Write a part of a tick to the log, where it does not count before `commit` has written the last one."""
        self._append(tick, is_last=False)

    def commit(self, tick: Tick) -> None:
        """Write the last part of a tick, make the tick durable with all that was `put` before, and do its steps.

        Raises OSError, and as `check`. After an error the copy has the tick or has it not; a new Target finds out.
        """
        self._flush(self._put)  # mutant: copy-laps-unflushed
        if self._check is not None:
            self._check()
        begin = self._begin
        self._append(tick, is_last=True)
        self.disk.fdatasync(self._log)  # mutant: tick-unflushed
        ends_log = tick.ends_log
        parts = [tick] if begin == self._last else (part for _, part, _ in _parts(self.dir, self._log, begin))
        for part in parts:
            self.apply(part)
            ends_log = ends_log or part.ends_log
        self._begin, self._parts = self._log_end, 0
        if ends_log or self._log_end > LOG_BYTES_MAX:
            self._flush(self._done)
            # A crash before this does the steps again. Nothing stays: a purge counts on that.
            self.disk.truncate(self._log, LOG_START)  # mutant: ticks-stay
            self._log_end = self._begin = LOG_START

    def _append(self, tick: Tick, *, is_last: bool) -> None:
        self._open_log()
        self._number += 1
        self._parts += 1
        seed, at = self.dir.seed(layout.TICKS), self._log_end
        frame = seal(tick.pack(), seed=seed, offset=at, number=self._number, synced=0, puts=1, drops=int(is_last))
        self.disk.pwrite(self._log, frame, at)
        self._last, self._log_end = at, at + len(frame)

    def _open_log(self) -> None:
        if self._log < 0:
            self._log = self.disk.open(layout.TICKS, "rw")
            self.disk.sync_dir("")

    def apply(self, tick: Tick) -> None:
        """Do the steps of a tick. Each may be done again. Nothing is flushed: the log has the tick until all is."""
        disk, done = self.disk, self._done
        for name, offset, data in tick.parts:
            self._write(name, offset, data, done)
        for name, size in tick.cuts:
            if disk.identity(name) is not None:
                fd = self._files.get(name)
                disk.truncate(fd, min(size, disk.size(fd)))
                done.add(name)
        for name, content in tick.small:
            write_aside(disk, layout.SMALL_TMP, content)
            disk.rename(layout.SMALL_TMP, name)
            done.add("")
        if tick.checkpoint:
            write_aside(disk, layout.CHECKPOINT_TMP, tick.checkpoint)
            place_checkpoint(disk)
        for name in tick.gone:
            self._files.drop(name)
            done.discard(name)
            done.add(name.rpartition("/")[0])
            with contextlib.suppress(*NO_DIRECTORY):
                disk.unlink(name)
        for lap in {name.rpartition("/")[0] for name in tick.gone if name.count("/") > 1}:
            with contextlib.suppress(OSError):  # it is not empty
                disk.rmdir(lap)
                done.discard(lap)
                done.add(layout.LAPS)

    def _write(self, name: str, offset: int, data: bytes, done: set[str]) -> None:
        if name not in done:
            if self.disk.identity(name) is None:
                self._files.drop(name)  # another process removed it
                parent = name.rpartition("/")[0]
                if parent not in done:
                    with contextlib.suppress(FileExistsError):
                        self.disk.mkdir(parent)
                    done |= {parent, parent.rpartition("/")[0]}
            done.add(name)
        self.disk.pwrite(self._files.get(name), data, offset)

    def _flush(self, names: set[str]) -> None:
        """Make files and directories durable, and forget their names."""
        if len(names) > SYNC_EACH_MAX:
            self.disk.sync_all()
        else:
            for name in sorted(names, reverse=True):
                if self.disk.identity(name) is not None:
                    self.disk.fdatasync(self._files.get(name))
                else:
                    with contextlib.suppress(*NO_DIRECTORY):
                        self.disk.sync_dir(name)
        names.clear()

    def close(self) -> None:
        """Close its files; the directory stays open."""
        self._files.close()
        if self._log >= 0:
            self.disk.close(self._log)
            self._log = -1


def differ(primary: Directory, copy: DirectoryTarget, files: list[tuple[str, int]]) -> bool:
    """Return whether one of these (file, end) has another frame in a copy than at its primary, at one place.

    Compared are the last bytes of each, and all frames of a file of which they are others.
    """
    tails = [(name, max(0, end - TAIL_BYTES), end) for name, end in files]
    for (name, end), ours, theirs in zip(files, digests(primary, tails), copy.digests(tails), strict=True):
        if ours is None or theirs is None or ours == theirs:  # mutant: history-unseen
            continue
        frames, others = ({f.offset: f.body for f in frames_in(wheel, name, end)} for wheel in (primary, copy.dir))
        if any(frames[at] != others[at] for at in frames.keys() & others.keys()):
            return True
    return False


def replay(directory: Directory) -> int:
    """Do the steps of the ticks that a copy's log has, and empty it; return the number of the last one.

    Call it before a copy is opened as a wheel, with its lock held. On return all is durable. Raises OSError.
    """
    disk, last = directory.disk, 0
    try:
        fd = disk.open(layout.TICKS, "r+")
    except FileNotFoundError:
        return 0
    target = Target(directory)
    try:
        parts: list[Tick] = []
        for number, part, is_last in _parts(directory, fd, LOG_START):
            parts.append(part)
            for tick in parts if is_last else ():
                target.apply(tick)
                last = number
            if is_last:
                parts.clear()
        disk.sync_all()  # names too, which a copier that died may have left in memory only  # mutant: replay-unflushed
        disk.truncate(fd, min(LOG_START, disk.size(fd)))
        disk.fdatasync(fd)
    finally:
        target.close()
        disk.close(fd)
    return last


def committed(directory: Directory) -> Iterator[Tick]:
    """Yield the parts of the ticks in a copy's log: their steps may have been done or not. Takes no lock."""
    try:
        fd = directory.disk.open(layout.TICKS, "r")
    except FileNotFoundError:
        return
    try:
        parts: list[Tick] = []
        for _, part, is_last in _parts(directory, fd, LOG_START):
            parts.append(part)
            if is_last:
                yield from parts
                parts.clear()
    finally:
        directory.disk.close(fd)


def has_deal(directory: Directory, deal: int) -> bool:
    """Return whether a copy has this deal of its primary, and nothing that a deal before it had and this one has not.

    Takes no lock. Cost: two small files. Raises Damaged, OSError.
    """
    # The tick that brought it is in the log until its files are removed.
    return directory.checkpoint().deal >= deal and not any(tick.ends_log for tick in committed(directory))


def _parts(directory: Directory, fd: int, start: int) -> Iterator[tuple[int, Tick, bool]]:
    """Yield the number of each part of a log, the part, and whether its tick ends with it."""
    before = 0
    for item in scan(directory.disk, fd, start, directory.disk.size(fd), directory.seed(layout.TICKS), resync=False):
        if not isinstance(item, Frame) or (before and item.number != before + 1):
            return  # the rest was left by ticks before these
        before = item.number
        yield item.number, Tick.unpack(item.body), bool(item.drops)


def _content(directory: Directory, name: str) -> bytes:
    try:
        fd = directory.disk.open(name, "r")
    except FileNotFoundError:
        raise Damaged("missing", path=directory.place(name), hint="`filewheel backup add` it anew") from None
    try:
        return directory.disk.pread(fd, directory.disk.size(fd), 0)
    finally:
        directory.disk.close(fd)
