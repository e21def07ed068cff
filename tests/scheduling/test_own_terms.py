"""A retry and a time-out of a single call: stored with it, kept by any process, ignored if unreadable."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import BadArgument, Job, Message, Retry, Scheduler, retry_of, timeout_of
from filewheel.message import REASON, RETRY, TIMEOUT, MessageId
from filewheel.scheduling.options import CallOptions
from filewheel.scheduling.own_terms import own_terms
from tests.scheduling import process_targets
from tests.scheduling.stage import counted, dead_letters, make, stage, waiting
from tests.support import FakeClock, eventually

HANDLERS_OWN = Retry(limit=2, delay_s=7, jitter=0)


class Refused(Exception):
    """An error of this test's own."""


def message(**headers: str) -> Message:
    return Message(MessageId.make(0, 0, 0), b"", "x", {f"filewheel.{k}": v for k, v in headers.items()})


@given(
    st.builds(
        Retry, limit=st.integers(0, 1000), delay_s=st.floats(0, 1e6), factor=st.floats(1, 1e3),
        delay_max_s=st.floats(0, 1e9), jitter=st.floats(0, 10), never=st.just(("builtins.KeyError",)),
    ),
    st.floats(1e-6, 1e9),
)  # fmt: skip
def test_a_retry_and_a_time_out_come_back_from_their_headers(retry: Retry, timeout_s: float) -> None:
    stored = Message(MessageId.make(0, 0, 0), b"", "x", own_terms(retry, timeout_s))
    assert (retry_of(stored, HANDLERS_OWN), timeout_of(stored, 1.0)) == (retry, timeout_s)


def test_a_class_that_is_never_retried_travels_by_its_name_and_stands_for_what_inherits_from_it() -> None:
    stored = Message(MessageId.make(0, 0, 0), b"", "x", own_terms(Retry(never=(LookupError, Refused)), None))
    read = retry_of(stored, HANDLERS_OWN)
    assert read.never == ("builtins.LookupError", f"{__name__}.Refused")
    assert read.forbids(frozenset({"builtins.KeyError", "builtins.LookupError"}))
    assert not read.forbids(frozenset({"builtins.ValueError"}))


def test_what_a_header_does_not_name_is_up_to_the_handler() -> None:
    assert retry_of(message(retry='{"limit": 9, "colour": "blue"}'), HANDLERS_OWN) == Retry(9, delay_s=7, jitter=0)
    assert retry_of(message(), HANDLERS_OWN) is HANDLERS_OWN
    assert timeout_of(message(), 3.0) == 3.0
    assert timeout_of(message()) is None


@pytest.mark.parametrize(
    "text",
    ["", "soon", "[]", "3", '{"limit": -1}', '{"limit": true}', '{"delay_s": NaN}', '{"never": "KeyError"}',
     '{"never": [3]}', '{"never": ["KeyError"]}', '{"limit": 1e999}', "[" * 10_000, '{"limit": %s}' % ("9" * 5000)],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_a_header_that_cannot_be_read_is_ignored_with_a_warning(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "filewheel.scheduling"):
        assert retry_of(message(retry=text), HANDLERS_OWN) == HANDLERS_OWN
        assert retry_of(message(retry=text), HANDLERS_OWN) == HANDLERS_OWN
    (record,) = caplog.records
    assert RETRY in record.getMessage()


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "1e400", "5 s"])
def test_a_time_out_that_cannot_be_read_is_ignored_with_a_warning(text: str, caplog: pytest.LogCaptureFixture) -> None:
    default_s = float(len(text) + 100)  # read once for each pair, so no other test has read this one
    with caplog.at_level(logging.WARNING, "filewheel.scheduling"):
        assert timeout_of(message(timeout_s=text), default_s) == default_s
    assert TIMEOUT in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [{"retry": 3}, {"retry": {"limit": 3}}, {"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": "5"},
     {"timeout_s": math.inf}, {"timeout_s": math.nan}, {"headers": {RETRY: "{}"}}],
    ids=repr,
)  # fmt: skip
def test_terms_that_make_no_sense_are_refused_and_nothing_is_enqueued(scheduler: Scheduler, wrong: Any) -> None:
    handler = scheduler.on("x")(lambda: None)
    with pytest.raises(BadArgument):
        handler.options(**wrong)
    with pytest.raises(BadArgument):
        scheduler.enqueue("x", **wrong)
    assert waiting(scheduler.wheel) == []


def test_a_call_is_retried_by_its_own_retry_and_the_others_by_their_handlers(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    tried: list[str] = []

    @scheduler.on("x", retry=HANDLERS_OWN)
    def x(what: str) -> None:
        tried.append(what)
        raise LookupError(what)

    x.options(retry=Retry(limit=1, delay_s=60, jitter=0)).enqueue("own")
    scheduler.enqueue("x", ["never"], retry=Retry(never=(LookupError,)))
    x.enqueue("handler's")
    for _ in range(20):
        scheduler.drain()
        clock.advance(5)
    assert sorted(tried) == ["handler's"] * 3 + ["never"] + ["own"] * 2
    assert counted(scheduler)["dead"] == 3


def test_a_revived_call_keeps_its_own_terms(scheduler: Scheduler, clock: FakeClock) -> None:
    tried: list[int] = []

    @scheduler.on("x")
    def x() -> None:
        tried.append(1)
        raise ValueError

    x.options(retry=Retry(limit=1, delay_s=1, jitter=0)).enqueue()
    for _ in range(2):
        for _ in range(5):
            scheduler.drain()
            clock.advance(2)
        (dead,) = dead_letters(scheduler)
        scheduler.wheel.reschedule(dead.id, delay=0)
    assert len(tried) == 4


def test_of_calls_in_threads_each_has_its_own_time_out(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock)
    short = scheduler.on("short", timeout_s=1, retry=Retry(limit=0))(lambda: None)
    none = scheduler.on("none", retry=Retry(limit=0))(lambda: None)
    short.enqueue()
    short.options(timeout_s=10).enqueue()
    none.enqueue()
    none.options(timeout_s=5).enqueue()
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        ended = []
        for _ in range(12):
            clock.advance(1)
            on_stage.step()
            ended.append(sorted(str(c.timeout_s) for c in on_stage.runner.given_up))
        assert (ended[1], ended[5], ended[-1]) == (["1"], ["1", "5.0"], ["1", "10.0", "5.0"])
        on_stage.finish()
    scheduler.stop()


def test_a_batch_has_one_time_out_and_each_of_its_jobs_its_own_retry(scheduler: Scheduler, clock: FakeClock) -> None:
    @scheduler.on("many", batch=10, retry=Retry(limit=0))
    def many(jobs: list[Job]) -> None:
        raise ValueError

    with pytest.raises(BadArgument, match="one time-out"):
        many.options(timeout_s=5)
    with pytest.raises(BadArgument, match="one time-out"):
        scheduler.enqueue("many", timeout_s=5)
    many.enqueue(1)
    many.options(retry=Retry(limit=3)).enqueue(2)
    scheduler.drain()
    assert counted(scheduler) | {"fired": 0} == {"enqueued": 2, "dead": 1, "retried": 1, "fired": 0}


def test_a_coroutine_is_cancelled_at_its_own_time_out(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)

    @scheduler.on("x", timeout_s=600)
    async def x() -> None:
        await asyncio.sleep(600)

    x.options(timeout_s=0.05, retry=Retry(limit=0)).enqueue()
    scheduler.drain()
    assert [m.headers[REASON] for m in dead_letters(scheduler)] == ["TimeoutError: took longer than 0.05 s"]
    scheduler.stop()


def test_a_process_is_killed_at_the_calls_own_time_out(wheel_dir: Path) -> None:
    with Scheduler(wheel_dir, processes=1) as scheduler:
        hang = scheduler.on("hang", where="process")(process_targets.hang.function)
        hang.options(timeout_s=0.2, retry=Retry(limit=0)).enqueue()
        eventually(lambda: dead_letters(scheduler), timeout_s=60)
        assert [m.headers[REASON] for m in dead_letters(scheduler)] == ["TimeoutError: took longer than 0.2 s"]


def test_a_thread_is_replaced_at_the_calls_own_time_out(wheel_dir: Path) -> None:
    let_go = threading.Event()
    with Scheduler(wheel_dir, threads=1) as scheduler:
        stuck = scheduler.on("stuck")(lambda: let_go.wait(120))
        stuck.options(timeout_s=0.05, retry=Retry(limit=0)).enqueue()
        eventually(lambda: dead_letters(scheduler), timeout_s=60)
        let_go.set()


def test_the_handlers_own_policy_stays_when_a_call_brings_its_own_retry() -> None:
    given, default = CallOptions(retry=Retry(limit=1)), CallOptions(skip_late_s=5, coalesce="c")
    over = given.over(default)
    assert (over.retry, over.skip_late_s, over.coalesce) == (Retry(limit=1), 5, "c")
