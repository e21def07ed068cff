"""Campaigns: a disk that becomes full, with every number of bytes left that there is below 64 KiB.

Twice: on real file systems, where a filler leaves so many blocks of 4 KiB (less is not to be had: they give space in
blocks), and under a quota in this process that is exact to the byte (tests/crash/quota.py). What has to hold is in
tests/crash/trial.py: an enqueue is refused and leaves nothing, acknowledgements go on, and with room again all goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import filewheel.disk.disk
from filewheel.disk.disk import OsDisk
from tests.crash.actors import quick
from tests.crash.campaign import Campaign, Tally
from tests.crash.images import Image, available, ends_cleanly, image, lacks, sizes
from tests.crash.quota import Quota
from tests.crash.trial import Trial

KINDS = ("ext4", "xfs", "btrfs", "tmpfs")
BUDGETS = 64 << 10
BLOCK = 4096
BUDGETS_A_ROUND = 8
ROOM = 4 << 20
SPREAD = 40_503
"""Odd, so that its multiples below a power of two are all different: a short run tries budgets from everywhere."""


# -- real file systems ---------------------------------------------------------------------------------------------


def play_real(number: int, tally: Tally, images: list[Image]) -> None:
    """Leave so many blocks of a real file system, and try a wheel on it."""
    rng = random.Random(number)
    device = images[number // 2 % len(images)]
    left = number // (2 * len(images)) % (BUDGETS // BLOCK + 1) * BLOCK
    path, filler = device.mount_point / "jobs.wheel", device.mount_point / "filler"
    before = len(tally.violations)
    try:
        sync(device.mount_point)  # what the round before removed is free now
        lefts = [left, rng.randrange(BUDGETS // BLOCK) * BLOCK]
        Trial(path, rng, tally).run(lefts, lambda n: fill(filler, n), lambda: give_back(filler))
    finally:
        filler.unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    tally.count(f"trials on {device.kind}")
    for violation in tally.violations[before:]:
        violation.text = f"{device.kind}, {left} bytes left: {violation.text}"


def fill(filler: Path, left: int) -> None:
    """Fill a file system up to the last block, then give back `left` bytes."""
    with filler.open("wb") as file:
        size, step = 0, 64 << 20
        while step >= BLOCK:
            try:
                os.posix_fallocate(file.fileno(), size, step)
                size += step
            except OSError as exc:
                if exc.errno != errno.ENOSPC:
                    raise
                os.ftruncate(file.fileno(), size)  # some of it may have been given
                step //= 2
        os.ftruncate(file.fileno(), max(0, size - left))
        os.fsync(file.fileno())


def sync(place: Path) -> None:
    """Make a file system write everything, and so free what was removed."""
    disk = OsDisk(str(place))
    disk.sync_all()
    disk.release()


def give_back(filler: Path) -> None:
    """Remove the filler, and wait until its space can be had again: XFS and btrfs take their time."""
    size = filler.stat().st_size
    filler.unlink()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        sync(filler.parent)
        info = os.statvfs(filler.parent)
        if info.f_bavail * info.f_frsize >= size // 2:
            return
        time.sleep(0.01)
    raise OSError("the space of a removed file is not given back")


@contextlib.contextmanager
def real_rig() -> Iterator[list[Image]]:
    """Mount one file system of each kind that there is."""
    with ExitStack() as stack:
        stack.enter_context(ends_cleanly())
        images = [stack.enter_context(image(kind, sizes(kind))) for kind in available(*KINDS)]
        stack.enter_context(quick())
        yield images


# -- a quota, to the byte ------------------------------------------------------------------------------------------


def play_budget(number: int, tally: Tally, quota: Quota) -> None:
    """Let one wheel become full again and again, with other budgets each time."""
    where = "/dev/shm" if os.path.isdir("/dev/shm") else None
    budgets = [(number * BUDGETS_A_ROUND + i) * SPREAD % BUDGETS for i in range(BUDGETS_A_ROUND)]
    folder = Path(tempfile.mkdtemp(prefix="filewheel-full-", dir=where))
    before = len(tally.violations)
    rng = random.Random(number)
    quota.left, quota.short = ROOM, rng.random() < 0.7
    try:
        Trial(folder / "jobs.wheel", rng, tally).run(
            budgets, lambda n: set_left(quota, n), lambda: set_left(quota, ROOM)
        )
    finally:
        quota.left = None
        shutil.rmtree(folder)
    for violation in tally.violations[before:]:
        violation.text = f"left {budgets}: {violation.text}"


def set_left(quota: Quota, left: int) -> None:
    """Say how many bytes files may still grow by."""
    quota.left = left


@contextlib.contextmanager
def budget_rig() -> Iterator[Quota]:
    """Put a quota between the library and the system."""
    quota: Any = Quota()
    was, filewheel.disk.disk.os = filewheel.disk.disk.os, quota  # type: ignore[attr-defined]
    write = OsDisk.pwrite
    OsDisk.pwrite = staticmethod(filewheel.disk.disk._write_all)  # type: ignore[method-assign]  # not what was compiled
    try:
        with quick():
            yield quota
    finally:
        filewheel.disk.disk.os = was  # type: ignore[attr-defined]
        OsDisk.pwrite = staticmethod(write)  # type: ignore[method-assign]


CAMPAIGNS = [
    Campaign(
        name="full",
        title="full disks: ext4, XFS, btrfs, tmpfs",
        play=play_real,
        share=0.025,
        targets={f"trials on {kind}": 150 for kind in KINDS},
        rig=real_rig,
        missing=lambda: lacks(*KINDS),
        short=2,
    ),
    Campaign(
        name="budget",
        title="full disks: quotas to the byte, below 64 KiB",
        play=play_budget,
        share=0.03,
        targets={"times full": 16_000},
        rig=budget_rig,
        rounds=BUDGETS // BUDGETS_A_ROUND,
        short=2,
    ),
]
