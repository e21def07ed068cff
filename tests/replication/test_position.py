"""How far a backup has followed: read back as it was written, or not at all."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from filewheel.disk.boot import boot_id
from filewheel.disk.checkpoint import Position
from filewheel.disk.disk import OsDisk
from filewheel.replication.position import FollowsFile, parse_follows, read_follows, write_follows
from tests.model.crashes import RandomFates, crash
from tests.model.machine import Machine
from tests.model.process import Killed, ProcessDisk
from tests.support import run

FOLLOWS = FollowsFile(
    primary_wheel="a" * 32,
    epoch=3,
    overflow=-17,
    boot="b0",
    positions={"WRTR0001": Position(1, 0, 0), "WRTR0002": Position(12, 4096, 99), "WRTR0003": Position(2, 0, -1)},
    at_us=1_800_000_000_000_000,
    in_step_us=0,
    clean=False,
)


def test_a_place_is_read_back_as_it_was_written(wheel_dir: Path) -> None:
    disk = OsDisk(os.fspath(wheel_dir))
    assert read_follows(disk, "b.wheel") is None
    for follows in (FOLLOWS, replace(FOLLOWS, positions={}, clean=True, boot="")):
        write_follows(disk, follows)
        assert read_follows(disk, "b.wheel") == follows
    assert json.loads((wheel_dir / "follows.json").read_bytes())["epoch"] == 3
    assert not (wheel_dir / "follows.json.tmp").exists()


def test_with_any_bit_flipped_or_any_byte_missing_there_is_no_place_and_a_warning(
    wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = OsDisk(os.fspath(wheel_dir))
    data = FOLLOWS.to_json()
    for bit in range(0, len(data) * 8, 3):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="checksum"):
            parse_follows(bytes(changed))
    for size in range(len(data)):
        with pytest.raises(ValueError, match="checksum"):
            parse_follows(data[:size])
    (wheel_dir / "follows.json").write_bytes(bytes(len(data)))
    assert read_follows(disk, "b.wheel") is None
    assert "b.wheel/follows.json: it fails its checksum; the backup heals" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": "3"},
        {"clean": 1},
        {"positions": []},
        {"positions": {"../../x": [1, 0, 0]}},
        {"positions": {"WRTR0001": [1, 0]}},
        {"positions": {"WRTR0001": [1, 0, True]}},
        {"positions": {"WRTR0001": [0, 0, 0]}},
        {"positions": {"WRTR0001": [1, -8, 0]}},
        {"positions": {"WRTR0001": [1, 0, -2]}},
        {"positions": {"WRTR0001": "1,0,0"}},
    ],
    ids=str,
)
def test_what_no_filewheel_wrote_is_no_place_though_its_checksum_holds(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"type|position"):
        parse_follows(replace(FOLLOWS, **change).to_json())  # type: ignore[arg-type]


def test_a_link_in_its_place_is_not_followed_and_is_replaced(wheel_dir: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(FOLLOWS.to_json())
    (wheel_dir / "follows.json").symlink_to(elsewhere)
    disk = OsDisk(os.fspath(wheel_dir))
    assert read_follows(disk, "b.wheel") is None
    write_follows(disk, replace(FOLLOWS, epoch=4))
    assert parse_follows(elsewhere.read_bytes()) == FOLLOWS
    assert read_follows(disk, "b.wheel") == replace(FOLLOWS, epoch=4)


def test_a_process_that_is_killed_leaves_the_old_place_or_the_new_and_a_power_cut_one_of_them_or_none() -> None:
    new = replace(FOLLOWS, epoch=4)
    for stop_at in range(1, 8):
        machine = Machine()
        disk = ProcessDisk(machine)
        write_follows(disk, FOLLOWS)
        disk.sync_all()
        start = machine.ops

        def on_op(
            kind: str, name: str, m: Machine = machine, d: ProcessDisk = disk, end: int = start + stop_at
        ) -> None:
            if m.ops >= end:
                d.kill()

        machine.on_op = on_op
        try:
            write_follows(disk, new)
        except Killed:
            pass
        else:
            assert stop_at > 4
        machine.on_op = None
        assert read_follows(ProcessDisk(machine), "") in (FOLLOWS, new)
        for seed in range(20):
            after = crash(machine, RandomFates(random.Random(seed), "some"))
            assert read_follows(ProcessDisk(after), "") in (FOLLOWS, new, None)


def test_two_processes_of_one_boot_see_the_same_boot() -> None:
    other = run("from filewheel.disk.boot import boot_id; print(boot_id())").strip()
    assert other == boot_id()
