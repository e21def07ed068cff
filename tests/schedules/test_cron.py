"""Cron: what an expression means, what is refused, and what comes next, when clocks change too.

`cronsim` is the oracle where it is right; around changes of clocks the rule itself is written down in zones.py, and
every change of every zone is held against it.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from filewheel import BadArgument
from filewheel.schedules import cron as cron_module
from filewheel.schedules.cron import Cron
from tests.scheduling.zones import DAY_S, END_S, Change, Daily, all_changes
from tests.support import seeds, some

US = 1_000_000


def us(text: str, tz: str = "UTC", fold: int = 0) -> int:
    """An instant, written as what the clocks of a zone show."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold).timestamp() * US)


def shown(at_us: int, tz: str) -> str:
    return datetime.fromtimestamp(at_us // US, ZoneInfo(tz)).isoformat(" ", "minutes")


def fires(text: str, tz: str, start: str, count: int, fold: int = 0) -> list[str]:
    """The next fires after a time, as the clocks of the zone show them."""
    return [shown(at, tz) for at in islice(Cron(text, tz).times(us(start, tz, fold)), count)]


# -- what an expression means -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 9 * * *", ["2026-01-01 09:00", "2026-01-02 09:00"]),
        ("*/15 * * * *", ["2026-01-01 00:15", "2026-01-01 00:30"]),
        ("5,35 8-9 * * *", ["2026-01-01 08:05", "2026-01-01 08:35", "2026-01-01 09:05", "2026-01-01 09:35"]),
        ("0 8-18/5 * * *", ["2026-01-01 08:00", "2026-01-01 13:00", "2026-01-01 18:00", "2026-01-02 08:00"]),
        ("50/4 0 * * *", ["2026-01-01 00:50", "2026-01-01 00:54", "2026-01-01 00:58", "2026-01-02 00:50"]),
        ("0 22-2 * * *", ["2026-01-01 01:00", "2026-01-01 02:00", "2026-01-01 22:00", "2026-01-01 23:00"]),
        ("0 0 1 JAN,jul *", ["2026-07-01 00:00", "2027-01-01 00:00"]),
        ("0 0 1 nov-feb *", ["2026-02-01 00:00", "2026-11-01 00:00", "2026-12-01 00:00", "2027-01-01 00:00"]),
        ("0 9 * * mon-fri", ["2026-01-01 09:00", "2026-01-02 09:00", "2026-01-05 09:00"]),
        ("0 9 * * FRI-Mon", ["2026-01-02 09:00", "2026-01-03 09:00", "2026-01-04 09:00", "2026-01-05 09:00"]),
        ("0 9 * * fri-mon/2", ["2026-01-02 09:00", "2026-01-04 09:00", "2026-01-09 09:00"]),
        ("0 0 * * 0", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 * * 7-7", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 * * 5-7", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00", "2026-01-09 00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]),
        ("0 0 1,L 2 *", ["2026-02-01 00:00", "2026-02-28 00:00", "2027-02-01 00:00"]),
        ("0 0 LW * *", ["2026-01-30 00:00", "2026-02-27 00:00", "2026-03-31 00:00"]),
        ("0 0 LW 5 *", ["2026-05-29 00:00", "2027-05-31 00:00"]),  # a Sunday: the Friday before
        ("0 0 LW 8 *", ["2026-08-31 00:00", "2027-08-31 00:00"]),  # a Monday: the Friday before is not the last
        ("0 0 * * wed#1", ["2026-01-07 00:00", "2026-02-04 00:00"]),
        ("0 0 * * fri#2", ["2026-01-09 00:00", "2026-02-13 00:00"]),
        ("0 0 * * 1#1,1#3", ["2026-01-05 00:00", "2026-01-19 00:00", "2026-02-02 00:00"]),
        ("0 0 * * thu#5", ["2026-01-29 00:00", "2026-04-30 00:00"]),
        ("0 0 * * friL", ["2026-01-30 00:00", "2026-02-27 00:00"]),
        ("0 0 * * 7l", ["2026-01-25 00:00", "2026-02-22 00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 13 * fri", ["2026-01-02 00:00", "2026-01-09 00:00", "2026-01-13 00:00", "2026-01-16 00:00"]),
        ("0 0 */2 * fri", ["2026-01-09 00:00", "2026-01-23 00:00", "2026-02-13 00:00"]),
        ("0 0 1-7 * */2", ["2026-01-03 00:00", "2026-01-04 00:00", "2026-01-06 00:00", "2026-02-01 00:00"]),
        ("@hourly", ["2026-01-01 01:00", "2026-01-01 02:00"]),
        ("@daily", ["2026-01-02 00:00", "2026-01-03 00:00"]),
        ("@Midnight", ["2026-01-02 00:00"]),
        ("@weekly", ["2026-01-04 00:00"]),
        ("@monthly", ["2026-02-01 00:00"]),
        ("@yearly", ["2027-01-01 00:00"]),
        ("@annually", ["2027-01-01 00:00"]),
    ],
)
def test_an_expression_comes_when_it_should(text: str, expected: list[str]) -> None:
    assert fires(text, "UTC", "2026-01-01T00:00", len(expected)) == [f"{each}+00:00" for each in expected]


def test_a_sixth_field_in_front_is_seconds() -> None:
    found = islice(Cron("*/20 0 9 * * *").times(us("2026-01-01T08:00")), 4)
    assert [at - us("2026-01-01T09:00") for at in found] == [0, 20 * US, 40 * US, 86_400 * US]


def test_after_is_strictly_after_to_the_microsecond() -> None:
    nine = us("2026-01-01T09:00")
    cron = Cron("0 9 * * *")
    assert cron.after(nine - 1) == nine
    assert cron.after(nine) == nine + 86_400 * US
    assert cron.after(nine + 1) == nine + 86_400 * US


def test_nothing_comes_before_the_epoch_and_the_epoch_itself_counts() -> None:
    assert Cron("@daily").after(-1) == 0
    assert Cron("@daily").after(-(10**18)) == 0
    assert Cron("@daily").after(0) == DAY_S * US


def test_a_leap_day_on_a_weekday_is_found_forty_years_ahead() -> None:
    # Sundays that are a 29 February: 2088, and because 2100 is no leap year, 2128.
    assert fires("0 0 29 2 */7", "UTC", "2088-03-01T00:00", 1) == ["2128-02-29 00:00+00:00"]
    assert fires("0 0 29 2 */7", "Europe/Berlin", "2088-03-01T00:00", 1) == ["2128-02-29 00:00+01:00"]


def test_at_the_end_of_the_calendar_it_says_that_nothing_comes() -> None:
    for tz in ("UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"):
        cron = Cron("@hourly", tz)
        with pytest.raises(BadArgument, match="does not come again"):
            list(cron.times(us("9999-12-28T00:00")))
        with pytest.raises(BadArgument, match="does not come again"):
            cron.after(10**18)
        with pytest.raises(BadArgument, match="does not come again"):
            Cron("@yearly", tz).after(us("9999-06-01T00:00"))


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("60 * * * *", "minute '60': '60' is not 0 to 59. Try: 0 or */15 or 5,35 as minute"),
        ("* 24 * * *", "hour '24': '24' is not 0 to 23. Try: 9 or 8-18 or */2 as hour"),
        ("* * 0 * *", "day-of-month '0': '0' is not 1 to 31. Try: 1 or 1-7 or L as day-of-month"),
        ("* * 32 * *", "day-of-month '32'"),
        ("* * * 13 *", "month '13': '13' is not 1 to 12 or jan to dec"),
        ("* * * foo *", "month 'foo': 'foo' is not 1 to 12 or jan to dec"),
        ("* * * * 8", "day-of-week '8': '8' is not 0 to 7 or sun to sat"),
        ("* * * * monday", "day-of-week 'monday'"),
        ("* * * * l", "day-of-week 'l': 'l' is not"),
        ("* * * * fri#6", "day-of-week 'fri#6': the count after # is 1 to 5"),
        ("* * * * fri#", "day-of-week 'fri#'"),
        ("* * * * #2", "day-of-week '#2': ''"),
        ("* * * * xL", "day-of-week 'xl': 'x'"),
        ("* * ? * *", "day-of-month '?'"),
        ("*/0 * * * *", "minute '*/0': the step after / is 1 to 60: it restarts with each round of the field"),
        ("*/90 * * * *", "minute '*/90': the step after / is 1 to 60"),
        ("*/ * * * *", "minute '*/'"),
        ("/5 * * * *", "minute '/5': ''"),
        ("1- * * * *", "minute '1-': ''"),
        ("-5 * * * *", "minute '-5': ''"),
        ("1-2-3 * * * *", "minute '1-2-3': '2-3'"),
        ("1,,2 * * * *", "minute '': ''"),
        ("** * * * *", "minute '**'"),
        ("*-5 * * * *", "minute '*-5': '*'"),
        ("+1 * * * *", "minute '+1'"),
        ("1.5 * * * *", "minute '1.5'"),
        ("٣ * * * *", "minute '٣'"),  # a digit, but not one of ours
        ("² * * * *", "minute '²'"),
        ("61 * * * * *", "second '61': '61' is not 0 to 59. Try: 0 or */10 as second"),
        ("", "'' has 0 fields; a cron expression has five: minute hour day-of-month month day-of-week"),
        ("* * * *", "has 4 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("@reboot", "'@reboot' is not a name for a schedule. Try: @hourly, @daily"),
        ("@daily * * * *", "is not a name for a schedule"),
        ("9" * 2000 + " * * * *", "has 2,008 characters; a cron expression has at most 1,000"),
        ("9" * 900 + " * * * *", "is not 0 to 59"),
    ],
)
def test_text_that_is_wrong_is_refused_with_the_field_the_value_and_what_is_right(text: str, says: str) -> None:
    with pytest.raises(BadArgument) as caught:
        Cron(text)
    assert says in str(caught.value)
    assert "Try: " in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text", ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31 feb *", "0 0 */31 2 5#5", "0 0 30-31 2 */2"]
)
def test_a_day_that_no_month_has_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="never comes: none of its months has such a day"):
        Cron(text, "Europe/Berlin")


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["*"] * 5])
def test_what_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(BadArgument, match="a cron expression is text"):
        Cron(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tz", "says"),
    [
        ("Europe/Berln", "tz 'Europe/Berln' is not a time zone. Try: Europe/Berlin"),
        ("europe/berlin", "Try: Europe/Berlin"),
        ("Europe", "is not a time zone"),
        ("../../etc/passwd", "is not a time zone"),
        ("/etc/localtime", "is not a time zone"),
        ("", "tz '' is not a time zone"),
        ("\0", "is not a time zone"),
        ("x" * 5000, "is not a time zone"),
        (None, "tz is the name of a time zone, not NoneType"),
        (UTC, "tz is the name of a time zone, not timezone"),
    ],
)
def test_a_zone_that_is_not_there_is_refused_with_one_that_is(tz: object, says: str) -> None:
    with pytest.raises(BadArgument) as caught:
        Cron("@daily", tz)  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_without_a_time_zone_database_utc_works_and_the_hint_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __init__(self, name: str) -> None:
            raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr("filewheel.schedules.zone.ZoneInfo", Missing)
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    with pytest.raises(BadArgument) as caught:
        Cron("@daily", "Europe/Berlin")
    assert "no time zone database. Try: pip install 'filewheel[tzdata]'" in str(caught.value)
    assert Cron("@daily").after(0) == DAY_S * US


# -- one definition or another ----------------------------------------------------------------------------------------


def test_two_are_equal_when_their_definition_is() -> None:
    cron = Cron("0 9 * * mon-fri", "Europe/Berlin")
    assert cron == Cron(" 0  9 * *\tMON-FRI\n", ZoneInfo("Europe/Berlin"))
    assert hash(cron) == hash(Cron("0 9 * * Mon-Fri", "Europe/Berlin"))
    assert cron != Cron("0 9 * * mon-fri", "Europe/Paris")
    assert cron != Cron("0 9 * * mon-sat", "Europe/Berlin")
    assert cron != "0 9 * * mon-fri"
    assert Cron("@daily") == Cron("0 0 * * *")
    assert repr(Cron("0 0 l,LW JUL fril,mon#2")) == "Cron('0 0 L,LW jul friL,mon#2', tz='UTC')"


# -- clocks that change, one by one -----------------------------------------------------------------------------------


def test_a_time_in_a_gap_comes_once_at_its_end() -> None:
    expected = ["2026-03-28 02:30+01:00", "2026-03-29 03:00+02:00", "2026-03-30 02:30+02:00"]
    assert fires("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", 3) == expected
    # Several in the gap, and one right at its end, are one.
    expected = ["2026-03-29 03:00+02:00", "2026-03-29 03:10+02:00"]
    assert fires("0,10 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00", 2) == expected
    expected = ["2026-03-29 03:00+02:00", "2026-03-29 04:00+02:00", "2026-03-30 02:00+02:00"]
    assert fires("0 2-4 * * *", "Europe/Berlin", "2026-03-29T00:00", 3) == expected


def test_a_time_in_a_fold_comes_once_the_first_time() -> None:
    expected = ["2026-10-24 02:30+02:00", "2026-10-25 02:30+02:00", "2026-10-26 02:30+01:00"]
    assert fires("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00", 3) == expected
    # Also for whoever asks within the second pass.
    assert fires("45 2 * * *", "Europe/Berlin", "2026-10-25T02:15", 1, fold=1) == ["2026-10-26 02:45+01:00"]
    assert fires("0 2,3 * * *", "Europe/Berlin", "2026-10-25T02:00", 1, fold=1) == ["2026-10-25 03:00+01:00"]


def test_every_quarter_of_an_hour_follows_real_time_through_gap_and_fold() -> None:
    expected = ["01:45+01:00", "03:00+02:00", "03:15+02:00"]
    assert [f[11:] for f in fires("*/15 * * * *", "Europe/Berlin", "2026-03-29T01:30", 3)] == expected
    quarters = [at // US for at in islice(Cron("*/15 * * * *", "Europe/Berlin").times(us("2026-10-25T00:00")), 24)]
    assert {b - a for a, b in pairwise(quarters)} == {900}


def test_a_star_in_either_field_runs_in_both_passes_and_misses_what_does_not_exist() -> None:
    expected = ["02:30+02:00", "02:30+01:00", "03:30+01:00"]
    assert [f[11:] for f in fires("30 * * * *", "Europe/Berlin", "2026-10-25T02:00", 3)] == expected
    assert [f[11:] for f in fires("*/30 2 * * *", "Europe/Berlin", "2026-10-25T01:00", 4)] == [
        "02:00+02:00", "02:30+02:00", "02:00+01:00", "02:30+01:00",
    ]  # fmt: skip
    assert fires("*/30 2 * * *", "Europe/Berlin", "2026-03-29T00:00", 1) == ["2026-03-30 02:00+02:00"]
    assert fires("0 */2 * * *", "Europe/Berlin", "2026-03-29T00:00", 1) == ["2026-03-29 04:00+02:00"]


def test_what_is_only_ever_in_a_gap_ends_in_an_error_and_not_in_a_loop() -> None:
    cron = Cron("*/5 2 * 3 sunL", "Europe/Berlin")  # the hour that each summer time takes away
    assert shown(cron.after(0), "Europe/Berlin") == "1970-03-29 02:00+01:00"
    with pytest.raises(BadArgument, match="does not come again: not in 40 years"):
        cron.after(us("2026-01-01T00:00"))
    # With a time of day it comes, at the end of the gap.
    assert fires("30 2 * 3 sunL", "Europe/Berlin", "2026-01-01T00:00", 1) == ["2026-03-29 03:00+02:00"]


def test_a_gap_at_midnight_does_not_lose_the_day() -> None:
    found = fires("0 0 * * *", "America/Sao_Paulo", "2018-11-03T00:00", 2)
    assert found == ["2018-11-04 01:00-02:00", "2018-11-05 00:00-02:00"]
    found = fires("@daily", "Asia/Beirut", "2022-03-26T00:00", 2)
    assert found == ["2022-03-27 01:00+03:00", "2022-03-28 00:00+03:00"]
    found = fires("*/30 * 27 3 *", "Asia/Beirut", "2022-03-26T23:45", 2)
    assert found == ["2022-03-27 01:00+03:00", "2022-03-27 01:30+03:00"]
    found = fires("30 23 * * *", "America/Nuuk", "2024-03-29T23:30", 2)
    assert found == ["2024-03-31 00:00-01:00", "2024-03-31 23:30-01:00"]


def test_half_an_hour_at_lord_howe() -> None:
    tz = "Australia/Lord_Howe"
    assert fires("15 2 * * *", tz, "2026-10-04T00:00", 2) == ["2026-10-04 02:30+11:00", "2026-10-05 02:15+11:00"]
    assert fires("*/10 3 * * *", tz, "2026-10-04T00:00", 1) == ["2026-10-04 03:00+11:00"]
    assert [f[11:] for f in fires("45 * * * *", tz, "2026-04-05T01:00", 3)] == [
        "01:45+11:00", "01:45+10:30", "02:45+10:30",
    ]  # fmt: skip


def test_the_day_that_samoa_left_out_comes_at_the_next_midnight() -> None:
    found = fires("0 9 * * *", "Pacific/Apia", "2011-12-29T00:00", 4)
    assert found == [
        "2011-12-29 09:00-10:00", "2011-12-31 00:00+14:00", "2011-12-31 09:00+14:00", "2012-01-01 09:00+14:00",
    ]  # fmt: skip
    assert fires("0 * 30 12 *", "Pacific/Apia", "2011-12-29T00:00", 1) == ["2012-12-30 00:00+14:00"]


def test_a_gap_that_does_not_end_on_a_minute_ends_on_its_second() -> None:
    # Liberia left an offset of -00:44:30 in 1972. The one place where cronsim fires later, on the next whole minute.
    gap_end = us("1972-01-07T00:44:30", "UTC")
    assert Cron("20 0 * * *", "Africa/Monrovia").after(gap_end - 60 * US) == gap_end


def test_a_fire_that_a_gap_moved_can_be_told_from_one_that_was_meant() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")
    found = [cron.is_moved(at) for at in islice(cron.times(us("2026-03-28T00:00")), 3)]
    assert found == [False, True, False]
    assert not Cron("0 2,3 * * *", "Europe/Berlin").is_moved(us("2026-03-29T03:00", "Europe/Berlin"))


# -- what others got wrong (the reports are named in each) ------------------------------------------------------------


def test_the_day_after_a_change_is_not_skipped() -> None:
    """apscheduler#606: midnight in California, the night after clocks went forward; and #529, mon-fri in Chicago."""
    tz = "America/Los_Angeles"
    assert fires("0 0 * * *", tz, "2022-03-13T00:00:07.907", 1) == ["2022-03-14 00:00-07:00"]
    found = fires("0 0 * * mon-fri", "America/Chicago", "2021-03-12T00:00:00.000001", 1)
    assert found == ["2021-03-15 00:00-05:00"]


def test_a_time_that_does_not_exist_is_never_returned() -> None:
    """apscheduler#1059: it answered 02:00 for the night in which there was none."""
    found = fires("0 2 * * *", "America/New_York", "2013-03-10T01:59", 2)
    assert found == ["2013-03-10 03:00-04:00", "2013-03-11 02:00-04:00"]


@pytest.mark.parametrize("text", ["30 * * * *", "0 */2 * * *", "0 1/2 * * *", "*/7 * * * * *", "*/5 * * * *"])
@pytest.mark.parametrize(
    ("tz", "start"), [("Europe/Helsinki", "2017-10-29T02:45"), ("Europe/London", "2024-10-27T00:45")]
)
def test_a_fold_is_left_again(text: str, tz: str, start: str) -> None:
    """apscheduler#980, #1021, #1036: the same time came again and again, and the scheduler stood still."""
    start_us = us(start, tz)
    found = list(islice(Cron(text, tz).times(start_us), 3600))
    assert found == sorted(set(found))
    assert found[-1] > start_us + 3 * 3600 * US


def test_a_fold_in_the_middle_of_an_hour_is_left_again() -> None:
    """cronsim 2.8 goes round for ever here: Bishkek went back from 02:30 to 01:30."""
    found = fires("30 */2 * * *", "Asia/Bishkek", "1997-10-26T00:00", 3)
    assert [f[11:] for f in found] == ["00:30+06:00", "02:30+05:00", "04:30+05:00"]


def test_noon_comes_once_on_the_day_of_a_change_and_at_noon() -> None:
    """celery#1604 ran at 11:00 and again at 12:00; django-celery-beat#134 an hour late."""
    found = fires("0 12 * * mon", "Europe/Amsterdam", "2013-10-27T12:00", 2)
    assert found == ["2013-10-28 12:00+01:00", "2013-11-04 12:00+01:00"]
    found = fires("4 16 * * *", "America/New_York", "2025-03-08T16:04", 2)
    assert found == ["2025-03-09 16:04-04:00", "2025-03-10 16:04-04:00"]


def test_the_hour_of_the_fold_does_not_stop_what_follows() -> None:
    """celery#6438: nothing was sent any more after 02:20 had come twice."""
    found = fires("20 2 * * *", "Europe/Paris", "2020-10-25T02:20", 2)
    assert found == ["2020-10-26 02:20+01:00", "2020-10-27 02:20+01:00"]


def test_a_jump_of_a_hundred_years_is_a_handful_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """apscheduler#526, #1066: a clock ten, or 175, years ahead, and every second in between was visited."""
    steps = 0

    class Counted(cron_module.Cron):
        def _next_wall_s(self, wall_s: int) -> int:
            nonlocal steps
            steps += 1
            return super()._next_wall_s(wall_s)

    for text in ("* * * * * *", "*/5 * * * *", "30 2 * * *", "0 0 29 2 *"):
        for tz in ("UTC", "Europe/Berlin"):
            cron = Counted(text, tz)
            steps = 0
            assert cron.after(us("2200-01-01T00:00")) >= us("2200-01-01T00:00")
            assert 1 <= steps <= 2


# -- all changes of all zones -----------------------------------------------------------------------------------------


def around(change: Change) -> Iterator[Daily]:
    """Jobs to whom a change matters: in its middle, at its end, close by, and all the time."""
    every_hour = tuple(range(24))
    low, high = sorted((change.at_s + change.before_s, change.at_s + change.after_s))
    middle = (low + high) // 2
    hour, minute = middle // 3600 % 24, middle // 60 % 60
    yield Daily(f"{minute} {hour} * * *", (hour,), (minute,))
    yield Daily(f"{high // 60 % 60} {high // 3600 % 24} * * *", (high // 3600 % 24,), (high // 60 % 60,))
    yield Daily("15,45 0-3,23 * * *", (0, 1, 2, 3, 23), (15, 45))
    yield Daily(f"*/15 {hour} * * *", (hour,), (0, 15, 30, 45))
    yield Daily("30 */2 * * *", every_hour[::2], (30,))
    yield Daily("*/30 * * * *", every_hour, (0, 30))


def situations() -> list[tuple[str, Change]]:
    """Every change of every zone; one that several zones made together, once."""
    found: dict[Change, str] = {}
    for name, changes in all_changes().items():
        near = [0, *(change.at_s for change in changes), 2 * END_S]
        for before_s, change, after_s in zip(near, changes, near[2:], strict=False):
            reach_s = abs(change.shift_s) + 2 * DAY_S
            assert before_s + reach_s < change.at_s < after_s - reach_s, (name, "two changes in three days", change)
            found.setdefault(change, name)
    return [(name, change) for change, name in found.items()]


def test_at_every_change_of_every_zone_fires_are_those_of_the_rule() -> None:
    """At every ninth of them, by day."""
    changes = situations()
    assert len(changes) > 5000
    for name, change in some(changes, one_of=9):
        reach_s = abs(change.shift_s) + 2700
        start_s, end_s = change.at_s - reach_s, change.at_s + reach_s
        for job in around(change):
            cron = Cron(job.text, name)
            found, at_us = [], start_s * US - 1
            while (at_us := cron.after(at_us)) < end_s * US:
                found.append(at_us // US)
            assert found == job.fires(change, start_s, end_s), (name, job.text, change)
            # Asked at the very last moment before the change, it is the same.
            later = [at for at in found if at >= change.at_s]
            assert not later or cron.after(change.at_s * US - 1) == later[0] * US, (name, job.text, change)


def test_around_changes_it_agrees_with_cronsim_where_cronsim_is_right() -> None:
    """Jobs with times of day at any change; those with a star only where whole hours change on the hour.

    Elsewhere cronsim steps by whole hours over what is not an hour long, and misses fires, or never returns.
    """
    for name, change in some(situations(), one_of=21):
        whole = change.shift_s % 3600 == 0 and (change.at_s + change.before_s) % 3600 == 0
        start_s = change.at_s - abs(change.shift_s) - 7200
        for job in around(change):
            if name == "Africa/Monrovia" or not (job.is_fixed or whole):
                continue
            expected = islice(CronSim(job.text, datetime.fromtimestamp(start_s, ZoneInfo(name))), 4)
            found = islice(Cron(job.text, name).times(start_s * US), 4)
            assert [at // US for at in found] == [int(at.timestamp()) for at in expected], (name, job.text, change)


# -- any expression, any time -----------------------------------------------------------------------------------------


def items(low: int, high: int, size: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    step = st.integers(1, size)
    # A range of one value with a step is that value; to cronsim it is all from there on.
    spans = st.tuples(value, value).filter(lambda ends: ends[0] != ends[1])
    span = spans.map(lambda ends: f"{min(ends)}-{max(ends)}")
    return st.one_of(
        value.map(str),
        span,
        st.builds("{}/{}".format, span, step),
        st.builds("{}/{}".format, value, step),
        st.builds("*/{}".format, step),
    )


def field(one: st.SearchStrategy[str], star: int = 2) -> st.SearchStrategy[str]:
    lists = st.lists(one, min_size=1, max_size=3).map(",".join)
    return st.one_of(*[st.just("*")] * star, lists, one)


WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
EXPRESSIONS = st.tuples(
    field(items(0, 59, 60), 1),
    field(items(0, 23, 24), 1),
    field(st.one_of(items(1, 31, 31), st.sampled_from(["L", "LW", "29", "31"]))),
    field(st.one_of(items(1, 12, 12), st.sampled_from(MONTHS))),
    field(
        st.one_of(
            items(0, 7, 7),
            st.sampled_from(WEEKDAYS),
            st.builds("{}#{}".format, st.one_of(st.integers(0, 7), st.sampled_from(WEEKDAYS)), st.integers(1, 5)),
            st.builds("{}L".format, st.integers(0, 7)),
        )
    ),
).map(" ".join)
# Zones whose clocks change by whole hours, on the hour and not at midnight, if at all: the rest is told above.
CALM = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Sydney", "Asia/Kolkata", "Asia/Kathmandu", "Asia/Tokyo"]
INSTANTS = st.integers(us("1990-01-01T00:00"), us("2100-01-01T00:00"))


def made(text: str, tz: str) -> Cron:
    try:
        return Cron(text, tz)
    except BadArgument as exc:
        if "never comes" in str(exc):
            assume(False)
        raise


@settings(max_examples=seeds(60, all_of=300).stop, deadline=None)
@given(EXPRESSIONS, st.sampled_from(CALM), INSTANTS)
def test_any_expression_at_any_time_comes_when_cronsim_says(text: str, tz: str, at_us: int) -> None:
    cron = made(text, tz)
    start = datetime.fromtimestamp(at_us // US, ZoneInfo(tz))
    assume(not start.fold)  # cronsim, asked in the second pass for a time of day, answers with one in the first
    expected = [int(at.timestamp()) for at in islice(CronSim(text, start), 3)]
    assert [at // US for at in islice(cron.times(at_us), 3)] == expected


@settings(max_examples=seeds(40, all_of=100).stop, deadline=None)
@given(EXPRESSIONS, st.sampled_from(["*", "0", "*/7", "5,50", "30-40/3"]), INSTANTS)
def test_any_expression_with_seconds_comes_when_cronsim_says(text: str, second: str, at_us: int) -> None:
    cron = made(f"{second} {text}", "UTC")
    start = datetime.fromtimestamp(at_us // US, UTC)
    expected = [int(at.timestamp()) for at in islice(CronSim(f"{second} {text}", start), 3)]
    assert [at // US for at in islice(cron.times(at_us), 3)] == expected


@settings(max_examples=seeds(60, all_of=300).stop, deadline=None)
@given(EXPRESSIONS, st.data())
def test_after_moves_on_and_nothing_lies_between(text: str, data: st.DataObject) -> None:
    tz = data.draw(st.sampled_from(sorted(name for name, changes in all_changes().items() if changes)))
    cron = made(text, tz)
    change = data.draw(st.sampled_from(all_changes()[tz]))
    at_us = change.at_s * US + data.draw(st.integers(-2 * DAY_S * US, 2 * DAY_S * US))
    try:
        next_us = cron.after(at_us)
    except BadArgument as exc:
        if "does not come again" not in str(exc):
            raise
        return
    assert next_us > at_us
    assert cron.after(next_us - 1) == next_us
    assert cron.after(data.draw(st.integers(at_us, next_us - 1))) == next_us
    assert cron.after(next_us) > next_us


@settings(max_examples=seeds(60, all_of=200).stop, deadline=None)
@given(st.text("0123456789*/,-#LW@ mon", max_size=30))
def test_any_text_is_an_expression_or_a_bad_argument(text: str) -> None:
    try:
        cron = Cron(text)
    except BadArgument:
        return
    assert Cron(cron.text) == cron
