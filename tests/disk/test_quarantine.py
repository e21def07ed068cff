"""Quarantine: what could not be read is kept aside once, and keeping it never stops anything."""

from __future__ import annotations

import json
import logging
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import filewheel.disk.quarantine
from filewheel.disk.directory import Directory
from filewheel.disk.quarantine import Damage, Quarantine, items
from tests.support import timed
from tests.support_wheel import StillClock, make_directory, put_file

NAME = "laps/30000000/1800000000.slot"
DATA = bytes(range(256)) * 4
DAMAGE = Damage(NAME, 256, 512, "body checksum", proven=True)
STEM = "quarantine/laps_30000000_1800000000.slot@256"


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    found = make_directory(tmp_path / "w")
    put_file(found, NAME, DATA)
    return found


def place(directory: Directory, name: str) -> Path:
    return Path(directory.path) / name


def names(directory: Directory) -> list[str]:
    return sorted(p.name for p in place(directory, "quarantine").iterdir())


def test_a_damaged_range_is_kept_with_where_it_was_and_why(directory: Directory) -> None:
    Quarantine(timed(directory, StillClock())).keep(DAMAGE)
    assert place(directory, f"{STEM}.bin").read_bytes() == DATA[256:512]
    assert json.loads(place(directory, f"{STEM}.json").read_text()) == {
        "name": NAME,
        "offset": 256,
        "end": 512,
        "reason": "body checksum",
        "proven": True,
        "found": "2027-01-15T08:00:00+00:00",
    }


def test_keeping_is_told_in_the_log_with_file_offset_and_what_to_do(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    Quarantine(timed(directory, StillClock())).keep(DAMAGE)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert NAME in record.getMessage()
    assert "offset 256 (256 bytes)" in record.getMessage()
    assert "filewheel verify" in record.getMessage()


def test_the_same_range_is_kept_and_told_once(directory: Directory, caplog: pytest.LogCaptureFixture) -> None:
    quarantine = Quarantine(timed(directory, StillClock()))
    for _ in range(3):
        quarantine.keep(DAMAGE)
    assert len(caplog.records) == 1
    assert len(names(directory)) == 2


def test_a_later_keeper_does_not_keep_it_again_nor_change_when_it_was_found(directory: Directory) -> None:
    Quarantine(timed(directory, StillClock())).keep(DAMAGE)
    before = place(directory, f"{STEM}.json").read_bytes()
    Quarantine(timed(directory, StillClock(now_us=0))).keep(DAMAGE)
    assert place(directory, f"{STEM}.json").read_bytes() == before
    assert len(names(directory)) == 2


def test_an_item_that_a_crash_left_without_its_note_is_kept_anew(directory: Directory) -> None:
    place(directory, f"{STEM}.bin").write_bytes(b"x" * 10_000)
    Quarantine(timed(directory, StillClock())).keep(DAMAGE)
    assert place(directory, f"{STEM}.bin").read_bytes() == DATA[256:512]


@pytest.mark.parametrize("later_keeper", [False, True])
def test_a_range_that_is_proven_only_later_is_noted_as_that_and_its_bytes_stay(
    directory: Directory, caplog: pytest.LogCaptureFixture, later_keeper: bool
) -> None:
    quarantine = Quarantine(timed(directory, StillClock()))
    quarantine.keep(replace(DAMAGE, proven=False))
    put_file(directory, NAME, b"")
    if later_keeper:
        quarantine = Quarantine(timed(directory, StillClock()))
    for proven in (False, True, True, False):
        quarantine.keep(replace(DAMAGE, proven=proven))
    assert items(directory)[0]["proven"] is True
    assert place(directory, f"{STEM}.bin").read_bytes() == DATA[256:512]
    levels = [r.levelno for r in caplog.records]
    assert levels == [logging.WARNING] * (1 + later_keeper) + [logging.ERROR]


def test_a_note_that_a_crash_tore_is_written_anew_and_the_bytes_stay(directory: Directory) -> None:
    Quarantine(timed(directory, StillClock())).keep(replace(DAMAGE, proven=False))
    place(directory, f"{STEM}.json").write_bytes(bytes(200))
    put_file(directory, NAME, b"")
    Quarantine(timed(directory, StillClock())).keep(replace(DAMAGE, proven=False))
    assert items(directory)[0]["proven"] is False
    assert place(directory, f"{STEM}.bin").read_bytes() == DATA[256:512]


def test_two_ranges_of_one_file_are_two_items(directory: Directory) -> None:
    quarantine = Quarantine(timed(directory, StillClock()))
    quarantine.keep(DAMAGE)
    quarantine.keep(Damage(NAME, 512, 520, "header checksum", proven=True))
    assert [i["offset"] for i in items(directory)] == [256, 512]


def test_a_file_that_is_gone_is_kept_as_an_empty_item(directory: Directory) -> None:
    Quarantine(timed(directory, StillClock())).keep(Damage("laps/5.lap", 0, 4096, "the file is missing", proven=True))
    assert place(directory, "quarantine/laps_5.lap@0.bin").read_bytes() == b""
    assert items(directory)[0]["reason"] == "the file is missing"


def test_a_range_beyond_the_end_of_its_file_keeps_what_there_is(directory: Directory) -> None:
    Quarantine(timed(directory, StillClock())).keep(Damage(NAME, 1_000, 5_000, "short", proven=True))
    assert place(directory, "quarantine/laps_30000000_1800000000.slot@1000.bin").read_bytes() == DATA[1_000:]


def test_a_range_larger_than_the_limit_is_kept_up_to_it(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filewheel.disk.quarantine, "_ITEM_BYTES_MAX", 100)
    monkeypatch.setattr(filewheel.disk.quarantine, "_COPY_BYTES", 30)
    Quarantine(timed(directory, StillClock())).keep(DAMAGE)
    assert place(directory, f"{STEM}.bin").read_bytes() == DATA[256:356]
    assert items(directory)[0]["end"] == 512


def test_a_flood_of_damage_is_kept_up_to_a_limit(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(filewheel.disk.quarantine, "_ITEMS_MAX", 3)
    quarantine = Quarantine(timed(directory, StillClock()))
    for at in range(0, 80, 8):
        quarantine.keep(Damage(NAME, at, at + 8, "bad", proven=True))
    assert len(items(directory)) == 3
    assert len(caplog.records) == 3


def test_a_record_that_is_no_message_is_kept_by_its_checksum(directory: Directory) -> None:
    quarantine = Quarantine(timed(directory, StillClock()))
    for _ in range(2):
        quarantine.keep_bytes(Damage(NAME, 0, 7, "not a message", proven=True), b"strange")
    stem = f"quarantine/laps_30000000_1800000000.slot@{zlib.crc32(b'strange'):08x}"
    assert place(directory, f"{stem}.bin").read_bytes() == b"strange"
    assert [i["item"] for i in items(directory)] == [f"{stem}.json"]


@pytest.mark.parametrize("call", ["keep", "keep_bytes"])
def test_a_full_disk_is_told_and_raises_nothing(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory.disk, "pwrite", full)
    quarantine = Quarantine(timed(directory, StillClock()))
    if call == "keep":
        quarantine.keep(DAMAGE)
    else:
        quarantine.keep_bytes(DAMAGE, b"x")
    assert "cannot be kept in quarantine" in caplog.text


def test_a_quarantine_that_is_missing_raises_nothing_and_lists_nothing(directory: Directory) -> None:
    place(directory, "quarantine").rmdir()
    Quarantine(timed(directory, StillClock())).keep(DAMAGE)
    assert items(directory) == []


def test_items_lists_notes_and_leaves_out_what_is_none(directory: Directory) -> None:
    Quarantine(timed(directory, StillClock())).keep(DAMAGE)
    place(directory, "quarantine/readme.txt").write_text("hello")
    place(directory, "quarantine/broken.json").write_text("{")
    place(directory, "quarantine/list.json").write_text("[1]")
    place(directory, "quarantine/link.json").symlink_to("/etc/passwd")
    found = {str(i["item"]): i for i in items(directory)}
    assert set(found) == {f"quarantine/{n}.json" for n in ("broken", "list", "link", STEM.partition("/")[2])}
    assert found["quarantine/broken.json"] == {"item": "quarantine/broken.json"}
    assert found[f"{STEM}.json"]["name"] == NAME


def test_a_note_that_names_another_item_does_not_pose_as_it(directory: Directory) -> None:
    place(directory, "quarantine/a.json").write_text(json.dumps({"item": "../../etc/passwd", "reason": "x"}))
    (found,) = items(directory)
    assert found["item"] == "quarantine/a.json"
