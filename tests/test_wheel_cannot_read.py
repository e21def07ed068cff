"""Only "does not exist" means that something is not there: a call that fails for another reason forgets nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import filewheel.tools.repair
from filewheel import DiskError, Fenced, Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.env import Disk, DiskFactory
from filewheel.laps.tidy import tidy
from filewheel.lookup.snapshot import Snapshot
from filewheel.roster.fence import Fence
from filewheel.sets.standby import Standby
from filewheel.sets.status import find_primary
from filewheel.tools.verify import verify
from tests.support import FakeClock, FaultyDisk, timed
from tests.support_set import make_set, promote, roster_of

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
    Keeper(path, clock=clock, background=False, env=SYSTEM.using(disk=disk)).close()


def repaired(path: Path, clock: FakeClock, disk: DiskFactory) -> None:
    filewheel.tools.repair.repair(open_directory(path, write=True, env=SYSTEM.using(disk=disk, clock=clock)))


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize(
    ("opens", "after"),
    [(opened_as_keeper, 0), (repaired, 0), (repaired, 1)],  # repair verifies first
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
    directory = open_directory(
        wheel_dir, write=True, env=SYSTEM.using(disk=failing_once("listdir", "laps/", errno.EMFILE))
    )
    assert not tidy(timed(directory, clock))
    assert tidy(timed(directory, clock))
    assert payloads(wheel_dir) == [b"20", b"30", b"950"]


@pytest.mark.damages
def test_a_reader_without_a_checkpoint_that_cannot_list_a_lap_says_so(wheel_dir: Path) -> None:
    clock = FakeClock()
    with_slots(wheel_dir, clock)
    for name in ("checkpoint", "checkpoint.old"):
        (wheel_dir / name).unlink()
    disk = failing_once("listdir", "laps/", errno.ENFILE)
    with pytest.raises(DiskError, match="too many open files"):
        Snapshot(open_directory(wheel_dir, write=False, env=SYSTEM.using(disk=disk)))
    with pytest.raises(DiskError):
        verify(
            open_directory(wheel_dir, write=False, env=SYSTEM.using(disk=failing_once("listdir", "laps/", errno.EIO)))
        )
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


# -- files of the wheel -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE], ids=errno.errorcode.__getitem__)
def test_a_repair_that_cannot_open_a_slot_raises_and_leaves_the_file(wheel_dir: Path, code: int) -> None:
    clock = FakeClock()
    with_slots(wheel_dir, clock)
    # The first open is that of verify.
    directory = open_directory(
        wheel_dir, write=True, env=SYSTEM.using(disk=failing_once("open", ".slot", code, after=2))
    )
    with pytest.raises(DiskError):
        filewheel.tools.repair.repair(timed(directory, clock))
    assert payloads(wheel_dir) == [b"20", b"30", b"950"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EINTR], ids=errno.errorcode.__getitem__)
def test_a_checkpoint_that_cannot_be_opened_for_a_moment_brings_nothing_back(wheel_dir: Path, code: int) -> None:
    clock = FakeClock()
    with_slots(wheel_dir, clock)
    clock.advance(40)
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        keeper.ack(keeper.claim())
    with pytest.raises(DiskError):
        Keeper(
            wheel_dir, clock=clock, background=False, env=SYSTEM.using(disk=failing_once("open", "checkpoint", code))
        )
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        assert not keeper._store.checkpoint.doubt
        assert not keeper.claim()
    assert payloads(wheel_dir) == [b"950"]


@pytest.mark.parametrize("times", [1, 9])
def test_a_bad_sector_of_the_checkpoint_is_damage_only_when_a_second_reading_meets_it(
    wheel_dir: Path, times: int
) -> None:
    clock = FakeClock()
    with_slots(wheel_dir, clock)
    left = [0]

    class Bad(OsDisk):
        def pread(self, fd: int, size: int, offset: int) -> bytes:
            if left[0] and os.readlink(f"/proc/self/fd/{fd}").endswith("/checkpoint"):
                left[0] -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().pread(fd, size, offset)

    with Wheel(wheel_dir, env=SYSTEM.using(disk=Bad, clock=clock)) as wheel:
        left[0] = times
        with wheel.snapshot() as snapshot:
            assert bool(snapshot.checkpoint.doubt) == (times > 1)
            assert [m.payload for m in snapshot.messages()] == [b"20", b"30", b"950"]


def test_verify_without_room_for_another_open_file_finds_no_damage_but_raises(wheel_dir: Path) -> None:
    with_slots(wheel_dir, FakeClock())
    for pattern in (".slot", ".lap"):
        disk = failing_once("open", pattern, errno.EMFILE)
        with pytest.raises(DiskError, match="too many open files"):
            verify(open_directory(wheel_dir, write=False, env=SYSTEM.using(disk=disk)))


LOOKS: dict[str, Callable[[Wheel], object]] = {
    "peek": lambda wheel: [m.payload for m in wheel.peek(5)],
    "list": lambda wheel: [m.payload for m in wheel.list()],
    "dead": lambda wheel: [m.payload for m in wheel.dead()],
    "stats": lambda wheel: (wheel.stats().pending, wheel.stats().dead),
    "topics": lambda wheel: wheel.topics(),
    "histogram": lambda wheel: wheel.histogram([0, 1 << 33]),
    "overdue": lambda wheel: wheel.overdue(),
    "next_due": lambda wheel: wheel.next_due(),
}


@pytest.mark.parametrize("code", [errno.EIO, errno.EUCLEAN, errno.ENXIO, errno.ELOOP, errno.ENOTDIR, errno.EMFILE])
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_that_meets_an_error_of_an_open_raises_it_and_the_next_one_sees_all(
    wheel_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, look: str, code: int
) -> None:
    """Each open and each fstat of the look fails in turn, as the system reports it."""
    with Wheel(wheel_dir, clock=clock) as wheel:
        for delay in (0, 5, 5000):
            wheel.enqueue(b"%d" % delay, delay=delay, topic="t")
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        keeper.bury(keeper.claim()[0], reason="bad")
    left, failed = [0], [""]

    def failing(call: Callable[..., object]) -> Callable[..., object]:
        def fails(what: object, *args: object, **options: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                failed[0] = f"{call.__name__} {what}"
                raise OSError(code, os.strerror(code), str(what))
            return call(what, *args, **options)

        return fails

    answer, raises = LOOKS[look], 0
    with Wheel(wheel_dir, clock=clock) as wheel:
        right = answer(wheel)
    monkeypatch.setattr(os, "open", failing(os.open))
    monkeypatch.setattr(os, "fstat", failing(os.fstat))
    for n in range(1, 60):
        left[0], failed[0] = 0, ""
        with Wheel(wheel_dir, clock=clock) as wheel:
            left[0] = n
            try:
                found = answer(wheel)
            except DiskError:
                raises, found = raises + 1, right
            left[0] = 0
            assert (found, answer(wheel)) == (right, right), failed[0]
        if not failed[0]:
            break
    assert raises > 4


# -- other wheels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM], ids=errno.errorcode.__getitem__)
def test_a_keeper_that_cannot_look_at_another_wheel_for_want_of_files_does_not_fire(tmp_path: Path, code: int) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    make_set(a, b)
    promote(b)
    calls = [0]

    def fail(kind: str, name: str) -> None:
        if (kind, name) == ("open", "roster.json") and not calls[0]:
            calls[0] += 1
            raise OSError(code, os.strerror(code))

    def disk(path: str) -> OsDisk:
        return FaultyDisk(path, fail) if path == str(b) else OsDisk(path)

    fence = Fence(open_directory(a, write=True, env=SYSTEM.using(disk=disk)))
    with pytest.raises(DiskError):
        fence.check_may_fire(0)
    with pytest.raises(Fenced):
        fence.check_may_fire(0)
    fence.close()


def test_a_primary_that_cannot_be_looked_at_for_want_of_files_is_not_passed_over(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    make_set(a, b)
    promote(b)
    for wheel in (a, b):
        failing = failing_once("open", "roster.json", errno.EMFILE)

        def disk(path: str, wheel: Path = wheel, failing: DiskFactory = failing) -> Disk:
            return failing(path) if path == str(wheel) else OsDisk(path)

        with pytest.raises((DiskError, OSError), match="open files"):
            find_primary(str(a), SYSTEM.using(disk=disk), roster_of(a))
    assert find_primary(str(a), SYSTEM)[0] == str(b)


def test_a_standby_without_room_for_another_open_file_does_not_hold_the_primary_for_failed(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    make_set(a, b)
    for name in ("roster.json", "probe"):
        standby = Standby(
            b,
            after_s=1,
            env=SYSTEM.using(disk=failing_once("open", name, errno.EMFILE, after=int(name == "roster.json"))),
        )
        assert standby._probe(roster_of(b)) == ""
    standby = Standby(b, after_s=1, env=SYSTEM.using(disk=failing_once("open", "probe", errno.EIO)))
    assert "Input/output" in standby._probe(roster_of(b))
