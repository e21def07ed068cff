"""Matches the frames of a primary with those of a mirror.

A producer writes the same records in one frame to the primary and then to the mirror. If only one of them has a frame
for longer than a write takes, the producer was killed or stopped between the two writes, or does not know of the mirror
yet. Frames are compared by their header fields and a checksum of their bodies. Memory: the unmatched frames.
Invariant: a frame that was read in both is in neither list.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from filewheel.format.frame import Frame
from filewheel.roster.fence import LOOK_US

OWED_US = 300_000
"""After this long a mirror gets a missing frame from the link."""
SURPLUS_US = 1_000_000
"""Puts that only the mirror has had for this long are extras."""
HEARD_US = LOOK_US * 5 // 4  # mutant: mirror-heard-at-once
"""For this long after a mirror was announced, a handle may still write to the primary alone."""

Key = tuple[bytes, bytes, int, int, int]


def key_of(frame: Frame) -> Key:
    """Return the fields by which frames are compared."""
    return frame.first, frame.last, frame.puts, frame.drops, zlib.crc32(frame.body)


@dataclass(slots=True)
class _Seen:
    frame: Frame
    at_us: int


class MirrorMatch:
    """Compares two streams of frames. Not thread-safe."""

    def __init__(self) -> None:
        self._owed: dict[Key, _Seen] = {}
        self._surplus: dict[Key, _Seen] = {}
        self._own: set[Key] = set()

    def in_source(self, frame: Frame, now_us: int) -> None:
        """Note a frame that was read in the primary."""
        key = key_of(frame)
        if self._surplus.pop(key, None) is None:
            # An equal frame (a message cancelled twice) counts from the first one: the dict is in order of time.
            self._owed.setdefault(key, _Seen(frame, now_us))

    def in_target(self, frame: Frame, now_us: int) -> None:
        """Note a frame that was read in the mirror."""
        key = key_of(frame)
        if key in self._own:
            self._own.discard(key)
        elif self._owed.pop(key, None) is None:
            self._surplus.setdefault(key, _Seen(frame, now_us))

    def expect(self, frame: Frame) -> None:
        """Note a frame that the caller is about to write to the mirror: no producer writes it."""
        self._own.add(key_of(frame))

    @property
    def has_surplus(self) -> bool:
        """Whether puts were read in the mirror and not in the primary."""
        return any(one.frame.puts for one in self._surplus.values())

    def owed_since_us(self) -> int | None:
        """Return when the oldest frame that the mirror lacks was read; None if it lacks nothing."""
        return next((one.at_us for one in self._owed.values()), None)

    def owed(self, now_us: int) -> list[Frame]:
        """Remove and return the frames that the mirror has lacked for too long."""
        return _take_old(self._owed, now_us - OWED_US)

    def surplus(self, now_us: int) -> list[Frame]:
        """Remove and return the frames that only the mirror has had for too long."""
        return _take_old(self._surplus, now_us - SURPLUS_US)


class Announcement:
    """Finds the time when an announced mirror has all frames that producers wrote before they knew of it.

    They know of it within HEARD_US. One more pass over the primary's journals reads all frames written until then; two
    passes yield them, because a frame with drops is held for a pass.
    """

    def __init__(self, now_us: int) -> None:
        """Start when the mirror has been announced."""
        self._announced_us = now_us
        self._last_pass: int | None = None
        self._complete_us: int | None = None

    def complete_us(self, now_us: int, passes: int) -> int | None:
        """Return when all of them had been yielded; None if they have not. Frames owed since then are newer."""
        if self._last_pass is None and now_us - self._announced_us >= HEARD_US:
            self._last_pass = passes + 2  # mutant: mirror-held-forgotten
        if self._complete_us is None and self._last_pass is not None and passes >= self._last_pass:
            self._complete_us = now_us
        return self._complete_us


def _take_old(seen: dict[Key, _Seen], before_us: int) -> list[Frame]:
    found = []
    for key, one in seen.items():  # in order of time
        if one.at_us > before_us:
            break
        found.append((key, one.frame))
    for key, _ in found:
        del seen[key]
    return [frame for _, frame in found]
