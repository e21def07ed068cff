"""How bytes travel between the pool and its processes: frames that garbage in the pipe cannot be taken for.

A handler's code is the user's: it may write to a descriptor that is not its own. So a frame carries its length, and a
checksum of its header and of its body. What is no frame is skipped; a frame with a broken body is an error, since what
it said is lost.
Invariant: what `take` returns is a body that `frame` was given.
"""

from __future__ import annotations

import struct
import zlib

_MAGIC = b"\xf1Pw\x9d"
_HEADER = struct.Struct("<4sIII")  # magic, length of the body, checksum of the body, checksum of these three
_SUMMED = _HEADER.size - 4
HEADER_BYTES = _HEADER.size
BODY_BYTES_MAX = 1 << 30


class BrokenFrame(Exception):
    """A header or a body that is not what was sent."""


def frame(body: bytes, tail: bytes = b"") -> bytes:
    """Return a body as a frame, and what is to follow it."""
    head = _HEADER.pack(_MAGIC, len(body), zlib.crc32(body), 0)[:_SUMMED]
    return b"".join((head, zlib.crc32(head).to_bytes(4, "little"), body, tail))


def opened(head: bytes | bytearray) -> tuple[int, int]:
    """Return the length of the body that follows a header, and its checksum. Raises BrokenFrame."""
    magic, length, body_sum, head_sum = _HEADER.unpack(head)
    if magic != _MAGIC or length > BODY_BYTES_MAX or zlib.crc32(head[:_SUMMED]) != head_sum:
        raise BrokenFrame("this is not a frame's header")
    return length, body_sum


def checked(body: bytes, body_sum: int) -> bytes:
    """Return a body that matches its checksum. Raises BrokenFrame."""
    if zlib.crc32(body) != body_sum:
        raise BrokenFrame(f"a frame of {len(body)} bytes does not match its checksum")
    return body


class Frames:
    """The frames in what was read from a pipe so far, amid what else was written to it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add what was read. Cost: a copy of it."""
        self._buffer += data

    def take(self) -> bytes | None:
        """Return the body of the next whole frame, or None. Raises BrokenFrame."""
        buffer = self._buffer
        while True:
            start = buffer.find(_MAGIC)
            if start:
                # Without a magic, the last three bytes may still be the beginning of one.
                del buffer[: start if start > 0 else max(0, len(buffer) - len(_MAGIC) + 1)]
            if start < 0 or len(buffer) < _HEADER.size:
                return None
            try:
                length, body_sum = opened(buffer[: _HEADER.size])
                break
            except BrokenFrame:
                del buffer[:1]
        end = _HEADER.size + length
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            body = bytes(view[_HEADER.size : end])
        del buffer[:end]
        return checked(body, body_sum)
