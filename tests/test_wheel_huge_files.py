"""A file of eight terabytes of holes in the place of any file: said or passed over, at once, in bounded memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import Damaged, FilewheelError, Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format import layout
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.conftest import assert_whole
from tests.support_set import make_set
from tests.support_wheel import NOW_S, NOW_US, StillClock
from tests.test_wheel_hostile_files import LATER, AtLater, within

HUGE_BYTES = 8 << 40
LAP = NOW_S // 900
NAMES = [
    layout.SETTINGS, layout.SETTINGS_COPY, layout.CHECKPOINT, layout.CHECKPOINT_OLD, layout.CHECKPOINT_TMP, layout.LOCK,
    layout.HINT, layout.BALLAST, layout.METRICS, layout.METRICS_TMP, layout.ROSTER, layout.ROSTER_TMP,
    layout.ROSTER_LOCK, layout.FOLLOWS, layout.PROBE, layout.REPEATS,
    "journal/AAAAAAAA-000001.log", "journal/.AAAAAAAA-000001.tmp", "OWN SEGMENT",
    f"laps/{LAP + 5}.lap", f"laps/{LAP}/{LAP * 900 + 10}.slot", "NAMED LAP", "KEYS", "KEYS LOCK", "KEYS TMP",
    layout.key_file(layout.KEY_RECENT), layout.key_tmp(layout.KEY_RECENT),
    "quarantine/x.json", "quarantine/x.bin",
]  # fmt: skip


def look(path: Path) -> None:
    with Wheel(path, clock=StillClock()) as wheel:
        wheel.list()
        wheel.stats()
        wheel.topics()


def enqueue(path: Path) -> None:
    with Wheel(path, clock=StillClock()) as wheel:
        wheel.enqueue(b"more", key="k", at=LATER, on_conflict="keep")
        wheel.enqueue_many([b"more"] * 6, keys=["k", *"abcde"], at=LATER, on_conflict="keep")


def fire(path: Path) -> None:
    with Keeper(path, background=False, clock=AtLater()) as keeper:
        keeper.ack(keeper.claim())
        keeper._housekeeper._keys.tidy(NOW_US, range(256))


ACTIONS: list[Callable[[Path], object]] = [
    lambda path: verify(open_directory(path, write=False)),
    lambda path: repair(open_directory(path, write=True, env=SYSTEM.using(clock=StillClock()))),
    look,
    enqueue,
    fire,
]


def make(path: Path) -> None:
    """Make a wheel of a set that has a file of each kind."""
    make_set(path, path.with_name("backup"))
    with Wheel(path, clock=StillClock()) as wheel:
        wheel.enqueue(b"far", at=NOW_S + 86_400)
        wheel.enqueue(b"good", key="k", at=LATER)
    Keeper(path, background=False, clock=StillClock()).close()
    with Wheel(path, clock=StillClock()) as wheel:
        wheel.enqueue(b"undealt", at=LATER)


def place_of(path: Path, name: str) -> Path:
    """Return where the file of a kind is."""
    bucket = next((path / "keys").glob("*.keys")).stem
    return {
        "OWN SEGMENT": next((path / "journal").glob("*.log")),
        "NAMED LAP": next((path / "laps").glob("*.lap")),
        "KEYS": path / layout.key_file(int(bucket, 16)),
        "KEYS LOCK": path / layout.key_lock(int(bucket[0], 16)),
        "KEYS TMP": path / layout.key_tmp(int(bucket, 16)),
    }.get(name, path / name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a set, made once; a copy of it is whole only in its own place, which its roster names."""
    path = tmp_path_factory.mktemp("made") / "w"
    make(path)
    (path / layout.HINT).unlink(missing_ok=True)  # a pipe cannot be copied; the next keeper makes it
    path.parent.rename(path.parent.with_suffix(".kept"))
    return path


@pytest.mark.damages
@pytest.mark.parametrize("name", NAMES)
def test_a_huge_file_of_holes_in_the_place_of_any_other_is_said_or_passed_over_at_once(made: Path, name: str) -> None:
    is_there = place_of(made.parent.with_suffix(".kept") / made.name, name).is_file()
    for keeps_its_beginning in (True, False) if is_there else (False,):
        for action in ACTIONS:
            path = made
            shutil.rmtree(path.parent, ignore_errors=True)
            shutil.copytree(path.parent.with_suffix(".kept"), path.parent)
            place = place_of(path, name)
            place.parent.mkdir(exist_ok=True)
            if place.exists() and not keeps_its_beginning:
                place.unlink()
            with open(place, "ab") as file:
                try:
                    file.truncate(HUGE_BYTES)
                except OSError as exc:
                    pytest.skip(f"no file of eight terabytes here: {exc}")
                file.write(b"at the end")
            os.chmod(place, 0o600)
            said = ""
            with within(10):
                try:
                    action(path)
                except FilewheelError as exc:
                    said = str(exc)
            assert not said or str(path) in said


def test_repair_makes_a_file_of_keys_anew_that_was_too_long_to_be_read(tmp_path: Path) -> None:
    path = tmp_path / "w"
    make(path)
    place = place_of(path, "KEYS")
    os.truncate(place, HUGE_BYTES)
    assert [f.name for f in verify(open_directory(path, write=False)).damage] == [f"keys/{place.name}"]
    with Wheel(path, clock=StillClock()) as wheel, pytest.raises(Damaged, match="filewheel repair"):
        wheel.enqueue(b"second", key="k", at=LATER)
    repair(open_directory(path, write=True))
    with Wheel(path, clock=StillClock()) as wheel:
        found = wheel.get(key="k")
        assert found is not None
        assert found.payload == b"good"
    assert_whole(path)
