"""A file of somebody else's that was linked into a wheel, under any name: nothing is ever written into it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from filewheel import DiskError, FilewheelError, Keeper, Scheduler, Wheel
from filewheel.disk.directory import open_directory, write_settings
from filewheel.disk.disk import SYSTEM
from filewheel.disk.quarantine import Quarantine
from filewheel.format import layout
from filewheel.journal.tail import Damage
from filewheel.roster.roster import Roster, change_roster
from filewheel.sets.standby import why_not_durable
from tests.conftest import assert_whole
from tests.support_wheel import NOW_S, StillClock
from tests.test_wheel_hostile_files import LATER
from tests.test_wheel_huge_files import ACTIONS, LAP, NAMES, make, place_of

DAMAGE = Damage("wheel.json", 0, 8, "for a test", proven=True)


def change_set(path: Path) -> None:
    def change(roster: Roster | None) -> Roster | None:
        return None if roster is None else replace(roster, epoch=roster.epoch + 1)

    change_roster(open_directory(path, write=True), change)


def schedule(path: Path) -> None:
    with Scheduler(path) as scheduler:
        scheduler.wait_until_keeper(0.1)


def rewrite_settings(path: Path) -> None:
    directory = open_directory(path, write=True)
    write_settings(directory.disk, directory.settings, layout.SETTINGS)


def deal(path: Path) -> None:
    with Keeper(path, background=False, clock=StillClock()) as keeper:
        keeper._housekeeper.reserve.ballast.keep()
        with Wheel(path, clock=StillClock()) as wheel:
            wheel.enqueue(b"lap", at=NOW_S + 4 * 900)
            wheel.enqueue(b"slot", at=LATER)
        keeper.claim()


WRITING: list[Callable[[Path], object]] = [
    deal,
    *ACTIONS,
    change_set,
    schedule,
    rewrite_settings,
    lambda path: why_not_durable(open_directory(path, write=True)),
    lambda path: Quarantine(open_directory(path, write=True, env=SYSTEM.using(clock=StillClock()))).keep(DAMAGE),
]


@pytest.mark.parametrize("named", [*NAMES, "wheel.json.tmp", f"laps/{LAP + 4}.lap", "quarantine/wheel.json@0.bin"])
def test_a_file_that_was_linked_into_a_wheel_is_never_written(tmp_path: Path, named: str) -> None:
    path, precious = tmp_path / "w", tmp_path / "precious"
    make(path)
    precious.write_bytes(b"of somebody else " * 500)
    place = place_of(path, named)
    for write in WRITING:
        place.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            place.unlink()
        os.link(precious, place)
        with contextlib.suppress(FilewheelError):
            write(path)
        assert precious.read_bytes() == b"of somebody else " * 500


def test_a_ballast_that_was_linked_away_is_made_anew(wheel_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"")
    (wheel_dir / "ballast").unlink()
    os.link(tmp_path / "precious", wheel_dir / "ballast")
    with Keeper(wheel_dir, background=False) as keeper:
        keeper._housekeeper.reserve.ballast.keep()
    assert (wheel_dir / "ballast").stat().st_nlink == 1
    assert (wheel_dir / "ballast").stat().st_size > 0
    assert (tmp_path / "precious").stat().st_size == 0


def test_a_lock_that_has_another_name_is_refused_until_that_is_gone(wheel_dir: Path, tmp_path: Path) -> None:
    Keeper(wheel_dir).close()
    os.link(wheel_dir / "keeper.lock", tmp_path / "other")
    with pytest.raises(DiskError, match=r"another name.*find -samefile") as caught:
        Keeper(wheel_dir)
    assert caught.value.path == str(wheel_dir / "keeper.lock")
    (tmp_path / "other").unlink()
    Keeper(wheel_dir).close()


def test_a_cancel_that_is_refused_names_the_file_with_its_wheel_and_leaves_the_message(
    wheel_dir: Path, tmp_path: Path
) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.cancel(wheel.enqueue(b"makes the file", delay=60))
        id_ = wheel.enqueue(b"stays", delay=60)
    os.link(wheel_dir / "begun", tmp_path / "other")
    with Wheel(wheel_dir) as wheel:
        with pytest.raises(DiskError) as caught:
            wheel.cancel(id_)
        assert caught.value.path == str(wheel_dir / "begun")
        assert wheel.get(id_) is not None


def test_what_was_written_aside_by_a_crash_and_linked_away_does_not_keep_a_keeper_from_dealing(tmp_path: Path) -> None:
    path = tmp_path / "w"
    make(path)
    (tmp_path / "precious").write_bytes(b"x")
    os.link(tmp_path / "precious", path / "checkpoint.tmp")
    Keeper(path, background=False).close()
    assert (tmp_path / "precious").read_bytes() == b"x"
    assert_whole(path)
