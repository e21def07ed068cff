"""Damaged wheels: what can be read is delivered, what cannot is named and kept, and repair brings it back to whole."""

from __future__ import annotations

import json
import logging
import os
import random
from pathlib import Path

import pytest

from filewheel import Damaged, Keeper, Locked, Wheel
from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format.record import pack_tail
from filewheel.journal.journal import Journal
from filewheel.journal.walk import Listing, list_segments
from filewheel.laps.deal import Deal
from filewheel.tools.repair import plan, repair
from filewheel.tools.verify import verify
from tests.conftest import assert_whole
from tests.support import START_US, FakeClock

pytestmark = pytest.mark.damages


def make(wheel_dir: Path, clock: FakeClock, *, dealt: bool) -> None:
    """Put 60 messages into the wheel: two hours of them, in slots and laps if `dealt`, else in one journal."""
    with Wheel(wheel_dir, clock=clock) as wheel:
        for i in range(20):
            wheel.enqueue_many([b"%d" % (i * 3 + k) for k in range(3)], delay=[i * 300 + k for k in range(3)])
    if dealt:
        keeper = Keeper(wheel_dir, clock=clock, background=False)
        Deal(keeper._store, spread=True).run()
        keeper.close()


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def fire_all(wheel_dir: Path, clock: FakeClock) -> set[bytes]:
    clock.advance(10_000)
    keeper = Keeper(wheel_dir, clock=clock, background=False)
    fired: set[bytes] = set()
    while batch := keeper.claim(7):
        fired |= {m.payload for m in batch}
        keeper.ack(batch)
    keeper.close()
    return fired


ALL = {b"%d" % i for i in range(60)}


def files(wheel_dir: Path, pattern: str) -> list[Path]:
    return sorted(wheel_dir.glob(pattern))


@pytest.mark.parametrize("pattern", ["laps/*/*.slot", "laps/*.lap"])
def test_a_flipped_bit_in_a_file_loses_only_its_frame_and_is_named_everywhere(
    wheel_dir: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    victim = files(wheel_dir, pattern)[1]
    flip(victim, 90)
    name = str(victim.relative_to(wheel_dir))
    (finding,) = verify(open_directory(wheel_dir, write=False)).damage
    assert (finding.name, finding.offset, finding.what) == (name, 0, "body checksum")
    with Wheel(wheel_dir, clock=clock) as wheel, wheel.snapshot() as snapshot:
        left = {m.payload for m in snapshot.messages()}
        assert [d.name for d in snapshot.damage] == [name]
    fired = fire_all(wheel_dir, clock)
    assert fired == left
    assert 0 < len(ALL - fired) < 10
    assert f"{name}: body checksum at offset 0" in caplog.text
    (note,) = files(wheel_dir, "quarantine/*.json")
    assert json.loads(note.read_text())["name"] == name
    with Wheel(wheel_dir, clock=clock) as wheel:
        assert wheel.stats().quarantined == 1


def test_damage_in_the_middle_of_a_journal_is_proven_by_what_follows(wheel_dir: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=False)
    (segment,) = files(wheel_dir, "journal/*.log")
    flip(segment, 300)
    (finding,) = verify(open_directory(wheel_dir, write=False)).damage
    assert "which had been durable, cannot be read" in finding.what
    assert len(fire_all(wheel_dir, clock)) == 57
    assert len(files(wheel_dir, "quarantine/*.bin")) == 1


def test_damage_in_the_last_frame_of_a_closed_journal_is_proven_by_its_seal(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"only")
    (segment,) = files(wheel_dir, "journal/*.log")
    flip(segment, 80)
    assert len(verify(open_directory(wheel_dir, write=False)).damage) == 1
    assert fire_all(wheel_dir, clock) == set()
    assert len(files(wheel_dir, "quarantine/*.bin")) == 1


def test_a_torn_tail_of_a_journal_is_no_damage(wheel_dir: Path) -> None:
    clock = FakeClock()
    wheel = Wheel(wheel_dir, clock=clock)
    for i in range(10):
        wheel.enqueue(b"%d" % i, sync="never")
    (segment,) = files(wheel_dir, "journal/*.log")
    assert wheel._journal is not None
    whole = segment.read_bytes()[: wheel._journal.position.offset]  # a hole may follow
    wheel.close()
    # As a power cut leaves it: no seal, and half of the last frame.
    segment.write_bytes(whole[: len(whole) - 50])
    report = verify(open_directory(wheel_dir, write=False))
    assert not report.damage
    assert "never completed" in report.findings[0].what
    assert fire_all(wheel_dir, clock) == {b"%d" % i for i in range(9)}
    assert_whole(wheel_dir)


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param([{2}], id="one before the last"),
        pytest.param([{3, 4}, {3}], id="one made since, before another made since"),
    ],
)
def test_a_segment_that_a_listing_beside_its_writer_misses_is_no_damage(
    wheel_dir: Path, missing: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(open_directory(wheel_dir, write=True))  # a wheel's would be tidied away
    for i in range(4):
        journal.rotate()
        journal.put(START_US, START_US, pack_tail("", None), b"%d" % i)
    left_out = list(missing)

    def listing_that_misses(directory: Directory) -> Listing:
        """List the journals, as `verify` does to check them, without some segments."""
        gone = left_out.pop(0) if left_out else set()
        return {writer: numbers - gone for writer, numbers in list_segments(directory).items()}

    monkeypatch.setattr("filewheel.tools.verify.list_segments", listing_that_misses)
    assert not verify(open_directory(wheel_dir, write=False)).damage
    assert not left_out
    # One that has gone for good is.
    (second,) = files(wheel_dir, "journal/*-000002.log")
    second.unlink()
    assert "cannot be read" in verify(open_directory(wheel_dir, write=False)).damage[0].what
    journal.close()


def test_every_truncation_of_a_journal_keeps_the_frames_before_it(wheel_dir: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=False)
    (segment,) = files(wheel_dir, "journal/*.log")
    whole = segment.read_bytes().rstrip(b"\0")
    with Wheel(wheel_dir, clock=clock) as wheel:
        known = [m.payload for m in wheel.list()]
        for size in range(0, len(whole), 37):
            segment.write_bytes(whole[:size])
            left = [m.payload for m in wheel.list()]
            assert left == known[: len(left)]
            assert len(left) % 3 == 0
            verify(open_directory(wheel_dir, write=False))


@pytest.mark.parametrize("how", ["flipped", "missing", "empty", "garbage"])
def test_a_checkpoint_that_cannot_be_read_loses_nothing(wheel_dir: Path, how: str) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    checkpoint = wheel_dir / "checkpoint"
    if how == "flipped":
        flip(checkpoint, 100)
    elif how == "missing":
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(b"" if how == "empty" else os.urandom(500))
    with Wheel(wheel_dir, clock=clock) as wheel:
        assert {m.payload for m in wheel.list()} == ALL
        assert wheel.stats().pending == 60
    report = verify(open_directory(wheel_dir, write=False))
    assert report.damage[0].name == "checkpoint"
    assert fire_all(wheel_dir, clock) == ALL
    assert not verify(open_directory(wheel_dir, write=False)).damage


def test_both_checkpoints_gone_loses_nothing(wheel_dir: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    (wheel_dir / "checkpoint").unlink()
    (wheel_dir / "checkpoint.old").unlink()
    assert fire_all(wheel_dir, clock) == ALL


def test_a_file_that_is_missing_is_named(wheel_dir: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    victim = files(wheel_dir, "laps/*.lap")[0]
    victim.unlink()
    clock.wall_us -= 10**9  # it lies in the future, so it cannot have been finished
    (finding,) = verify(open_directory(wheel_dir, write=False)).damage
    assert (finding.name, finding.what) == (f"laps/{victim.name}", "the file is missing")
    clock.wall_us += 10**9
    fired = fire_all(wheel_dir, clock)
    assert 0 < len(fired) < 60
    (note,) = files(wheel_dir, "quarantine/*.json")
    assert json.loads(note.read_text())["reason"] == "the file is missing"


def test_a_file_that_is_too_short_is_named_and_keeps_its_whole_frames(wheel_dir: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    victim = files(wheel_dir, "laps/*.lap")[0]
    victim.write_bytes(victim.read_bytes()[:-40])
    findings = verify(open_directory(wheel_dir, write=False)).damage
    assert {f.name for f in findings} == {f"laps/{victim.name}"}
    assert any("bytes are missing at the end" in f.what for f in findings)


def test_a_damaged_wheel_json_is_read_from_its_copy_and_repaired(wheel_dir: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    settings = wheel_dir / "wheel.json"
    good = settings.read_bytes()
    flip(settings, 40)
    with Wheel(wheel_dir, clock=clock) as wheel:
        assert len(wheel.notes) == 1
        assert wheel.stats().pending == 60
    (finding,) = verify(open_directory(wheel_dir, write=False, env=SYSTEM.using(clock=clock))).damage
    assert (finding.what.count("repair"), finding.hint) == (0, "`filewheel repair`")
    assert repair(open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=clock))).done == [
        "wheel.json was written again"
    ]
    assert settings.read_bytes() == good
    assert_whole(wheel_dir)


def test_both_copies_of_wheel_json_damaged_is_an_error_that_names_the_file(wheel_dir: Path) -> None:
    flip(wheel_dir / "wheel.json", 40)
    flip(wheel_dir / "wheel.json.copy", 41)
    with pytest.raises(Damaged, match=r"wheel\.json.*checksum"):
        Wheel(wheel_dir)


def test_repair_keeps_what_can_be_read_and_verifies_afterwards(wheel_dir: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    rng = random.Random(5)
    for victim in rng.sample(files(wheel_dir, "laps/**/*.[ls]*"), 8):
        flip(victim, rng.randrange(victim.stat().st_size), rng.randrange(8))
    flip(wheel_dir / "checkpoint", 90)
    with Wheel(wheel_dir, clock=clock) as wheel:
        left = {m.payload for m in wheel.list()}
    found = plan(open_directory(wheel_dir, write=False)).found
    assert len(found) >= 8  # a flip in a frame's padding costs nothing, and is only noted
    done = repair(open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=clock)))
    assert done.found == found
    assert done.bytes_aside > 0
    report = verify(open_directory(wheel_dir, write=False))
    assert not report.damage
    with Wheel(wheel_dir, clock=clock) as wheel:
        assert {m.payload for m in wheel.list()} == left
    again = repair(open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=clock)))
    assert (again.found, again.done) == ([], [])
    assert fire_all(wheel_dir, clock) == left


def test_repair_is_refused_while_a_keeper_runs(wheel_dir: Path) -> None:
    with Keeper(wheel_dir), pytest.raises(Locked):
        repair(open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=FakeClock())))


def test_foreign_files_links_and_pipes_are_left_alone_and_never_followed(wheel_dir: Path, tmp_path: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    slot_dir = files(wheel_dir, "laps/*/")[0]
    (wheel_dir / "journal" / "AAAAAAAA-000001.log").symlink_to(outside)
    os.mkfifo(wheel_dir / "journal" / "BBBBBBBB-000001.log")
    (wheel_dir / "journal" / "notes.txt").write_text("x")
    (wheel_dir / "laps" / "nonsense").mkdir()
    (wheel_dir / "laps" / "9999999.lap").symlink_to(outside)
    (slot_dir / "5.slot").write_text("another lap's second")
    (slot_dir / "..%2f").write_text("x")
    with Wheel(wheel_dir, clock=clock) as wheel:
        assert {m.payload for m in wheel.list()} == ALL
    assert fire_all(wheel_dir, clock) == ALL
    assert outside.read_bytes() == b"precious"
    assert (wheel_dir / "journal" / "notes.txt").exists()
    assert (slot_dir / "..%2f").exists()
    assert (slot_dir / "5.slot").exists()


def test_a_link_in_place_of_a_slot_is_not_followed(wheel_dir: Path, tmp_path: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    outside = tmp_path / "outside"
    victim = files(wheel_dir, "laps/*/*.slot")[0]
    outside.write_bytes(victim.read_bytes())
    victim.unlink()
    victim.symlink_to(outside)
    before = outside.read_bytes()
    assert len(fire_all(wheel_dir, clock)) < 60
    assert outside.read_bytes() == before


def test_a_record_that_is_no_message_is_kept_aside_and_the_others_fire(
    wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"before")
        journal = wheel._writer()
        id_ = journal.new_id(clock.wall_us)
        journal.append([b"\x98\x01\xc4\x10" + id_ + b"\xc0\x01\x02\x03\x04\x05"], 1)
        wheel.enqueue(b"after")
    with caplog.at_level(logging.ERROR):
        assert fire_all(wheel_dir, clock) == {b"before", b"after"}
    assert len(files(wheel_dir, "quarantine/*.bin")) == 1


def test_a_damaged_copy_of_wheel_json_is_named_and_repaired_while_it_is_not_needed(wheel_dir: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    copy = wheel_dir / "wheel.json.copy"
    # A copy that is not there at all may be what a crash of `create` left: worth a note, but nothing was damaged.
    for spoil, kind in ((lambda: flip(copy, 90), "damage"), (copy.unlink, "note")):
        spoil()
        report = verify(open_directory(wheel_dir, write=False))
        assert [(f.name, f.kind) for f in report.findings] == [("wheel.json.copy", kind)]
        repair(open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=clock)))
        assert_whole(wheel_dir)
        assert copy.read_bytes() == (wheel_dir / "wheel.json").read_bytes()


def test_a_damaged_checkpoint_old_is_noted_and_goes_with_the_next_deal(wheel_dir: Path) -> None:
    clock = FakeClock()
    make(wheel_dir, clock, dealt=True)
    flip(wheel_dir / "checkpoint.old", 90)
    report = verify(open_directory(wheel_dir, write=False))
    assert [(f.kind, f.name) for f in report.findings] == [("note", "checkpoint.old")]
    repair(open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=clock)))
    assert not verify(open_directory(wheel_dir, write=False)).findings


def test_segments_that_the_lost_checkpoint_had_covered_are_not_missed(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        keeper = Keeper(wheel_dir, clock=clock, background=False)
        wheel.enqueue(b"a")
        Deal(keeper._store, spread=True).run()
        wheel.enqueue(b"b")
        wheel._writer().rotate()
        Deal(keeper._store, spread=True).run()
        keeper.close()
        wheel.enqueue(b"c")
    assert [p.name[-10:] for p in files(wheel_dir, "journal/*")] == ["000002.log"]
    flip(wheel_dir / "checkpoint", 90)
    # The checkpoint before stands in the first segment, which is gone: its last frame lies in a slot.
    assert {f.name for f in verify(open_directory(wheel_dir, write=False)).damage} == {"checkpoint"}
    assert fire_all(wheel_dir, clock) == {b"a", b"b", b"c"}
    assert files(wheel_dir, "quarantine/*") == []
