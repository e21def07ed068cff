"""Mirrored copies: what a mirror has and when, how many copies a receipt counts, and what a failing mirror costs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pickle
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncWheel, Fenced, Ids, Keeper, Message, MessageId, TooFewCopies, Wheel
from filewheel.disk.directory import create_directory, open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.format.record import pack_tail
from filewheel.journal.journal import Journal
from filewheel.message import US_PER_S, Receipt
from filewheel.roster.roster import Member, Roster, change_roster
from filewheel.sets.copy import Copy
from filewheel.sets.source import Source
from filewheel.sets.target import Target
from tests.cli.support import Fw
from tests.conftest import assert_whole
from tests.journal.support_mirror import Hang, WheelSet, erring
from tests.model.crashes import crash_at_random
from tests.model.machine import Machine
from tests.model.process import ProcessDisk
from tests.model.world import ModelClock, make_wheel
from tests.support import START_US, FakeClock, eventually, spawn

MakeSet = Callable[..., WheelSet]


@pytest.fixture
def make_set(tmp_path: Path) -> Iterator[MakeSet]:
    """Makes sets of wheels; each wheel is verified at the end."""
    made: list[WheelSet] = []

    def make(*modes: Any, **policy: Any) -> WheelSet:
        made.append(WheelSet(tmp_path, modes or ("mirror",), **policy))
        return made[-1]

    yield make
    for each in made:
        for path in each.paths:
            if path.exists() and each.paths[0].exists():
                fill(each.paths[0], path)
            if path.exists():
                assert_whole(path)


def fill(primary: Path, mirror: Path) -> None:
    """Bring over what a mirror missed while it was broken, as a replicator does."""
    if mirror != primary:
        source, target = open_directory(primary, write=False), open_directory(mirror, write=True)
        if source.settings.salt != target.settings.salt:
            return  # a test put another wheel there
        with contextlib.closing(Copy(Source(source), Target(target), is_mirror=True)) as copy:
            copy.tick()
        source.disk.release()
        target.disk.release()


def eio(*kinds: str, times: int = 1 << 30) -> Callable[[str, str], None]:
    return erring(errno.EIO, *kinds, times=times)


# -- what a mirror has ----------------------------------------------------------------------------------------


def test_each_frame_is_written_to_the_primary_first_then_to_each_mirror(make_set: MakeSet) -> None:
    wheels = make_set("mirror", "mirror")
    with wheels.open() as wheel:
        for n in range(5):
            wheel.enqueue(b"%d" % n, delay=60, sync="never")
    assert wheels.calls("pwrite")[:15] == [0, 1, 2] * 5


@pytest.mark.parametrize("how", ["enqueue", "enqueue_many", "key", "add", "cancel", "reschedule"])
def test_what_returned_is_flushed_in_the_primary_and_in_its_mirror(make_set: MakeSet, how: str) -> None:
    wheels = make_set()
    with wheels.open() as wheel:
        old = wheel.enqueue(b"old", delay=60)
        wheels.events.clear()
        match how:
            case "enqueue":
                wheel.enqueue(b"x", delay=60)
            case "enqueue_many":
                wheel.enqueue_many([b"x"], delay=60)
            case "key":
                wheel.enqueue(b"x", delay=60, key="k")
            case "add":
                wheel.add([Message(MessageId.make(START_US, 1, 1), b"x")])
            case "cancel":
                wheel.cancel(old)
            case "reschedule":
                wheel.reschedule(old, delay=90)
        for n in (0, 1):
            calls = [what for where, what, name in wheels.events if where == n and name.startswith("journal/")]
            assert "pwritten" in calls
            assert "fdatasync" in calls[calls.index("pwritten") :]


def test_the_flushes_of_the_primary_and_of_its_mirrors_run_side_by_side(make_set: MakeSet) -> None:
    wheels = make_set("mirror", "mirror")
    meeting = threading.Barrier(3, timeout=20)

    def meet(kind: str, name: str) -> None:
        if kind == "fdatasync" and "journal" in name:
            meeting.wait()  # one after the other they would never meet

    with wheels.open() as wheel:
        wheels.fail = {0: meet, 1: meet, 2: meet}
        assert wheel.enqueue(b"x", delay=60).copies == 3
        # None was waited for in vain first: it would be given up, and hold the message all the same a moment later.
        assert all(mirror.live for mirror in wheel._writer().appender.copies._mirrors)
        wheels.fail = {}


def test_a_frame_of_the_primary_is_one_frame_of_the_mirror_with_the_same_records(make_set: MakeSet) -> None:
    wheels = make_set()
    with wheels.open() as wheel:
        old = wheel.enqueue(b"one", delay=60)
        wheel.enqueue_many([b"many"] * 100, delay=60)
        wheel.reschedule(old, delay=90)
        wheel.enqueue(b"a", delay=60, key="k")
        wheel.enqueue(b"b", delay=60, key="k", on_conflict="replace")
        wheel.cancel(key="k")
        wheel.reschedule(wheel.enqueue(b"c", delay=60, key="c"), delay=99)
        wheel.enqueue(bytes(300_000), delay=60)
    ours, theirs = ([f for f in wheels.frames(n) if not f.is_seal] for n in (0, 1))
    assert [(f.body, f.puts, f.drops, f.first, f.last) for f in ours] == [
        (f.body, f.puts, f.drops, f.first, f.last) for f in theirs
    ]
    assert len(ours) == 9
    assert wheels.payloads(0) == wheels.payloads(1)


def test_without_a_flush_a_frame_is_written_to_all_and_flushed_by_none(make_set: MakeSet) -> None:
    wheels = make_set()
    with wheels.open() as wheel:
        wheel.enqueue(b"0", delay=60, sync="never")
        wheels.events.clear()
        assert wheel.enqueue(b"1", delay=60, sync="never").copies == 2
        assert wheels.calls("pwrite") == [0, 1]
        assert wheels.calls("fdatasync") == []
        wheel.flush()
        assert sorted(wheels.calls("fdatasync")) == [0, 1]


def test_with_an_interval_the_thread_that_flushes_flushes_all_and_outlives_a_failure_of_a_mirror(
    make_set: MakeSet,
) -> None:
    wheels = make_set(on_failure="refuse")
    with wheels.open() as wheel:
        wheel.enqueue(b"0", delay=60, sync=0.01)
        eventually(lambda: sorted(set(wheels.calls("fdatasync"))) == [0, 1])
        wheels.fail[1] = eio("fdatasync")
        wheel.enqueue(b"1", delay=60, sync=0.01)
        eventually(lambda: wheels.calls("fdatasync").count(1) >= 2)
        with pytest.raises(TooFewCopies):
            eventually(lambda: wheel.enqueue(b"2", delay=60, sync=0.01) is None)
        wheels.fail.clear()
        wheels.clock.advance(2)
        wheels.events.clear()
        assert wheel.enqueue(b"3", delay=60, sync=0.01).copies == 2
        eventually(lambda: sorted(set(wheels.calls("fdatasync"))) == [0, 1])


def test_a_process_that_is_killed_between_the_two_writes_leaves_the_message_in_the_primary_only(
    make_set: MakeSet,
) -> None:
    wheels = make_set()
    code = """
        import os, signal, sys
        from filewheel import Wheel
        from filewheel.disk.directory import open_directory
        from filewheel.disk.disk import SYSTEM
        from filewheel.roster.roster import read_roster
        from tests.support import FaultyDisk

        def kill(kind, name):
            if kind == "pwrite" and "journal" in name and armed:
                os.kill(os.getpid(), signal.SIGKILL)

        armed = []
        disk = lambda path: FaultyDisk(path, kill if path.endswith("1") else lambda kind, name: None)
        wheel = Wheel(sys.argv[1], env=SYSTEM.using(disk=disk))
        wheel._writer().follow(read_roster(wheel._dir.disk, sys.argv[1]))
        wheel.enqueue(b"both", delay=60)
        armed.append(True)
        wheel.enqueue(b"first", delay=60)
    """
    process = spawn(code, wheels.paths[0])
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert wheels.payloads(0) == [b"both", b"first"]
    assert wheels.payloads(1) == [b"both"]


@pytest.mark.parametrize("lost", [0, 1])
def test_after_a_power_cut_either_of_the_two_wheels_alone_has_what_returned(lost: int) -> None:
    clock, rng = FakeClock(), random.Random(1)
    machines = {"/p": Machine(), "/m": Machine()}
    salt = make_wheel(machines["/p"], ModelClock(rng), rng.randbytes)
    make_wheel(machines["/m"], ModelClock(rng), rng.randbytes, salt=salt)

    def disk(path: str) -> Any:
        return ProcessDisk(machines[path], path)

    roster = mirrored(disk)
    wheel = Wheel("/p", env=SYSTEM.using(disk=disk, entropy=rng.randbytes), clock=clock)
    wheel._writer().follow(roster)
    sent = [b"%d" % n for n in range(10)]
    for payload in sent:
        assert wheel.enqueue(payload, delay=60).copies == 2
    left = crash_at_random(machines[("/p", "/m")[1 - lost]], rng, "none")
    with Wheel("/p", env=SYSTEM.using(disk=lambda path: ProcessDisk(left, path)), clock=clock) as found:  # type: ignore[arg-type, return-value]
        assert sorted(m.payload for m in found.list()) == sent
    wheel.close()


def mirrored(disk: Any) -> Roster:
    """Make a set of the wheels p and m; return the primary's roster."""
    ids = [open_directory(path, write=False, env=SYSTEM.using(disk=disk)).settings.id for path in ("/p", "/m")]
    roster = Roster("s", 1, "primary", "/p", ids[0], (Member("/m", ids[1], "mirror", "current"),))
    change_roster(open_directory("/p", write=False, env=SYSTEM.using(disk=disk)), lambda _: roster)
    change_roster(
        open_directory("/m", write=False, env=SYSTEM.using(disk=disk)), lambda _: replace(roster, role="backup")
    )
    return roster


def test_a_mirror_goes_on_in_another_segment_where_the_primary_does(
    make_set: MakeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"segment_bytes": 4096, "fill_bytes": 1024}
    monkeypatch.setattr(Journal.__init__, "__kwdefaults__", {**(Journal.__init__.__kwdefaults__ or {}), **sizes})
    wheels = make_set()
    with wheels.open() as wheel:
        for n in range(60):
            assert wheel.enqueue(b"%03d" % n + bytes(100), delay=60).copies == 2
    assert len(os.listdir(wheels.paths[1] / "journal")) > 2
    assert wheels.payloads(0) == wheels.payloads(1)


def test_a_closed_handle_leaves_no_segment_that_anybody_holds(make_set: MakeSet) -> None:
    wheels = make_set()
    with wheels.open() as wheel:
        wheel.enqueue(b"x", delay=60, sync="never")
    for n in (0, 1):
        assert is_unlocked(wheels.paths[n])
    assert not [t for t in threading.enumerate() if t.name == "filewheel-mirror"]


def is_unlocked(path: Path) -> bool:
    disk = OsDisk(str(path))
    (last,) = os.listdir(path / "journal")
    fd = disk.open(f"journal/{last}", "rw")
    try:
        return disk.lock(fd, wait=False)
    finally:
        disk.close(fd)
        disk.release()


def test_threads_share_the_flushes_of_both_copies(make_set: MakeSet) -> None:
    wheels = make_set()

    def slow(kind: str, name: str) -> None:
        if kind == "fdatasync" and "journal" in name:
            time.sleep(0.005)

    wheels.fail = {0: slow, 1: slow}
    with wheels.open() as wheel:
        got: list[MessageId] = []
        threads = [
            threading.Thread(target=lambda: got.extend(wheel.enqueue(b"x", delay=60) for _ in range(20)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 160
        assert {id_.copies for id_ in got} == {2}
        for n in (0, 1):
            assert wheels.calls("fdatasync").count(n) < 100
            with Wheel(wheels.paths[n]) as found:
                assert {m.id for m in found.list()} == set(got)


# -- receipts -------------------------------------------------------------------------------------------------


def test_a_receipt_is_the_id_in_all_but_the_number_of_copies(make_set: MakeSet) -> None:
    wheels = make_set()
    with wheels.open() as wheel:
        got = wheel.enqueue(b"x", delay=60)
        assert isinstance(got, Receipt)
        plain = MessageId(got)
        assert (got, hash(got), str(got), repr(got)) == (plain, hash(plain), str(plain), repr(plain))
        assert (got.copies, plain.copies, pickle.loads(pickle.dumps(got)).copies) == (2, 1, 2)
        many = wheel.enqueue_many([b"y", b"z"], delay=60)
        assert (many.copies, many[0].copies, many[1:].copies, [i.copies for i in many]) == (2, 2, 2, [2, 2])
        assert wheel.enqueue(b"k", delay=60, key="k").copies == 2
        assert wheel.reschedule(key="k", delay=90).copies == 2
        assert wheel.reschedule(got, delay=90).copies == 2
    assert Ids(plain)[0].copies == 1


def test_a_wheel_that_stands_alone_gives_plain_ids(wheel: Wheel) -> None:
    assert type(wheel.enqueue(b"x", delay=60)) is MessageId
    assert [type(i) for i in wheel.enqueue_many([b"x"], delay=60)] == [MessageId]


def test_what_tasks_enqueue_has_receipts_that_count_a_mirror_that_failed_in_their_flush_no_more(
    make_set: MakeSet,
) -> None:
    wheels = make_set(on_failure="stale")

    async def main() -> list[int]:
        async with AsyncWheel(wheels.paths[0], env=SYSTEM.using(disk=wheels.disk), clock=wheels.clock) as wheel:
            assert wheel._wheel is not None
            wheels.follow(wheel._wheel)
            first = await wheel.enqueue(b"0", delay=60)
            wheels.fail[1] = eio("fdatasync")
            return [
                first.copies,
                *[i.copies for i in await asyncio.gather(*(wheel.enqueue(b"1", delay=60) for _ in "ab"))],
            ]

    assert asyncio.run(main()) == [2, 1, 1]


def test_the_command_line_tells_the_copies_where_there_are_backups(make_set: MakeSet, wheel_dir: Path) -> None:
    wheels = make_set("ship")
    (fields,) = Fw(wheels.paths[0])("enqueue", "--in", "5m", "--json", "hi").json
    assert fields["copies"] == 1
    shown = Fw(wheels.paths[0])("enqueue", "--in", "5m", "hi")
    MessageId.parse(shown.out.strip())
    assert "1 wheel of the set has it" in shown.err
    (fields,) = Fw(wheel_dir)("enqueue", "--in", "5m", "--json", "hi").json
    assert "copies" not in fields


# -- a mirror that fails: stale -------------------------------------------------------------------------------

FAILURES = {
    "flush": partial(eio, "fdatasync"),
    "write": partial(erring, errno.ENOSPC, "pwrite"),
    "written": partial(erring, errno.ENOSPC, "pwritten"),
    "segment": partial(erring, errno.EROFS, "open"),
    "name": partial(eio, "sync_dir"),
}


@pytest.mark.parametrize("what", list(FAILURES))
def test_a_mirror_that_fails_is_marked_stale_before_the_enqueue_returns_with_a_copy_fewer(
    make_set: MakeSet, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    wheels = make_set("mirror", "ship", on_failure="stale")
    with wheels.open() as wheel:
        wheels.fail[1] = FAILURES[what]()
        wheels.clock.advance(5)
        assert wheel.enqueue(b"x", delay=60).copies == 1
        member = wheels.roster().members[0]
        assert (member.state, member.since_us) == ("stale", wheels.clock.now_us())
        assert member.why
        assert wheels.roster(2).members[0] == member  # a promotion may see only that one
        wheels.events.clear()
        assert wheel.enqueue(b"y", delay=60).copies == 1
        assert 1 not in wheels.calls("pwrite")
        assert len([r for r in caplog.records if " failed: " in r.message]) == 1
    assert wheels.payloads(0) == [b"x", b"y"]


def test_with_sync_never_too_a_mirror_is_marked_before_what_it_lacks_is_confirmed(make_set: MakeSet) -> None:
    wheels = make_set(on_failure="stale")
    with wheels.open() as wheel:
        wheel.enqueue(b"0", delay=60)
        wheels.fail[1] = erring(errno.ENOSPC, "pwrite")
        assert wheel.enqueue(b"x", delay=60, sync="never").copies == 1
        assert wheels.roster().members[0].state == "stale"


def test_nothing_is_confirmed_while_the_mark_cannot_be_written(make_set: MakeSet) -> None:
    wheels = make_set(on_failure="stale")
    with wheels.open() as wheel:
        wheel.enqueue(b"0", delay=60)
        wheels.fail = {0: erring(errno.EIO, "rename", name="roster"), 1: eio("fdatasync")}
        with pytest.raises(TooFewCopies, match="it was written, and is not confirmed"):
            wheel.enqueue(b"1", delay=60)
        with pytest.raises(TooFewCopies, match="nothing of this call was written"):
            wheel.enqueue(b"2", delay=60)
        del wheels.fail[0]
        wheels.clock.advance(1)
        assert wheel.enqueue(b"3", delay=60).copies == 1
        assert wheels.roster().members[0].state == "stale"
    assert wheels.payloads(0) == [b"0", b"1", b"3"]


def test_a_mirror_that_was_marked_is_not_taken_back_by_who_read_the_roster_before(make_set: MakeSet) -> None:
    wheels = make_set(on_failure="stale")
    with wheels.open() as wheel:
        wheels.write(0, lambda r: replace(r, timeout_s=7.0))
        before = wheels.roster()
        wheels.fail[1] = eio("fdatasync", times=1)
        assert wheel.enqueue(b"x", delay=60).copies == 1
        wheel._writer().follow(before)
        assert wheel.enqueue(b"y", delay=60).copies == 1
        wheels.write(0, lambda r: r.with_member(replace(r.members[0], state="current", why="")))
        wheels.follow(wheel)
        assert wheel.enqueue(b"z", delay=60).copies == 2


def test_copies_that_are_asked_for_are_asked_for_also_when_a_mirror_went_stale(make_set: MakeSet) -> None:
    wheels = make_set(on_failure="stale", copies=2)
    with wheels.open() as wheel:
        assert wheel.enqueue(b"0", delay=60).copies == 2
        wheels.fail[1] = eio("fdatasync")
        with pytest.raises(TooFewCopies) as caught:
            wheel.enqueue(b"1", delay=60)
        assert caught.value.copies == 1
        wheels.events.clear()
        with pytest.raises(TooFewCopies):
            wheel.enqueue(b"2", delay=60)
        assert wheels.calls("pwrite") == []


def test_more_copies_than_there_are_mirrors_are_refused_before_anything_is_written(make_set: MakeSet) -> None:
    wheels = make_set("ship", copies=2)
    with (
        wheels.open() as wheel,
        pytest.raises(TooFewCopies, match="2 wheels must hold a message, and only 1 can be written"),
    ):
        wheel.enqueue(b"x", delay=60)
    assert wheels.payloads(0) == []


# -- a mirror that fails: refuse ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", list(FAILURES))
def test_while_a_mirror_is_broken_enqueues_are_refused_unwritten_and_taken_again_when_it_is_back(
    make_set: MakeSet, what: str
) -> None:
    wheels = make_set(on_failure="refuse")
    with wheels.open() as wheel:
        wheels.fail[1] = FAILURES[what]()
        with pytest.raises(TooFewCopies, match="not confirmed"):
            wheel.enqueue(b"0", delay=60)
        wheels.events.clear()
        for _ in range(3):
            with pytest.raises(TooFewCopies, match="nothing of this call was written"):
                wheel.enqueue(b"1", delay=60)
        assert wheels.events == []  # nothing was written, and nothing opened within a second
        del wheels.fail[1]
        wheels.clock.advance(1)
        assert wheel.enqueue(b"2", delay=60).copies == 2
        assert wheels.roster().members[0].state == "current"
    assert wheels.payloads(0) == [b"0", b"2"]
    assert b"2" in wheels.payloads(1)


def test_a_message_that_a_mirror_lost_is_refused_also_if_the_mirror_is_back_before_it_is_confirmed(
    make_set: MakeSet,
) -> None:
    wheels = make_set(on_failure="refuse")
    journal = Journal(
        open_directory(wheels.paths[0], write=True, env=SYSTEM.using(disk=wheels.disk, clock=wheels.clock))
    )
    journal.follow(wheels.roster())
    wheels.fail[1] = erring(errno.ENOSPC, "pwrite", times=1)
    ticket = journal.write([put(b"lost")], 1)
    wheels.clock.advance(2)
    journal.append([put(b"both")], 1)
    with pytest.raises(TooFewCopies):
        journal.wait_durable(ticket, "always")
    journal.close()


def put(payload: bytes) -> bytes:
    from filewheel.format.record import pack_message

    return pack_message(Message(MessageId.make(START_US + 60 * US_PER_S, 1, len(payload)), payload))


def test_a_failing_mirror_does_not_poison_the_primary_s_journal(make_set: MakeSet) -> None:
    wheels = make_set(on_failure="refuse")
    with wheels.open() as wheel:
        wheels.fail[1] = eio("fdatasync")
        with pytest.raises(TooFewCopies):
            wheel.enqueue(b"0", delay=60)
        name = wheel._writer().writer
        wheels.write(0, lambda r: r.without_member(r.members[0].wheel))
        wheels.follow(wheel)
        assert wheel.enqueue(b"1", delay=60).copies == 1
        assert wheel._writer().writer == name
    assert wheels.payloads(0) == [b"0", b"1"]


def test_closing_says_that_what_was_not_confirmed_has_too_few_copies(make_set: MakeSet) -> None:
    wheels = make_set(on_failure="refuse")
    wheel = wheels.open()
    wheel.enqueue(b"0", delay=60, sync="never")
    wheels.fail[1] = eio("fdatasync")
    with pytest.raises(TooFewCopies):
        wheel.close()
    assert wheels.payloads(0) == [b"0"]


# -- a mirror that does not answer ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["fdatasync", "sync_dir"])
def test_a_mirror_that_does_not_answer_in_time_has_failed_and_is_left_alone_until_it_does(
    make_set: MakeSet, what: str
) -> None:
    wheels = make_set(on_failure="refuse", timeout_s=0.2)
    hang = Hang(what)
    with wheels.open() as wheel:
        wheels.fail[1] = hang
        with pytest.raises(TooFewCopies, match="not answered"):
            wheel.enqueue(b"0", delay=60)
        assert hang.begun.is_set()
        wheels.clock.advance(2)
        wheels.events.clear()
        with pytest.raises(TooFewCopies):
            wheel.enqueue(b"1", delay=60)
        assert [e for e in wheels.events if e[0] == 1] == []  # that disk may hang in an open as well
        hang.over.set()
        (mirror,) = wheel._writer().appender.copies._mirrors  # type: ignore[union-attr]
        eventually(lambda: mirror.ended)
        wheels.clock.advance(2)
        assert wheel.enqueue(b"2", delay=60).copies == 2


def test_a_mirror_that_does_not_answer_goes_stale_and_the_others_go_on(make_set: MakeSet) -> None:
    wheels = make_set("mirror", "mirror", on_failure="stale", timeout_s=0.2)
    hang = Hang("fdatasync")
    with wheels.open() as wheel:
        wheels.fail[1] = hang
        assert wheel.enqueue(b"0", delay=60).copies == 2
        assert [m.state for m in wheels.roster().members] == ["stale", "current"]
        assert wheel.enqueue(b"1", delay=60).copies == 2
        hang.over.set()


def test_with_enough_copies_nobody_waits_for_a_mirror_that_is_slow_and_it_catches_up(make_set: MakeSet) -> None:
    wheels = make_set("mirror", "mirror", copies=2, timeout_s=10)
    hang = Hang("fdatasync")
    with wheels.open() as wheel:
        wheels.fail[1] = hang
        for n in range(5):
            assert wheel.enqueue(b"%d" % n, delay=60).copies == 2
        assert hang.begun.is_set()
        assert not hang.over.is_set()
        hang.over.set()
        (slow, _) = wheel._writer().appender.copies._mirrors  # type: ignore[union-attr]
        eventually(lambda: slow.durable == 5)
    assert wheels.payloads(1) == wheels.payloads(0)


def test_a_slow_mirror_that_nobody_waits_for_fails_all_the_same_when_it_does_not_answer(make_set: MakeSet) -> None:
    wheels = make_set("mirror", "mirror", copies=2, on_failure="stale", timeout_s=0.1)
    hang = Hang("fdatasync")
    with wheels.open() as wheel:
        wheels.fail[1] = hang
        eventually(lambda: wheel.enqueue(b"x", delay=60) and wheels.roster().members[0].state == "stale")
        hang.over.set()


# -- who is a mirror ------------------------------------------------------------------------------------------


def test_a_roster_that_is_followed_again_costs_nothing(make_set: MakeSet) -> None:
    wheels = make_set()
    with wheels.open() as wheel:
        wheels.events.clear()
        for _ in range(3):
            wheels.follow(wheel)
        assert [n for n, _, _ in wheels.events] == []


def test_a_mirror_that_has_a_frame_is_not_given_it_by_another_look(make_set: MakeSet) -> None:
    wheels = make_set()
    with wheels.open() as wheel:
        wheels.fail[0] = lambda kind, name: wheels.clock.advance(1)  # each look is old when its frame is written
        wheel.enqueue(b"one", delay=60)
        ids = wheel.enqueue_many([b"two", b"three"], delay=60)
        wheel.cancel(ids[0])
    assert len(wheels.frames(0)) > 2
    assert [f.body for f in wheels.frames(1)] == [f.body for f in wheels.frames(0) if not f.is_seal]


def test_a_wheel_is_written_to_only_while_its_roster_names_it_a_current_mirror(make_set: MakeSet) -> None:
    wheels = make_set()
    with wheels.open() as wheel:
        wheel.enqueue(b"0", delay=60)
        for state, role in (("joining", "primary"), ("stale", "primary"), ("current", "fenced"), ("current", "backup")):
            roster = wheels.roster()
            changed = replace(roster, role=role, members=(replace(roster.members[0], state=state),))
            wheel._writer().follow(changed)
            assert wheel._writer().put(START_US, START_US, pack_tail("", None), b"1").copies == 1
        wheels.follow(wheel)
        assert wheel.enqueue(b"2", delay=60).copies == 2
        wheel._writer().follow(None)
        assert wheel._writer().put(START_US, START_US, pack_tail("", None), b"1").copies == 1
    assert wheels.payloads(1) == [b"0", b"2"]


@pytest.mark.parametrize("what", ["another wheel", "another set", "no roster", "primary", "gone"])
def test_a_directory_that_is_not_this_set_s_backup_is_not_written_to(make_set: MakeSet, what: str) -> None:
    wheels = make_set(on_failure="refuse")
    place = wheels.paths[1]
    roster = (place / "roster.json").read_bytes()
    match what:
        case "another wheel":
            theirs = wheels.roster(1)
            place.rename(place.with_name("away"))
            create_directory(place, now_us=START_US)
            wheels.write(1, lambda _: theirs)
        case "another set":
            wheels.write(1, lambda r: replace(r, set="another"))
        case "no roster":
            (place / "roster.json").unlink()
        case "primary":
            wheels.write(1, lambda r: replace(r, role="primary"))
        case "gone":
            place.rename(place.with_name("away"))
    wheel = wheels.open()
    with pytest.raises(TooFewCopies, match="nothing of this call was written"):
        wheel.enqueue(b"x", delay=60)
    wheel.close()
    if what == "gone":
        place.with_name("away").rename(place)
    assert os.listdir(place / "journal") == []
    (place / "roster.json").write_bytes(roster)


def test_a_mirror_that_follows_a_higher_epoch_fences_who_would_write_to_it(make_set: MakeSet) -> None:
    wheels = make_set(on_failure="stale")
    wheels.write(1, lambda r: replace(r, epoch=2, role="primary", primary=str(wheels.paths[1])))
    wheel = Wheel(wheels.paths[0], env=SYSTEM.using(disk=wheels.disk), clock=wheels.clock)
    with pytest.raises(Fenced) as caught:
        wheels.follow(wheel)
    assert (caught.value.primary, caught.value.epoch) == (str(wheels.paths[1]), 2)
    with pytest.raises(Fenced):
        wheel._writer().put(START_US, START_US, pack_tail("", None), b"x")
    wheel.close()
    assert os.listdir(wheels.paths[1] / "journal") == []
    assert wheels.roster().members[0].state == "current"


@pytest.mark.parametrize("gone", ["all of it", "its roster"])
def test_a_mirror_that_was_deleted_under_an_open_handle_holds_nothing_more(make_set: MakeSet, gone: str) -> None:
    wheels = make_set(on_failure="stale")
    with wheels.open() as wheel:
        assert wheel.enqueue(b"0", delay=60).copies == 2
        if gone == "all of it":
            shutil.rmtree(wheels.paths[1])
        else:
            (wheels.paths[1] / "roster.json").rename(wheels.paths[1] / "away")  # flushes go on; nobody promotes it
        eventually(lambda: wheel.enqueue(b"1", delay=60).copies == 1)
        assert wheels.roster().members[0].state == "stale"
    if gone == "its roster":
        (wheels.paths[1] / "away").rename(wheels.paths[1] / "roster.json")


@pytest.mark.parametrize("gone", ["deleted", "moved away"])
def test_a_mirror_whose_journal_was_deleted_under_an_open_handle_holds_nothing_more(
    make_set: MakeSet, tmp_path: Path, gone: str
) -> None:
    wheels = make_set(on_failure="stale")
    with wheels.open() as wheel:
        assert wheel.enqueue(b"0", delay=60).copies == 2
        for name in os.listdir(wheels.paths[1] / "journal"):
            journal = wheels.paths[1] / "journal" / name
            if gone == "deleted":
                journal.unlink()
            else:
                journal.rename(tmp_path / name)  # it has a name still: only a look at its place shows it
        eventually(lambda: wheel.enqueue(b"1", delay=60).copies == 1)
        assert wheels.roster().members[0].state == "stale"


def test_a_mirror_that_was_promoted_under_an_open_handle_confirms_nothing_more(make_set: MakeSet) -> None:
    wheels = make_set(on_failure="stale")
    wheel = wheels.open()
    looks: list[str] = []
    wheels.fail[1] = lambda kind, name: looks.append(name) if kind == "open" and name == "roster.json" else None
    wheel.enqueue(b"0", delay=60)
    wheels.write(1, lambda r: replace(r, timeout_s=7.0))
    eventually(lambda: wheel.enqueue(b"1", delay=60).copies == 2 and looks)  # what changed is no matter here
    assert wheel.enqueue(b"1", delay=60).copies == 2
    wheels.write(1, lambda r: replace(r, epoch=2, role="primary", primary=str(wheels.paths[1])))
    for _ in range(2):
        with pytest.raises(Fenced):
            eventually(lambda: wheel.enqueue(b"2", delay=60).copies == 0)
    assert wheels.roster().members[0].state == "current"
    wheel.close()


def test_a_set_that_changes_while_threads_enqueue_loses_and_doubles_nothing(make_set: MakeSet) -> None:
    wheels = make_set("mirror", "mirror")
    full = wheels.roster()
    rosters = [full, None, replace(full, members=full.members[:1]), replace(full, members=full.members[1:])]
    got: list[MessageId] = []
    with wheels.open() as wheel:
        over = threading.Event()

        def enqueue(sync: str) -> None:
            while not over.is_set():
                got.append(wheel.enqueue(b"x", delay=60, sync=sync))

        threads = [threading.Thread(target=enqueue, args=(sync,)) for sync in ("always", "always", "never", "always")]
        for thread in threads:
            thread.start()
        for n in range(24):
            wheel._writer().follow(rosters[n % 4])
            time.sleep(0.005)
        over.set()
        for thread in threads:
            thread.join()
    held: list[set[MessageId]] = []
    for path in wheels.paths:
        with Wheel(path) as found:
            listed = [m.id for m in found.list()]
            assert len(listed) == len(set(listed))
            held.append(set(listed))
    assert held[0] == set(got)
    assert held[1] | held[2] <= held[0]
    for id_ in got:
        assert id_.copies <= sum(id_ in some for some in held)
    assert {id_.copies for id_ in got} == {1, 2, 3}


# -- the keeper -----------------------------------------------------------------------------------------------


def open_keeper(wheels: WheelSet) -> Keeper:
    keeper = Keeper(wheels.paths[0], env=SYSTEM.using(disk=wheels.disk), clock=wheels.clock, background=False)
    keeper._store.own.follow(wheels.roster())
    return keeper


def test_what_the_keeper_writes_reaches_the_mirror(make_set: MakeSet) -> None:
    wheels = make_set()
    with wheels.open() as wheel:
        wheel.enqueue_many([b"0", b"1", b"2"], delay=0)
    with open_keeper(wheels) as keeper:
        batch = keeper.claim()
        keeper.ack(list(batch)[:1])
        keeper.nack(list(batch)[1], delay=60)
        assert wheels.payloads(1) == [b"1", b"2"]
        keeper.ack(list(batch)[2])
        wheels.events.clear()
        keeper._store.own.flush()
        assert sorted(wheels.calls("fdatasync")) == [0, 1]
    assert wheels.payloads(1) == wheels.payloads(0) == [b"1"]


@pytest.mark.parametrize("on_failure", ["refuse", "stale"])
@pytest.mark.parametrize("what", list(FAILURES))
def test_a_mirror_that_fails_does_not_stop_the_keeper_from_firing(
    make_set: MakeSet, what: str, on_failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    wheels = make_set(on_failure=on_failure)
    with wheels.open() as wheel:
        wheel.enqueue_many([b"%d" % n for n in range(10)], delay=0)
    with open_keeper(wheels) as keeper:
        wheels.fail[1] = FAILURES[what]()
        for _ in range(10):
            keeper.ack(keeper.claim(1))
            keeper._store.own.flush()
            wheels.clock.advance(1)
        assert not keeper.claim()
        assert len([r for r in caplog.records if " failed: " in r.message]) == 1
        assert wheels.roster().members[0].state == ("stale" if on_failure == "stale" else "current")
    assert wheels.payloads(0) == []
