"""A frame: one commit. A header of 72 bytes and a run of msgpack records, padded to 8 bytes.

`docs/format.md` is normative; this file reads the layout, and loops.py (or its C version) writes it. Header and body
have separate checksums, so a reader can skip a damaged body safely. Both start from the file's seed (layout.seed), and
the header's also from its offset. So zeros, stale blocks, frames of another file and frames inside a payload never
verify. Lengths are checked before memory is allocated.

Two header fields distinguish a torn tail from damage. `number` counts a writer's frames without a gap. `synced` is the
number of the last frame that was durable when this one was written. A missing frame is damage if a later one has it as
synced, because it was acknowledged; any other missing frame is a commit that never completed.

Format rule: any change of the written bytes raises FORMAT, also in development, keeps the old reader, and adds golden
files.
Format: docs/format.md, 5.
Invariant: a yielded frame is what its writer wrote at this offset; all other bytes are reported as a Gap.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Protocol

from filewheel.message import ID_END, ID_MIN
from filewheel.native.compiled import ReadFrames, crc32, learn_frame, read_frames, seal_frame
from filewheel.native.loops import MAGIC

FORMAT = 2
_HEADER = struct.Struct("<4sIIIQQII16s16s")
HEADER_BYTES = _HEADER.size
BODY_BYTES_MAX = 1 << 28
_BLOCK = 1 << 18
_AT_ONCE = 64
SMALL_BLOCK = 1 << 12
"""The first block: a header and some small frames. If there is more, the reader enlarges its blocks."""


def pad(size: int) -> int:
    """Return the number of zero bytes after a body of this size."""
    return -size & 7


def portions(sizes: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Cut records of these sizes into runs (from, to) that fit a body of `limit`; nearly always one."""
    if sum(sizes) <= limit:
        return [(0, len(sizes))] if sizes else []
    ends = list(accumulate(sizes))
    runs = []
    start = before = 0
    while start < len(ends):
        upto = max(bisect_right(ends, before + limit, start), start + 1)
        runs.append((start, upto))
        start, before = upto, ends[upto - 1]
    return runs


def seal(
    body: bytes,
    *,
    seed: int,
    offset: int,
    number: int,
    synced: int,
    puts: int,
    drops: int,
    first: bytes = ID_END,
    last: bytes = ID_MIN,
) -> bytes:
    """Return the bytes of the frame that belongs at `offset` of the file with this seed."""
    return seal_frame(body, seed, offset, number, synced, puts, drops, first, last)


def record_bytes(frames: bytes) -> int:
    """Return the size of all records in a run of sealed frames."""
    at = total = 0
    while at < len(frames):
        size = int.from_bytes(frames[at + 8 : at + 12], "little")
        total += size
        at += HEADER_BYTES + size + pad(size)
    return total


@dataclass(slots=True)
class Frame:
    """A frame that verified."""

    offset: int
    end: int
    number: int
    synced: int
    puts: int
    drops: int
    first: bytes
    last: bytes
    body: bytes

    @property
    def is_seal(self) -> bool:
        """Whether this frame is empty: it repeats the number of the previous frame, which was durable."""
        return not self.puts and not self.drops

    def missing_after(self, number: int) -> int:
        """Return the number of frames missing between frame `number` and this one."""
        return self.number - number - (0 if self.is_seal else 1)


if learn_frame is not None:
    learn_frame(Frame)


@dataclass(slots=True)
class Gap:
    """A range of bytes that is not a frame, and why."""

    offset: int
    end: int
    reason: str
    blank: bool = False
    """All zeros: preallocated space that was never used."""
    at_end: bool = False
    """No frame that verifies follows."""
    is_frame: bool = False
    """Its checksums hold but its records are invalid: it was written like this."""


class Readable(Protocol):
    """The part of a disk that a scan needs."""

    def pread(self, fd: int, size: int, offset: int) -> bytes: ...

    def data_from(self, fd: int, offset: int) -> int: ...


Pread = Callable[[int, int], bytes]
"""(size, offset) → bytes, short only at the end of the file."""


def scan(
    disk: Readable,
    fd: int,
    start: int,
    end: int,
    seed: int,
    *,
    resync: bool = True,
    lo: bytes | None = None,
    hi: bytes | None = None,
    headers: bool = False,
    block_bytes: int = _BLOCK,
) -> Scanner:
    """Return a scanner over an open file; it skips holes."""
    return Scanner(
        partial(disk.pread, fd),
        start,
        end,
        seed,
        resync=resync,
        lo=lo,
        hi=hi,
        headers=headers,
        data_from=partial(disk.data_from, fd),
        block_bytes=block_bytes,
    )


class Scanner:
    """Reads the frames of one file from `start` up to `end`, holding one block or one frame in memory.

    With `resync`, the scanner searches a bad region for the next frame that verifies, and yields the region as a Gap;
    without it, reading stops there. `pos` is the position after the last yielded frame or gap.
    With `headers`, bodies are neither read nor checked, and left empty.
    With `lo` or `hi`, frames without an id from `lo` to below `hi` are skipped: only their headers are checked.
    """

    def __init__(
        self,
        pread: Pread,
        start: int,
        end: int,
        seed: int,
        *,
        resync: bool = True,
        lo: bytes | None = None,
        hi: bytes | None = None,
        headers: bool = False,
        data_from: Callable[[int], int] | None = None,
        block_bytes: int = _BLOCK,
    ) -> None:
        self._pread = pread
        self._data_from = data_from
        self._end = end
        self._seed = seed
        self._resync = resync
        self._lo = lo
        self._hi = hi
        self._filter = lo is not None or hi is not None
        self._headers_only = headers
        # A reader of headers does not read the bodies between them.
        self._block_bytes = SMALL_BLOCK if headers else block_bytes
        self._block = b""
        self._base = start
        self.pos = start
        self.stopped: str | None = None
        """Without `resync`: why reading stopped before the end."""

    def narrow(self, hi: bytes) -> None:
        """From here on, skip the frames without an id below `hi`."""
        self._hi = hi

    def is_blank(self) -> bool:
        """Return whether zeros, or nothing, stand at `pos`, as far as they were read: no frame is being written."""
        at = self.pos - self._base
        return not self._block[at : at + HEADER_BYTES].strip(b"\0")

    def _load(self, size: int) -> tuple[bytes, int]:
        """Read `size` bytes from pos on, or more; return the block in memory, and where in it pos is."""
        want = min(max(size, self._block_bytes), self._end - self.pos)
        self._block, self._base = self._pread(want, self.pos), self.pos
        if not self._headers_only and self._block_bytes < _BLOCK:
            self._block_bytes *= 4  # the first block was too small
        return self._block, 0

    def _read(self) -> Frame | int | str:
        """Read at pos: a frame, the end of a skipped frame, or the reason why there is none."""
        block, at = self._block, self.pos - self._base
        if at < 0 or at + HEADER_BYTES > len(block):
            block, at = self._load(HEADER_BYTES)
            if len(block) < HEADER_BYTES:
                return "the file ends inside a header"
        head = block[at : at + HEADER_BYTES]
        fields: tuple[bytes, int, int, int, int, int, int, int, bytes, bytes] = _HEADER.unpack(head)
        magic, head_sum, size, body_sum, number, synced, puts, drops, first, last = fields
        if magic != MAGIC:
            return "no frame starts here"
        if crc32(head[8:], self._seed ^ (self.pos >> 3 & 0xFFFFFFFF)) != head_sum:  # mutant: no-header-sum no-place
            return "header checksum"
        if size > BODY_BYTES_MAX:  # mutant: no-body-limit
            return "body length over the limit"
        whole = HEADER_BYTES + size
        end = self.pos + whole + (-size & 7)
        if self.pos + whole > self._end:
            return "the file ends inside a body"
        if self._filter and (
            (self._lo is not None and last < self._lo) or (self._hi is not None and first >= self._hi)
        ):
            return end
        if self._headers_only:
            return Frame(self.pos, end, number, synced, puts, drops, first, last, b"")
        if at + whole > len(block):
            block, at = self._load(whole)
            if len(block) < whole:
                return "the file ends inside a body"
        body = block[at + HEADER_BYTES : at + whole]
        if crc32(body, self._seed) != body_sum:  # mutant: no-body-sum
            return "body checksum"
        return Frame(self.pos, end, number, synced, puts, drops, first, last, body)

    def __iter__(self) -> Iterator[Frame | Gap]:
        while self.pos < self._end:
            if read_frames is not None and not self._headers_only:
                yield from self._plain_ones(read_frames)
                if self.pos >= self._end:
                    return
            found = self._read()
            if isinstance(found, Frame):
                self.pos = found.end
                yield found
            elif isinstance(found, int):
                self.pos = found
            elif not self._resync:
                self.stopped = found
                return
            else:
                gap = self._gap(found)
                self.pos = gap.end
                yield gap

    def _plain_ones(self, read: ReadFrames) -> Iterator[Frame]:
        """Yield the plain frames of the block in memory, up to the first other one."""
        while 0 <= (at := self.pos - self._base) < len(self._block):
            frames, upto = read(self._block, at, self.pos, self._end, self._seed, self._lo, self._hi, _AT_ONCE)
            for frame in frames:
                self.pos = frame.end
                if self._hi is None or frame.first < self._hi:  # `narrow` may have lowered it
                    yield frame
            if upto == self.pos and not frames:
                return
            self.pos = upto

    def _gap(self, reason: str) -> Gap:
        """Find the next frame that verifies; pos stays at the start of the gap."""
        start = self.pos
        blank = True
        probe, at = None, start
        while at < self._end:
            block = self._pread(min(_BLOCK, self._end - at), at)
            if not block:
                break
            # One fast comparison: every open scans the preallocated zeros.
            is_blank = block == bytes(len(block))
            blank = blank and is_blank
            hit = -1 if is_blank else block.find(MAGIC)
            while hit >= 0:
                # Frames start on multiples of 8; any other hit is payload.
                if (at + hit) % 8 == 0 and at + hit > start:
                    probe = probe or Scanner(self._pread, start, self._end, self._seed)
                    probe.pos = at + hit
                    if isinstance(probe._read(), Frame):  # mutant: drops-by-place
                        return Gap(start, at + hit, reason, blank=False)
                hit = block.find(MAGIC, hit + 1)
            at += len(block)
            if is_blank and self._data_from is not None:
                # A file may have a hole of a terabyte; frames start on multiples of 8.
                at = max(at, self._data_from(at) & ~7)
        return Gap(start, self._end, reason, blank=blank, at_end=True)
