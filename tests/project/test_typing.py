"""What type checkers make of the public API: calls that are right pass, and those that are wrong do not."""

from __future__ import annotations

from pathlib import Path

from tests.project.support_typing import check


def test_a_batch_handler_is_enqueued_with_arguments_of_its_own_and_called_with_jobs(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
from filewheel import AsyncScheduler, Ids, Job, MessageId, Scheduler

scheduler = Scheduler("w")
loop = AsyncScheduler("w")


@scheduler.on(batch=10)
def many(jobs: list[Job]) -> None: ...


@scheduler.every(60)
@scheduler.on("named", batch=10, rate_per_s=5)
def recurring(jobs: list[Job]) -> None: ...


@scheduler.on(batch=10)  # wrong: arg-type
def takes_one(job: Job) -> None: ...


@scheduler.on()
def one(number: int) -> None: ...


@loop.on(batch=10)
async def many_async(jobs: list[Job]) -> None: ...


many.enqueue(3)
ids: Ids = one.map([1, 2], delay=[0, 5], keys=["a", None])
ids = many.options(timeout_s=5).map([(1, 2)], kwargs={"to": "ann"})
wrong: MessageId = one.map([1, 2])  # wrong: assignment
many.options(key="k").after(5, to="ann")
recurring.enqueue()
one.enqueue(3)
one.enqueue("3")  # wrong: arg-type


async def main() -> None:
    await many_async.enqueue(3, to="ann")
    ids: Ids = await many_async.map([1, 2])
    ids = many_async.map([1, 2])  # wrong: assignment
""",
    )


def test_options_of_an_async_wheel_are_known_by_name(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
from filewheel import AsyncKeeper, AsyncScheduler, AsyncWheel, MessageId


async def main(wheel: AsyncWheel, keeper: AsyncKeeper, scheduler: AsyncScheduler) -> None:
    id_: MessageId = await wheel.enqueue(b"x", delay=5, key="k", on_conflict="keep", sync="never")
    await wheel.enqueue(b"x", kye="k")  # wrong: call-arg
    await wheel.enqueue(b"x", on_conflict="zap")  # wrong: arg-type
    await wheel.enqueue_many([b"x"], kye="k")  # wrong: call-arg
    await wheel.cancel(id_, sync="never")
    await wheel.cancel(key="k")
    await wheel.cancel(kye="k")  # wrong: call-overload
    await wheel.cancel(5)  # wrong: call-overload
    await wheel.reschedule(key="k", delay=5)
    await wheel.reschedule(id_, dealy=5)  # wrong: call-overload
    await wheel.get(key="k")
    await wheel.get(kye="k")  # wrong: call-overload
    await keeper.claim(limt=5)  # wrong: call-arg
    await scheduler.enqueue("name", [1], kye="k")  # wrong: call-arg
""",
    )


def test_a_callback_of_the_loop_wheel_gets_the_arguments_that_it_takes(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
from filewheel.timers import LoopTimeout, LoopWheel


def close(number: int, why: str) -> None: ...


async def main(wheel: LoopWheel) -> None:
    handle: LoopTimeout = wheel.call_later(30, close, 1, "idle")
    handle.cancel()
    wheel.call_later(30, close, 1)  # wrong: arg-type
    wheel.call_at(30, close, "1", "idle")  # wrong: arg-type
    async with wheel.timeout(30) as scope:
        scope.reschedule(None)
""",
    )
