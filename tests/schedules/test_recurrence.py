"""Intervals, definitions as text, and what is due after an occurrence that is done."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import BadArgument
from filewheel.format.limits import check_headers
from filewheel.message import DUE_END_US
from filewheel.schedules.cron import Cron
from filewheel.schedules.recurrence import (
    Every,
    Once,
    Recurrence,
    Unreadable,
    from_text,
    is_skipped,
    next_due,
    read_recurrence,
)

US = 1_000_000
DAY_US = 86_400 * US
NOON_US = 1_767_268_800 * US  # 2026-01-01T12:00Z

RECURRENCES = st.one_of(
    st.builds(
        lambda interval_us, start_us: Every(timedelta(microseconds=interval_us), start_us),
        st.integers(1000, 10**13),
        st.integers(0, 2 * NOON_US),
    ),
    st.sampled_from([Cron("*/5 * * * *"), Cron("0 9 * * mon-fri", "Europe/Berlin"), Cron("0 0 L * *", "Asia/Tokyo")]),
)
INSTANTS = st.integers(0, 2 * NOON_US)


# -- intervals --------------------------------------------------------------------------------------------------------


def test_an_interval_begins_at_its_start_and_keeps_its_phase() -> None:
    every = Every(90, NOON_US + 7)
    assert list(islice(every.times(0), 3)) == [NOON_US + 7, NOON_US + 7 + 90 * US, NOON_US + 7 + 180 * US]
    assert every.after(NOON_US + 6) == NOON_US + 7
    assert every.after(NOON_US + 7) == NOON_US + 7 + 90 * US
    assert every.after(NOON_US + 7 + 1000 * 90 * US + 5) == NOON_US + 7 + 1001 * 90 * US


def test_without_a_start_the_grid_is_that_of_the_epoch_for_every_process() -> None:
    assert Every(60).after(NOON_US + 1) == NOON_US + 60 * US
    assert Every(timedelta(hours=6)).after(NOON_US) == NOON_US + DAY_US // 4


@given(st.integers(1000, 10**13), INSTANTS, INSTANTS)
def test_the_next_of_an_interval_is_on_the_grid_and_the_nearest(interval_us: int, start_us: int, at_us: int) -> None:
    every = Every(timedelta(microseconds=interval_us), start_us)
    found = every.after(at_us)
    assert found > at_us
    assert (found - start_us) % interval_us == 0
    assert found == start_us or found - interval_us <= at_us
    assert found >= start_us


@pytest.mark.parametrize("interval", [0, -1, 0.0009, 1e-9, timedelta(0), 1e12, timedelta.max])
def test_an_interval_that_is_none_is_refused(interval: float | timedelta) -> None:
    with pytest.raises(BadArgument, match="an interval is 0.001 s or more"):
        Every(interval)


@pytest.mark.parametrize("interval", ["60", None, True, float("nan"), float("inf")])
def test_an_interval_that_is_not_a_length_of_time_is_refused(interval: object) -> None:
    with pytest.raises(BadArgument):
        Every(interval)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [-1, DUE_END_US, 1.5, None, True])
def test_a_start_that_is_not_an_instant_is_refused(start: object) -> None:
    with pytest.raises(BadArgument):
        Every(60, start)  # type: ignore[arg-type]


def test_the_shortest_interval_and_the_end_of_the_calendar() -> None:
    assert Every(0.001).after(5) == 1000
    assert Every(0.001).after(DUE_END_US - 1001) == DUE_END_US - 1000
    with pytest.raises(BadArgument, match="after the year 9999"):
        Every(0.001).after(DUE_END_US - 1000)


def test_intervals_are_equal_when_their_definition_is() -> None:
    assert Every(60) == Every(timedelta(minutes=1)) == Every(60.0, 0)
    assert hash(Every(60)) == hash(Every(timedelta(minutes=1)))
    assert Every(60) != Every(60, 1)
    assert Every(60) != Every(61)
    assert Every(3600) != Cron("@hourly")
    assert Cron("@hourly") != Every(3600)
    assert repr(Every(0.25)) == "Every(0.25)"
    assert repr(Every(60, 7)) == "Every(60, start_us=7)"


# -- as text ----------------------------------------------------------------------------------------------------------


@given(RECURRENCES)
def test_a_definition_survives_as_text_in_a_header(recurrence: Recurrence) -> None:
    text = recurrence.to_text()
    check_headers({"filewheel.schedule": text})
    assert isinstance(json.loads(text), dict)
    assert from_text(text) == recurrence
    assert from_text(text).to_text() == text


def test_the_text_is_what_is_stored_on_disk_and_stays_as_it_is() -> None:
    assert Every(90, 5).to_text() == '{"every_us":90000000,"start_us":5}'
    assert Once(5).to_text() == '{"at_us":5}'
    assert Unreadable('{"moons":3}', "it is of a newer version").to_text() == '{"moons":3}'
    assert Cron("0 9 * * Mon-Fri", "Europe/Berlin").to_text() == '{"cron":"0 9 * * mon-fri","tz":"Europe/Berlin"}'


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "5", "{", "{}", '{"cron": "* * * * *"}', '{"tz": "UTC"}',
        '{"cron": "* * * *", "tz": "UTC"}', '{"cron": 5, "tz": "UTC"}', '{"cron": "* * * * *", "tz": 5}',
        '{"cron": "* * * * *", "tz": "UTC", "more": 1}', '{"every_us": 5}', '{"every_us": 0, "start_us": 0}',
        '{"every_us": 1.5, "start_us": 0}', '{"every_us": true, "start_us": 0}', '{"every_us": -1, "start_us": 0}',
        '{"every_us": 9999999999999999999999999999, "start_us": 0}', '{"every_us": 1000, "start_us": -1}',
        '{"every_us": -9999999999999999999999999999, "start_us": 0}',
        "[" * 100_000, None, 5,
    ],
    ids=lambda text: str(text)[:40],
)  # fmt: skip
def test_text_that_defines_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadArgument) as caught:
        from_text(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", Every(90)),
        ("90s", Every(90)),
        (" 1h30m ", Every(5400)),
        ("every 15m", Every(900)),
        ("Every  250ms", Every(0.25)),
        ("@daily", Cron("@daily", "Asia/Tokyo")),
        ("0 9 * * mon-fri", Cron("0 9 * * mon-fri", "Asia/Tokyo")),
        ("*/10 0 9 * * *", Cron("*/10 0 9 * * *", "Asia/Tokyo")),
    ],
)
def test_what_people_write_is_read(text: str, expected: Recurrence) -> None:
    assert read_recurrence(text, "Asia/Tokyo") == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("every day", "'day' is neither an interval nor a cron expression. Try: '90s', 'every 15m'"),
        ("every", "'every' is neither"),
        ("daily", "'daily' is neither"),
        ("every 0s", "an interval is 0.001 s or more, and less than 253402300800 s; this one is 0 s"),
        ("every 99999999999w", "an interval is 0.001 s or more"),
        ("0 9 * *", "has 4 fields"),
        ("", "has 0 fields"),
        ("0 9 * * foo", "day-of-week 'foo'"),
    ],
)
def test_what_is_written_wrong_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadArgument) as caught:
        read_recurrence(text)
    assert says in str(caught.value)


# -- what is due next -------------------------------------------------------------------------------------------------


def test_in_time_every_policy_goes_on_with_the_next() -> None:
    for missed in ("once", "all", "skip"):
        assert next_due(Every(60), NOON_US, NOON_US + 5, missed) == NOON_US + 60 * US


def test_what_was_missed_comes_once_late_and_then_what_is_next() -> None:
    """A job of each minute; nothing ran from noon until 13:00:30."""
    late_us = NOON_US + 3630 * US
    assert not is_skipped(NOON_US, late_us, "once", 0)
    assert next_due(Every(60), NOON_US, late_us) == NOON_US + 3660 * US
    assert next_due(Cron("* * * * *"), NOON_US, late_us, "once") == NOON_US + 3660 * US


def test_or_each_in_its_turn() -> None:
    due_us, ran = NOON_US, 0
    while due_us <= NOON_US + 3630 * US:
        due_us, ran = next_due(Every(60), due_us, NOON_US + 3630 * US, "all"), ran + 1
    assert ran == 61
    assert due_us == NOON_US + 3660 * US


def test_or_not_at_all_when_it_is_later_than_the_grace() -> None:
    assert not is_skipped(NOON_US, NOON_US + 30 * US, "skip", 30 * US)
    assert is_skipped(NOON_US, NOON_US + 30 * US + 1, "skip", 30 * US)
    assert next_due(Every(60), NOON_US, NOON_US + 3630 * US, "skip") == NOON_US + 3660 * US


def test_what_comes_due_while_an_occurrence_runs_follows_it() -> None:
    """Started at noon, ran for 90 seconds: the occurrence of 12:01 is not covered by it."""
    assert next_due(Every(60), NOON_US, now_us=NOON_US + 10) == NOON_US + 60 * US


def test_a_clock_that_was_put_back_repeats_nothing() -> None:
    """apscheduler#351, #752: and it does not wait for longer than the next occurrence either."""
    for missed in ("once", "all", "skip"):
        assert next_due(Every(60), NOON_US, NOON_US - 10 * DAY_US, missed) == NOON_US + 60 * US


@pytest.mark.parametrize("years", [10, 57, 175])
@pytest.mark.parametrize("recurrence", [Every(1), Cron("* * * * * *"), Cron("*/5 * * * *", "Europe/Berlin")])
def test_a_clock_that_jumps_by_years_brings_one_occurrence_and_not_billions(recurrence: Recurrence, years: int) -> None:
    """apscheduler#35 (a clock that began at 1970), #526, #1066."""
    due_us = recurrence.after(NOON_US)
    now_us = due_us + years * 365 * DAY_US + 1
    following_us = next_due(recurrence, due_us, now_us)
    assert now_us < following_us <= now_us + 301 * US


def test_an_interval_in_the_hour_that_comes_twice_is_an_interval() -> None:
    """django-celery-beat#604 crashed there. 2022-11-06T09:18Z is 01:18 in Los Angeles, for the second time."""
    at_us = 1_667_726_332 * US
    assert next_due(Every(300), at_us, at_us) == at_us // (300 * US) * 300 * US + 300 * US


@given(RECURRENCES, INSTANTS, INSTANTS, st.sampled_from(["once", "all", "skip"]))
def test_the_next_due_is_after_the_last_and_nothing_of_the_future_is_left_out(
    recurrence: Recurrence, before_us: int, now_us: int, missed: str
) -> None:
    due_us = recurrence.after(before_us)
    found = next_due(recurrence, due_us, now_us, missed)  # type: ignore[arg-type]
    assert found > due_us
    assert found == recurrence.after(found - 1)
    assert found <= recurrence.after(max(due_us, now_us))
    if missed != "all":
        assert found > now_us


@pytest.mark.parametrize("missed", ["", "never", None, "ONCE"])
def test_a_policy_that_does_not_exist_is_refused(missed: str) -> None:
    for call in (lambda: next_due(Every(60), 0, 0, missed), lambda: is_skipped(0, 0, missed, 0)):  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="missed is 'once', 'all' or 'skip'"):
            call()


def test_a_single_time_comes_once_and_is_the_same_as_one_of_that_time() -> None:
    once = Once(1_800_000_000_000_000)
    assert once.after(once.at_us - 1) == once.at_us
    assert list(once.times(once.at_us - 1)) == [once.at_us]
    assert list(once.times(once.at_us)) == []
    for late in (once.at_us, once.at_us + 1):
        with pytest.raises(BadArgument, match="has passed"):
            once.after(late)
    assert once == Once(once.at_us) == from_text(once.to_text())
    assert once != Once(once.at_us + 1)
    assert once != once.at_us
    assert len({once, Once(once.at_us)}) == 1


@pytest.mark.parametrize("at_us", [True, 1.5, "5", None, -1, DUE_END_US])
def test_a_single_time_is_a_whole_number_of_microseconds_within_the_calendar(at_us: object) -> None:
    with pytest.raises(BadArgument):
        Once(at_us)  # type: ignore[arg-type]
