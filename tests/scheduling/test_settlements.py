"""Transactions: what a job enqueues in one is written with its acknowledgement, or not at all."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from filewheel import BadArgument, Closed, Keeper, Retry, Scheduler, TooLarge, current_job
from filewheel.format.ids import MINT
from tests.scheduling.stage import dead_letters, make, stage, waiting
from tests.support import FakeClock

ONCE = Retry(limit=0)


def topics(scheduler: Scheduler) -> list[str]:
    return [m.topic for m in waiting(scheduler.wheel)]


def test_what_is_enqueued_in_the_block_is_written_in_the_frame_of_the_acknowledgement(
    wheel_dir: Path, clock: FakeClock
) -> None:
    scheduler = make(wheel_dir, clock)
    seen = []

    @scheduler.on("first")
    def first() -> None:
        with current_job().transaction():
            ids = [scheduler.enqueue("second", [n], delay=60) for n in range(3)]
        seen.append((topics(scheduler), [m.id for m in current_job().enqueued] == ids))

    first.enqueue()
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        on_stage.runner.end()
        before = on_stage.keeper._store.own.appender.number
        on_stage.step()
        assert on_stage.keeper._store.own.appender.number == before + 1
        assert seen == [(["first"], True)]
        assert topics(scheduler) == ["second"] * 3
    scheduler.stop()


@pytest.mark.parametrize("where", ["block", "handler", "fail"])
def test_when_the_block_or_the_handler_fails_nothing_of_it_is_written(scheduler: Scheduler, where: str) -> None:
    @scheduler.on(retry=ONCE)
    def first() -> None:
        job = current_job()
        with job.transaction():
            scheduler.enqueue("second")
            if where == "block":
                raise ValueError
        if where == "fail":
            job.fail("on second thought")
        else:
            raise ValueError

    first.enqueue()
    scheduler.drain()
    assert topics(scheduler) == []
    assert len(dead_letters(scheduler)) == 1
    assert scheduler.metrics.counts("enqueued").get("second", 0) == 0


def test_a_block_that_failed_and_was_caught_writes_nothing_and_the_next_block_does(scheduler: Scheduler) -> None:
    @scheduler.on()
    def first() -> None:
        for name in ("bad", "good", "better"):
            try:
                with current_job().transaction():
                    scheduler.enqueue(name, delay=5)
                    if name == "bad":
                        raise ValueError
            except ValueError:
                pass

    first.enqueue()
    scheduler.drain()
    assert sorted(topics(scheduler)) == ["better", "good"]


def test_a_chain_loses_no_link_and_doubles_none_wherever_the_program_dies(wheel_dir: Path, clock: FakeClock) -> None:
    """Each keeper dies after one step of its work; the frame decides, and nothing in between."""
    done: list[int] = []
    for life in range(40):
        scheduler = make(wheel_dir, clock)

        @scheduler.on("link")
        def link(n: int, scheduler: Scheduler = scheduler) -> None:
            with current_job().transaction():
                if n < 5:
                    scheduler.enqueue("link", [n + 1])
            done.append(n)

        if life == 0:
            link.enqueue(0)
        with stage(wheel_dir, clock, scheduler) as on_stage:
            on_stage.dispatcher.step(claim=True)
            on_stage.runner.end()
            if life % 2:  # dies before the acknowledgement in every other life
                on_stage.dispatcher.step(fire=False)
        assert len(waiting(scheduler.wheel)) <= 1
        scheduler.stop()
    assert sorted(set(done)) == list(range(6))
    assert done == sorted(done)
    assert [done.count(n) for n in range(6)] == [2] * 6


def test_a_block_in_a_block_is_refused(scheduler: Scheduler) -> None:
    @scheduler.on(retry=ONCE)
    def first() -> None:
        with current_job().transaction(), pytest.raises(BadArgument, match="open already"), current_job().transaction():
            pass

    first.enqueue()
    scheduler.drain()
    assert dead_letters(scheduler) == []


def test_what_goes_to_another_wheel_is_enqueued_at_once(scheduler: Scheduler, tmp_path: Path, clock: FakeClock) -> None:
    other = Scheduler(tmp_path / "other.wheel", clock=clock)

    @scheduler.on(retry=ONCE)
    def first() -> None:
        with current_job().transaction():
            other.enqueue("there")
            assert topics(other) == ["there"]
            raise ValueError

    first.enqueue()
    scheduler.drain()
    assert topics(other) == ["there"]
    other.stop()


def test_headers_and_the_trace_go_along(scheduler: Scheduler) -> None:
    @scheduler.on()
    def first() -> None:
        with current_job().transaction():
            scheduler.enqueue("inside", delay=5, headers={"mine": "1"})
            scheduler.enqueue("own", delay=5, headers={"traceparent": "own"})
        scheduler.enqueue("outside", delay=5)

    first.options(headers={"traceparent": "00-abc", "tenant": "a"}).enqueue()
    scheduler.drain()
    found = {m.topic: m.headers for m in waiting(scheduler.wheel)}
    assert found["inside"]["traceparent"] == found["outside"]["traceparent"] == "00-abc"
    assert found["inside"]["mine"] == "1"
    assert found["own"]["traceparent"] == "own"
    assert "tenant" not in found["inside"]


REFUSED: dict[str, tuple[Callable[[Scheduler], Any], type[Exception]]] = {
    "an empty key": (lambda s: s.enqueue("x", key=""), BadArgument),
    "a policy that is none": (lambda s: s.enqueue("x", key="k", on_conflict="maybe"), BadArgument),  # type: ignore[arg-type]
    "a payload that is too large": (lambda s: s.enqueue("x", [bytes(2 << 20)]), TooLarge),
    "a name that is no topic": (lambda s: s.enqueue("x" * 300), TooLarge),
    "a time that is none": (lambda s: s.enqueue("x", delay=float("nan")), BadArgument),
    "headers that are none": (lambda s: s.enqueue("x", headers={"a": 1}), BadArgument),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_could_not_be_written_later_is_refused_in_the_block(scheduler: Scheduler, what: str) -> None:
    act, error = REFUSED[what]

    @scheduler.on(retry=ONCE)
    def first() -> None:
        with current_job().transaction(), pytest.raises(error):
            act(scheduler)

    first.enqueue()
    scheduler.drain()
    assert dead_letters(scheduler) == []


def test_a_transaction_has_a_size_that_fits_into_a_frame(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filewheel.scheduling.job.BYTES_MAX", 10_000)

    @scheduler.on(retry=ONCE)
    def first() -> None:
        with current_job().transaction():
            for _ in range(20):
                scheduler.enqueue("x", [bytes(1000)])

    first.enqueue()
    scheduler.drain()
    (dead,) = dead_letters(scheduler)
    assert "TooLarge" in dead.headers["filewheel.reason"]
    assert topics(scheduler) == []


def test_in_a_coroutine_a_transaction_is_that_of_its_own_task(scheduler: Scheduler) -> None:
    late: list[asyncio.Task[object]] = []

    async def outlive(begin: asyncio.Event) -> object:
        await begin.wait()
        return scheduler.enqueue("too late")

    @scheduler.on(retry=ONCE)
    async def first() -> None:
        begin = asyncio.Event()
        with current_job().transaction():
            await asyncio.sleep(0)
            scheduler.enqueue("second", delay=5)
            late.append(asyncio.ensure_future(outlive(begin)))
        begin.set()
        with pytest.raises(Closed, match="inside of its `with`"):
            await late[0]

    first.enqueue()
    scheduler.drain()
    assert dead_letters(scheduler) == []
    assert topics(scheduler) == ["second"]


def test_a_forked_child_and_its_parent_do_not_give_the_same_ids() -> None:
    MINT.id_at(5)
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, MINT.id_at(7))
        os._exit(0)
    os.wait()
    assert os.read(read, 16) != MINT.id_at(7)
    os.close(read)
    os.close(write)


def test_of_a_cancelled_job_what_its_transaction_enqueued_is_still_written(wheel_dir: Path, clock: FakeClock) -> None:
    """It ran and returned: its effects are there, and so is what belongs to them."""
    scheduler = make(wheel_dir, clock)

    @scheduler.on("first")
    def first() -> None:
        with current_job().transaction():
            scheduler.enqueue("second", delay=60)

    id_ = first.enqueue()
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        scheduler.cancel(id_)
        on_stage.finish()
    assert topics(scheduler) == ["second"]
    scheduler.stop()
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        assert list(keeper.claim()) == []


def test_what_a_job_enqueued_is_durable_before_anything_else_is_called(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock)

    @scheduler.on("first")
    def first() -> None:
        with current_job().transaction():
            scheduler.enqueue("second")

    scheduler.on("second")(lambda: None)
    first.enqueue()
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        on_stage.runner.end()
        on_stage.step()
        own = on_stage.keeper._store.own
        assert own.appender._durable == own.appender.written > 0
