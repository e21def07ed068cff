"""Only "does not exist" means that something is not there: a call that fails for another reason forgets nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import filewheel.repair
from filewheel import DiskError, Keeper, Wheel
from filewheel.clock import SYSTEM_CLOCK
from filewheel.directory import DiskFactory, open_directory
from filewheel.replication.backupkeeper import BackupKeeper
from filewheel.snapshot import Snapshot
from filewheel.tidy import tidy
from filewheel.verify import verify
from tests.support import FakeClock, FaultyDisk

CODES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EACCES, errno.ESTALE)


def failing_once(kind: str, pattern: str, code: int, *, after: int = 0) -> DiskFactory:
    """A disk on which one call of a kind on a matching name fails: the first, or one so many later."""
    seen = [0]

    def fail(what: str, name: str) -> None:
        if what == kind and pattern in name:
            seen[0] += 1
            if seen[0] == after + 1:
                raise OSError(code, os.strerror(code), name)

    return lambda path: FaultyDisk(path, fail)


def with_slots(path: Path, clock: FakeClock) -> None:
    """Enqueue three messages and have a keeper deal them into the slots of two laps."""
    with Wheel(path, clock=clock) as wheel:
        for delay in (20, 30, 950):
            wheel.enqueue(b"%d" % delay, delay=delay)
    clock.advance(-10)
    with Keeper(path, clock=clock, background=False) as keeper:
        clock.advance(40)
        keeper._housekeeper._looked_us = -(1 << 60)
        keeper._housekeeper.step()
        clock.advance(-30)
    assert len(list(path.glob("laps/*/*.slot"))) >= 2


def payloads(path: Path) -> list[bytes]:
    """What is pending."""
    with Wheel(path) as wheel:
        return [m.payload for m in wheel.list()]


def opened_as_keeper(path: Path, clock: FakeClock, disk: DiskFactory) -> None:
    Keeper(path, clock=clock, background=False, disk=disk).close()


def opened_as_backup(path: Path, clock: FakeClock, disk: DiskFactory) -> None:
    BackupKeeper(str(path), clock=clock, disk=disk).close()


def repaired(path: Path, clock: FakeClock, disk: DiskFactory) -> None:
    filewheel.repair.repair(open_directory(path, write=True, disk=disk), clock)


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize(
    ("opens", "after"),
    [(opened_as_keeper, 0), (opened_as_backup, 0), (repaired, 0), (repaired, 1)],  # repair verifies first
)
def test_a_lap_that_cannot_be_listed_once_is_an_error_and_loses_nothing(
    wheel_dir: Path, opens: Callable[[Path, FakeClock, DiskFactory], None], after: int, code: int
) -> None:
    clock = FakeClock()
    with_slots(wheel_dir, clock)
    disk = failing_once("listdir", "laps/", code, after=after)
    with pytest.raises(DiskError):
        opens(wheel_dir, clock, disk)
    assert payloads(wheel_dir) == [b"20", b"30", b"950"]
    for _ in range(2):
        opened_as_keeper(wheel_dir, clock, lambda path: FaultyDisk(path, lambda kind, name: None))
    assert payloads(wheel_dir) == [b"20", b"30", b"950"]


def test_a_producer_that_cannot_list_a_lap_does_not_tidy_and_loses_nothing(wheel_dir: Path) -> None:
    clock = FakeClock()
    with_slots(wheel_dir, clock)
    directory = open_directory(wheel_dir, write=True, disk=failing_once("listdir", "laps/", errno.EMFILE))
    assert not tidy(directory, clock)
    assert tidy(directory, clock)
    assert payloads(wheel_dir) == [b"20", b"30", b"950"]


@pytest.mark.damages
def test_a_reader_without_a_checkpoint_that_cannot_list_a_lap_says_so(wheel_dir: Path) -> None:
    clock = FakeClock()
    with_slots(wheel_dir, clock)
    for name in ("checkpoint", "checkpoint.old"):
        (wheel_dir / name).unlink()
    disk = failing_once("listdir", "laps/", errno.ENFILE)
    with pytest.raises(DiskError, match="too many open files"):
        Snapshot(open_directory(wheel_dir, write=False, disk=disk))
    with pytest.raises(DiskError):
        verify(open_directory(wheel_dir, write=False, disk=failing_once("listdir", "laps/", errno.EIO)), SYSTEM_CLOCK)
    assert payloads(wheel_dir) == [b"20", b"30", b"950"]


def test_a_foreign_file_with_the_name_of_a_lap_is_passed_over(wheel_dir: Path) -> None:
    clock = FakeClock()
    with_slots(wheel_dir, clock)
    lap = next(wheel_dir.glob("laps/*/"))
    (lap.parent / "77").write_bytes(b"foreign")
    (lap.parent / "78").symlink_to(lap)
    opened_as_keeper(wheel_dir, clock, lambda path: FaultyDisk(path, lambda kind, name: None))
    assert payloads(wheel_dir) == [b"20", b"30", b"950"]
    assert (lap.parent / "77").exists()
    assert (lap.parent / "78").is_symlink()
