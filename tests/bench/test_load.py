"""The load and the trace are the same each time, and of the shape that is told."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stdout
from itertools import pairwise

import pytest

from tests.bench import make_trace
from tests.bench.load import SHAPES, US, Load, percentile, timed
from tests.bench.trace import TRACES, events
from tests.bench.workloads.replay import HOT_S, WHOLE_DAY, window


def test_the_same_seed_makes_the_same_load() -> None:
    one, two = (Load(3, start_us=10**15) for _ in range(2))
    assert one.payloads(2500) == two.payloads(2500)
    assert one.dues_us(1000) == two.dues_us(1000)
    assert Load(4, start_us=10**15).payloads(5) != Load(3, start_us=10**15).payloads(5)


@pytest.mark.parametrize(("shape", "span_s"), [("two hours", 7200), ("one second", 1), ("a year", 31_536_000)])
def test_due_times_have_their_shape(shape: str, span_s: int) -> None:
    dues = Load(1, shape=shape, start_us=10**15).dues_us(2000)
    assert all(0 <= due - 10**15 < span_s * US for due in dues)
    assert max(dues) - min(dues) > 0.9 * span_s * US


def test_soon_is_mostly_within_ten_seconds() -> None:
    now_us = time.time_ns() // 1000
    dues = Load(1, shape="soon").dues_us(2000)
    assert 0.85 < sum(due - now_us < 12 * US for due in dues) / 2000 < 0.97
    assert set(SHAPES) >= {"soon", "two hours"}


def test_timed_stops_at_the_count() -> None:
    seen: list[int] = []
    assert timed(seen.append, 60, most=5)[0] == 5
    assert seen == [0, 1, 2, 3, 4]


def test_percentiles() -> None:
    values = [float(v) for v in range(100)]
    assert [percentile(values, share) for share in (0, 0.5, 0.99, 1)] == [0, 50, 99, 99]


def test_the_trace_is_what_its_generator_makes() -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        make_trace.main()
    assert (TRACES / "day.csv").read_text() == out.getvalue()


def test_a_day_has_its_messages() -> None:
    rows = list(make_trace.rows())
    assert 550_000 < sum(enqueued for _, _, enqueued, _ in rows) < 650_000
    assert 180_000 < sum(cancelled for _, _, _, cancelled in rows) < 220_000
    assert sum(enqueued for _, kind, enqueued, _ in rows if kind == "newsletter") == 50_000


def test_events_of_an_hour() -> None:
    enqueues, cancels = events(1, HOT_S - 1800, HOT_S + 1800)
    assert (enqueues, cancels) == events(1, HOT_S - 1800, HOT_S + 1800)
    assert [e.number for e in enqueues] == list(range(len(enqueues)))
    assert all(a.at_s <= b.at_s for a, b in pairwise(enqueues))
    assert sum(e.due_s == HOT_S for e in enqueues) == 50_000
    assert all(e.at_s < e.due_s for e in enqueues)
    assert all(enqueues[c.number].at_s < c.at_s <= enqueues[c.number].due_s - 30 for c in cancels)
    assert len({c.number for c in cancels}) == len(cancels) > 5000


def test_the_window_is_an_hour_less_at_small_scales_or_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WHOLE_DAY, raising=False)
    assert window(1) == (HOT_S - 1800, HOT_S + 1800)
    assert window(0.001) == (HOT_S - 120, HOT_S + 120)
    monkeypatch.setenv(WHOLE_DAY, "1")
    assert window(0.001) == (0, 86_400)
