"""The roster: what is read was written, it is replaced whole, and the epoch in a wheel's file never falls."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filewheel import Keeper, Wheel
from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import Damaged, DiskError, FilewheelError
from filewheel.format.settings import Settings
from filewheel.roster.roster import Member, Roster, change_roster, parse_roster, read_roster
from filewheel.sets.members import add_backup
from filewheel.sets.promote import promote
from filewheel.sets.rejoin import rejoin
from filewheel.sets.replicator import Replicator
from filewheel.sets.status import set_status
from tests.model.crashes import crash_everyhow
from tests.model.machine import Machine
from tests.model.process import Killed, ProcessDisk
from tests.support import FaultyDisk, spawn
from tests.support_set import make_set, roster_of
from tests.support_wheel import flip

OLD = Roster("5e7", 3, "primary", "/a", "aa", (Member("/b", "bb", "mirror", "current", 7),), copies=2)
NEW = replace(OLD, epoch=4, role="fenced", primary="/b", primary_wheel="bb", members=())

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
paths = texts.map(lambda text: "/" + text.replace("\0", ""))
members = st.builds(
    Member, paths, texts, st.sampled_from(["mirror", "ship"]), st.sampled_from(["joining", "current", "stale"]),
    st.integers(0, 1 << 60), texts,
)  # fmt: skip
rosters = st.builds(
    Roster, texts, st.integers(0, 1 << 40), st.sampled_from(["primary", "backup", "fenced"]), paths, texts,
    st.lists(members, max_size=3, unique_by=lambda m: m.wheel).map(tuple), st.sampled_from(["refuse", "stale"]),
    st.integers(0, 5), st.floats(0.1, 100),
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(rosters)
def test_what_is_read_is_what_was_written(roster: Roster) -> None:
    assert parse_roster(roster.to_json(), "r") == roster


def test_a_promotion_that_has_begun_names_the_primary_before_and_since_when_it_was_that() -> None:
    begun = OLD.announced(5, "fenced").announced(7, "fenced")
    assert (begun.epoch, begun.held, begun.primary, begun.role) == (7, 3, "/a", "fenced")
    assert b"office" not in OLD.to_json()
    assert parse_roster(begun.to_json(), "r") == begun
    assert replace(begun, epoch=7, office=0).held == 7


def test_a_flipped_bit_or_a_missing_end_is_damage() -> None:
    data = OLD.to_json()
    for bit in range(len(data) * 8):
        with pytest.raises(Damaged):
            parse_roster(flip(data, bit), "r")
    for size in range(len(data)):
        with pytest.raises(Damaged):
            parse_roster(data[:size], "r")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"roster": 2', b'"roster": 3'),
        (b'"role": "primary"', b'"role": "tyrant"'),
        (b'"epoch": 3', b'"epoch": "3"'),
        (b'"epoch": 3', b'"epoch": true'),
        (b'"set": "5e7"', b'"sat": "5e7"'),
        (b'"wheel": "bb"', b'"while": "bb"'),
    ],
)
def test_a_checksum_that_is_right_does_not_make_a_roster_of_what_is_none(old: bytes, new: bytes) -> None:
    body, mark, _ = OLD.to_json().rpartition(b',\n  "crc32": ')
    assert old in body
    body = body.replace(old, new)
    with pytest.raises(Damaged, match="not a roster"):
        parse_roster(body + mark + b"%d\n}\n" % zlib.crc32(body + b"\n}"), "r")


HOSTILE: list[tuple[str, Any]] = [
    ("set", 7), ("set", "x" * 65), ("epoch", -1), ("epoch", 1 << 63), ("epoch", 3.0), ("epoch", None), ("role", []),
    ("primary", "b"), ("primary", "/a\0b"), ("primary", "/" + "x" * 4096), ("primary", "/\ud800"), ("primary", 7),
    ("primary_wheel", ["aa"]), ("office", -1), ("office", 4), ("office", True), ("on_failure", "panic"),
    ("copies", -1), ("copies", 17), ("copies", "2"), ("timeout_s", 1e300), ("timeout_s", 0), ("timeout_s", -1.0),
    ("timeout_s", float("nan")), ("timeout_s", float("inf")), ("timeout_s", True), ("timeout_s", "5"),
    ("members", {}), ("members", 5),
]  # fmt: skip
HOSTILE_MEMBER: list[tuple[str, Any]] = [
    ("path", "b"), ("path", "/b\0"), ("path", None), ("path", "/" + "ä" * 3000), ("wheel", 7), ("wheel", "x" * 65),
    ("mode", "teleport"), ("mode", {}), ("state", "dead"), ("since_us", -1), ("since_us", 1 << 70), ("since_us", 0.5),
    ("why", 7), ("why", "x" * 1001), ("is_filled", 1), ("is_filled", "no"), ("absorb", 1), ("absorb", "yes"),
]  # fmt: skip


@pytest.mark.parametrize(("of", "key", "value"), [
    *(("roster", key, value) for key, value in HOSTILE), *(("member", key, value) for key, value in HOSTILE_MEMBER),
])  # fmt: skip
def test_a_value_that_nobody_writes_makes_a_roster_damaged_and_every_command_says_so(
    tmp_path: Path, of: str, key: str, value: Any
) -> None:
    fields = {"roster": 2, **json.loads(json.dumps(asdict(OLD)))}
    (fields if of == "roster" else fields["members"][0])[key] = value
    if key == "members" and isinstance(value, dict):
        fields[key] = [fields[key]]  # an empty object in the place of a member
    body = json.dumps(fields, indent=2).encode()
    data = body[:-2] + b',\n  "crc32": %d\n}\n' % zlib.crc32(body)
    with pytest.raises(Damaged, match="not a roster"):
        parse_roster(data, "r")
    wheel = tmp_path / "w"
    Wheel.create(wheel).close()
    (wheel / "roster.lock").write_bytes(b"1\n")
    (wheel / "roster.json").write_bytes(data)
    for act in (lambda: promote(wheel), lambda: rejoin(wheel), lambda: Replicator(wheel), lambda: set_status(wheel),
                lambda: add_backup(wheel, tmp_path / "b"), lambda: Keeper(wheel, wait=False).close()):  # fmt: skip
        with pytest.raises(Damaged):
            act()


@pytest.mark.parametrize(("count", "twice"), [(101, False), (2, True)])
def test_more_members_than_a_set_has_or_one_twice_makes_a_roster_damaged(count: int, twice: bool) -> None:
    wheels = ["bb"] * count if twice else [f"w{i}" for i in range(count)]
    roster = replace(OLD, members=tuple(Member("/b", wheel) for wheel in wheels))
    with pytest.raises(Damaged, match="members"):
        parse_roster(roster.to_json(), "r")


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_a_roster_that_cannot_be_read_is_an_error_of_the_tree_wherever_it_is_needed(tmp_path: Path, code: int) -> None:
    wheel = tmp_path / "w"
    Wheel.create(wheel).close()
    add_backup(wheel, tmp_path / "b")
    replicator = Replicator(wheel)

    def disk(path: str) -> OsDisk:
        def fail(kind: str, name: str) -> None:
            if kind == "open" and name == "roster.json":
                raise OSError(code, os.strerror(code))

        return FaultyDisk(path, fail)

    env = replicator._env = SYSTEM.using(disk=disk)
    for act in (lambda: promote(tmp_path / "b", env=env), lambda: rejoin(wheel, env=env),
                lambda: Replicator(wheel, env=env), replicator.once):  # fmt: skip
        with pytest.raises(FilewheelError):
            act()


def test_members_are_found_replaced_and_taken_out_by_their_wheel() -> None:
    stale = replace(OLD.members[0], state="stale")
    other = Member("/c", "cc")
    assert OLD.mirrors() == [OLD.members[0]]
    assert OLD.with_member(stale).mirrors() == []
    assert OLD.with_member(other).members == (*OLD.members, other)
    assert OLD.with_member(other).without_member("bb").members == (other,)
    assert OLD.member("cc") is None


@pytest.fixture
def directory(wheel_dir: Path) -> Directory:
    return open_directory(wheel_dir, write=True)


def test_a_roster_is_written_changed_and_taken_away(directory: Directory) -> None:
    assert change_roster(directory, lambda _: OLD) == OLD
    assert change_roster(directory, lambda old: old and replace(old, copies=1)) == replace(OLD, copies=1)
    assert roster_of(Path(directory.path)).copies == 1
    assert change_roster(directory, lambda _: None) is None
    assert read_roster(directory.disk, directory.path) is None


def test_a_change_by_which_the_epoch_would_fall_is_refused(directory: Directory) -> None:
    change_roster(directory, lambda _: NEW)
    assert change_roster(directory, lambda _: OLD) == NEW
    assert roster_of(Path(directory.path)) == NEW


def test_a_change_that_raises_leaves_the_roster_and_frees_the_lock(directory: Directory) -> None:
    change_roster(directory, lambda _: OLD)

    def fail(roster: Roster | None) -> Roster:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_roster(directory, fail)
    assert change_roster(directory, lambda _: NEW) == NEW


def test_what_the_disk_refuses_is_a_disk_error_that_names_the_roster(wheel_dir: Path) -> None:
    def fail(kind: str, name: str) -> None:
        if kind == "fdatasync" and "roster" in name:
            raise OSError(5, "Input/output error")

    opened = open_directory(wheel_dir, write=True, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail)))
    with pytest.raises(DiskError, match=r"roster\.json"):
        change_roster(opened, lambda _: OLD)
    assert read_roster(opened.disk, opened.path) is None


ADD = """
    import sys
    from filewheel.disk.directory import open_directory
    from filewheel.roster.roster import Member, change_roster
    path, mark = sys.argv[1:]
    directory = open_directory(path, write=True)
    for n in range(40):
        change_roster(directory, lambda roster: roster.with_member(Member("/" + mark, f"{mark}{n}")))
"""


def test_of_two_processes_that_change_it_at_once_neither_loses_what_the_other_did(wheel_dir: Path) -> None:
    make_set(wheel_dir)
    both = [spawn(ADD, wheel_dir, mark) for mark in "ab"]
    assert [process.wait(60) for process in both] == [0, 0]
    assert {m.wheel for m in roster_of(wheel_dir).members} == {f"{mark}{n}" for mark in "ab" for n in range(40)}
    for process in both:
        if process.stdout is not None:
            process.stdout.close()


def test_of_two_threads_that_change_it_at_once_neither_loses_what_the_other_did(wheel_dir: Path) -> None:
    make_set(wheel_dir)

    def add(mark: str) -> None:
        directory = open_directory(wheel_dir, write=True)

        def change(roster: Roster | None) -> Roster | None:
            time.sleep(0.001)  # let the other one read the same, if it can
            return roster and roster.with_member(Member("/" + mark, f"{mark}{len(roster.members)}"))

        for _ in range(20):
            change_roster(directory, change)

    threads = [threading.Thread(target=add, args=(mark,)) for mark in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(roster_of(wheel_dir).members) == 40


def dying(disk: ProcessDisk, at: int) -> Callable[[str, str], None]:
    """Return what ends a process at an operation."""
    left = iter(range(at - 1, -1, -1))
    return lambda kind, name: None if next(left, 1) else disk.kill()


def test_a_crash_at_any_operation_leaves_the_old_roster_or_the_new_one() -> None:
    rng = random.Random(6)
    at = 0
    seen: set[int] = set()
    while True:
        at += 1
        machine = Machine()
        disk = ProcessDisk(machine)
        directory = Directory(disk.path, disk, Settings("a1", "00" * 16))
        change_roster(directory, lambda _: OLD)
        machine.on_op = dying(disk, at)
        killed = False
        try:
            change_roster(directory, lambda _: NEW)
        except Killed:
            killed = True
        machine.on_op = None
        for after in crash_everyhow(machine, 100, rng):
            found = read_roster(ProcessDisk(after), disk.path)
            assert found in ((OLD, NEW) if killed else (NEW,)), (at, found)
            seen.add(found.epoch)
            # What a crash left is no obstacle: the next change goes through.
            again = Directory(disk.path, ProcessDisk(after), directory.settings)
            assert change_roster(again, lambda _: NEW) == NEW
        if not killed:
            break
    assert at > 5
    assert seen == {OLD.epoch, NEW.epoch}


@pytest.mark.damages
def test_a_damaged_roster_is_no_obstacle_to_reading_and_is_none_to_write_by(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=60)
    make_set(wheel_dir)
    (wheel_dir / "roster.json").write_bytes(b"{}\n")
    with Wheel(wheel_dir) as wheel:
        assert [m.payload for m in wheel.list()] == [b"x"]
        with pytest.raises(Damaged, match="roster"):
            wheel.enqueue(b"y")
        with pytest.raises(Damaged, match="roster"):
            wheel.cancel(key="k")
