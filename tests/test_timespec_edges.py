"""Each place that takes a time or a length of time takes those of other libraries; what is stored can be read back."""

from __future__ import annotations

import collections
import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import BadArgument, Every, Keeper, Retry, RetryLater, Scheduler, Settlement, Wheel
from filewheel.kafka.produce.request import Requests
from filewheel.message import DEADLINE, DUE_END_US, RESULT, SCHEDULE, to_datetime
from filewheel.scheduling.lanes import Bucket
from filewheel.testing import FakeClock, advance, run_until
from filewheel.timers.steady import delay_ns
from filewheel.values import pack, unpack
from tests.odd_times import ODD, OddTime, odd_span, odd_time

AT = datetime(2029, 1, 1, 12, tzinfo=ZoneInfo("America/New_York"))
SPAN = timedelta(hours=2, microseconds=1)


def listed(wheel: Wheel) -> list[Any]:
    """All that a message says of times; its keys and tracebacks have ids and paths."""
    named = (DEADLINE, SCHEDULE, RESULT)
    found = [(m.due_us, m.topic, [m.headers.get(name) for name in named], m.attempt, m.args) for m in wheel.list()]
    return sorted(found, key=repr)  # those of one due are in the order of their writers' names


def of_wheel(path: Path, clock: FakeClock, at: datetime, later: datetime, span: timedelta) -> Any:
    with Wheel(path, clock=clock) as wheel:
        wheel.enqueue(b"", at=at)
        wheel.enqueue(b"", delay=span)
        wheel.enqueue(b"", at=at, key="k")
        wheel.enqueue_many([b"", b""], at=[at, later])
        wheel.enqueue_many([b"", b""], delay=[span, span])
        wheel.enqueue_many([b""], at=at)
        id_ = wheel.enqueue(b"", delay=1)
        wheel.reschedule(id_, at=later)
        id_ = wheel.enqueue(b"", delay=1)
        wheel.reschedule(id_, delay=span)
        wheel.schedule("every", span, b"", start=at, end=later)
        wheel.schedule("once", later, b"")
        wheel.edit_schedule("every", end=later)
        seen: list[Any] = listed(wheel)
        seen.append([m.due_us for m in wheel.list(after=at, before=later)])
        seen.append(wheel.histogram([at, later]))
        seen.append(wheel.overdue(later))
        seen.append(list(wheel.history(since=at)))
        return seen


def of_keeper(path: Path, clock: FakeClock, at: datetime, later: datetime, span: timedelta) -> Any:
    with Wheel(path, clock=clock) as wheel:
        wheel.enqueue_many([b"a", b"b", b"c"])
        with Keeper(path, clock=clock, background=False) as keeper:
            assert not keeper.claim(until=OddTime(2000, 1, 1, tzinfo=UTC))
            one, two, three = keeper.claim(until=later)
            keeper.nack(one, delay=span)
            keeper.settle([Settlement(two.id, "retried", at=later), Settlement(three.id, "deferred", delay=span)])
        return listed(wheel)


def of_scheduler(path: Path, clock: FakeClock, at: datetime, later: datetime, span: timedelta) -> Any:
    scheduler = Scheduler(path, clock=clock)

    @scheduler.every(span, start=at, end=later)
    @scheduler.on("x", result_for=span, retry=Retry(limit=9))
    def x(how: object = "", *rest: object) -> object:
        if how == "later":
            raise RetryLater(span)
        return [at, span]

    x.at(at)
    x.after(span)
    x.options(deadline=later).enqueue()
    x.map([(), ()], at=[at, later])
    x.map([(), ()], delay=[span, span])
    scheduler.enqueue("x", [at, span], delay=span, deadline=later)
    scheduler.schedule("r", span, "x", start=at, end=later)
    scheduler.schedule("o", later, "x")
    kept = x.enqueue()
    x.enqueue("later")
    scheduler.drain()
    seen = listed(scheduler.wheel)
    seen.append(scheduler.result(kept))
    seen.append([job.args for job in scheduler.list(after=at, before=later) if job.topic == "x"])
    scheduler.reschedule(x.after(1), at=later)
    advance(scheduler, clock, span)
    run_until(scheduler, clock, at)
    clock.set(later)
    seen.append(clock.now_us())
    scheduler.stop()
    return seen


@pytest.mark.parametrize("face", [of_wheel, of_keeper, of_scheduler])
def test_a_time_of_another_library_is_the_same_moment_everywhere(tmp_path: Path, face: Any) -> None:
    seen = []
    for name, time, span in (
        ("plain", lambda at: at, lambda s: timedelta(seconds=s)),
        ("odd", odd_time, odd_span),
    ):
        Wheel.create(tmp_path / name).close()
        later = AT + timedelta(days=1)
        seen.append(face(tmp_path / name, FakeClock(), time(AT), time(later), span(SPAN.total_seconds())))
    assert repr(seen[1]) == repr(seen[0])


def test_a_fake_clock_a_recurrence_and_a_producer_take_those_of_another_library() -> None:
    assert FakeClock(odd_time(AT)).now == AT
    clock = FakeClock()
    clock.advance(odd_span(5))
    assert clock.steady_us() == 5_000_001
    assert Every(odd_span(60)) == Every(60)
    assert delay_ns("delay", odd_span(1.5)) == 1_500_000_000
    requests = Requests("t", horizon=odd_span(60), keyed=False, clock=clock)
    headers = dict.fromkeys(("key", "target_key", "target_partition", "headers"))
    record = requests.record("target", b"x", delay=odd_span(5), at=None, **headers)  # type: ignore[arg-type]
    assert (b"5000" in dict(record.headers).values()) is True
    with pytest.raises(BadArgument, match="the horizon is 60 s"):
        requests.record("target", b"x", delay=None, at=odd_time(AT + timedelta(days=400)), **headers)  # type: ignore[arg-type]


# -- what is stored can be read back ------------------------------------------------------------------------------


class Pair(NamedTuple):
    one: Any
    other: Any


moments = st.builds(
    lambda at, minutes, fold, odd: (odd_time if odd else lambda x: x)(
        at.replace(tzinfo=timezone(timedelta(minutes=minutes)), fold=fold)
    ),
    st.datetimes(),
    st.integers(-1439, 1439),
    st.integers(0, 1),
    st.booleans(),
)
EDGES: list[Any] = [
    *ODD, datetime.max, datetime.min, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), math.nan,
    math.inf, timedelta.max, timedelta.min, msgpack.Timestamp(10**15), msgpack.Timestamp(-(10**12)),
    msgpack.Timestamp(10**9, 5), msgpack.ExtType(3, b"\xc7\x0c\xff"), memoryview(b"abcd")[::2], 2**64, -(2**63) - 1,
    b"\xc7\x0c\xff" + bytes(12), "\ud800", collections.OrderedDict({(1, 2): 3}),
    collections.defaultdict(int, {None: 1}), Pair({(1,): 2}, 3),
]  # fmt: skip
edges = st.integers(0, len(EDGES) - 1).map(EDGES.__getitem__)  # some of them have no hash
stored = st.recursive(
    moments | edges | st.none() | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2).map(collections.OrderedDict)
    ),
    max_leaves=5,
)


@given(stored)
def test_a_value_that_is_stored_can_be_read_back(value: Any) -> None:
    try:
        packed, how = pack(value)
    except BadArgument:
        return
    unpack(packed, how)


@given(moments)
def test_a_moment_comes_back_as_the_same_moment_or_is_refused(at: datetime) -> None:
    plain = datetime(*at.timetuple()[:6], at.microsecond, at.tzinfo, fold=at.fold)
    us = (plain.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    us -= plain.utcoffset() // timedelta(microseconds=1)  # type: ignore[operator]
    try:
        packed = pack([at])
    except BadArgument:
        assert not -62_135_596_800_000_000 <= us < DUE_END_US
        return
    assert unpack(*packed) == [to_datetime(us)]


@pytest.mark.parametrize("where", ["an argument", "a keyword", "in a list", "a result"])
@pytest.mark.parametrize(
    "at",
    [
        datetime.max.replace(tzinfo=ZoneInfo("America/New_York")),
        datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo")),
        msgpack.Timestamp(10**15),
    ],
)
def test_a_time_outside_of_the_calendar_of_utc_is_refused_at_the_call(tmp_path: Path, at: Any, where: str) -> None:
    scheduler = Scheduler(tmp_path / "w", clock=FakeClock())

    @scheduler.on("x", result_for=60)
    def x(*args: Any, **kwargs: Any) -> Any:
        return [at]

    if where == "a result":
        id_ = x.enqueue()
        scheduler.drain()
        with pytest.raises(Exception, match="its result is not kept: .* cannot be stored"):
            scheduler.result(id_)
    else:
        args, kwargs = {"an argument": ([at], {}), "a keyword": ([], {"at": at}), "in a list": ([[1, [at]]], {})}[where]
        with pytest.raises(BadArgument, match="cannot be stored"):
            scheduler.enqueue("x", args, kwargs)
        assert not list(scheduler.list())
    scheduler.stop()


def test_a_local_time_that_comes_twice_is_the_passage_that_its_fold_says(tmp_path: Path) -> None:
    with Wheel.create(tmp_path / "w") as wheel:
        berlin = ZoneInfo("Europe/Berlin")
        first, second = (datetime(2030, 10, 27, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1))
        dues = [wheel.enqueue(b"", at=at).due_us for at in (first, second, odd_time(first), odd_time(second))]
    assert [due - dues[0] for due in dues] == [0, 3_600_000_000, 0, 3_600_000_000]


# -- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "retry",
    [
        Retry(delay_s=1e18, delay_max_s=1e18),
        Retry(delay_s=1e10, delay_max_s=1e18, jitter=1e18),
        Retry(factor=1e18, delay_max_s=1e18),
        Retry(delay_s=-0.0, jitter=1e18),
    ],
)
def test_a_retry_has_a_finite_delay_after_any_attempt(retry: Retry) -> None:
    for attempt in (0, 1, 100, 5000):
        assert 0 <= retry.delay_us(attempt, lambda: 1.0) < 10**45


def test_a_failed_call_with_the_longest_delay_waits_and_firing_goes_on(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w", clock=FakeClock())
    done: list[int] = []

    @scheduler.on(retry=Retry(delay_s=1e18, delay_max_s=1e18))
    def fails() -> None:
        raise ValueError

    scheduler.on("done")(lambda: done.append(1))
    fails.enqueue()
    scheduler.enqueue("done")
    assert scheduler.drain() == 2
    assert done == [1]
    (waiting,) = scheduler.list()
    assert waiting.due.year == 9999
    scheduler.stop()


@pytest.mark.parametrize("number", [1e19, 1e300, 1e308, 5e-324, 1e-19])
@pytest.mark.parametrize("name", ["timeout_s", "rate_per_s", "catch_up_per_s"])
def test_a_number_that_has_no_float_in_microseconds_is_refused(tmp_path: Path, name: str, number: float) -> None:
    scheduler = Scheduler(tmp_path / "w")
    with pytest.raises(BadArgument, match=f"{name} is a number above 0"):
        scheduler.on("x", **{name: number})  # type: ignore[call-overload]


@pytest.mark.parametrize("rate_per_s", [1e-18, 1e18])
def test_the_slowest_and_the_fastest_rate_have_a_next_time(rate_per_s: float) -> None:
    bucket = Bucket(rate_per_s, 0)
    bucket.take(0, 1 << 60)
    assert 0 <= bucket.next_us() <= 10**25
