"""Lap and slot files: appended to at their covered length, cut into frames."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel.disk.checkpoint import Checkpoint, Covered
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, ID, pack_drop, records_of, split
from filewheel.laps.slot import (
    FRAME_BYTES,
    covered_of,
    file_named,
    files_in,
    files_of,
    frames,
    lap_file,
    lap_floor,
    second_of,
    slot_file,
    slot_floor,
)
from filewheel.message import ID_MIN, due_of
from tests.support_wheel import NOW_S, a_put, an_id, append, frames_of, make_directory, put_file, scan

NAME = "laps/30000000/1800000000.slot"
PUTS = [a_put(an_id(NOW_S, n), b"payload %d" % n) for n in range(6)]
DROPS = [pack_drop(an_id(NOW_S, n), CANCELLED) for n in range(3)]


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    found = make_directory(tmp_path / "w")
    (tmp_path / "w" / "laps" / "30000000").mkdir(mode=0o700)
    return found


def add(directory: Directory, length: int, puts: list[bytes], drops: list[bytes] = [], deal: int = 1) -> int:  # noqa: B006
    """Append, and return the new length."""
    return append(directory, NAME, length, puts, drops, deal=deal)


def read(directory: Directory, length: int) -> list[Frame]:
    data = (Path(directory.path) / NAME).read_bytes()[:length]
    found = scan(data, directory.seed(NAME))
    assert len(frames_of(found)) == len(found), "no gaps"
    return frames_of(found)


def records(found: list[Frame]) -> list[bytes]:
    return [r for f in found for r in split(f.body)]


def test_an_append_to_a_file_that_is_not_there_makes_it(directory: Directory) -> None:
    length = add(directory, 0, PUTS)
    assert (Path(directory.path) / NAME).stat().st_size == length
    assert records(read(directory, length)) == PUTS


def test_puts_and_drops_go_into_frames_of_their_own(directory: Directory) -> None:
    found = read(directory, add(directory, 0, PUTS, DROPS, deal=7))
    assert [(f.puts, f.drops) for f in found] == [(6, 0), (0, 3)]
    assert [(f.first, f.last) for f in found] == [(PUTS[0][ID], PUTS[-1][ID]), (DROPS[0][ID], DROPS[-1][ID])]
    assert [(f.number, f.synced) for f in found] == [(7, 0), (7, 0)]


def test_appends_follow_each_other_without_a_gap(directory: Directory) -> None:
    length = 0
    for deal, put in enumerate(PUTS, 1):
        length = add(directory, length, [put], deal=deal)
    found = read(directory, length)
    assert records(found) == PUTS
    assert [f.number for f in found] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("left", [b"x", b"\0" * 7, b"junk" * 1_000, b"\0" * 100_000])
def test_what_lies_above_the_covered_length_is_cut_off_by_the_next_append(directory: Directory, left: bytes) -> None:
    length = add(directory, 0, PUTS[:2])
    place = Path(directory.path) / NAME
    place.write_bytes(place.read_bytes() + left)
    new = add(directory, length, PUTS[2:3], deal=2)
    assert place.stat().st_size == new
    assert records(read(directory, new)) == PUTS[:3]


def test_a_frame_of_a_deal_that_did_not_commit_is_overwritten_though_it_verifies(directory: Directory) -> None:
    length = add(directory, 0, PUTS[:1])
    add(directory, length, PUTS[1:6], DROPS, deal=2)
    new = add(directory, length, PUTS[1:2], deal=2)
    assert (Path(directory.path) / NAME).stat().st_size == new
    assert records(read(directory, new)) == PUTS[:2]


def test_a_file_that_lacks_its_last_padding_is_appended_to_at_its_covered_length(directory: Directory) -> None:
    put = a_put(an_id(NOW_S), b"odd")
    length = add(directory, 0, [put])
    place = Path(directory.path) / NAME
    bare = 72 + len(put)
    assert bare < length
    os.truncate(place, bare)
    new = add(directory, length, PUTS[1:2], deal=2)
    assert records(read(directory, new)) == [put, PUTS[1]]


def test_a_file_shorter_than_its_covered_length_keeps_what_it_has_and_the_rest_is_a_gap(directory: Directory) -> None:
    half = add(directory, 0, PUTS[:1])
    length = add(directory, half, PUTS[1:2])
    os.truncate(Path(directory.path) / NAME, half + 10)
    new = add(directory, length, PUTS[2:3], deal=2)
    data = (Path(directory.path) / NAME).read_bytes()
    assert len(data) == new
    found = scan(data, directory.seed(NAME))
    assert records(frames_of(found)) == [PUTS[0], PUTS[2]]
    assert len(found) == 3


@given(st.lists(st.integers(0, 90_000), max_size=12), st.integers(0, 20))
def test_a_portion_is_cut_into_frames_of_at_most_the_limit_in_order(sizes: list[int], drops: int) -> None:
    puts = [a_put(an_id(5, n), bytes(size)) for n, size in enumerate(sizes)]
    dropped = [pack_drop(an_id(5, n), CANCELLED) for n in range(drops)]
    found = frames_of(scan(frames(puts, dropped, seed=9, offset=0, number=3), 9))
    assert records(found) == puts + dropped
    for frame in found:
        inside = split(frame.body)
        assert len(frame.body) <= FRAME_BYTES or len(inside) == 1
        assert records_of(frame) == ((inside, []) if frame.puts else ([], inside))
        assert (frame.puts, frame.drops) in {(len(inside), 0), (0, len(inside))}
        assert (frame.first, frame.last) == (inside[0][ID], inside[-1][ID])


def test_a_record_larger_than_a_frame_has_one_of_its_own() -> None:
    puts = [a_put(an_id(5, n), bytes(size)) for n, size in enumerate((10, FRAME_BYTES * 2, 10))]
    found = frames_of(scan(frames(puts, [], seed=9, offset=0, number=3), 9))
    assert [f.puts for f in found] == [1, 1, 1]


def test_nothing_to_append_makes_no_frame() -> None:
    assert frames([], [], seed=1, offset=0, number=1) == b""


def test_an_append_that_fails_leaves_no_descriptor_behind(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def fail(fd: int, data: bytes, offset: int) -> None:
        raise OSError(28, "No space left on device")

    right = directory.disk.close
    monkeypatch.setattr(directory.disk, "pwrite", fail)
    monkeypatch.setattr(directory.disk, "close", lambda fd: (closed.append(fd), right(fd)))
    with pytest.raises(OSError, match="No space"):
        append(directory, NAME, 0, PUTS, [], deal=1)
    assert len(closed) == 1


def test_names_and_floors_of_seconds_and_laps(directory: Directory) -> None:
    assert slot_file(directory.settings, NOW_S, Covered(0, 0)).name == NAME
    assert second_of(directory.settings, slot_floor(NOW_S)) == NAME
    assert due_of(slot_floor(NOW_S)) == NOW_S * 1_000_000
    assert lap_floor(directory.settings, 30_000_000) == slot_floor(NOW_S)
    assert slot_floor(0) == lap_floor(directory.settings, 0) == ID_MIN


def test_a_file_knows_its_name_its_seconds_and_its_ids(directory: Directory) -> None:
    slot = slot_file(directory.settings, NOW_S, Covered(8, 7))
    lap = lap_file(directory.settings, 30_000_000, Covered(16, 0))
    assert (slot.name, slot.seconds) == ("laps/30000000/1800000000-7.slot", (NOW_S, NOW_S + 1))
    assert (slot.key, slot.end) == (NOW_S, 8)
    assert (lap.name, lap.seconds, lap.key, lap.end) == ("laps/30000000.lap", (NOW_S, NOW_S + 60), 30_000_000, 16)
    assert slot.range == (slot_floor(NOW_S), slot_floor(NOW_S + 1))
    assert lap.range == (slot_floor(NOW_S), slot_floor(NOW_S + 60))
    for file in (slot, lap):
        assert file_named(directory.settings, file.name) == replace(file, end=0)
        assert file.floor == file.range[0]
    assert file_named(directory.settings, "journal/ABCDEFGH-000001.log") is None


def test_the_files_of_a_manifest_are_listed_by_ids_and_by_lap(directory: Directory) -> None:
    checkpoint = Checkpoint(
        laps={30_000_001: Covered(5, 1)},
        slots={NOW_S + 3: Covered(7, 3, others=(Covered(8, 2),)), NOW_S: Covered(6, 0)},
    )
    settings = directory.settings
    slots = [slot_file(settings, NOW_S, Covered(6, 0))]
    slots += [slot_file(settings, NOW_S + 3, Covered(8, 2)), slot_file(settings, NOW_S + 3, Covered(7, 3))]
    lap = lap_file(settings, 30_000_001, Covered(5, 1))
    assert sorted(files_of(settings, checkpoint), key=lambda f: f.floor) == [*slots, lap]
    assert list(files_of(settings, checkpoint, slot_floor(NOW_S + 1), slot_floor(NOW_S + 5))) == slots[1:]
    assert files_in(settings, checkpoint, 30_000_000) == slots
    assert files_in(settings, checkpoint, 30_000_001) == [lap]
    assert [covered_of(settings, checkpoint, file.name) for file in (*slots, lap)] == [6, 8, 7, 5]
    others = [slot_file(settings, NOW_S, Covered(6, 9)), lap_file(settings, 7, Covered(5, 1))]
    assert [covered_of(settings, checkpoint, file.name) for file in others] == [None, None]
    assert covered_of(settings, checkpoint, f"laps/7/{NOW_S}.slot") is None, "another lap's directory"


def test_a_link_where_a_slot_belongs_is_not_followed(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (Path(directory.path) / NAME).symlink_to(tmp_path / "target")
    with pytest.raises(ForeignFile):
        append(directory, NAME, 0, PUTS, [], deal=1)
    assert (tmp_path / "target").read_bytes() == b"precious"


def test_a_file_put_there_whole_is_read_as_if_appended(directory: Directory) -> None:
    put_file(directory, NAME, frames(PUTS, DROPS, seed=directory.seed(NAME), offset=0, number=1))
    assert records(read(directory, 1 << 20)) == PUTS + DROPS
