"""The matcher: which frames of a primary a mirror has, and which it was not given.

Whoever mirrors writes the same records in one frame to the primary and then to the mirror. So what has been read of the
one and not of the other, for longer than a write takes, was not written: its writer was killed, or stopped, between the
two, or does not know of the mirror yet. Frames are told apart by what their headers say and a checksum of their bodies.
Memory: what one side is ahead of the other.
Invariant: a frame that both sides have shown is in neither of the two lists.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from filewheel.frame import Frame

OWED_US = 300_000
"""How long a mirror may be behind the primary before its copy is written for it."""
SURPLUS_US = 1_000_000
"""How long it may be ahead before that is looked into."""

Key = tuple[bytes, bytes, int, int, int]


def key_of(frame: Frame) -> Key:
    """Return what tells a frame from others."""
    return frame.first, frame.last, frame.puts, frame.drops, zlib.crc32(frame.body)


@dataclass(slots=True)
class _Seen:
    frame: Frame
    at_us: int


class Matcher:
    """Compares two streams of frames. Not thread-safe."""

    def __init__(self) -> None:
        self._owed: dict[Key, _Seen] = {}
        self._surplus: dict[Key, _Seen] = {}
        self._own: set[Key] = set()

    def in_source(self, frame: Frame, now_us: int) -> None:
        """Note a frame that was read in the primary."""
        key = key_of(frame)
        if self._surplus.pop(key, None) is None:
            self._owed[key] = _Seen(frame, now_us)

    def in_target(self, frame: Frame, now_us: int) -> None:
        """Note a frame that was read in the mirror."""
        key = key_of(frame)
        if key in self._own:
            self._own.discard(key)
        elif self._owed.pop(key, None) is None:
            self._surplus[key] = _Seen(frame, now_us)

    def expect(self, frame: Frame) -> None:
        """Note a frame that is about to be written to the mirror by whoever asks: it is nobody's copy."""
        self._own.add(key_of(frame))

    def owed_since_us(self) -> int | None:
        """Return when the first of the frames was read that the mirror lacks; None when it lacks nothing."""
        return next((one.at_us for one in self._owed.values()), None)

    def owed(self, now_us: int) -> list[Frame]:
        """Take out and return what the mirror was not given for too long."""
        return _take_old(self._owed, now_us - OWED_US)

    def surplus(self, now_us: int) -> list[Frame]:
        """Take out and return what only the mirror has had for too long."""
        return _take_old(self._surplus, now_us - SURPLUS_US)


def _take_old(seen: dict[Key, _Seen], before_us: int) -> list[Frame]:
    found = []
    for key, one in seen.items():  # in the order in which they came
        if one.at_us > before_us:
            break
        found.append((key, one.frame))
    for key, _ in found:
        del seen[key]
    return [frame for _, frame in found]
