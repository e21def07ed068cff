"""Rates: from two publications of one scheduler, or none."""

from __future__ import annotations

from filewheel.live.rates import Meter
from filewheel.message import US_PER_S
from filewheel.metrics.metrics import Metrics
from filewheel.metrics.prometheus import Family, parse
from filewheel.metrics.published import STALE_S, Published

T = 1_800_000_000 * US_PER_S


def families(metrics: Metrics) -> list[Family]:
    return parse(metrics.text(), "a test")


def test_two_publications_give_the_rates_between_them() -> None:
    metrics, meter = Metrics(), Meter()
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
    metrics, meter = Metrics(), Meter()
    metrics.count("fired", "mail", 1000)
    meter.rates(Published(families(metrics), T, 7), T, 7)
    fresh = Metrics()
    fresh.count("fired", "mail", 3)
    found = meter.rates(Published(families(fresh), T + US_PER_S, 8), T + US_PER_S, 8)
    assert found is not None
    assert found.per_s is None


def test_a_publication_that_is_old_or_of_no_keeper_has_no_rates() -> None:
    metrics, meter = Metrics(), Meter()
    meter.rates(Published(families(metrics), T, 7), T, 7)
    late = Published(families(metrics), T + 5 * US_PER_S, 7)
    gone = meter.rates(late, T + 5 * US_PER_S, None)
    assert gone is not None
    assert gone.is_stale
    assert gone.per_s is None
    stuck = meter.rates(late, T + round((STALE_S + 10) * US_PER_S), 7)
    assert stuck is not None
    assert stuck.is_stale


def test_without_a_publication_nothing_is_known() -> None:
    assert Meter().rates(None, T, 7) is None


def test_the_same_publication_read_twice_is_one() -> None:
    metrics, meter = Metrics(), Meter()
    for _ in range(3):
        found = meter.rates(Published(families(metrics), T, 7), T, 7)
    assert found is not None
    assert found.per_s is None
    assert found.to_json()["over_s"] is None
