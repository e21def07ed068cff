"""Reads another writer's journal as it grows.

A tail stands at a position and moves over frames that verify. While the writer lives (its segment's lock is held), the
first frame that does not verify may still be in the middle of its write: the tail stops there and looks again later
(I1). Once the lock is free, nothing more is written: the tail steps over bytes that do not verify and goes on to the
next segment. When there is none, the writer has ended (I2). The lock is always tested *before* the read that relies on
the answer.

A tail for looks tests no lock. It steps over bytes as soon as a later frame verifies behind them and a second read
finds them unchanged: what it misses, it reads again after the next checkpoint.

Missing frames are judged by the frames that follow (gaps.py). The tail steps over proven damage at once. It steps over
an unproven gap, and reports it as such, when the writer has ended or has left the segment.
Invariant: `seen` only moves forward, and every frame below it was taken.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator

from filewheel.disk.checkpoint import START, Position
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.disk.quarantine import Damage
from filewheel.format import layout
from filewheel.format.frame import HEADER_BYTES, SMALL_BLOCK, Frame, Gap, scan
from filewheel.journal.gaps import UNKNOWN, Judge
from filewheel.journal.walk import Part
from filewheel.native.loops import MAGIC

Take = Callable[[Frame], None]
OnDamage = Callable[[Damage], None]


class Handles:
    """A few files that are kept open; the least recently used is closed first."""

    def __init__(self, directory: Directory, limit: int = 24, mode: str = "r") -> None:
        self._disk = directory.disk
        self._limit = limit
        self._mode = mode
        self._open: dict[str, int] = {}
        self._pid = os.getpid()

    def get(self, name: str) -> int:
        """Return an open descriptor of the file."""
        if name in self._open:
            fd = self._open[name] = self._open.pop(name)  # it was used last
            return fd
        while len(self._open) >= self._limit:
            self.drop(next(iter(self._open)))
        fd = self._open[name] = self._disk.open(name, self._mode)
        return fd

    def drop(self, name: str) -> None:
        """Close one."""
        if name in self._open:
            self._disk.close(self._open.pop(name))

    def keep(self, names: Collection[str]) -> None:
        """Close all others."""
        for name in self._open.keys() - names:
            self.drop(name)

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._disk.close(self._open.popitem()[1])

    def __del__(self) -> None:
        # An interrupt (Ctrl-C) may come between an open and the `try` that closes it. What is raised here goes nowhere.
        with contextlib.suppress(BaseException):
            if self._open and os.getpid() == self._pid:  # a forked child may have other files with these numbers
                self.close()


class Tail:
    """One writer's journal, read from `covered` on. Not thread-safe: the keeper's lock guards it."""

    def __init__(
        self,
        directory: Directory,
        handles: Handles,
        writer: str,
        covered: Position = START,
        *,
        doubt: bool = False,
        for_looks: bool = False,
    ) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._handles = handles
        self.writer = writer
        self.covered = covered
        """Everything below is in slot and lap files."""
        self.seen = covered
        """Everything below has been read."""
        self.name = ""
        """The segment in which the tail stands, once it was polled."""
        self._seed: int | None = None
        """Of the checksums in that segment."""
        self.ended = False
        """The writer has ended, and its whole journal has been read."""
        self.gone = False
        """Its last segment has been removed (K4)."""
        self.ends: dict[int, int] = {}
        """The length of each segment that was read to its end."""
        self.flushed = covered
        """Everything below is known to be durable."""
        self.synced = 0
        """The last frame that a later frame or a seal calls durable."""
        self._judge = Judge()
        self._looked = (0, 0)
        """Up to here (segment, offset), no frame proves that the missing ones had been durable."""
        self._sealed = False
        """The last frame read was the seal of its segment: nothing was written after it."""
        self._doubt = doubt
        """`covered` is of an older checkpoint: segments above it may have been covered and removed since."""
        self._for_looks = for_looks
        self._blank = False
        """For looks: everything above `seen` was zeros when it was last read to the end."""

    def parts(self, start: Position, end: Position) -> Iterator[Part]:
        """Yield the parts of the journal between two positions."""
        # Only segments that were read: a foreign file may have any number in its name.
        for n in sorted({*self.ends, end.segment}):
            low = start.offset if n == start.segment else 0
            high = end.offset if n == end.segment else self.ends.get(n, 0)
            if start.segment <= n <= end.segment and high > low:
                yield Part(self.writer, n, low, high)

    def poll(
        self,
        segments: set[int],
        relist: Callable[[], set[int]],
        take: Take,
        *,
        test_lock: bool,
        on_damage: OnDamage,
        on_foreign: Callable[[str], None],
    ) -> None:
        """Give the frames that were written since the last poll. `seen` moves over one when `take` has returned.

        `segments` are the writer's, and `relist` lists them again. With `test_lock` the tail finds out whether the
        writer has ended.
        """
        missed = 0
        while not self.ended:
            n = self.seen.segment
            if n not in segments:
                if missed != n and any(s > n for s in segments):  # mutant: one-listing
                    # I3: a listing beside a live writer may have a segment and miss the one before; the next has both.
                    missed = n
                    segments = relist()
                    continue
                # Covered and removed, never filled, or removed by hand.
                later = sorted(s for s in segments if s > n)
                if not later:
                    self._end()
                    return
                if self.seen == START or (self._doubt and self.seen == self.covered):
                    self.seen = self.seen._replace(number=UNKNOWN)
                self._step(later[0])
                continue
            is_over = max(segments) > n
            if self._for_looks and self._sealed and not is_over:
                return
            name = self.name = self.name or layout.segment(self.writer, n)
            try:
                fd = self._handles.get(name)
            except FileNotFoundError:
                segments = relist() - {n}  # mutant: vanished-listed
                continue
            except ForeignFile:
                on_foreign(name)
                return
            # A next segment exists: the writer is done with this one, or about to unlock it (O2).
            if self._for_looks:
                free = is_over
                if not free:
                    self._look(name, fd, take, on_damage)
                    return
            else:
                free = (test_lock or n + 1 in segments) and self._disk.is_free(fd)  # mutant: read-before-lock
            # mutant: read-before-lock.2
            self._read(name, fd, take, dead=free, look_ahead=test_lock, on_damage=on_damage)
            if not free:
                return
            self._handles.drop(name)
            self.ends[n] = self.seen.offset
            segments = relist()  # the next one was made before the lock became free  # mutant: old-listing
            later = sorted(s for s in segments if s > n)
            if not later:
                self._end()
                return
            # Report it now: this segment may be covered and removed before the next one has a frame to judge by.
            for damage in self._judge.passed():  # mutant: end-unkept
                on_damage(damage)
            self._step(later[0])

    def _step(self, segment: int) -> None:
        self.ends.setdefault(self.seen.segment, self.seen.offset)
        self._sealed = self._blank = False
        self.seen = Position(segment, 0, self.seen.number)
        self.name, self._seed = "", None

    def _end(self) -> None:
        self.ends.setdefault(self.seen.segment, self.seen.offset)
        self.ended = True

    def _look(self, name: str, fd: int, take: Take, on_damage: OnDamage) -> None:
        """Give the new frames of a journal that may grow. Cost, when there is none: a read of one header."""
        if self._blank and not self._disk.pread(fd, HEADER_BYTES, self.seen.offset).strip(b"\0"):
            return
        is_blank = self._read(name, fd, take, dead=False, look_ahead=not self._blank, on_damage=on_damage)
        if self._blank and not is_blank:
            # Half a frame, or damage: a later frame that verifies decides.
            self._read(name, fd, take, dead=False, look_ahead=True, on_damage=on_damage)

    def _read(self, name: str, fd: int, take: Take, *, dead: bool, look_ahead: bool, on_damage: OnDamage) -> bool:
        """Give the frames from `seen` on; in a live journal, `look_ahead` goes past bytes that do not verify.

        Returns whether there were only zeros, or nothing, behind the last frame.
        """
        start = self.seen.offset
        if not dead and not look_ahead and self._disk.pread(fd, len(MAGIC), start) != MAGIC:
            return False  # most looks find nothing new
        size = self._disk.size(fd)
        if self._seed is None:
            self._seed = self._dir.seed(name)
        seed = self._seed
        # Small blocks at first: a live journal has a few new frames, and then zeros that were written ahead.
        # mutant: live-skips
        scanner = scan(self._disk, fd, start, size, seed, resync=dead or look_ahead, block_bytes=SMALL_BLOCK)
        proof = 0
        for item in scanner:
            if isinstance(item, Gap):
                proof = 0 if item.at_end else self._proof_behind(fd, item, size, seed)
                is_decided = bool(proof) or (self._for_looks and not item.at_end)
                # mutant: live-skips.2 dead-stops
                if not dead and not (is_decided and self._is_still_there(fd, item, size, seed)):
                    self._blank = item.blank
                    return item.blank
                if not (self._sealed and item.at_end):
                    self._judge.pass_over(name, item)
                continue
            is_seal = not item.puts and not item.drops
            if self._judge.waits or item.number != self.seen.number + 1 or is_seal:
                for missing in self._judge.take(name, item, self.seen.number, proof):
                    for damage in missing.damages():
                        on_damage(damage)
            take(item)
            # Only now: a reader that failed with the frame, or was interrupted, gets it again.
            seen = Position(self.seen.segment, item.end, item.number)
            self._sealed, self.synced, self.seen = is_seal, max(self.synced, item.synced), seen
        self._blank |= look_ahead
        if dead:
            self.seen = Position(self.seen.segment, max(size, start), self.seen.number)
        return scanner.is_blank()

    def _proof_behind(self, fd: int, gap: Gap, size: int, seed: int) -> int:
        """Return `synced` of the first frame after a gap that calls a frame of the gap durable; 0 if there is none.

        Cost: the frames up to that one; a frame that proves nothing is read only once, in however many calls.
        """
        segment, offset = self._looked
        start = max(gap.end, offset) if segment == self.seen.segment else gap.end
        for item in scan(self._disk, fd, start, size, seed):
            if isinstance(item, Frame):
                if item.synced > self.seen.number:
                    return item.synced
                self._looked = (self.seen.segment, item.end)  # mutant: live-next-frame-only
        return 0

    def _is_still_there(self, fd: int, gap: Gap, size: int, seed: int) -> bool:
        """Read a gap again: the frame after it may be younger than the read that found the gap.

        Once a later frame has been read, everything before it is complete or damaged.
        """
        again = next(iter(scan(self._disk, fd, gap.offset, size, seed)), None)
        return isinstance(again, Gap) and again.end == gap.end  # mutant: no-second-look
