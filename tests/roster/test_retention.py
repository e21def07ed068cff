"""Covered segments wait for backups in retained/: wherever it crashes, none goes without the counter being raised."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import filewheel.laps.tidy
from filewheel import Keeper, Wheel
from filewheel.disk.ballast import BALLAST_BYTES
from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import Damaged
from filewheel.format.settings import Settings
from filewheel.laps.deal import Deal
from filewheel.roster.retention import Retention, discard_retained, read_overflow
from filewheel.roster.roster import Member, Roster, State, change_roster
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.model.crashes import RandomFates, crash
from tests.model.machine import Machine
from tests.model.process import Killed, ProcessDisk
from tests.support import FaultyDisk, eventually, ledger_of

NAMES = [f"journal/WRTR000{w}-000001.log" for w in range(1, 5)]


def primary(path: Path, *, state: State = "joining", **options: object) -> Roster:
    """Make a wheel the primary of a set with one backup."""
    member = Member(f"{path}.backup", "b" * 32, state=state)
    roster = Roster("5" * 32, 1, "primary", os.fspath(path), "a" * 32, (member,), **options)  # type: ignore[arg-type]
    set_roster(path, roster)
    return roster


def set_roster(path: Path, roster: Roster | None) -> None:
    change_roster(open_directory(path, write=True), lambda _: roster)


def deal(path: Path, payload: bytes = b"x") -> dict[str, bytes]:
    """Enqueue a message and have a keeper deal it; return the segment that was covered."""
    with Wheel(path) as wheel:
        wheel.enqueue(payload, delay=3600)
    before = {p.name: p.read_bytes() for p in (path / "journal").iterdir()}
    Keeper(path, background=False).close()
    return before


def kept(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((path / "retained").glob("*.log"))}


def retention(path: Path, limit_bytes: int = 1 << 30, disk: Callable[[str], OsDisk] = OsDisk) -> Retention:
    return Retention(open_directory(path, write=True, env=SYSTEM.using(disk=disk)), limit_bytes=limit_bytes)


def failing(*bad: tuple[str, str, int]) -> Callable[[str], FaultyDisk]:
    """A disk on which calls of these kinds on these names fail."""

    def fail(what: str, name: str) -> None:
        for kind, pattern, code in bad:
            if what == kind and pattern in name:
                raise OSError(code, os.strerror(code), name)

    return lambda path: FaultyDisk(path, fail)


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_a_primary_keeps_a_covered_segment_and_a_wheel_that_stands_alone_removes_it(wheel_dir: Path) -> None:
    deal(wheel_dir)
    assert not (wheel_dir / "retained").exists()
    primary(wheel_dir)
    segments = deal(wheel_dir)
    assert segments.items() <= kept(wheel_dir).items()
    assert not list((wheel_dir / "journal").iterdir())
    assert retention(wheel_dir).overflow() == 0
    with Wheel(wheel_dir) as wheel:
        assert wheel.stats().pending == 2


def test_a_producer_that_tidies_up_and_a_repair_keep_what_they_cover(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary(wheel_dir)
    monkeypatch.setattr(filewheel.laps.tidy, "TIDY_SEGMENTS", 1)
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=3600)
    assert len(kept(wheel_dir)) == 1
    monkeypatch.undo()
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"y", delay=3600)
    repair(open_directory(wheel_dir, write=True))
    assert len(kept(wheel_dir)) == 2


def test_a_covered_segment_that_came_back_is_kept_by_the_next_keeper_and_not_read_anew(wheel_dir: Path) -> None:
    primary(wheel_dir)
    writer = Wheel(wheel_dir)
    writer.enqueue(b"x", delay=3600)
    assert writer._journal is not None
    writer._journal.rotate()
    writer.enqueue(b"y", delay=3600)
    eventually(lambda: kept(wheel_dir))  # the producer deals it itself
    (name,) = (n for n in kept(wheel_dir) if n.endswith("-000001.log"))
    was = kept(wheel_dir)[name]
    # What a power cut does that undoes the rename.
    os.rename(wheel_dir / "retained" / name, wheel_dir / "journal" / name)
    Keeper(wheel_dir, background=False).close()
    assert kept(wheel_dir)[name] == was
    assert not (wheel_dir / "journal" / name).exists()
    writer.close()
    with Wheel(wheel_dir) as wheel:
        assert wheel.stats().pending == 2


def test_when_there_is_too_much_the_counter_is_raised_and_everything_goes(wheel_dir: Path) -> None:
    primary(wheel_dir, retain_bytes=100_000)
    counts = []
    for _ in range(4):
        deal(wheel_dir, b"x" * 40_000)
        counts.append((len(kept(wheel_dir)), retention(wheel_dir).overflow()))
    assert counts == [(1, 0), (2, 0), (0, 1), (1, 1)]


def test_what_another_process_released_does_not_count_towards_the_limit(wheel_dir: Path) -> None:
    keeping = retention(wheel_dir, 10_000)
    releasing = retention(wheel_dir)
    for n, name in enumerate(NAMES):
        (wheel_dir / name).write_bytes(bytes(100))
        keeping.keep(name)
        if n < 3:
            releasing.release(releasing.names())
    assert keeping.names() == [NAMES[3].rpartition("/")[2]]
    assert keeping.overflow() == 0
    assert retention(wheel_dir).size_bytes == 4096
    releasing.release(["NQTTHERE-000001.log"])
    discard_retained(open_directory(wheel_dir, write=True))


def test_of_many_small_segments_each_counts_as_a_block(wheel_dir: Path) -> None:
    keeping = retention(wheel_dir, 3 * 4096)
    for name, size in zip(NAMES[:3], (0, 1, 4096), strict=True):
        (wheel_dir / name).write_bytes(bytes(size))
        keeping.keep(name)
    assert keeping.overflow() == 0
    assert keeping.size_bytes == retention(wheel_dir).size_bytes == 3 * 4096
    (wheel_dir / NAMES[3]).write_bytes(b"")
    keeping.keep(NAMES[3])
    assert keeping.overflow() == 1


def test_a_segment_that_has_gone_is_passed_by(wheel_dir: Path) -> None:
    keeping = retention(wheel_dir)
    keeping.keep(NAMES[0])
    keeping.give_up()
    assert keeping.names() == []
    assert keeping.overflow() == 0


# -- whose set it is --------------------------------------------------------------------------------------------------


def test_when_the_set_is_dissolved_what_was_kept_goes(wheel_dir: Path) -> None:
    roster = primary(wheel_dir)
    for after in (None, replace(roster, members=()), replace(roster, role="backup", epoch=2)):
        set_roster(wheel_dir, None)
        primary(wheel_dir)
        deal(wheel_dir)
        assert kept(wheel_dir)
        set_roster(wheel_dir, after)
        store = ledger_of(open_directory(wheel_dir, write=True))
        store.recover()
        store.close()
        assert not (wheel_dir / "retained").exists()
        assert store.removal.retention is None


def test_a_primary_that_was_fenced_leaves_what_it_kept_and_keeps_no_more(wheel_dir: Path) -> None:
    roster = primary(wheel_dir)
    deal(wheel_dir)
    was = kept(wheel_dir)
    store = ledger_of(open_directory(wheel_dir, write=True))
    store.follow(replace(roster, role="fenced", epoch=2))
    assert store.removal.retention is None
    assert kept(wheel_dir) == was


def test_a_change_of_the_bound_holds_from_the_next_segment_on(wheel_dir: Path) -> None:
    roster = primary(wheel_dir)
    store = ledger_of(open_directory(wheel_dir, write=True))
    store.follow(roster)
    for name, limit in zip(NAMES[:2], (100_000, 5000), strict=True):
        (wheel_dir / name).write_bytes(bytes(100))
        store.follow(replace(roster, retain_bytes=limit))
        store.removal.retire_segment(name)
    assert kept(wheel_dir) == {}
    assert read_overflow(store.dir) == 1


def test_with_a_roster_that_cannot_be_read_segments_are_kept_and_it_is_noted(wheel_dir: Path) -> None:
    primary(wheel_dir)
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=3600)
    whole = (wheel_dir / "roster.json").read_bytes()
    (wheel_dir / "roster.json").write_bytes(b"{}")
    store = ledger_of(open_directory(wheel_dir, write=True))
    store.recover()
    Deal(store, spread=False).run()
    store.close()
    (wheel_dir / "roster.json").write_bytes(whole)
    assert len(kept(wheel_dir)) == 1
    assert any("roster fails its checksum" in note for note in store.notes)


def test_a_keeper_keeps_segments_from_the_claim_on_that_sees_a_backup_until_there_is_none(wheel_dir: Path) -> None:
    with Keeper(wheel_dir, background=False) as keeper, Wheel(wheel_dir) as wheel:
        roster = primary(wheel_dir)
        counts = []
        for members in ((), roster.members, roster.members, ()):
            set_roster(wheel_dir, replace(roster, members=members))
            wheel.enqueue(b"x", delay=3600)
            keeper.claim()
            assert wheel._journal is not None
            wheel._journal.rotate()
            Deal(keeper._store, spread=True).run()
            counts.append(len(kept(wheel_dir)))
    assert counts == [0, 1, 2, 0]


def test_what_is_not_ours_keeps_the_directory(wheel_dir: Path) -> None:
    primary(wheel_dir)
    deal(wheel_dir)
    (wheel_dir / "retained" / "notes.txt").write_text("mine")
    discard_retained(open_directory(wheel_dir, write=True))
    assert os.listdir(wheel_dir / "retained") == ["notes.txt"]
    assert [f.name for f in verify(open_directory(wheel_dir, write=False)).findings] == ["retained/notes.txt"]


# -- the counter ------------------------------------------------------------------------------------------------------


def test_a_counter_that_cannot_be_read_compares_as_changed_and_so_does_the_one_after(wheel_dir: Path) -> None:
    keeping = retention(wheel_dir, 0)
    place = wheel_dir / "retained" / "overflow"
    seen = [keeping.overflow()]
    for name, damage in zip(NAMES, (b"", b"7 7\n", b"\xb2 1\n", b"x" * 500), strict=True):
        (wheel_dir / name).write_bytes(b"segment")
        keeping.keep(name)
        seen.append(keeping.overflow())
        place.write_bytes(damage)
        assert keeping.overflow() == keeping.overflow() < 0
        seen.append(keeping.overflow())
    assert len(set(seen)) == len(seen)
    (finding,) = verify(open_directory(wheel_dir, write=False)).findings
    assert (finding.kind, finding.name) == ("note", "retained/overflow")


def test_something_else_in_the_place_of_the_counter_is_damage(wheel_dir: Path) -> None:
    (wheel_dir / "retained").mkdir()
    (wheel_dir / "retained" / "overflow").mkdir()
    with pytest.raises(Damaged, match="not a regular file"):
        retention(wheel_dir).overflow()
    assert not verify(open_directory(wheel_dir, write=False)).damage
    primary(wheel_dir, retain_bytes=0)
    deal(wheel_dir)
    assert os.listdir(wheel_dir / "journal") == []


def test_something_else_in_the_place_of_the_directory_keeps_nothing_and_stops_nobody(wheel_dir: Path) -> None:
    (wheel_dir / "retained").write_text("mine")
    primary(wheel_dir)
    deal(wheel_dir)
    assert os.listdir(wheel_dir / "journal") == []
    assert [f.name for f in verify(open_directory(wheel_dir, write=False)).findings] == ["retained"]
    set_roster(wheel_dir, None)
    deal(wheel_dir)
    assert (wheel_dir / "retained").read_text() == "mine"


def test_a_process_that_may_open_no_more_files_does_not_take_the_counter_for_changed(wheel_dir: Path) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        retention(wheel_dir, disk=failing(("open", "overflow", errno.EMFILE))).overflow()


def test_a_listing_sees_a_directory_that_was_removed_and_made_again(wheel_dir: Path) -> None:
    roster = primary(wheel_dir)
    deal(wheel_dir)
    seeing = retention(wheel_dir)
    assert len(seeing.names()) == 1
    set_roster(wheel_dir, None)
    deal(wheel_dir)
    assert seeing.names() == []
    set_roster(wheel_dir, roster)
    deal(wheel_dir)
    assert len(seeing.names()) == 1


# -- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["open", "pwrite", "fdatasync"])
def test_on_a_full_disk_the_counter_changes_all_the_same(wheel_dir: Path, kind: str) -> None:
    keeping = retention(wheel_dir, disk=failing((kind, "retained/.overflow.tmp", errno.ENOSPC)))
    for name in NAMES:
        (wheel_dir / name).write_bytes(b"segment")
        keeping.keep(name)
    keeping.give_up()
    assert keeping.overflow() < 0
    assert keeping.names() == []
    assert os.listdir(wheel_dir / "retained") == ["overflow"]
    assert (wheel_dir / "retained" / "overflow").stat().st_size == 0


def test_a_segment_that_cannot_be_moved_goes_with_the_others_and_the_counter_is_raised(wheel_dir: Path) -> None:
    roster = primary(wheel_dir)
    disk = failing(("rename", NAMES[1].rpartition("/")[2], errno.EXDEV))
    store = ledger_of(open_directory(wheel_dir, write=True, env=SYSTEM.using(disk=disk)))
    store.follow(roster)
    for name in NAMES[:2]:
        (wheel_dir / name).write_bytes(b"segment")
        store.removal.retire_segment(name)
    assert kept(wheel_dir) == {}
    assert os.listdir(wheel_dir / "journal") == []
    assert read_overflow(store.dir) == 1


def test_acknowledgements_on_a_full_disk_take_the_room_of_what_is_kept_before_the_ballast(wheel_dir: Path) -> None:
    primary(wheel_dir)
    full = [False]

    def fail(what: str, name: str) -> None:
        if (
            full[0]
            and what == "pwrite"
            and name.startswith("journal/")
            and list((wheel_dir / "retained").glob("*.log"))
        ):
            raise OSError(errno.ENOSPC, "full", name)

    deal(wheel_dir)
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"now", delay=0)
    keeper = Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail)))
    keeper._housekeeper.reserve.ballast.keep()
    batch = keeper.claim()
    full[0] = True
    assert keeper.ack(batch, sync="always") == 1
    full[0] = False
    assert (wheel_dir / "ballast").stat().st_size == BALLAST_BYTES
    assert keeper._store.removal.retention is not None
    assert keeper._store.removal.retention.overflow() == 1
    keeper.close()
    with Keeper(wheel_dir, background=False) as again:
        assert len(again.claim()) == 0


def test_a_deal_for_which_there_is_no_room_takes_that_of_what_is_kept(wheel_dir: Path) -> None:
    primary(wheel_dir)

    class Small(OsDisk):
        def free_bytes(self) -> int:
            return 0 if list((wheel_dir / "retained").glob("*.log")) else 1 << 30

    deal(wheel_dir)
    with Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=Small)) as keeper, Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"y", delay=3600)
        keeper._store.ingest()
        assert keeper._store.undealt_bytes
        keeper._housekeeper._deal(0)
        assert not keeper._store.undealt_bytes
        assert read_overflow(keeper.directory) == 1


# -- who looks at it --------------------------------------------------------------------------------------------------


def test_what_is_kept_is_verified_under_its_own_name_and_counts_for_nothing_else(wheel_dir: Path) -> None:
    primary(wheel_dir)
    deal(wheel_dir)
    with Wheel(wheel_dir) as wheel:
        stats = wheel.stats()
        assert (stats.pending, stats.journal_files, stats.journal_bytes) == (1, 0, 0)
    report = verify(open_directory(wheel_dir, write=False))
    assert report.findings == []
    assert report.files == 1
    assert report.retained_bytes == sum(map(len, kept(wheel_dir).values())) > 0


def test_damage_to_what_is_kept_is_a_note_for_it_costs_this_wheel_nothing(wheel_dir: Path) -> None:
    primary(wheel_dir)
    with Wheel(wheel_dir) as wheel:
        for n in range(3):
            wheel.enqueue(b"%d" % n, delay=3600)
    Keeper(wheel_dir, background=False).close()
    (name,) = kept(wheel_dir)
    place = wheel_dir / "retained" / name
    data = bytearray(place.read_bytes())
    data[150] ^= 1  # in the second frame
    place.write_bytes(data)
    (finding,) = verify(open_directory(wheel_dir, write=False)).findings
    assert (finding.kind, finding.name) == ("note", f"retained/{name}")
    assert "had been durable, cannot be read" in finding.what
    assert "heals" in finding.hint
    with Wheel(wheel_dir) as wheel:
        assert wheel.stats().pending == 3


# -- crashes ----------------------------------------------------------------------------------------------------------


def model(contents: dict[str, bytes], *, counter: bool) -> Machine:
    """A machine whose wheel has these segments, and a counter or none."""
    machine = Machine()
    disk = ProcessDisk(machine)
    disk.mkdir("journal")
    for name, data in contents.items():
        fd = disk.open(name, "rw")
        disk.pwrite(fd, data, 0)
        disk.close(fd)
    if counter:
        keeping = Retention(Directory("model.wheel", disk, SETTINGS), limit_bytes=0)
        assert keeping.forgo()
    disk.sync_all()
    return machine


SETTINGS = Settings(id="0" * 32, salt="0" * 32)
CONTENTS = {name: name.encode() * 20 for name in NAMES}
LIMIT = 3 * 4096 - 1


def keep_all(machine: Machine, stop_at: int, full: bool) -> None:
    """Keep every segment, the third of which is too much, and be killed after some operation."""
    disk = ProcessDisk(machine)

    def on_op(kind: str, name: str) -> None:
        if machine.ops >= stop_at:
            disk.kill()

    machine.on_op = on_op
    if full:
        machine.fault = lambda kind, name: errno.ENOSPC if kind == "pwrite" else None
    keeping = Retention(Directory("model.wheel", disk, SETTINGS), limit_bytes=LIMIT)
    for name in NAMES:
        keeping.keep(name)


def assert_nothing_is_missed(machine: Machine, before: int) -> None:
    disk = ProcessDisk(machine)
    directory = Directory("model.wheel", disk, SETTINGS)
    for name, data in CONTENTS.items():
        found = []
        for place in (name, f"retained/{name.rpartition('/')[2]}"):
            try:
                fd = disk.open(place, "r")
            except FileNotFoundError:
                continue
            found.append(disk.pread(fd, 1000, 0))
        assert found == [data] or read_overflow(directory) != before, name


@pytest.mark.parametrize("full", [False, True], ids=["room", "full"])
@pytest.mark.parametrize("counter", [False, True], ids=["first", "again"])
def test_wherever_it_is_killed_or_loses_power_a_segment_is_there_or_the_counter_has_changed(
    counter: bool, full: bool
) -> None:
    before = 1 if counter else 0
    whole = model(CONTENTS, counter=counter)
    start = whole.ops
    keep_all(whole, 1 << 30, full)
    assert whole.ops - start > 12
    raised = read_overflow(Directory("model.wheel", ProcessDisk(whole), SETTINGS))
    assert raised < 0 if full else raised == before + 1
    for seed in range(12):
        after = crash(whole, RandomFates(random.Random(seed), "some"))
        assert full or read_overflow(Directory("model.wheel", ProcessDisk(after), SETTINGS)) == raised
    for stop_at in range(start + 1, whole.ops + 1):
        machine = model(CONTENTS, counter=counter)
        with pytest.raises(Killed):
            keep_all(machine, stop_at, full)
        machine.on_op = machine.fault = None
        assert_nothing_is_missed(machine, before)
        for seed in range(12):
            fates = RandomFates(random.Random(seed), ("none", "all", "some")[min(seed, 2)])
            assert_nothing_is_missed(crash(machine, fates), before)
