"""The file paused.json: replaced whole, by one at a time, with bounds; damage never lets a paused message go."""

from __future__ import annotations

import errno
import json
import os
import random
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.failure import DAMAGED
from filewheel import BadArgument, Damaged, Keeper, Locked, Pause, Pauses, ReadOnly, TooLarge, Wheel, WheelFull
from filewheel.disk import locks
from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.paused import change_pauses, read_pauses
from filewheel.format import layout
from filewheel.format.pauses import PAUSES_MAX, WHY_MAX, parse_pauses
from filewheel.format.settings import Settings
from filewheel.tools.verify import verify
from tests.cli.support import invoke
from tests.model.crashes import crash_everyhow
from tests.model.machine import Machine
from tests.model.process import Killed, ProcessDisk
from tests.support import FakeClock, FaultyDisk, eventually, run

OLD = Pauses((Pause("topic", "mail*", 7, "down"), Pause("wheel", "", 8)), epoch=3, version=5, drains=2)
NEW = replace(OLD, entries=OLD.entries[:1], version=6)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
entries = st.one_of(
    st.builds(Pause, st.just("wheel"), st.just(""), st.integers(0, 1 << 60), texts),
    st.builds(Pause, st.just("topic"), texts, st.integers(0, 1 << 60), texts),
    st.builds(Pause, st.just("schedule"), texts.filter(bool), st.integers(0, 1 << 60), texts),
)
counts = st.integers(0, 1 << 62)
lists = st.lists(entries, max_size=8, unique_by=lambda p: (p.what, p.name)).map(tuple)


@settings(max_examples=50, deadline=None)
@given(st.builds(Pauses, lists, counts, counts, counts))
def test_what_is_read_is_what_was_written(pauses: Pauses) -> None:
    assert parse_pauses(pauses.to_json(), "p") == pauses


HOSTILE: list[tuple[str, Any]] = [
    ("paused", 2), ("entries", {}), ("entries", 5), ("entries", [5]), ("entries", [{}]), ("epoch", -1),
    ("epoch", True), ("version", 1.5), ("version", 1 << 63), ("drains", "1"), ("other", 1),
]  # fmt: skip
HOSTILE_ENTRY: list[tuple[str, Any]] = [
    ("what", "all"), ("what", []), ("name", 7), ("name", "x" * 256), ("name", "\ud800"), ("since_us", -1),
    ("since_us", None), ("why", "x" * (WHY_MAX + 1)), ("why", 3), ("by", "me"),
]  # fmt: skip


@pytest.mark.parametrize(("of", "key", "value"), [
    *(("pauses", key, value) for key, value in HOSTILE), *(("entry", key, value) for key, value in HOSTILE_ENTRY),
])  # fmt: skip
@pytest.mark.damages
def test_a_value_that_nobody_writes_makes_the_file_damaged_and_no_keeper_starts(
    wheel_dir: Path, of: str, key: str, value: Any
) -> None:
    fields = {"paused": 1, **json.loads(json.dumps(asdict(OLD)))}
    (fields if of == "pauses" else fields["entries"][0])[key] = value
    body = json.dumps(fields, indent=2).encode()
    (wheel_dir / "paused.json").write_bytes(body[:-2] + b',\n  "crc32": %d\n}\n' % zlib.crc32(body))
    acts: list[Callable[[Wheel], object]] = [
        Wheel.paused, Wheel.pause, Wheel.resume, lambda _: Keeper(wheel_dir, wait=False),
    ]  # fmt: skip
    with Wheel(wheel_dir) as wheel:
        for act in acts:
            with pytest.raises(Damaged, match="not a list of pauses.*upgrade filewheel; or `filewheel repair`"):
                act(wheel)


def test_the_same_pause_twice_or_too_many_of_them_make_the_file_damaged() -> None:
    for entries in ((Pause(), Pause(since_us=1)), tuple(Pause("topic", f"{n}") for n in range(PAUSES_MAX + 2))):
        with pytest.raises(Damaged, match="entries"):
            parse_pauses(Pauses(entries).to_json(), "p")


@pytest.mark.parametrize(("arguments", "error", "says"), [
    ({"topic": 5}, BadArgument, "a topic is a str"),
    ({"topic": "x" * 256}, TooLarge, "255"),
    ({"topic": "\ud800"}, BadArgument, "Unicode"),
    ({"schedule": ""}, BadArgument, "name of a schedule"),
    ({"schedule": "x" * 201}, BadArgument, "name of a schedule"),
    ({"schedule": "\ud800"}, BadArgument, "name of a schedule"),
    ({"topic": "a", "schedule": "b"}, BadArgument, "a topic or a schedule"),
    ({"why": "x" * (WHY_MAX + 1)}, TooLarge, str(WHY_MAX)),
    ({"why": "\ud800"}, BadArgument, "Unicode"),
    ({"why": None}, BadArgument, "why is a str"),
    ({"drain": 1}, BadArgument, "drain"),
    ({"topic": "a", "drain": True}, BadArgument, "whole wheel"),
])  # fmt: skip
def test_a_wrong_argument_is_refused_and_nothing_is_paused(
    wheel: Wheel, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        wheel.pause(**arguments)
    assert not (Path(wheel.path) / "paused.json").exists()
    with pytest.raises(BadArgument, match="everything"):
        wheel.resume(topic="a", everything=True)


def test_more_pauses_than_a_wheel_has_are_refused_and_one_that_exists_is_changed_still(wheel: Wheel) -> None:
    for n in range(PAUSES_MAX):
        wheel.pause(topic=f"topic {n}")
    with pytest.raises(TooLarge, match="256 topics and schedules"):
        wheel.pause(topic="one more")
    wheel.pause()  # the whole wheel in any case
    before = wheel.paused()
    wheel.pause(topic="topic 3", why="a reason")
    assert wheel.paused().entries[3] == replace(before.entries[3], why="a reason")
    wheel.pause(topic="topic 3")
    assert wheel.paused().entries[3].why == "a reason"
    assert wheel.paused().version == before.version + 1


def test_the_longest_names_and_reasons_fit_and_are_read_again(wheel: Wheel) -> None:
    for n in range(PAUSES_MAX):
        wheel.pause(topic="\U0001f600" * 60 + f"{n:03}", why="\U0001f600" * WHY_MAX)
    assert len(wheel.paused()) == PAUSES_MAX


def test_of_administrators_who_pause_and_resume_at_once_no_change_is_lost(wheel_dir: Path) -> None:
    code = """
    import sys, threading
    from filewheel import Wheel
    with Wheel(sys.argv[1]) as wheel:
        def work(name):
            for n in range(12):
                wheel.pause(topic=f"{name} {n}")
            for n in range(0, 12, 2):
                assert len(wheel.resume(topic=f"{name} {n}")) == 1
        threads = [threading.Thread(target=work, args=[f"{sys.argv[2]} {t}"]) for t in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """
    import threading

    programs = [threading.Thread(target=run, args=(code, wheel_dir, name)) for name in "ab"]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
    with Wheel(wheel_dir) as wheel:
        left = {p.name for p in wheel.paused()}
        assert left == {f"{p} {t} {n}" for p in "ab" for t in range(3) for n in range(1, 12, 2)}
        assert wheel.paused().version == 2 * 3 * (12 + 6)


def test_a_stopped_process_that_holds_the_lock_is_waited_for_so_long_and_no_longer(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory(wheel.path, write=True)
    with locks.HeldLocks(directory) as held:
        assert held.take(layout.PAUSED_LOCK, 0)
        with pytest.raises(Locked, match=r"in the middle of a pause.*kill the stopped process"):
            change_pauses(open_directory(wheel.path, write=True), lambda old: old.added(Pause()), wait_s=0)
    assert not wheel.paused()


# -- crashes --------------------------------------------------------------------------------------------------------


def test_a_crash_at_any_operation_leaves_the_old_pauses_or_the_new_ones() -> None:
    rng = random.Random(6)
    at = 0
    seen: set[int] = set()
    while True:
        at += 1
        machine = Machine()
        disk = ProcessDisk(machine)
        directory = Directory(disk.path, disk, Settings("a1", "00" * 16))
        change_pauses(directory, lambda _: OLD)
        left = iter(range(at - 1, -1, -1))
        machine.on_op = lambda kind, name, left=left, disk=disk: None if next(left, 1) else disk.kill()  # type: ignore[misc]
        killed = False
        try:
            change_pauses(directory, lambda _: NEW)
        except Killed:
            killed = True
        machine.on_op = None
        for after in crash_everyhow(machine, 100, rng):
            found = read_pauses(ProcessDisk(after), disk.path)
            assert found in ((OLD, NEW) if killed else (NEW,)), (at, found)
            seen.add(found.version)
            # What a crash left is no obstacle: the next change goes through.
            again = Directory(disk.path, ProcessDisk(after), directory.settings)
            assert change_pauses(again, lambda _: NEW)[1] == NEW
        if not killed:
            break
    assert at > 4
    assert seen == {OLD.version, NEW.version}


# -- full, read-only ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["paused.json.tmp", "paused.lock"])
def test_on_a_full_disk_a_pause_and_a_resume_find_room_in_the_ballast_and_leave_most_of_it(
    wheel_dir: Path, name: str
) -> None:
    ballast = wheel_dir / "ballast"
    whole = ballast.stat().st_size

    def full(kind: str, what: str) -> None:
        if what == name and kind == "open" and ballast.stat().st_size == sizes[-1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sizes = [whole]
    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, full))) as wheel:
        wheel.pause(topic="t")
        sizes.append(ballast.stat().st_size)
        assert wheel.resume(topic="t")
        sizes.append(ballast.stat().st_size)
    assert sizes[0] > sizes[1] > sizes[2] >= sizes[0] * 3 // 4


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, WheelFull), (errno.EROFS, ReadOnly)])
def test_where_nothing_can_be_written_a_pause_raises_and_nothing_is_paused(
    wheel_dir: Path, code: int, error: type[Exception]
) -> None:
    def fail(kind: str, name: str) -> None:
        if name.startswith("paused.json.tmp"):
            raise OSError(code, os.strerror(code))

    (wheel_dir / "ballast").unlink()
    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))) as wheel:
        with pytest.raises(error, match=r"paused\.json"):
            wheel.pause()
        assert not wheel.paused()


def test_a_mark_that_cannot_be_written_is_said_and_the_pause_holds(
    wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(wheel_dir / "begun")
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        wheel.enqueue(b"")
        wheel.pause()
        assert "a keeper sees the change with its next claim" in caplog.text
        assert not keeper.claim()


# -- damage ---------------------------------------------------------------------------------------------------------


def damage(wheel_dir: Path, how: str) -> None:
    """Damage the file, or put something else in its place."""
    path = wheel_dir / "paused.json"
    if how == "flipped":
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        path.mkdir() if how == "a directory" else os.mkfifo(path)


HOW = ["flipped", "empty", "a directory", "a pipe"]


@pytest.mark.damages
@pytest.mark.parametrize("how", HOW)
def test_a_running_keeper_keeps_to_what_it_knew_and_says_once_that_the_file_is_damaged(
    wheel_dir: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, clock=clock, background=False) as keeper:
        wheel.pause(topic="mail")
        wheel.enqueue(b"", topic="mail")
        other = wheel.enqueue(b"")
        assert keeper.claim().ids == [other]
        damage(wheel_dir, how)
        for _ in range(3):
            clock.advance(1)
            assert not keeper.claim()
        assert [r.levelname for r in caplog.records] == ["ERROR"]
        assert "paused as before: topic mail" in caplog.text
        assert str(keeper.paused) == "topic mail"


@pytest.mark.damages
@pytest.mark.parametrize("how", HOW)
def test_verify_reports_a_damaged_file_and_a_repair_pauses_the_whole_wheel(wheel_dir: Path, how: str) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"kept", topic="mail")
        wheel.pause(topic="mail")
    damage(wheel_dir, how)
    (found,) = verify(open_directory(wheel_dir, write=False)).damage
    assert found.name == "paused.json"
    assert "no keeper can start" in found.what
    with pytest.raises(Damaged, match="filewheel repair"):
        Keeper(wheel_dir)
    for verb in (["stats"], ["inspect"], ["run", "--once"]):
        assert invoke("-C", wheel_dir, *verb).code == DAMAGED
    for verb in (["inspect", "list"], ["metrics"]):
        assert invoke("-C", wheel_dir, *verb).code == 0
    assert invoke("-C", wheel_dir, "stats").json[0]["paused"] is None
    result = invoke("-C", wheel_dir, "repair", "--yes")
    assert result.code == 0
    assert "the whole wheel is paused now" in result.err + result.out
    assert not verify(open_directory(wheel_dir, write=False)).damage
    assert any(name.startswith("paused.json@0") for name in os.listdir(wheel_dir / "quarantine"))
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        (pause,) = wheel.paused()
        assert (pause.what, "repair" in pause.why) == ("wheel", True)
        assert not keeper.claim()
        wheel.resume()
        assert [m.payload for m in keeper.claim()] == [b"kept"]


def test_a_file_that_was_removed_by_hand_means_that_nothing_is_paused(wheel: Wheel) -> None:
    with Keeper(wheel.path) as keeper:
        id_ = wheel.enqueue(b"", topic="t")
        wheel.pause(topic="t")
        assert not keeper.claim()
        (Path(wheel.path) / "paused.json").unlink()
        assert eventually(lambda: keeper.claim().ids == [id_])
