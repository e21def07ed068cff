"""A call that has not begun when cancel, reschedule or replace returned does not begin, wherever it waits."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncKeeper, AsyncScheduler, DiskError, Job, Keeper, Scheduler, Wheel
from filewheel.disk.disk import SYSTEM
from filewheel.format import layout
from tests.cli.support import Fw
from tests.scheduling import process_targets
from tests.support import FakeClock, FaultyDisk, eventually

COUNT = 12


class Gate:
    """A handler of which the first calls wait until they are let go."""

    def __init__(self) -> None:
        self.called: list[int] = []
        self.began = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, n: int) -> None:
        self.called.append(n)
        self.began.release()
        assert self.open.wait(120)

    async def wait(self, n: int) -> None:
        self.called.append(n)
        self.began.release()
        while not self.open.is_set():
            await asyncio.sleep(0.001)


def all_but(wheel: Wheel, called: list[int], ids: list[Any], act: Callable[[Any], object]) -> list[Any]:
    """Do something to each call that has not begun; return what came of it."""
    return [act(id_) for n, id_ in enumerate(ids) if n not in called]


@pytest.mark.parametrize("where", ["threads", "concurrency", "loop", "rate", "rate in a loop"])
def test_what_waits_for_a_thread_a_lane_or_a_rate_is_not_begun_once_it_was_cancelled(
    wheel_dir: Path, where: str
) -> None:
    scheduler = Scheduler(wheel_dir, threads=2)
    gate = Gate()
    terms: dict[str, Any] = {
        "threads": {}, "concurrency": {"concurrency": 2}, "loop": {"concurrency": 2}, "rate": {"rate_per_s": 2},
        "rate in a loop": {"rate_per_s": 2},
    }[where]  # fmt: skip
    function = gate.wait if "loop" in where else gate
    scheduler.on("job", **terms)(function)
    ids = [scheduler.enqueue("job", [n]) for n in range(COUNT)]
    with scheduler:
        for _ in range(2):
            assert gate.began.acquire(timeout=120)
        with Wheel(wheel_dir) as wheel:
            assert len(wheel.cancel_many(ids[2:])) == COUNT - 2
            gate.open.set()
            assert eventually(lambda: not list(wheel.list()))
            assert eventually(lambda: scheduler._engine.dispatcher.claimed == 0)  # type: ignore[union-attr]
    assert sorted(gate.called) == [0, 1]


def test_what_waits_for_a_process_is_not_begun_once_it_was_cancelled(wheel_dir: Path, tmp_path: Path) -> None:
    scheduler = Scheduler(wheel_dir, processes=1)
    handler = scheduler.on("job", where="process")(process_targets.hold)
    ids = [handler.enqueue(str(tmp_path), n) for n in range(COUNT)]
    with scheduler:
        assert eventually((tmp_path / "began-0").exists)
        with Wheel(wheel_dir) as wheel:
            assert len(wheel.cancel_many(ids[1:])) == COUNT - 1
            (tmp_path / "go-on").touch()
            assert eventually(lambda: not list(wheel.list()))
            assert eventually(lambda: scheduler._engine.dispatcher.claimed == 0)  # type: ignore[union-attr]
    assert [p.name for p in tmp_path.glob("began-*")] == ["began-0"]


def test_what_waits_and_is_moved_or_replaced_is_called_once_at_its_new_time(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir, threads=1)
    gate = Gate()
    scheduler.on("job")(gate)
    for n in range(4):
        scheduler.enqueue("job", [n], key=f"k{n}")
    with scheduler:
        assert gate.began.acquire(timeout=120)
        scheduler.wheel.reschedule(key="k1", delay=3600)
        scheduler.enqueue("job", [20], key="k2", on_conflict="replace", delay=3600)
        gate.open.set()
        assert eventually(lambda: scheduler.wheel.get(key="k3") is None)
        assert gate.called == [0, 3]
        assert sorted(m.headers["filewheel.key"] for m in scheduler.wheel.list()) == ["k1", "k2"]


def test_of_a_batch_those_that_were_cancelled_are_left_out(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir, threads=1)
    gate = Gate()
    scheduler.on("first")(gate)
    seen: list[list[int]] = []

    @scheduler.on("many", batch=10)
    def many(jobs: list[Job]) -> None:
        seen.append([job.args[0] for job in jobs])

    scheduler.enqueue("first", [0], delay=-1)
    ids = [scheduler.enqueue("many", [n]) for n in range(4)]
    with scheduler:
        assert gate.began.acquire(timeout=120)
        assert eventually(lambda: scheduler._engine.dispatcher.claimed == 5)  # type: ignore[union-attr]
        assert scheduler.cancel(ids[1])
        gate.open.set()
        assert eventually(lambda: not list(scheduler.wheel.list()))
    assert [n for some in seen for n in some] == [0, 2, 3]


def test_a_cancel_beside_a_scheduler_in_a_loop_stops_what_waits_for_its_threads(wheel_dir: Path) -> None:
    gate = Gate()

    async def main() -> None:
        scheduler = AsyncScheduler(wheel_dir, threads=1)
        handler = scheduler.on("job")(gate)
        ids = [await handler.enqueue(n) for n in range(COUNT)]
        async with scheduler:
            assert await asyncio.to_thread(gate.began.acquire, timeout=120)
            assert all([await scheduler.cancel(id_) for id_ in ids[1:]])
            gate.open.set()
            assert await asyncio.to_thread(eventually, lambda: scheduler.blocking._engine.dispatcher.claimed == 0)  # type: ignore[union-attr]

    asyncio.run(main())
    assert gate.called == [0]


def test_a_message_that_was_claimed_with_others_is_not_handed_out_by_due_once_it_was_cancelled(wheel_dir: Path) -> None:
    async def main() -> list[bytes]:
        handed: list[bytes] = []
        with Wheel(wheel_dir) as wheel:
            ids = wheel.enqueue_many([b"%d" % n for n in range(4)])
            async with AsyncKeeper(wheel_dir) as keeper:
                async for message in keeper.due(wait=False):
                    handed.append(message.payload)
                    if message.payload == b"0":
                        wheel.cancel(ids[1])
                        wheel.reschedule(ids[2], delay=3600)
            assert [m.payload for m in wheel.list()] == [b"2"]
        return handed

    assert asyncio.run(main()) == [b"0", b"3"]


def test_a_task_that_is_cancelled_while_its_message_is_looked_at_loses_nothing(wheel_dir: Path) -> None:
    async def main() -> None:
        with Wheel(wheel_dir) as wheel:
            wheel.enqueue(b"x")
        async with AsyncKeeper(wheel_dir) as keeper:
            looking, go_on = threading.Event(), threading.Event()
            begin = Keeper.begin

            def slow(self: Keeper, what: Any) -> set[bytes]:
                looking.set()
                assert go_on.wait(120)
                return begin(self, what)

            keeper._keeper.may_begin = lambda id_: False  # type: ignore
            keeper._keeper.begin = slow.__get__(keeper._keeper)  # type: ignore
            task = asyncio.ensure_future(anext(keeper.due()))
            assert await asyncio.to_thread(looking.wait, 30)
            other = asyncio.ensure_future(anext(keeper.due()))
            task.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            message = await asyncio.wait_for(other, 30)
            assert (message.payload, message.attempt) == (b"x", 0)

    asyncio.run(main())


def test_a_keeper_says_which_of_what_it_claimed_must_not_begin_and_forgets_those(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, clock=clock, background=False) as keeper:
        ids = wheel.enqueue_many([b"a", b"b", b"c"])
        batch = keeper.claim()
        wheel.cancel(ids[0])
        wheel.reschedule(ids[1], delay=5)
        assert keeper.begin(batch) == {ids[0], ids[1]}
        assert keeper.ack(batch) == 1
        assert not keeper.begin([])
        clock.advance(5)
        assert [m.payload for m in keeper.claim()] == [b"b"]


def test_what_is_given_back_is_offered_again_in_its_place_and_what_was_cancelled_is_not(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, clock=clock, background=False) as keeper:
        ids = wheel.enqueue_many([b"a", b"b", b"c"])
        first = keeper.claim(2)
        wheel.cancel(ids[0])
        keeper.begin([])
        keeper.give_back(first)
        again = keeper.claim()
        assert ([m.payload for m in again], list(again.ids)) == ([b"b", b"c"], [ids[1], ids[2]])
        keeper.ack(again)
        assert wheel.stats().pending == 0


def test_each_way_to_end_a_message_is_seen_by_the_next_begin(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Wheel(wheel_dir, sync="never") as other:
        with Keeper(wheel_dir, background=False) as keeper:
            ids = [wheel.enqueue(b"%d" % n, key=f"k{n}") for n in range(6)]
            batch = keeper.claim()
            ways: list[Callable[[], object]] = [
                lambda: wheel.cancel(ids[0]),
                lambda: other.cancel(key="k1"),
                lambda: wheel.reschedule(ids[2], delay=60),
                lambda: other.reschedule(key="k3", delay=60),
                lambda: wheel.enqueue(b"new", key="k4", on_conflict="replace", delay=60),
            ]
            for id_, way in zip(ids, ways, strict=False):
                assert keeper.begin(id_) == set()
                way()
                assert not keeper.may_begin(id_)
                assert keeper.begin(id_) == {id_}
            assert keeper.ack(batch) == 1


def test_run_does_not_begin_what_is_cancelled_between_its_claim_and_its_turn(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Wheel(wheel_dir) as wheel:
        claim = Keeper.claim

        def late(self: Keeper, limit: int = 1000, **options: bool) -> Any:
            batch = claim(self, limit, **options)
            wheel.cancel_many(m.id for m in batch if m.payload == b"0")
            return batch

        monkeypatch.setattr(Keeper, "claim", late)
        wheel.enqueue_many([b"0", b"1"])
        assert [m["payload"] for m in Fw(wheel_dir)("run", "--once").json] == ["1"]
        wheel.enqueue_many([b"0", b"1"])
        Fw(wheel_dir)("run", "--once", "--jobs", "2", "--", "sh", "-c", f'touch "{tmp_path}/called-$(cat)"')
        assert [p.name for p in tmp_path.glob("called-*")] == ["called-1"]
        assert wheel.stats().pending == 0


WAYS: dict[str, Callable[[Wheel, Any], object]] = {
    "cancel": lambda wheel, id_: wheel.cancel(id_),
    "cancel by key": lambda wheel, id_: wheel.cancel(key="k"),
    "reschedule": lambda wheel, id_: wheel.reschedule(id_, delay=99),
    "update": lambda wheel, id_: wheel.update(key="k", payload=b"new"),
    "replace": lambda wheel, id_: wheel.enqueue(b"new", delay=9, key="k", on_conflict="replace"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("there", ["a directory", "a pipe"])
def test_where_no_mark_can_be_made_a_call_that_ends_a_message_raises_and_has_changed_nothing(
    wheel_dir: Path, way: str, there: str
) -> None:
    with Wheel(wheel_dir) as wheel:
        id_ = wheel.enqueue(b"old", delay=60, key="k")
        if there == "a pipe":
            os.mkfifo(wheel_dir / layout.BEGUN)
        else:
            (wheel_dir / layout.BEGUN).mkdir()
        with pytest.raises(DiskError, match="begun"):
            WAYS[way](wheel, id_)
        assert [(m.id, m.payload) for m in wheel.list()] == [(id_, b"old")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["open", "pwrite"])
def test_on_a_full_disk_without_room_for_a_mark_a_call_ends_its_message_and_no_keeper_begins_it(
    wheel_dir: Path, way: str, kind: str
) -> None:
    def full(what: str, name: str) -> None:
        if what == kind and name == layout.BEGUN:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, full))) as wheel:
        id_ = wheel.enqueue(b"old", key="k")
        with Keeper(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, full))) as keeper:
            (message,) = keeper.claim()
            WAYS[way](wheel, id_)
            assert keeper.begin(message) == {message.id}
        assert [m.id for m in wheel.list()] != [id_]
