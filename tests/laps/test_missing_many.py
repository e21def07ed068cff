"""A checkpoint that names thousands of files that are not there: each is accounted for, and none costs a walk."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.checkpoint import Covered, read_checkpoint, write_checkpoint
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.format import layout
from filewheel.laps.missing import NAMED_MAX
from filewheel.tools.verify import verify
from tests.support import FaultyDisk
from tests.support_wheel import NOW_S, StillClock

ABSENT = 3000
FIRST_S = NOW_S + 5 * 900


class Calls:
    """Counts what is asked of a disk."""

    def __init__(self) -> None:
        self.of: Counter[tuple[str, str]] = Counter()

    def disk(self, path: str) -> OsDisk:
        return FaultyDisk(path, lambda kind, name: self.of.update([(kind, name)]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    Wheel.create(path, clock=StillClock()).close()
    directory = open_directory(path, write=True)
    lap_of = directory.settings.lap_of
    checkpoint = read_checkpoint(directory.disk, directory.seed, lap_of, str(path))
    checkpoint.slots = {FIRST_S + i: Covered(128, 1, 128) for i in range(ABSENT)}
    checkpoint.deal += 1
    write_checkpoint(directory.disk, checkpoint, directory.seed)
    directory.disk.release()
    return path


def test_a_keeper_opens_over_thousands_of_missing_files_with_a_hundred_notes_and_a_listing_for_each_lap(
    path: Path,
) -> None:
    calls = Calls()
    with Keeper(path, background=False, clock=StillClock(), env=SYSTEM.using(disk=calls.disk)) as keeper:
        store = keeper._store
        assert len(store.missing) == ABSENT
        assert len(list((path / "quarantine").glob("*.json"))) == NAMED_MAX
        calls.of.clear()
        store.look_for_missing()
        assert len(calls.of) <= 1 + ABSENT // 900 + 1
        back = path / layout.slot(FIRST_S // 900, FIRST_S, 1)
        back.parent.mkdir()
        back.write_bytes(bytes(128))
        os.chmod(back, 0o600)
        store.look_for_missing()
        assert len(store.missing) == ABSENT - 1
        assert FIRST_S not in store.missing.slots
    directory = open_directory(path, write=False)
    checkpoint = directory.checkpoint()
    assert len(checkpoint.slots) == ABSENT


def test_verify_names_each_of_thousands_of_missing_files_and_reads_the_checkpoint_a_few_times(path: Path) -> None:
    calls = Calls()
    report = verify(open_directory(path, write=False, env=SYSTEM.using(disk=calls.disk, clock=StillClock())))
    assert len(report.damage) == ABSENT
    assert calls.of["open", layout.CHECKPOINT] < 20
