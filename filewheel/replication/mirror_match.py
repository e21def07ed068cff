"""Matching the frames of a primary with those of a mirror.

A producer writes the same records in one frame to the primary and then to the mirror. A frame that was read in only
one of them for longer than a write takes was not written to the other: its producer was killed or stopped between the
two writes, or does not know of the mirror yet. Frames are compared by their header fields and a checksum of their
bodies. Memory: the frames by which one side is ahead.
Invariant: a frame that both sides have shown is in neither list.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from filewheel.format.frame import Frame
from filewheel.roster.fence import LOOK_US

OWED_US = 300_000  # mutant: owed-at-once
"""How long a mirror may be behind the primary before its copy is written for it."""
SURPLUS_US = 1_000_000
"""How long it may be ahead before that is looked into."""
HEARD_US = LOOK_US * 5 // 4  # mutant: mirror-heard-at-once
"""How long after a mirror was announced some handle may still write to the primary alone."""

Key = tuple[bytes, bytes, int, int, int]


def key_of(frame: Frame) -> Key:
    """Return what tells a frame from others."""
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
            # The same again (a message that is cancelled twice) is owed since the first time: the order is by time.
            self._owed.setdefault(key, _Seen(frame, now_us))  # mutant: owed-out-of-order

    def in_target(self, frame: Frame, now_us: int) -> None:
        """Note a frame that was read in the mirror."""
        key = key_of(frame)
        if key in self._own:
            self._own.discard(key)
        elif self._owed.pop(key, None) is None:
            self._surplus.setdefault(key, _Seen(frame, now_us))

    def expect(self, frame: Frame) -> None:
        """Note a frame that is about to be written to the mirror by whoever asks: it is nobody's copy."""
        self._own.add(key_of(frame))

    @property
    def has_surplus(self) -> bool:
        """Whether puts were read in the mirror that the primary has not shown."""
        return any(one.frame.puts for one in self._surplus.values())

    def owed_since_us(self) -> int | None:
        """Return when the first of the frames was read that the mirror lacks; None when it lacks nothing."""
        return next((one.at_us for one in self._owed.values()), None)

    def owed(self, now_us: int) -> list[Frame]:
        """Take out and return what the mirror was not given for too long."""
        return _take_old(self._owed, now_us - OWED_US)

    def surplus(self, now_us: int) -> list[Frame]:
        """Take out and return what only the mirror has had for too long."""
        return _take_old(self._surplus, now_us - SURPLUS_US)


class Announcement:
    """Says when a mirror that was announced has what was written before all producers had heard of it.

    They hear of it within HEARD_US. Whatever was written until then has been read after one more pass over the
    primary's journals, and given out after two: a frame with drops is held for a pass.
    """

    def __init__(self, now_us: int) -> None:
        """Begin when the mirror has been announced."""
        self._announced_us = now_us
        self._last_pass: int | None = None
        self._given_us: int | None = None

    def given_us(self, now_us: int, passes: int) -> int | None:
        """Return since when all of that has been given out, None until then. What is owed from then on is newer."""
        if self._last_pass is None and now_us - self._announced_us >= HEARD_US:
            self._last_pass = passes + 2  # mutant: mirror-held-forgotten
        if self._given_us is None and self._last_pass is not None and passes >= self._last_pass:
            self._given_us = now_us
        return self._given_us


def _take_old(seen: dict[Key, _Seen], before_us: int) -> list[Frame]:
    found = []
    for key, one in seen.items():  # in the order in which they came
        if one.at_us > before_us:
            break
        found.append((key, one.frame))
    for key, _ in found:
        del seen[key]
    return [frame for _, frame in found]
