"""The golden wheels of data/golden: made anew byte for byte, read as promised, never touched by reading.

When the first test fails the format has changed: see docs/format.md, "Changing the format".
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from filewheel import Damaged, Keeper, NewerFormat, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.quarantine import items
from filewheel.format.frame import FORMAT, Frame, Scanner
from filewheel.format.record import records_of
from filewheel.roster.roster import read_roster
from filewheel.tools.dump import dump, from_json, last_line, load, to_json
from filewheel.tools.verify import verify
from tests import golden
from tests import support_reader as reader

EXPECTED = [json.loads(line) for line in (golden.V2 / golden.EXPECTED).read_bytes().splitlines()]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the golden wheel that may be written to."""
    path = tmp_path / "copy"
    shutil.copytree(golden.V2, path)
    path.chmod(0o700)
    (path / golden.EXPECTED).unlink()
    return path


def test_the_golden_wheel_made_anew_is_the_committed_one_byte_for_byte(tmp_path: Path) -> None:
    made = golden.make(tmp_path)
    committed = golden.files_of(golden.V2)
    assert made.keys() == committed.keys()
    for name, data in committed.items():
        assert made[name] == data, f"{name} differs: the format has changed (docs/format.md, section 16)"


def test_the_committed_v2_is_of_the_present_format() -> None:
    settings = json.loads((golden.V2 / "wheel.json").read_bytes())
    assert settings["format"] == FORMAT == 2, "a new format needs golden files of its own"


def test_a_wheel_opened_on_a_copy_yields_exactly_the_expected_messages(copy: Path) -> None:
    with Wheel(copy) as wheel:
        assert [to_json(m) for m in dump(wheel)] == EXPECTED
        assert wheel.notes == []


def test_the_golden_wheel_is_readable_in_place_and_reading_changes_nothing() -> None:
    before = golden.files_of(golden.V2)
    with Wheel(golden.V2) as wheel:
        assert [str(m.id) for m in dump(wheel)] == [line["id"] for line in EXPECTED]
        assert wheel.stats().pending + wheel.stats().dead == len(EXPECTED)
    verify(open_directory(golden.V2, write=False))
    assert golden.files_of(golden.V2) == before
    assert not (golden.V2 / "keeper.lock").exists()


def test_expected_lines_are_read_back_as_the_messages_they_were_made_from() -> None:
    with Wheel(golden.V2) as wheel:
        lines = (golden.V2 / golden.EXPECTED).read_bytes().splitlines()
        assert list(load([*lines, last_line(len(lines))])) == list(dump(wheel))
    assert [to_json(from_json(line)) for line in EXPECTED] == EXPECTED


def test_a_reader_written_from_the_page_alone_finds_the_same_messages() -> None:
    contents = reader.read_wheel(golden.V2)
    found = [
        {
            "id": reader.id_text(id_),
            "topic": topic,
            "headers": headers,
            "attempt": attempt,
            "enqueued_us": enqueued,
            "root": root and reader.id_text(root),
            "payload": payload,
        }
        for _, id_, root, enqueued, attempt, topic, headers, payload in contents.pending().values()
    ]
    expected = [
        {key: line.get(key) for key in ("id", "topic", "headers", "attempt", "enqueued_us", "root")}
        | {"payload": from_json(line).payload}
        for line in EXPECTED
    ]
    assert found == expected


def test_the_keeper_fires_the_expected_messages_in_order(copy: Path) -> None:
    clock = golden.Clock()
    fired = []
    with Keeper(copy, background=False, clock=clock) as keeper:
        for second in (0, 100, 1_000, 30_000):
            clock.wall_us = (golden.START_S + second) * 1_000_000
            for batch in keeper.batches(wait=False):
                fired += [str(m.id) for m in batch]
                keeper.ack(batch)
    pending = [line["id"] for line in EXPECTED if not line.get("dead")]
    assert fired == pending[:-1]  # the last is due at the end of the year 9999
    with Wheel(copy) as wheel:
        assert [str(m.id) for m in dump(wheel)] == [line["id"] for line in EXPECTED][-2:]


def test_a_keeper_that_opens_and_closes_leaves_what_is_pending_as_it_was(copy: Path) -> None:
    for _ in range(2):
        Keeper(copy, background=False, clock=golden.Clock()).close()
        with Wheel(copy) as wheel:
            assert [to_json(m) for m in dump(wheel)] == EXPECTED
    assert not verify(open_directory(copy, write=False)).damage


def test_verify_finds_the_torn_frame_and_no_damage() -> None:
    report = verify(open_directory(golden.V2, write=False))
    assert report.damage == []
    notes = [f"{f.name} {f.what}" for f in report.findings]
    assert any("PRDCR002-000002.log a commit that never completed, at the end" in n for n in notes)
    assert any("1800000090-5.slot left by a deal that never completed" in n for n in notes)


def test_the_golden_wheel_holds_an_example_of_everything_on_the_page() -> None:
    """Guards the golden files against becoming poorer when somebody makes them anew."""
    directory = open_directory(golden.V2, write=False)
    checkpoint = directory.checkpoint()
    assert not checkpoint.doubt
    assert checkpoint.unmatched
    assert checkpoint.laps
    assert {p.segment for p in checkpoint.positions.values()} == {1, 2}
    assert any(p.offset and (golden.V2 / f"journal/{w}-000001.log").exists() for w, p in checkpoint.positions.items())
    frames = {
        name: [f for f in scan(directory.seed(name), data) if isinstance(f, Frame)]
        for name, data in golden.files_of(golden.V2).items()
        if name.startswith(("journal/", "laps/"))
    }
    main = frames["journal/PRDCR001-000001.log"]
    assert any(f.puts == 1 and not f.drops for f in main), "a single put"
    assert any(f.puts > 1 for f in main), "a batch"
    assert any(f.drops and not f.puts for f in main), "a drop"
    assert any(f.drops == f.puts == 1 for f in main), "a move"
    assert main[-1].puts == main[-1].drops == 0, "a seal"
    assert main[-1].synced == main[-1].number == main[-2].number
    data = (golden.V2 / "journal/PRDCR001-000001.log").read_bytes()
    assert len(data[main[-1].end :]) > 256, "a tail of zeros"
    assert not data[main[-1].end :].strip(b"\0")
    assert [f.number for f in main[:-1]] == list(range(1, len(main)))
    one, two = frames["journal/PRDCR002-000001.log"], frames["journal/PRDCR002-000002.log"]
    assert [f.number for f in (*one, *two) if not f.is_seal] == [1, 2], "numbers go on over a rotation"
    assert two[0].synced == 1
    slot = frames["laps/2000000/1800000011-1.slot"]
    assert [(f.puts, f.drops) for f in slot] == [(2, 0), (0, 1)], "a slot with a drop"
    assert [(f.number, f.synced) for f in slot] == [(1, 0), (2, 0)], "the deal"
    assert checkpoint.slots[1_800_000_010].end < (golden.V2 / "laps/2000000/1800000010-1.slot").stat().st_size
    assert 1_800_000_090 not in checkpoint.slots
    assert any(records_of(f)[1] for f in frames["laps/2000020-1.lap"]), "a lap file with a drop"
    assert checkpoint.laps[2_000_030].made == 3, "a lap that was dealt anew"
    assert [(f.puts, f.drops) for f in frames["laps/2000030-3.lap"]] == [(1, 0)]
    assert len(items(directory)) == 1
    assert any(line.get("dead") for line in EXPECTED)
    assert any("payload_b64" in line for line in EXPECTED)
    assert any(line.get("payload") == "" for line in EXPECTED)
    assert any(line["attempt"] for line in EXPECTED)


def scan(seed: int, data: bytes) -> list[object]:
    """Return the frames and gaps of a file."""
    return list(Scanner(lambda size, at: data[at : at + size], 0, len(data), seed))


def test_any_checkpoint_that_is_lost_gives_a_superset_of_the_expected_messages(copy: Path) -> None:
    ids = {line["id"] for line in EXPECTED}
    (copy / "checkpoint").unlink()
    with Wheel(copy) as wheel:
        assert ids <= {str(m.id) for m in dump(wheel)}
    (copy / "checkpoint.old").unlink()
    with Wheel(copy) as wheel:
        assert ids <= {str(m.id) for m in dump(wheel)}


# -- a set, unique keys, and writers of which `synced` is behind ------------------------------------------------


@pytest.fixture
def set_copy(tmp_path: Path) -> Path:
    """A copy of the golden primary that may be written to."""
    path = tmp_path / "set"
    shutil.copytree(golden.V2_SET, path)
    path.chmod(0o700)
    (path / golden.EXPECTED).unlink()
    return path


def test_the_golden_set_made_anew_is_the_committed_one(tmp_path: Path) -> None:
    made, committed = golden.make_set_files(tmp_path), golden.files_of(golden.V2_SET)
    assert made.keys() == committed.keys()
    # The roster may gain a key until the first release; no reader of messages looks at it.
    assert [name for name in committed if made[name] != committed[name] and name != "roster.json"] == []


def test_the_golden_set_is_read_as_promised_by_the_library_and_by_the_reader_of_the_page(set_copy: Path) -> None:
    expected = [json.loads(line) for line in (golden.V2_SET / golden.EXPECTED).read_bytes().splitlines()]
    assert len(expected) == 12
    with Wheel(set_copy) as wheel:
        assert [to_json(m) for m in dump(wheel)] == expected
        assert [wheel.get(key=key).payload for key in ("report", "daily/ü")] == [b"held", b"took its place"]  # type: ignore[union-attr]
        assert wheel.get(key="free again") is None
    contents = reader.read_wheel(set_copy)
    assert [reader.id_text(i) for i in contents.pending()] == [line["id"] for line in expected]
    assert not verify(open_directory(set_copy, write=False)).findings
    roster = read_roster(open_directory(set_copy, write=False).disk, str(set_copy))
    assert roster is not None
    assert (roster.role, roster.primary, roster.members[0].state) == ("primary", "/wheels/orders", "current")


@pytest.mark.parametrize(
    ("writer", "number", "is_damage"),
    [("BEHND001", 2, True), ("BEHND001", 5, True), ("BEHND002", 2, True), ("BEHND002", 4, False)],
)
def test_the_library_and_the_reader_of_the_page_judge_a_gap_in_the_golden_set_alike(
    set_copy: Path, writer: str, number: int, is_damage: bool
) -> None:
    assert not reader.missing_frames(set_copy)
    place = set_copy / f"journal/{writer}-000001.log"
    directory = open_directory(set_copy, write=False)
    data = bytearray(place.read_bytes())
    (frame,) = [
        f for f in scan(directory.seed(f"journal/{place.name}"), bytes(data))
        if isinstance(f, Frame) and f.puts and f.number == number
    ]  # fmt: skip
    data[frame.offset + 80] ^= 1
    place.write_bytes(data)
    (missing,) = reader.missing_frames(set_copy)
    assert (missing.writer, missing.first, missing.last, missing.is_damage) == (writer, number, number, is_damage)
    (finding,) = verify(directory).findings
    assert (finding.kind, finding.offset) == ("damage" if is_damage else "note", frame.offset)


def test_a_wheel_of_a_newer_format_is_refused_naming_both_versions(tmp_path: Path) -> None:
    assert (golden.V3_NEWER / "wheel.json").read_bytes() == golden.newer_settings()
    for where in (golden.V3_NEWER, shutil.copytree(golden.V3_NEWER, tmp_path / "copy")):
        with pytest.raises(NewerFormat, match=f"has format 3; this filewheel reads up to format {FORMAT}"):
            Wheel(where)
    os.chmod(tmp_path / "copy", 0o700)
    with pytest.raises(NewerFormat):
        Keeper(tmp_path / "copy", wait=False)


def test_a_newer_format_with_a_damaged_checksum_is_damage_not_news(tmp_path: Path) -> None:
    data = golden.newer_settings().replace(b"something new", b"something NEW")
    (tmp_path / "wheel.json").write_bytes(data)
    with pytest.raises(Damaged):
        Wheel(tmp_path)
