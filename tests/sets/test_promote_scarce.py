"""Promoting in a process that is short of descriptors: it says so, and takes no wheel for one that is out of reach."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from filewheel.disk.disk import SYSTEM
from filewheel.errors import DiskError
from filewheel.sets.promote import promote
from tests.sets.support_sets import Place, place
from tests.support import FaultyDisk

__all__ = ["place"]


class Scarce:
    """Disks on which the n-th opening in one of the wheels fails once for want of a descriptor."""

    def __init__(self, wheel: Path, at: int) -> None:
        self._wheel = str(wheel)
        self.left = at

    def disk(self, path: str) -> FaultyDisk:
        """Open a disk, as a DiskFactory does."""
        if path == self._wheel:
            self._open("open", path)
            return FaultyDisk(path, self._open)
        return FaultyDisk(path, lambda kind, name: None)

    def _open(self, kind: str, name: str) -> None:
        if kind == "open":
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)


@pytest.mark.parametrize("at", [1, 2, 4, 7, 10, 15, 21, 28])
def test_wherever_descriptors_run_out_a_promotion_raises_and_reaches_every_wheel_when_called_again(
    place: Place, at: int
) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "only", "here", delay=1000)
    scarce = Scarce(place.a, at)
    with pytest.raises(DiskError, match="too many open files"):
        promote(place.b, env=SYSTEM.using(clock=place.clock, disk=scarce.disk))
    done = promote(place.b, env=SYSTEM.using(clock=place.clock))
    assert done.caught_up
    assert not done.unreachable
    assert place.payloads(place.b) == ["here", "only"]
