"""Each outcome leads to one settlement, and nothing is dropped but what succeeded."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from filewheel import Message, Retry
from filewheel.journal.settlement import Settlement, moved_headers
from filewheel.message import DUE, DUE_END_US, HISTORY, KEY, OF_SCHEDULE, SCHEDULE, SKIP_LATE, US_PER_S, attempts_of
from filewheel.scheduling import settlements
from filewheel.scheduling.job import Outbox
from filewheel.scheduling.outcome import Outcome
from tests.support_wheel import NOW_S, NOW_US, an_id

ONE = Message(an_id(NOW_S), b"x", "t", {"mine": "1"})


def fails(
    message: Message = ONE, failure: Outcome | None = None, retry: Retry | None = None, *, next_: Message | None = None
) -> Settlement:
    failure = failure or Outcome("boom", frozenset({"builtins.KeyError", "builtins.LookupError"}))
    return settlements.failed(message, failure, retry or Retry(jitter=0), NOW_US, lambda: 0.0, next_)


def following(seconds: int) -> Message:
    return Message(an_id(NOW_S + seconds, 7), b"x", "t")


def test_a_call_that_returned_is_acknowledged_with_what_it_enqueued_and_what_follows() -> None:
    found = settlements.succeeded(ONE, Outbox([following(1)]), following(60))
    assert (settlements.event_of(found), found.what) == ("acknowledged", "acked")
    assert found.puts == [following(1)]
    assert found.successor == following(60)


def test_a_failure_is_retried_after_the_delay_with_a_history_until_the_limit() -> None:
    message, dues = ONE, []
    while settlements.event_of(found := fails(message, retry=Retry(limit=3, delay_s=2, jitter=0))) == "retried":
        dues.append((found.due_us - NOW_US) // US_PER_S)
        headers = moved_headers(found, message, NOW_US)
        message = replace(message, attempt=message.attempt + 1, headers=headers)
    assert dues == [2, 4, 8]
    assert (settlements.event_of(found), found.what) == ("dead", "buried")
    assert found.reason == "boom (after 4 attempts)"
    headers = moved_headers(found, message, NOW_US)
    assert [a.attempt for a in attempts_of(headers)] == [0, 1, 2, 3]
    assert headers["mine"] == "1"


def test_the_handler_decides_over_its_retry() -> None:
    later = Outcome("wait", retry_in_us=5_000_000)
    assert fails(replace(ONE, attempt=50), later, Retry(limit=0)).due_us == NOW_US + 5_000_000
    assert settlements.event_of(fails(failure=Outcome("no", gives_up=True))) == "dead"
    assert fails(retry=Retry(never=(LookupError,))).reason == "boom"
    assert settlements.event_of(fails(retry=Retry(never=(ValueError,)))) == "retried"


def test_an_occurrence_is_retried_only_before_the_next_one_and_that_one_follows_its_death() -> None:
    retry = Retry(delay_s=10, jitter=0)
    soon = fails(retry=retry, next_=following(60))
    assert (settlements.event_of(soon), soon.successor) == ("retried", None)
    for seconds in (10, 5):
        late = fails(retry=retry, next_=following(seconds))
        assert (settlements.event_of(late), late.successor) == ("dead", following(seconds))


def test_a_dead_letter_keeps_its_key_and_an_occurrence_leaves_key_and_schedule_behind() -> None:
    keyed = replace(ONE, headers={KEY: "k", "mine": "1"})
    occurrence = replace(ONE, headers={KEY: "filewheel.every:n", SCHEDULE: "{}", "mine": "1"})
    for bury in (lambda m: settlements.skipped(m, "late", None), lambda m: settlements.buried(m, "who?")):
        assert bury(keyed).headers == keyed.headers
        assert bury(occurrence).headers == {"mine": "1", OF_SCHEDULE: "n"}
    assert fails(occurrence, next_=following(60)).headers is None  # a retry keeps them


def test_a_message_that_is_put_off_remembers_when_it_was_due_and_a_retry_forgets_it() -> None:
    plain = settlements.deferred(ONE, NOW_US + 5)
    assert (plain.what, plain.due_us, plain.headers) == ("deferred", NOW_US + 5, ONE.headers)
    strict = replace(ONE, headers={SKIP_LATE: "5.0"})
    once = settlements.deferred(strict, NOW_US + 5).headers
    assert once == {SKIP_LATE: "5.0", DUE: str(ONE.due_us)}
    again = replace(strict, id=an_id(NOW_S + 100), headers=once)
    assert settlements.deferred(again, NOW_US + 9).headers == once
    assert DUE not in moved_headers(fails(again), again, NOW_US)


@given(
    st.builds(
        Outcome, st.text(max_size=50), st.just(frozenset({"builtins.KeyError"})), st.just(""),
        st.none() | st.integers(0, DUE_END_US), st.booleans(),
    ),
    st.builds(Retry, st.integers(0, 20), st.floats(0, 1e9), delay_max_s=st.floats(0, 1e12)),
    st.integers(0, 30),
    st.none() | st.integers(0, 10_000),
)  # fmt: skip
def test_every_failure_is_retried_at_a_time_that_there_is_or_is_dead_and_never_dropped(
    failure: Outcome, retry: Retry, attempt: int, next_s: int | None
) -> None:
    successor = None if next_s is None else following(next_s)
    settlement = fails(message := replace(ONE, attempt=attempt), failure, retry, next_=successor)
    assert settlement.what in ("retried", "buried")
    assert HISTORY in moved_headers(settlement, message, NOW_US)
    if settlement.what == "retried":
        assert NOW_US <= settlement.due_us < DUE_END_US
        assert failure.retry_in_us is not None or attempt < retry.limit
        assert successor is None or settlement.due_us < successor.due_us
        assert settlement.successor is None
    else:
        assert settlement.successor == successor
