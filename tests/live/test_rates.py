"""Rates: from two publications of one scheduler, or none."""

from __future__ import annotations

import pytest

from filewheel import Ended
from filewheel.live.rates import ENDS_MAX, RateMeter, rates_of_ends
from filewheel.message import US_PER_S, MessageId
from filewheel.metrics.metrics import Metrics
from filewheel.metrics.prometheus import Family, parse
from filewheel.metrics.published import STALE_S, Published

T = 1_800_000_000 * US_PER_S


def families(metrics: Metrics) -> list[Family]:
    return parse(metrics.text(), "a test")


def test_two_publications_give_the_rates_between_them() -> None:
    metrics, meter = Metrics(), RateMeter()
    metrics.count("fired", "mail", 100)
    metrics.observe("lateness", "mail", 50)
    first = meter.rates(Published(families(metrics), T, 7), T, 7)
    assert first is not None
    assert first.per_s is None
    assert first.late_p99_s is not None
    assert 30 <= first.late_p99_s <= 60
    metrics.count("fired", "mail", 30)
    metrics.count("fired", "report", 20)
    metrics.count("dead", "report", 5)
    for _ in range(100):
        metrics.observe("lateness", "report", 0.002)
    second = meter.rates(Published(families(metrics), T + 10 * US_PER_S, 7), T + 11 * US_PER_S, 7)
    assert second is not None
    assert second.per_s is not None
    assert (second.per_s["fired"], second.per_s["dead"], second.per_s["retried"]) == (5.0, 0.5, 0.0)
    assert second.over_s == 10
    assert second.age_us == US_PER_S
    assert second.late_p99_s is not None
    assert second.late_p99_s <= 0.0025, "the old, long lateness does not count"


def test_another_process_starts_the_rates_again() -> None:
    metrics, meter = Metrics(), RateMeter()
    metrics.count("fired", "mail", 1000)
    meter.rates(Published(families(metrics), T, 7), T, 7)
    fresh = Metrics()
    fresh.count("fired", "mail", 3)
    found = meter.rates(Published(families(fresh), T + US_PER_S, 8), T + US_PER_S, 8)
    assert found is not None
    assert found.per_s is None


def test_a_publication_that_is_old_or_of_no_keeper_has_no_rates() -> None:
    metrics, meter = Metrics(), RateMeter()
    meter.rates(Published(families(metrics), T, 7), T, 7)
    late = Published(families(metrics), T + 5 * US_PER_S, 7)
    gone = meter.rates(late, T + 5 * US_PER_S, None)
    assert gone is not None
    assert gone.is_stale
    assert gone.per_s is None
    stuck = meter.rates(late, T + round((STALE_S + 10) * US_PER_S), 7)
    assert stuck is not None
    assert stuck.is_stale


def ended(seconds_ago: float, outcome: str = "acked", late_s: float | None = 0.5) -> Ended:
    id_ = MessageId.make(T, 1, 1)
    at_us = T - round(seconds_ago * US_PER_S)
    begun_us = None if late_s is None else at_us
    due_us = at_us - round((late_s or 0) * US_PER_S)
    return Ended(id_, id_, "mail", None, due_us, 0, begun_us, at_us, 0, outcome, "", "thread", None)


def test_the_history_of_the_last_minute_gives_rates_where_nothing_is_published() -> None:
    ends = [ended(n, "retried" if n % 3 == 0 else "acked", late_s=n) for n in range(60)]
    found = rates_of_ends([*ends, ended(70), ended(71)], T)
    assert found is not None
    assert found.per_s == {"fired": 1.0, "acknowledged": 40 / 60, "retried": 20 / 60, "dead": 0.0}
    assert (found.over_s, found.source) == (60.0, "history")
    assert (found.late_p50_s, found.late_p99_s) == (30.0, 59.0)


def test_what_did_not_begin_is_not_fired_and_has_no_lateness() -> None:
    found = rates_of_ends([ended(1, "skipped", late_s=None)], T)
    assert found is not None
    assert found.per_s is not None
    assert found.per_s["fired"] == 0
    assert found.late_p99_s is None
    assert rates_of_ends([ended(61)], T) is None
    assert rates_of_ends([], T) is None


def test_more_ends_than_are_read_are_a_shorter_time() -> None:
    found = rates_of_ends((ended(n / 1000) for n in range(ENDS_MAX * 2)), T)
    assert found is not None
    assert found.per_s is not None
    assert found.per_s["fired"] == pytest.approx(1000, rel=0.01)


def test_without_a_publication_nothing_is_known() -> None:
    assert RateMeter().rates(None, T, 7) is None


def test_the_same_publication_read_twice_is_one() -> None:
    metrics, meter = Metrics(), RateMeter()
    for _ in range(3):
        found = meter.rates(Published(families(metrics), T, 7), T, 7)
    assert found is not None
    assert found.per_s is None
    assert found.to_json()["over_s"] is None
