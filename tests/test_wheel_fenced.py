"""Backups and fenced wheels: who may not write there, who may not fire, and what goes on all the same."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import AsyncKeeper, AsyncWheel, Fenced, Keeper, Locked, Settlement, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.journal.journal import Journal
from filewheel.laps.tidy import TIDY_SEGMENTS, tidy
from filewheel.message import US_PER_S
from filewheel.roster.roster import Roster
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.conftest import assert_whole
from tests.support import FakeClock, FaultyDisk
from tests.support_set import alter, fence, make_set, promote, roster_of

ID = "01" + "0" * 24
OLD_US = 10**15
LOOK_S = 0.2


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return tmp_path / "other.wheel"


def payloads(path: Path) -> list[bytes]:
    with Wheel(path) as wheel:
        return sorted(m.payload for m in wheel.list())


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Call a function in a thread; return that, and what the call raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


# -- producers ------------------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[Wheel], object]] = {
    "enqueue": lambda w: w.enqueue(b"x"),
    "enqueue a key": lambda w: w.enqueue(b"x", key="k", on_conflict="replace"),
    "enqueue_many": lambda w: w.enqueue_many([b"x", b"y"]),
    "enqueue none": lambda w: w.enqueue_many([]),
    "add": lambda w: w.add(list(w.list())),
    "cancel": lambda w: w.cancel(ID),
    "cancel a key": lambda w: w.cancel(key="k"),
    "cancel_many": lambda w: w.cancel_many([ID]),
    "reschedule": lambda w: w.reschedule(ID, delay=1),
    "reschedule a key": lambda w: w.reschedule(key="k", delay=1),
}


def contents(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("role", ["backup", "fenced"])
@pytest.mark.parametrize("call", WRITES)
def test_no_call_writes_to_a_wheel_that_is_not_the_primary(wheel_dir: Path, other: Path, call: str, role: str) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"kept", delay=60, key="k")
    make_set(other, wheel_dir)
    alter(wheel_dir, role=role)
    before = contents(wheel_dir)
    with Wheel(wheel_dir) as wheel:
        for _ in range(2):
            with pytest.raises(Fenced) as caught:
                WRITES[call](wheel)
            assert caught.value.primary == str(other)
    assert contents(wheel_dir) == before


@pytest.mark.parametrize("role", ["backup", "fenced"])
def test_everything_can_be_read_there(wheel_dir: Path, other: Path, role: str) -> None:
    with Wheel(wheel_dir) as wheel:
        id_ = wheel.enqueue(b"kept", delay=60, topic="t", key="k")
    make_set(other, wheel_dir)
    alter(wheel_dir, role=role)
    with Wheel(wheel_dir) as wheel:
        assert wheel.get(id_) == wheel.get(key="k") == wheel.peek()[0]
        assert wheel.stats().pending == 1
        assert wheel.topics() == {"t": 1}
        wheel.flush()
        with wheel.snapshot() as snapshot:
            assert [m.id for m in snapshot.messages()] == [id_]


def test_a_producer_that_runs_is_stopped_within_a_fifth_of_a_second_and_goes_on_when_it_is_the_primary_again(
    wheel_dir: Path, other: Path
) -> None:
    clock = FakeClock()
    make_set(wheel_dir, other)
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"1")
        promote(other)
        fence(wheel_dir, other)
        clock.advance(LOOK_S - 0.001)
        wheel.enqueue(b"2")
        clock.advance(0.001)
        for _ in range(2):
            with pytest.raises(Fenced):
                wheel.enqueue(b"3")
        promote(wheel_dir)
        wheel.enqueue(b"4")
    assert payloads(wheel_dir) == [b"1", b"2", b"4"]


def test_a_clock_that_went_back_does_not_keep_a_producer_from_looking(wheel_dir: Path, other: Path) -> None:
    clock = FakeClock()
    make_set(wheel_dir, other)
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"1")
        promote(other)
        fence(wheel_dir, other)
        clock.step(-3600)
        with pytest.raises(Fenced):
            wheel.enqueue(b"2")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Roster | None]:
    """The rosters that journals were told of."""
    found: list[Roster | None] = []
    follow = Journal._follow

    def noted(self: Journal, roster: Roster | None, ticket: int) -> None:
        found.append(roster)
        follow(self, roster, ticket)

    monkeypatch.setattr(Journal, "_follow", noted)
    return found


def test_a_producers_journal_is_told_of_each_roster_once(
    wheel_dir: Path, other: Path, told: list[Roster | None]
) -> None:
    clock = FakeClock()
    first = make_set(wheel_dir, other)
    with Wheel(wheel_dir, clock=clock) as wheel:
        for n in range(6):
            if n == 4:
                alter(wheel_dir, timeout_s=7.0)
            clock.advance(LOOK_S)
            wheel.enqueue_many([b"x"]) if n % 2 else wheel.enqueue(b"x")
    assert told == [first, roster_of(wheel_dir)]


def test_a_roster_that_the_journal_could_not_follow_is_followed_by_the_next_call(
    wheel_dir: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_set(wheel_dir, other)
    calls: list[Roster | None] = []

    def follow(self: Journal, roster: Roster | None, ticket: int) -> None:
        calls.append(roster)
        if len(calls) == 1:
            raise ZeroDivisionError
        self.roster = roster

    monkeypatch.setattr(Journal, "_follow", follow)
    with Wheel(wheel_dir, clock=FakeClock()) as wheel:
        with pytest.raises(ZeroDivisionError):
            wheel.enqueue(b"1")
        wheel.enqueue(b"2")
    assert len(calls) == 2
    assert payloads(wheel_dir) == [b"2"]


def test_threads_that_enqueue_at_once_are_all_stopped(wheel_dir: Path, other: Path, told: list[Roster | None]) -> None:
    make_set(wheel_dir, other)
    with Wheel(wheel_dir) as wheel:

        def enqueue() -> None:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                wheel.enqueue(b"x", sync="never")

        threads = [in_thread(enqueue) for _ in range(4)]
        promote(other)
        fence(wheel_dir, other)
        for thread, raised in threads:
            thread.join(60)
            assert [type(exc) for exc in raised] == [Fenced]
    assert len(told) <= 1


def test_an_event_loops_producer_is_stopped_too(wheel_dir: Path, other: Path) -> None:
    make_set(other, wheel_dir)

    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            for write in (wheel.enqueue(b"x"), wheel.enqueue(b"x", key="k"), wheel.enqueue_many([b"x"])):
                with pytest.raises(Fenced):
                    await write

    asyncio.run(main())


# -- keepers --------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(wheel_dir: Path, other: Path) -> Path:
    """A primary in which three messages are due, and which has a backup."""
    with Wheel(wheel_dir) as wheel:
        for n in range(3):
            wheel.enqueue(b"%d" % n, at=OLD_US / US_PER_S + n)
    make_set(wheel_dir, other)
    return wheel_dir


@pytest.mark.parametrize("wait", [True, False])
def test_a_keeper_of_a_backup_is_not_opened_and_leaves_the_lock_free(pair: Path, other: Path, wait: bool) -> None:
    with pytest.raises(Fenced, match="backup of"):
        Keeper(other, wait=wait)
    promote(other)
    with Keeper(other, wait=False) as keeper:
        assert not keeper.claim()


def test_a_keeper_is_not_opened_when_another_wheel_was_promoted_though_nobody_told_this_one(
    pair: Path, other: Path
) -> None:
    promote(other)
    with pytest.raises(Fenced, match="was promoted"):
        Keeper(pair)
    assert roster_of(pair).role == "fenced"


@pytest.mark.parametrize("wait", [False, True])
def test_no_keeper_waits_for_the_lock_of_a_fenced_wheel(pair: Path, other: Path, wait: bool) -> None:
    with Keeper(pair):
        promote(other)
        with pytest.raises(Fenced):
            Keeper(pair, wait=wait)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_standby_that_waited_through_a_promotion_does_not_fire(pair: Path, other: Path, is_told: bool) -> None:
    waits = threading.Event()

    class Telling(OsDisk):
        def lock(self, fd: int, *, wait: bool) -> bool:
            waits.set()
            return super().lock(fd, wait=wait)

    with Keeper(pair):
        standby, raised = in_thread(lambda: Keeper(pair, env=SYSTEM.using(disk=Telling)))
        assert waits.wait(60)
        promote(other)
        if is_told:
            fence(pair, other)
    standby.join(60)
    assert [type(exc) for exc in raised] == [Fenced]
    KeeperLock(open_directory(pair, write=True)).take("keeper", wait=False)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_keeper_claims_nothing_after_a_promotion_but_what_is_in_hand_is_acknowledged(
    pair: Path, other: Path, is_told: bool
) -> None:
    keeper = Keeper(pair, background=False)
    first, second = keeper.claim(2)
    promote(other)
    if is_told:
        fence(pair, other)
    for _ in range(2):
        with pytest.raises(Fenced):
            keeper.claim()
        with pytest.raises(Fenced):
            keeper.check_may_fire()
        with pytest.raises(Fenced):
            keeper.wait()
    assert keeper.ack(first) == 1
    assert keeper.settle([Settlement(second.id, "acked")], sync="always") == [None]
    keeper.close()
    assert payloads(pair) == [b"2"]
    promote(pair)
    with Keeper(pair, wait=False) as keeper:
        assert [m.payload for m in keeper.claim()] == [b"2"]


def test_a_keeper_that_was_fenced_does_not_fire_again_when_the_other_wheel_goes_out_of_sight(
    pair: Path, other: Path
) -> None:
    def fail(kind: str, name: str) -> None:
        if kind == "pwrite" and "roster" in name:
            raise OSError(28, "No space left on device")

    clock = FakeClock()
    with Keeper(
        pair, background=False, clock=clock, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))
    ) as keeper:
        promote(other)
        with pytest.raises(Fenced):
            keeper.claim()
        assert roster_of(pair).role == "primary"
        other.rename(other.with_name("unmounted"))
        clock.advance(2)
        with pytest.raises(Fenced):
            keeper.claim()


def test_what_failed_after_a_promotion_stays_where_it_is_and_what_succeeded_is_written(pair: Path, other: Path) -> None:
    with Keeper(pair, background=False) as keeper:
        a, b, c = keeper.claim()
        promote(other)
        with pytest.raises(Fenced):
            keeper.claim()
        with pytest.raises(Fenced):
            keeper.nack(a)
        with pytest.raises(Fenced):
            keeper.bury(b)
        with pytest.raises(Fenced):
            keeper.settle([Settlement(a.id, "retried", a.due_us), Settlement(c.id, "acked")])
        assert [keeper.holds(m.id) for m in (a, b, c)] == [True, True, False]
    with Wheel(pair) as wheel:
        assert [m.id for m in wheel.list()] == [a.id, b.id]
        assert not list(wheel.list(dead=True))


@pytest.mark.parametrize("trouble", ["fdatasync", "pwrite"])
def test_a_fenced_keeper_on_a_disk_that_fails_closes_and_frees_the_lock(pair: Path, other: Path, trouble: str) -> None:
    broken: list[str] = []

    def fail(kind: str, name: str) -> None:
        if kind in broken and "journal" in name:
            raise OSError(5, "Input/output error")

    keeper = Keeper(pair, background=False, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail)))
    keeper.ack(keeper.claim(1))
    promote(other)
    with pytest.raises(Fenced):
        keeper.claim()
    broken.append(trouble)
    keeper.close()
    keeper.close()
    KeeperLock(open_directory(pair, write=True)).take("keeper", wait=False)


def test_batches_end_with_the_error_also_while_nothing_is_due(wheel_dir: Path, other: Path) -> None:
    make_set(wheel_dir, other)
    with Keeper(wheel_dir) as keeper:
        idle, raised = in_thread(lambda: list(keeper.batches()))
        promote(other)
        idle.join(60)
        assert [type(exc) for exc in raised] == [Fenced]


def test_a_keepers_journal_is_told_of_each_roster_once(wheel_dir: Path, other: Path, told: list[Roster | None]) -> None:
    first = make_set(wheel_dir, other)
    with Keeper(wheel_dir, background=False) as keeper:
        keeper.claim()
        alter(wheel_dir, timeout_s=7.0)
        keeper.claim()
        keeper.claim()
    assert told == [first, roster_of(wheel_dir)]


def test_an_event_loops_keeper_ends_with_the_error_and_acknowledges_what_is_in_hand(pair: Path, other: Path) -> None:
    async def main() -> None:
        async with AsyncKeeper(pair) as keeper:
            (first,) = await keeper.claim(1)
            promote(other)
            with pytest.raises(Fenced):
                await keeper.claim()
            await keeper.ack(first)
        async with AsyncWheel(pair) as wheel:
            with pytest.raises(Fenced):
                await anext(wheel.due())

    asyncio.run(main())
    assert payloads(pair) == [b"1", b"2"]


def test_what_an_event_loop_has_claimed_is_not_all_handed_out_after_a_promotion(wheel_dir: Path, other: Path) -> None:
    count = 100
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"x"] * count)
    make_set(wheel_dir, other)
    handed: list[bytes] = []

    async def main() -> None:
        async with AsyncKeeper(wheel_dir) as keeper:
            with pytest.raises(Fenced):
                async for message in keeper.due(count):
                    handed.append(message.payload)
                    if len(handed) == 1:
                        promote(other)
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    assert len(handed) < count


def test_an_event_loops_standby_ends_with_the_error_too(pair: Path, other: Path) -> None:
    async def main() -> None:
        async with AsyncKeeper(pair):
            standby = asyncio.create_task(AsyncKeeper(pair).open())
            await asyncio.sleep(0)
            promote(other)
            with pytest.raises(Fenced):
                await standby

    asyncio.run(main())


# -- whoever else has to do with the wheel --------------------------------------------------------------------


@pytest.mark.parametrize("role", ["primary", "backup", "fenced"])
def test_only_a_primary_is_tidied_up(wheel_dir: Path, other: Path, role: str) -> None:
    for _ in range(3):
        with Wheel(wheel_dir) as wheel:
            wheel.enqueue(b"x", delay=60)
    make_set(wheel_dir, other)
    alter(wheel_dir, role=role)
    assert tidy(open_directory(wheel_dir, write=True)) == (role == "primary")
    assert len(list((wheel_dir / "journal").iterdir())) == (0 if role == "primary" else 3)


def test_a_producer_that_ends_on_a_wheel_that_became_a_backup_leaves_its_segments(wheel_dir: Path, other: Path) -> None:
    for _ in range(TIDY_SEGMENTS - 1):
        with Wheel(wheel_dir, sync="never") as wheel:
            wheel.enqueue(b"x")
    make_set(wheel_dir, other)
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x")
        promote(other)
        fence(wheel_dir, other)
    assert len(list((wheel_dir / "journal").iterdir())) == TIDY_SEGMENTS


def test_who_holds_the_lock_of_a_backup_is_said_to_replicate_to_it(wheel_dir: Path, other: Path) -> None:
    make_set(other, wheel_dir)
    directory = open_directory(wheel_dir, write=True)
    owner = KeeperLock(directory)
    owner.take("backup", wait=False)
    with pytest.raises(Locked, match="is replicating to it") as caught:
        repair(open_directory(wheel_dir, write=True))
    assert caught.value.role == "backup"
    owner.release()


def test_the_files_of_a_set_are_no_strangers_to_verify(pair: Path, other: Path) -> None:
    for name in ("ticks", "forks", "small.tmp"):
        (pair / name).write_bytes(b"")
    assert not verify(open_directory(pair, write=False)).findings
    assert_whole(other)


@pytest.mark.damages
def test_a_damaged_roster_is_told_and_none_is_made_up(pair: Path) -> None:
    data = (pair / "roster.json").read_bytes().replace(b'"epoch": 1', b'"epoch": 7')
    (pair / "roster.json").write_bytes(data)
    (found,) = verify(open_directory(pair, write=False)).findings
    assert (found.kind, found.name) == ("damage", "roster.json")
    assert "copy the roster.json of a backup" in found.hint
    done = repair(open_directory(pair, write=True))
    assert [f.name for f in done.found] == ["roster.json"]
    assert not done.done
    assert (pair / "roster.json").read_bytes() == data
    assert payloads(pair) == [b"0", b"1", b"2"]


def test_a_backup_is_repaired_and_verified_as_any_wheel(wheel_dir: Path, other: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=60)
    make_set(other, wheel_dir)
    (wheel_dir / "wheel.json.copy").write_bytes(b"")
    done = repair(open_directory(wheel_dir, write=True))
    assert done.done == ["wheel.json.copy was written again"]
    assert payloads(wheel_dir) == [b"x"]
    assert not verify(open_directory(wheel_dir, write=False)).findings
