"""Verdicts: each outcome leads to one settlement, and nothing is dropped but what succeeded."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from filewheel import Message, Retry
from filewheel.message import DUE, DUE_END_US, HISTORY, KEY, OF_SCHEDULE, SCHEDULE, SKIP_LATE, US_PER_S
from filewheel.scheduling import verdict
from filewheel.scheduling.failure import Failure, history_of
from filewheel.scheduling.job import Outbox
from tests.support_wheel import NOW_S, NOW_US, an_id

ONE = Message(an_id(NOW_S), b"x", "t", {"mine": "1"})


def fails(
    message: Message = ONE, failure: Failure | None = None, retry: Retry | None = None, *, next_: Message | None = None
) -> verdict.Verdict:
    failure = failure or Failure("boom", frozenset({"builtins.KeyError", "builtins.LookupError"}))
    return verdict.failed(message, failure, retry or Retry(jitter=0), NOW_US, lambda: 0.0, next_)


def following(seconds: int) -> Message:
    return Message(an_id(NOW_S + seconds, 7), b"x", "t")


def test_a_call_that_returned_is_acknowledged_with_what_it_enqueued_and_what_follows() -> None:
    found = verdict.succeeded(ONE, Outbox([following(1)]), following(60))
    assert (found.kind, found.settlement.what) == ("acknowledged", "acked")
    assert found.settlement.puts == [following(1)]
    assert found.settlement.successor == following(60)


def test_a_failure_is_retried_after_the_delay_with_a_history_until_the_limit() -> None:
    message, dues = ONE, []
    while (found := fails(message, retry=Retry(limit=3, delay_s=2, jitter=0))).kind == "retried":
        dues.append((found.settlement.due_us - NOW_US) // US_PER_S)
        headers = dict(found.settlement.headers or {})
        message = replace(message, attempt=message.attempt + 1, headers=headers)
    assert dues == [2, 4, 8]
    assert (found.kind, found.settlement.what) == ("dead", "buried")
    assert found.settlement.reason == "boom (after 4 attempts)"
    assert [a.attempt for a in history_of(found.settlement.headers or {})] == [0, 1, 2, 3]
    assert (found.settlement.headers or {})["mine"] == "1"


def test_the_handler_decides_over_its_retry() -> None:
    later = Failure("wait", retry_in_us=5_000_000)
    assert fails(replace(ONE, attempt=50), later, Retry(limit=0)).settlement.due_us == NOW_US + 5_000_000
    assert fails(failure=Failure("no", gives_up=True)).kind == "dead"
    assert fails(retry=Retry(never=(LookupError,))).settlement.reason == "boom"
    assert fails(retry=Retry(never=(ValueError,))).kind == "retried"


def test_an_occurrence_is_retried_only_before_the_next_one_and_that_one_follows_its_death() -> None:
    retry = Retry(delay_s=10, jitter=0)
    soon = fails(retry=retry, next_=following(60))
    assert (soon.kind, soon.settlement.successor) == ("retried", None)
    for seconds in (10, 5):
        late = fails(retry=retry, next_=following(seconds))
        assert (late.kind, late.settlement.successor) == ("dead", following(seconds))


def test_a_dead_letter_keeps_its_key_and_an_occurrence_leaves_key_and_schedule_behind() -> None:
    keyed = replace(ONE, headers={KEY: "k", "mine": "1"})
    occurrence = replace(ONE, headers={KEY: "filewheel.every:n", SCHEDULE: "{}", "mine": "1"})
    for bury in (lambda m: verdict.skipped(m, "late", None), lambda m: verdict.buried(m, "who?")):
        assert bury(keyed).settlement.headers == keyed.headers
        assert bury(occurrence).settlement.headers == {"mine": "1", OF_SCHEDULE: "n"}
    retried = fails(occurrence, next_=following(60)).settlement.headers or {}
    assert retried[KEY] == "filewheel.every:n"
    assert SCHEDULE in retried


def test_a_message_that_is_put_off_remembers_when_it_was_due_and_a_retry_forgets_it() -> None:
    plain = verdict.deferred(ONE, NOW_US + 5)
    assert (plain.settlement.what, plain.settlement.due_us, plain.settlement.headers) == ("deferred", NOW_US + 5, None)
    strict = replace(ONE, headers={SKIP_LATE: "5.0"})
    once = verdict.deferred(strict, NOW_US + 5).settlement.headers
    assert once == {SKIP_LATE: "5.0", DUE: str(ONE.due_us)}
    again = replace(strict, id=an_id(NOW_S + 100), headers=once)
    assert verdict.deferred(again, NOW_US + 9).settlement.headers is None
    assert DUE not in (fails(again).settlement.headers or {})


@given(
    st.builds(
        Failure, st.text(max_size=50), st.just(frozenset({"builtins.KeyError"})), st.just(""),
        st.none() | st.integers(0, DUE_END_US), st.booleans(),
    ),
    st.builds(Retry, st.integers(0, 20), st.floats(0, 1e9), delay_max_s=st.floats(0, 1e12)),
    st.integers(0, 30),
    st.none() | st.integers(0, 10_000),
)  # fmt: skip
def test_every_failure_is_retried_at_a_time_that_there_is_or_is_dead_and_never_dropped(
    failure: Failure, retry: Retry, attempt: int, next_s: int | None
) -> None:
    successor = None if next_s is None else following(next_s)
    found = fails(replace(ONE, attempt=attempt), failure, retry, next_=successor)
    settlement = found.settlement
    assert settlement.what in ("retried", "buried")
    assert HISTORY in (settlement.headers or {})
    if settlement.what == "retried":
        assert NOW_US <= settlement.due_us < DUE_END_US
        assert failure.retry_in_us is not None or attempt < retry.limit
        assert successor is None or settlement.due_us < successor.due_us
        assert settlement.successor is None
    else:
        assert settlement.successor == successor
