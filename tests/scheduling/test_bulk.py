"""Many calls of a handler in one commit: all of them are right and enqueued, or none."""

from __future__ import annotations

import asyncio
import errno
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from filewheel import (
    AsyncScheduler,
    BadArgument,
    Closed,
    Handler,
    KeyHeld,
    Retry,
    Scheduler,
    TooLarge,
    WheelFull,
    current_job,
)
from filewheel.disk.disk import SYSTEM
from filewheel.message import TRACEPARENT
from tests.conftest import assert_whole
from tests.scheduling.stage import make, stage
from tests.support import FakeClock, FaultyDisk

Seen = list[tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def seen() -> Seen:
    return []


@pytest.fixture
def mail(scheduler: Scheduler, seen: Seen) -> Handler[..., None]:
    @scheduler.on("mail")
    def mail(to: object, subject: str = "hello", *, times: int = 1) -> None:
        seen.append(((to, subject), {"times": times}))

    return mail


def frames_of(scheduler: Scheduler) -> int:
    """Return how many frames the scheduler's own journal has."""
    return scheduler.wheel._writer().appender.number


def waiting(scheduler: Scheduler) -> list[tuple[Any, ...]]:
    return [(m.args, m.kwargs, m.key) for m in scheduler.list()]


def test_a_tuple_has_the_arguments_of_a_call_and_anything_else_is_its_only_one(
    scheduler: Scheduler, mail: Handler[..., None], seen: Seen
) -> None:
    ids = mail.map(["ann", ("bob", "hi"), ["a", "list"], {"a": 1}, (("a", "tuple"),), UUID(int=5)])
    assert scheduler.drain() == 6
    assert {to if isinstance(to, str) else str(to) for (to, _), _ in seen} == {
        "ann", "bob", "['a', 'list']", "{'a': 1}", "['a', 'tuple']", str(UUID(int=5)),
    }  # fmt: skip
    assert (("bob", "hi"), {"times": 1}) in seen
    assert len(ids) == 6
    assert scheduler.metrics.snapshot()["counters"]["enqueued"] == {"mail": 6}


def test_named_arguments_times_and_keys_are_one_for_all_or_one_for_each(
    scheduler: Scheduler, mail: Handler[..., None], clock: FakeClock
) -> None:
    ids = mail.map(
        (name for name in ("ann", "bob")), kwargs=[{"times": 2}, {}], delay=[timedelta(seconds=5), 1], keys=["k", None]
    )
    now_us = clock.now_us()
    assert [id_.due_us - now_us for id_ in ids] == [5_000_000, 1_000_000]
    assert waiting(scheduler) == [(["bob"], {}, None), (["ann"], {"times": 2}, "k")]
    (id_,) = mail.map(["cid"], kwargs={"subject": "x"}, at=now_us / 1e6 + 60)
    assert id_.due_us == now_us + 60_000_000
    assert scheduler.list("mail", after=now_us / 1e6 + 60).__next__().kwargs == {"subject": "x"}


@pytest.mark.parametrize("keys", [None, ["a", "b", "c"], ["a", None, "c"]])
def test_all_calls_of_a_map_are_one_frame(
    scheduler: Scheduler, mail: Handler[..., None], keys: list[str | None] | None
) -> None:
    mail.enqueue("before")
    before = frames_of(scheduler)
    mail.map(["ann", "bob", "cid"], keys=keys)
    assert frames_of(scheduler) == before + 1


def test_options_and_the_trace_of_the_job_hold_for_each_call(scheduler: Scheduler) -> None:
    @scheduler.on()
    def child(n: int) -> None: ...

    @scheduler.on()
    def parent() -> None:
        child.options(retry=Retry(limit=1), timeout_s=5, headers={"who": "me"}).map([1, 2], delay=60)

    scheduler.enqueue("parent", headers={TRACEPARENT: "00-1-2-03"})
    scheduler.drain()
    for message in scheduler.list(child):
        assert message.headers[TRACEPARENT] == "00-1-2-03"
        assert message.headers["who"] == "me"
        assert message.headers["filewheel.timeout_s"] == "5.0"
        assert "filewheel.retry" in message.headers


def test_events_name_each_call(scheduler: Scheduler, mail: Handler[..., None]) -> None:
    events: list[Any] = []
    scheduler.on_event(lambda event: events.append(event.id), ["enqueued"])
    held = mail.options(key="k").after(60, "held")
    ids = mail.map(["ann", "bob"], keys=["k", "b"], on_conflict="keep")
    assert ids[0] == held
    assert ids[0].kept
    assert events == [held, ids[1]]
    assert scheduler.metrics.snapshot()["counters"]["enqueued"] == {"mail": 2}


WRONG: list[tuple[list[Any], dict[str, Any], str]] = [
    (["ann", "bob"], {"delay": [1]}, "delay has 1 values for 2 calls"),
    (["ann", "bob"], {"at": [1, 2, 3]}, "at has 3 values for 2 calls"),
    (["ann", "bob"], {"keys": ["k"]}, "keys has 1 values for 2 calls"),
    (["ann", "bob"], {"kwargs": [{}]}, "kwargs has 1 values for 2 calls"),
    (["ann", "bob"], {"keys": "kk"}, "keys is a list with one value for each call"),
    (["ann", "bob"], {"keys": ["k", ""]}, "call 1 of this map .the first is 0.: .*key"),
    (["ann", "bob"], {"keys": ["k", 5]}, "call 1 of this map .the first is 0.: .*key"),
    (["ann", "bob"], {"delay": 1, "at": 5}, "delay"),
    (["ann", "bob"], {"delay": [1, "x"]}, "delay"),
    (["ann", "bob"], {"delay": [1, -1e30]}, "year|due|delay"),
    (["ann", ("bob", "x", "y")], {}, r"call 1 of this map .the first is 0.: mail\(.*too many positional"),
    (["ann", object()], {}, "call 1 of this map .the first is 0.: "),
    (["ann", ()], {}, "call 1 of this map .*missing a required argument"),
    (["ann", "bob"], {"kwargs": [{}, {"nope": 1}]}, "call 1 of this map .*unexpected keyword argument 'nope'"),
    (["ann", "bob"], {"kwargs": [{}, 5]}, "call 1 of this map .*kwargs map names"),
    (["ann", "bob"], {"kwargs": 5}, "kwargs are a dict for all"),
    (["ann"], {"on_conflict": "keep"}, "goes with keys"),
    (["ann"], {"keys": ["k"], "on_conflict": "maybe"}, "on_conflict is"),
]


@pytest.mark.parametrize(("calls", "options", "words"), WRONG)
def test_what_is_wrong_in_one_call_enqueues_none(
    scheduler: Scheduler, mail: Handler[..., None], calls: list[Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadArgument, match=words):
        mail.map(calls, **options)
    assert waiting(scheduler) == []


@pytest.mark.parametrize("calls", ["ann", b"ann", {"to": "ann"}, 5, None])
def test_calls_that_are_no_list_are_refused(scheduler: Scheduler, mail: Handler[..., None], calls: Any) -> None:
    with pytest.raises(BadArgument, match="calls are a list"):
        mail.map(calls)
    assert waiting(scheduler) == []


def test_no_calls_are_no_error_and_a_key_of_all_is_one(scheduler: Scheduler, mail: Handler[..., None]) -> None:
    assert list(mail.map([])) == []
    assert list(mail.map([], keys=[], delay=[])) == []
    with pytest.raises(BadArgument, match="many calls cannot have one key"):
        mail.options(key="k").map(["ann"])
    assert waiting(scheduler) == []


def test_a_call_that_is_too_large_enqueues_none(scheduler: Scheduler, mail: Handler[..., None]) -> None:
    with pytest.raises(TooLarge):
        mail.map(["ann", "x" * (scheduler.wheel.payload_bytes_max + 1)])
    assert waiting(scheduler) == []


def test_a_key_that_is_held_enqueues_none_or_keeps_or_replaces(scheduler: Scheduler, mail: Handler[..., None]) -> None:
    held = mail.options(key="b").after(60, "held")
    with pytest.raises(KeyHeld) as caught:
        mail.map(["ann", "bob"], keys=["a", "b"])
    assert caught.value.held == {"b": held}
    assert waiting(scheduler) == [(["held"], {}, "b")]
    assert list(mail.map(["ann", "bob"], keys=["a", "b"], delay=5, on_conflict="keep"))[1] == held
    assert waiting(scheduler) == [(["ann"], {}, "a"), (["held"], {}, "b")]
    mail.map(["ann", "bob"], keys=["a", "b"], delay=[1, 2], on_conflict="replace")
    assert waiting(scheduler) == [(["ann"], {}, "a"), (["bob"], {}, "b")]


@pytest.mark.parametrize("within", [False, True])
def test_two_calls_with_one_key_are_refused_and_none_is_enqueued(scheduler: Scheduler, within: bool) -> None:
    raised: list[KeyHeld] = []

    @scheduler.on()
    def child(to: str) -> None: ...

    @scheduler.on(retry=Retry(limit=0))
    def parent() -> None:
        with current_job().transaction():
            twice()

    def twice() -> None:
        try:
            child.map(["ann", "bob", "cid"], keys=["k", "x", "k"], delay=60)
        except KeyHeld as exc:
            raised.append(exc)

    if within:
        parent.enqueue()
        scheduler.drain()
    else:
        twice()
    assert "calls 0 and 2 of this map (the first is 0) have one key, 'k'" in str(raised[0])
    assert raised[0].id is None
    assert waiting(scheduler) == []


def test_a_full_disk_enqueues_none(wheel_dir: Path, clock: FakeClock) -> None:
    full: list[bool] = []

    def fail(what: str, name: str) -> None:
        if full and what == "pwrite" and name.startswith("journal/"):
            raise OSError(errno.ENOSPC, "full")

    scheduler = Scheduler(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail), clock=clock))

    @scheduler.on("mail")
    def mail(to: str) -> None: ...

    mail.after(60, "first")
    full.append(True)
    with pytest.raises(WheelFull):
        mail.map([str(n) for n in range(100)])
    full.clear()
    assert waiting(scheduler) == [(["first"], {}, None)]
    scheduler.stop()


def test_in_a_transaction_the_calls_are_written_with_the_acknowledgement_or_not_at_all(
    wheel_dir: Path, clock: FakeClock
) -> None:
    scheduler = make(wheel_dir, clock)
    found: list[Any] = []

    @scheduler.on()
    def child(n: int) -> None: ...

    @scheduler.on(retry=Retry(limit=0))
    def parent(*, fails: bool) -> None:
        with current_job().transaction():
            ids = child.map([1, 2, 3], delay=[60, 61, 62], keys=["a", None, "c"])
            found.append((list(ids) == [m.id for m in current_job().enqueued], waiting(scheduler)))
        if fails:
            raise ValueError

    with stage(wheel_dir, clock, scheduler) as on_stage:
        parent.enqueue(fails=True)
        on_stage.step()
        on_stage.finish()
        assert [m.args for m in scheduler.list(child)] == []
        parent.enqueue(fails=False)
        on_stage.step()
        on_stage.runner.end()
        assert [m.args for m in scheduler.list(child)] == []
        on_stage.step()
    assert waiting(scheduler) == [([1], {}, "a"), ([2], {}, None), ([3], {}, "c")]
    scheduler.stop()


def test_in_a_transaction_a_held_key_and_too_many_bytes_add_none_of_the_calls(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[str] = []

    @scheduler.on()
    def child(n: object) -> None: ...

    @scheduler.on(retry=Retry(limit=0))
    def parent() -> None:
        with current_job().transaction() as transaction:
            for calls, keys in ((["a", "b"], ["free", "held"]), (["x" * 600, "y" * 600], None)):
                try:
                    child.map(calls, keys=keys)
                except (KeyHeld, TooLarge) as exc:
                    raised.append(type(exc).__name__)
            child.map(["z" * 500])
        try:
            transaction.add([])
        except Closed:
            raised.append("Closed")

    monkeypatch.setattr("filewheel.scheduling.job.BYTES_MAX", 1000)
    child.options(key="held").after(3600, "held")
    parent.enqueue()
    scheduler.drain()
    assert raised == ["KeyHeld", "TooLarge", "Closed"]
    assert [m.args for m in scheduler.list()] == [["held"]]
    assert scheduler.metrics.snapshot()["counters"]["acknowledged"] == {"parent": 1, "child": 1}


def test_an_async_scheduler_maps_the_same(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "w"

    async def main() -> None:
        scheduler = AsyncScheduler(path, clock=clock)
        seen: list[str] = []

        @scheduler.on()
        async def mail(to: str) -> None:
            seen.append(to)

        @scheduler.on(retry=Retry(limit=0))
        async def parent() -> None:
            with current_job().transaction():
                await mail.map(["cid", "dan"], keys=["c", "d"], delay=5)

        ids = await mail.map(["ann", "bob"], delay=[2, 1], keys=["a", "b"])
        assert [m.id async for m in scheduler.list()] == [ids[1], ids[0]]
        with pytest.raises(KeyHeld) as caught:
            await mail.map(["x", "y"], keys=["x", "b"])
        assert caught.value.held == {"b": ids[1]}
        for wrong in ({"delay": [1]}, {"keys": ["k"]}):
            with pytest.raises(BadArgument, match="values for 2 calls"):
                await mail.map(["x", "y"], **wrong)  # type: ignore[call-overload]
        assert list(await mail.map([])) == []
        await parent.enqueue()
        clock.advance(2)
        await scheduler.drain()
        assert seen == ["bob", "ann"]
        assert [m.key async for m in scheduler.list()] == ["c", "d"]
        await scheduler.stop()

    asyncio.run(main())
    assert_whole(path)
