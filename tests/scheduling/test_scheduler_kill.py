"""A kill ends one attempt that runs: in a process, or in an event loop; and says why it cannot end another."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from filewheel import AsyncScheduler, AsyncWheel, Keeper, Killed, MessageId, Retry, Scheduler, Wheel
from filewheel.scheduling.job import Job
from tests.scheduling import process_targets
from tests.support import eventually

OUTCOMES = [("cancel", "killed"), ("retry", "retried"), ("bury", "dead")]


def runs(wheel: Wheel, id_: MessageId) -> bool:
    """Whether a message runs, and the list says where."""
    run = wheel.running().find(id_)
    return run is not None and run.begun_us is not None and wheel.running().state_of(id_) == "running"


def place_of(wheel: Wheel, id_: MessageId) -> str | None:
    """Where the list says that a message runs; at first it says "program", until the call itself has begun."""
    run = wheel.running().find(id_)
    return None if run is None or run.place is None else run.place.kind


@pytest.mark.parametrize(("then", "outcome"), OUTCOMES)
@pytest.mark.parametrize("where", ["process", "loop"])
def test_a_killed_call_ends_at_once_and_its_message_has_the_outcome_that_was_asked_for(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch, where: str, then: str, outcome: str
) -> None:
    monkeypatch.setenv("FILEWHEEL_TEST_WHEEL", str(wheel_dir))
    scheduler = Scheduler(wheel_dir, processes=1)
    if where == "process":
        hang = scheduler.on("hang", where="process", retry=Retry(limit=3, delay_s=900))(process_targets.hang.function)
    else:

        @scheduler.on("hang", retry=Retry(limit=3, delay_s=900))
        async def hang() -> None:
            await asyncio.sleep(600)

    with scheduler, Wheel(wheel_dir) as wheel:
        id_ = hang.enqueue()
        assert eventually(lambda: runs(wheel, id_))
        assert eventually(lambda: place_of(wheel, id_) == where)
        run = wheel.running().find(id_)
        assert run is not None
        assert run.place is not None
        assert wheel.kill(id_, then=then, timeout_s=30) is Killed.KILLED  # type: ignore[arg-type]
        assert wheel.get(id_) is None
        if where == "process":
            assert run.place.pid is not None
            with pytest.raises(ProcessLookupError):
                os.kill(run.place.pid, 0)
        dead, waiting = list(wheel.list(dead=True)), list(wheel.list())
        assert (len(dead), len(waiting)) == (int(then == "bury"), int(then == "retry"))
        for moved in dead + waiting:
            assert moved.root == id_
            assert "filewheel kill" in moved.attempts[-1].error
        assert eventually(lambda: [(e.outcome, e.place) for e in wheel.history()] == [(outcome, where)])
        assert wheel.kill(id_) is Killed.ENDED
    assert scheduler.metrics.snapshot()["counters"]["killed"] == {"hang": 1}
    assert os.listdir(wheel_dir / "kills") == []


def test_the_process_of_another_call_goes_on(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILEWHEEL_TEST_WHEEL", str(wheel_dir))
    scheduler = Scheduler(wheel_dir, processes=2)
    hang = scheduler.on("hang", where="process")(process_targets.hang.function)
    with scheduler, Wheel(wheel_dir) as wheel:
        ids = [hang.enqueue(), hang.enqueue()]
        assert eventually(lambda: all(runs(wheel, id_) for id_ in ids))
        other = wheel.running().find(ids[1])
        assert wheel.kill(ids[0], timeout_s=30)
        assert wheel.running().state_of(ids[1]) == "running"
        assert other is not None
        assert other.place is not None
        assert other.place.pid is not None
        os.kill(other.place.pid, 0)
        scheduler.stop(0)


def test_a_call_in_a_thread_cannot_be_killed_and_one_that_waits_is_to_be_cancelled(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir, threads=1)
    go_on, begun = threading.Event(), threading.Event()

    @scheduler.on("hold")
    def hold() -> None:
        begun.set()
        go_on.wait(60)

    with scheduler, Wheel(wheel_dir) as wheel:
        first, second = hold.enqueue(), hold.enqueue()
        later = wheel.enqueue(b"", delay=3600)
        assert begun.wait(60)
        assert eventually(lambda: runs(wheel, first))
        assert wheel.kill(first) is Killed.THREAD
        assert wheel.kill(second) is Killed.WAITING
        assert wheel.kill(later) is Killed.ENDED
        go_on.set()
        assert eventually(lambda: len(wheel.history()) == 2)
    assert os.listdir(wheel_dir / "kills") == []


def test_a_call_that_ends_by_itself_is_not_reported_as_killed(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)
    go_on = threading.Event()

    @scheduler.on("stubborn")
    async def stubborn() -> None:
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                asyncio.current_task().uncancel()  # type: ignore[union-attr]
                go_on.set()

    with scheduler, Wheel(wheel_dir) as wheel:
        id_ = stubborn.enqueue()
        assert eventually(lambda: runs(wheel, id_))
        assert wheel.kill(id_, timeout_s=30) is Killed.ENDED
        assert eventually(lambda: [e.outcome for e in wheel.history()] == ["acked"])


def test_of_a_batch_one_message_has_the_outcome_that_was_asked_for_and_the_others_are_retried(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)

    @scheduler.on("many", batch=10, retry=Retry(delay_s=900))
    async def many(jobs: list[Job]) -> None:
        await asyncio.sleep(600)

    ids = [many.enqueue() for _ in range(3)]
    with scheduler, Wheel(wheel_dir) as wheel:
        assert eventually(lambda: all(runs(wheel, id_) for id_ in ids))
        assert wheel.kill(ids[1], timeout_s=30)
        found = {e.id: e.outcome for e in wheel.history()} if eventually(lambda: len(wheel.history()) == 3) else {}
        assert found == {ids[0]: "retried", ids[1]: "killed", ids[2]: "retried"}


def test_a_killed_occurrence_does_not_end_its_schedule(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)

    @scheduler.every(3600, name="hourly")
    async def hourly() -> None:
        await asyncio.sleep(600)

    with Wheel(wheel_dir) as wheel:
        with scheduler:
            assert eventually(lambda: wheel.next_due() is not None)
            (occurrence,) = wheel.list()
            moved = wheel.reschedule(occurrence.id, delay=0)
            assert moved is not None
            assert eventually(lambda: runs(wheel, moved))
            assert wheel.kill(moved, timeout_s=30)
        (following,) = wheel.list()
        assert following.key == occurrence.key


def test_a_message_that_was_cancelled_while_it_ran_can_be_killed_and_is_not_retried(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)

    @scheduler.on("hang")
    async def hang() -> None:
        await asyncio.sleep(600)

    with scheduler, Wheel(wheel_dir) as wheel:
        id_ = hang.enqueue()
        assert eventually(lambda: runs(wheel, id_))
        wheel.cancel(id_)
        assert wheel.kill(id_, then="retry", timeout_s=30)
        assert list(wheel.list()) == []


def test_two_who_kill_the_same_run_both_get_an_answer(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)

    @scheduler.on("slow")
    async def slow() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(1)

    answers: list[Killed] = []
    with scheduler, Wheel(wheel_dir) as wheel:
        id_ = slow.enqueue()
        assert eventually(lambda: runs(wheel, id_))

        def kill(then: str) -> None:
            with Wheel(wheel_dir) as own:
                answers.append(own.kill(id_, then=then, timeout_s=30))  # type: ignore[arg-type]

        threads = [threading.Thread(target=kill, args=[then]) for then in ("cancel", "cancel", "bury")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers.count(Killed.KILLED) in (1, 2)
    assert set(answers) <= {Killed.KILLED, Killed.OTHER, Killed.ENDED}


def test_by_key_and_by_the_first_id_the_present_attempt_is_killed(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)

    @scheduler.on("hang", retry=Retry(delay_s=0.01))
    async def hang() -> None:
        await asyncio.sleep(600)

    with scheduler, Wheel(wheel_dir) as wheel:
        first = hang.options(key="ann").enqueue()
        assert eventually(lambda: runs(wheel, first))
        assert wheel.kill(key="ann", then="retry", timeout_s=30)
        assert eventually(lambda: any(r.first_id == first and r.attempt and r.begun_us for r in wheel.running()))
        assert wheel.kill(first, timeout_s=30)
        assert wheel.kill(key="ann") is Killed.ENDED


def test_an_async_wheel_kills_without_blocking_its_loop(wheel_dir: Path) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(wheel_dir)

        @scheduler.on("hang")
        async def hang() -> None:
            await asyncio.sleep(600)

        async with scheduler, AsyncWheel(wheel_dir) as wheel:
            id_ = await hang.enqueue()
            while not any(r.id == id_ and r.begun_us for r in await wheel.running()):
                await asyncio.sleep(0.05)
            assert await wheel.kill(id_, timeout_s=30) is Killed.KILLED
            assert await wheel.kill(id_) is Killed.ENDED
            assert [e.outcome for e in await wheel.history()] in ([], ["killed"])

    asyncio.run(main())


def test_without_a_keeper_nothing_is_killed_and_nothing_is_left(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        id_ = wheel.enqueue(b"x")
        assert wheel.kill(id_) is Killed.NO_KEEPER
        with Keeper(wheel_dir) as keeper:
            keeper.claim()
            assert wheel.kill(id_, timeout_s=30) is Killed.PROGRAM
        with Keeper(wheel_dir, background=False):
            assert wheel.kill(id_, timeout_s=0.1) is Killed.TIMED_OUT, "it does not look"
    assert os.listdir(wheel_dir / "kills") == []
