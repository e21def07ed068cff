"""The checkpoint: written whole, read back, and what is done when it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filewheel.disk.checkpoint import (
    START,
    Checkpoint,
    Covered,
    Position,
    adopt,
    decode,
    encode,
    find_files,
    write_checkpoint,
)
from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, seal
from filewheel.laps.slot import files_of
from filewheel.message import ID_END, ID_LIMIT, ID_MIN, base32
from tests.support_wheel import NOW_S, flip, frames_of, make_directory, scan

COUNTS = st.integers(0, (1 << 62) - 1)
LENGTHS = st.integers(0, (1 << 44) - 1)
FILES = st.tuples(LENGTHS, COUNTS, st.integers(-1, (1 << 44) - 1)).map(lambda file: Covered(*file))
IDS = st.builds(lambda n: n.to_bytes(16, "big"), st.integers(0, int.from_bytes(ID_LIMIT, "big") - 1))
WRITERS = st.integers(0, (1 << 40) - 1).map(lambda n: base32(n, 8))
MANIFESTS = st.builds(
    Checkpoint,
    deal=COUNTS,
    keeper=st.just("") | WRITERS,
    positions=st.dictionaries(
        WRITERS, st.builds(Position, st.integers(0, 10**12 - 1), LENGTHS, st.integers(-1, (1 << 64) - 1)), max_size=8
    ),
    laps=st.dictionaries(st.integers(0, layout.LAP_END // 900 - 1), FILES, max_size=8),
    slots=st.dictionaries(st.integers(0, layout.SECOND_END - 1), FILES, max_size=8),
    unmatched=st.lists(IDS, max_size=8),
)
FULL = Checkpoint(
    deal=7,
    keeper="KEEPER01",
    positions={"BBBBBBBB": Position(2, 4096, 17), "AAAAAAAA": START},
    laps={2_000_020: Covered(288, 7, 144), 3: Covered(8, 0)},
    slots={1_800_000_010: Covered(216, 1, 0)},
    unmatched=[b"\1" * 16, b"\2" * 16],
)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return make_directory(tmp_path / "w")


def read(directory: Directory) -> Checkpoint:
    return directory.checkpoint()


def write(directory: Directory, checkpoint: Checkpoint) -> None:
    write_checkpoint(directory.disk, checkpoint, directory.seed)


def place(directory: Directory, name: str) -> Path:
    return Path(directory.path) / name


@given(MANIFESTS, st.integers(0, (1 << 32) - 1))
def test_a_manifest_that_was_encoded_is_decoded_as_it_was(checkpoint: Checkpoint, seed: int) -> None:
    (frame,) = frames_of(scan(encode(checkpoint, seed), seed))
    assert decode(frame, "p") == checkpoint
    assert frame.number == checkpoint.deal
    assert (frame.puts, frame.drops, frame.synced, frame.first, frame.last) == (0, 0, 0, ID_END, ID_MIN)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(MANIFESTS)
def test_a_manifest_that_was_written_is_read_without_doubt(directory: Directory, checkpoint: Checkpoint) -> None:
    write(directory, checkpoint)
    assert read(directory) == checkpoint
    assert not read(directory).doubt


def test_equal_manifests_are_equal_bytes_in_whatever_order_they_were_made() -> None:
    other = FULL.copy()
    other.positions = dict(reversed(FULL.positions.items()))
    other.laps = dict(reversed(FULL.laps.items()))
    assert encode(other, 5) == encode(FULL, 5)


def test_a_copy_can_be_changed_without_changing_the_original() -> None:
    copy = FULL.copy()
    assert copy == FULL
    copy.positions.clear()
    copy.laps[1] = Covered(1, 1)
    copy.slots.clear()
    copy.unmatched.append(b"k" * 16)
    assert FULL.positions
    assert 1 not in FULL.laps
    assert FULL.slots
    assert len(FULL.unmatched) == 2


def test_a_new_wheel_has_a_manifest_of_nothing_and_no_doubt(directory: Directory) -> None:
    assert read(directory) == Checkpoint()


def test_writing_keeps_the_one_before_as_old(directory: Directory) -> None:
    write(directory, FULL)
    first = place(directory, "checkpoint").read_bytes()
    write(directory, Checkpoint(deal=8))
    assert place(directory, "checkpoint.old").read_bytes() == first
    assert read(directory).deal == 8
    assert not place(directory, "checkpoint.tmp").exists()


def test_a_longer_temporary_file_that_a_crash_left_is_not_mixed_in(directory: Directory) -> None:
    place(directory, "checkpoint.tmp").write_bytes(b"x" * 100_000)
    write(directory, FULL)
    assert read(directory) == FULL
    assert place(directory, "checkpoint").stat().st_size == len(encode(FULL, 0))


def test_without_hard_links_a_manifest_is_written_all_the_same(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(old: str, new: str) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(directory.disk, "link", refuse)
    write(directory, FULL)
    assert read(directory) == FULL


def test_every_flipped_bit_of_the_newest_falls_back_to_the_old_one_with_doubt(directory: Directory) -> None:
    write(directory, FULL)
    write(directory, Checkpoint(deal=8, slots={5: Covered(8, 8, 8)}))
    good = place(directory, "checkpoint").read_bytes()
    (frame,) = frames_of(scan(good, directory.seed("checkpoint")))
    for bit in range(0, (frame.offset + 72 + len(frame.body)) * 8, 3):
        place(directory, "checkpoint").write_bytes(flip(good, bit))
        found = read(directory)
        assert found.deal == 7, bit
        assert "checkpoint: the checkpoint fails its checksum" in found.doubt


@pytest.mark.parametrize("content", [b"", b"\0" * 500, b"x" * 500, b"\xf5FW1"])
def test_an_empty_zeroed_or_foreign_checkpoint_falls_back_to_the_old_one(directory: Directory, content: bytes) -> None:
    write(directory, FULL)
    write(directory, Checkpoint(deal=8))
    place(directory, "checkpoint").write_bytes(content)
    assert read(directory).positions == FULL.positions
    assert read(directory).doubt


def test_a_missing_checkpoint_falls_back_to_the_old_one_with_doubt(directory: Directory) -> None:
    write(directory, FULL)
    write(directory, Checkpoint(deal=8))
    place(directory, "checkpoint").unlink()
    found = read(directory)
    assert found.deal == 7
    assert found.doubt == f"{directory.path}/checkpoint: missing"


def test_with_both_damaged_the_manifest_is_empty_and_in_doubt_because_of_the_newest(directory: Directory) -> None:
    write(directory, FULL)
    write(directory, Checkpoint(deal=8))
    place(directory, "checkpoint").write_bytes(b"x")
    place(directory, "checkpoint.old").unlink()
    found = read(directory)
    assert (found.deal, found.positions, found.slots) == (0, {}, {})
    assert "fails its checksum" in found.doubt


def test_a_checkpoint_that_cannot_be_opened_falls_back_with_the_reason(directory: Directory) -> None:
    write(directory, FULL)
    write(directory, Checkpoint(deal=8))
    place(directory, "checkpoint").unlink()
    os.symlink("checkpoint.old", place(directory, "checkpoint"))
    found = read(directory)
    assert found.deal == 7
    assert "cannot be read" in found.doubt


def test_a_checkpoint_of_another_wheel_is_not_taken(directory: Directory) -> None:
    place(directory, "checkpoint").write_bytes(encode(FULL, 12345))
    assert read(directory).doubt


def test_a_valid_frame_behind_rubbish_is_not_taken_for_the_checkpoint(directory: Directory) -> None:
    seed = directory.seed("checkpoint")
    behind = seal(msgpack.packb({}), seed=seed, offset=800, number=1, synced=0, puts=0, drops=0)
    place(directory, "checkpoint").write_bytes(bytes(800) + behind)
    assert "fails its checksum" in read(directory).doubt


def body_of(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "format": 2, "deal": 1, "keeper": "", "positions": {}, "laps": [], "slots": [], "unmatched": b"",
    }  # fmt: skip
    return bytes(msgpack.packb({k: v for k, v in (fields | changes).items() if v is not ...}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgpack.packb([1, 2]),
        body_of(deal=...),
        body_of(unmatched=...),
        body_of(deal="x"),
        body_of(laps=[1]),
        body_of(laps=5),
        body_of(positions={"AAAAAAAA": [1, 2]}),
        body_of(positions={"AAAAAAAA": [1, 2, 3, 4]}),
        body_of(positions=[1]),
        body_of(deal=1.5),
        body_of(deal=-1),
        body_of(deal=(1 << 64) - 1),
        body_of(keeper=5),
        body_of(keeper="../../xx"),
        body_of(positions={"../../xx": [1, 2, 3]}),
        body_of(positions={"AAAAAAAA": [1, 2, 1.5]}),
        body_of(positions={"AAAAAAAA": [1 << 62, 2, 3]}),
        body_of(positions={"AAAAAAAA": [1, -8, 3]}),
        body_of(laps=["5", 1, 8, 8]),
        body_of(laps=[5, 1, 8.0, 8]),
        body_of(laps=[5, 1, 1 << 62, 8]),
        body_of(laps=[layout.LAP_END, 1, 8, 8]),
        body_of(slots=[layout.SECOND_END, 1, 8, 8]),
        body_of(slots=[-1, 1, 8, 8]),
        body_of(slots=[True, 1, 8, 8]),
        body_of(laps=[5, -1, 8, 8]),
        body_of(laps=[5, layout.DEAL_END, 8, 8]),
        body_of(laps=[5, "1", 8, 8]),
        body_of(laps=[5, 1, 8, -2]),
        body_of(laps=[5, 1, 8, 1.0]),
        body_of(laps=[5, 1, 8]),
        body_of(format=..., laps=[5, 1, 8, 8.0]),
        body_of(format=..., laps=[1]),
        body_of(unmatched=b"short"),
        body_of(unmatched="x" * 16),
        body_of(unmatched=b"\xff" * 16),
    ],
)
def test_a_frame_that_verifies_and_is_no_checkpoint_is_damaged(body: bytes) -> None:
    frame = Frame(0, 0, 1, 0, 0, 0, ID_END, ID_MIN, body)
    with pytest.raises(Damaged, match="not a checkpoint"):
        decode(frame, "p")


def test_a_well_formed_body_is_decoded() -> None:
    frame = Frame(0, 0, 1, 0, 0, 0, ID_END, ID_MIN, body_of(positions={"AAAAAAAA": [1, 2, 3]}, laps=[5, 7, 8, 6]))
    assert decode(frame, "p") == Checkpoint(1, "", {"AAAAAAAA": Position(1, 2, 3)}, {5: Covered(8, 7, 6)})


def test_a_body_of_format_1_has_files_of_deal_0_of_which_any_part_may_be_dropped() -> None:
    body = body_of(format=..., laps=[5, 8], slots=[7, 16])
    found = decode(Frame(0, 0, 1, 0, 0, 0, ID_END, ID_MIN, body), "p")
    assert (found.laps, found.slots) == ({5: Covered(8, 0, -1)}, {7: Covered(16, 0, -1)})


def test_in_doubt_all_files_of_a_lap_or_a_second_count(directory: Directory) -> None:
    lap_of = directory.settings.lap_of
    lap = lap_of(NOW_S)
    place(directory, f"laps/{lap}").mkdir()
    for name in (f"{lap}.lap", f"{lap}-3.lap", f"{lap}-12.lap", f"{lap}-13.lap", f"{lap}/{NOW_S}-2.slot"):
        place(directory, f"laps/{name}").write_bytes(b"x" * (0 if "-13" in name else 9))
    checkpoint = Checkpoint()
    adopt(checkpoint, directory.disk, find_files(directory.disk, lap_of), lap_of)
    others = (Covered(16, 0), Covered(16, 3))
    assert checkpoint.laps == {lap: Covered(16, 12, others=others)}
    assert checkpoint.slots == {NOW_S: Covered(16, 2)}
    names = {f"laps/{lap}{made}.lap" for made in ("", "-3", "-12")} | {f"laps/{lap}/{NOW_S}-2.slot"}
    assert {file.name for file in files_of(directory.settings, checkpoint)} == names


def test_a_lap_that_is_late_for_laps_of_this_length_is_damage_in_a_checkpoint_and_foreign_as_a_file(
    tmp_path: Path,
) -> None:
    """The number of slots decides which laps there can be."""
    directory = make_directory(tmp_path / "long", slots=86_400)
    lap = layout.SECOND_END // 86_400 + 1
    write(directory, Checkpoint(1, laps={lap: Covered(8, 1)}))
    assert "not a number" in read(directory).doubt
    place(directory, f"laps/{lap}.lap").write_bytes(b"")
    place(directory, f"laps/{lap - 2}.lap").write_bytes(b"")
    place(directory, f"laps/{lap - 2}-5.lap").write_bytes(b"")
    assert find_files(directory.disk, directory.settings.lap_of).laps == {(lap - 2, 0), (lap - 2, 5)}
