"""When: durations and times as callers and people write them."""

from __future__ import annotations

import contextlib
import decimal
import enum
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from filewheel.errors import BadArgument
from filewheel.message import DUE_END_US, US_PER_S, to_datetime
from filewheel.timespec import at_us, check_due, delay_us, due_from, parse_duration, parse_time

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # half an hour of summer time
APIA = ZoneInfo("Pacific/Apia")  # skipped 2011-12-30 whole
KATHMANDU = ZoneInfo("Asia/Kathmandu")  # +05:45
ZONES = [BERLIN, NEW_YORK, LORD_HOWE, UTC]
NOW_US = 1_800_000_000 * US_PER_S
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE_US = timedelta(microseconds=1)


# -- delays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay", "us"),
    [
        (0, 0),
        (1, 1_000_000),
        (90, 90_000_000),
        (-5, -5_000_000),
        (0.5, 500_000),
        (0.1, 100_000),
        (1.1, 1_100_000),
        (0.000001, 1),
        (0.0000001, 1),  # up: never early
        (1.0000005, 1_000_001),
        (timedelta(days=1, microseconds=3), 86_400_000_003),
        (timedelta(microseconds=-3), -3),
        (10**30, 10**36),
    ],
)
def test_a_delay_becomes_microseconds_rounded_up(delay: float | timedelta, us: int) -> None:
    assert delay_us(delay) == us


@given(st.integers(-(10**15), 10**15))
def test_a_delay_of_whole_microseconds_is_never_shortened(us: int) -> None:
    assert delay_us(us / US_PER_S) in (us, us + 1)
    assert delay_us(timedelta(microseconds=us)) == us


@given(st.floats(-1e9, 1e9))
def test_a_float_delay_is_never_early_by_more_than_a_float_can_tell(delay: float) -> None:
    exact = Fraction(delay) * US_PER_S
    assert delay_us(delay) >= exact - Fraction(abs(delay) * US_PER_S) / (1 << 51)
    assert delay_us(delay) <= exact + 2


@pytest.mark.parametrize(
    "wrong", [float("nan"), float("inf"), float("-inf"), "5", b"5", None, True, False, Decimal(5), 1j]
)
def test_what_is_not_a_delay_is_refused(wrong: Any) -> None:
    with pytest.raises(BadArgument):
        delay_us(wrong)


def test_a_delay_that_overflows_a_float_is_refused_as_too_late() -> None:
    with pytest.raises(BadArgument):
        due_from(NOW_US, delay=1e305, at=None)


# -- points in time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "us"),
    [
        (0, 0),
        (1767225600, 1_767_225_600_000_000),
        (1767225600.1, 1_767_225_600_100_000),
        (1767225600.123456, 1_767_225_600_123_456),
        (0.0000001, 1),
        (1e-300, 1),
        (-0.0, 0),
        (EPOCH, 0),
        (datetime(2027, 1, 1, 9, tzinfo=timezone(timedelta(hours=1))), 1_798_790_400_000_000),
        (datetime(2027, 7, 1, 9, tzinfo=BERLIN), 1_814_425_200_000_000),
        (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), 1_792_888_200_000_000),
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), 1_792_891_800_000_000),
    ],
)
def test_a_point_in_time_becomes_microseconds(at: datetime | float, us: int) -> None:
    assert at_us(at) == us


@given(st.integers(0, DUE_END_US - 1))
def test_every_datetime_is_exact(us: int) -> None:
    assert at_us(to_datetime(us)) == us
    if us < DUE_END_US - 86_400 * US_PER_S:
        assert at_us(to_datetime(us).astimezone(KATHMANDU)) == us


@given(st.integers(0, 10**16))
@example(9_066_873_717_729_764)
def test_epoch_seconds_as_a_float_are_never_early(us: int) -> None:
    at = us / US_PER_S
    assert at_us(at) >= Decimal(repr(at)) * US_PER_S
    assert at_us(at) - us <= 2  # floats of this size have gaps of up to a microsecond


def test_a_naive_datetime_is_refused_with_a_hint_how_to_give_it_a_zone() -> None:
    with pytest.raises(BadArgument) as caught:
        at_us(datetime(2027, 1, 1))
    assert "no time zone" in caught.value.what
    assert caught.value.hint is not None
    assert "timezone.utc" in caught.value.hint
    assert "ZoneInfo" in caught.value.hint


def test_a_datetime_with_a_zone_that_knows_no_offset_is_refused_as_naive() -> None:
    from datetime import tzinfo

    class Vague(tzinfo):
        def utcoffset(self, when: datetime | None) -> None:
            return None

    with pytest.raises(BadArgument, match="no time zone"):
        at_us(datetime(2027, 1, 1, tzinfo=Vague()))


@pytest.mark.parametrize("wrong", ["2027-01-01", None, True, timedelta(1), float("nan"), float("inf"), Decimal(5)])
def test_what_is_not_a_point_in_time_is_refused(wrong: Any) -> None:
    with pytest.raises(BadArgument):
        at_us(wrong)


def test_the_callers_decimal_context_does_not_change_a_time() -> None:
    with decimal.localcontext() as context:
        context.prec = 6
        assert at_us(1767225600.1) == 1_767_225_600_100_000


def test_a_number_of_a_class_with_another_repr_is_read_by_its_value() -> None:
    class Loud(float):  # as numpy.float64, whose repr is "np.float64(1.5)"
        def __repr__(self) -> str:
            return f"Loud({float(self)})"

    class Moment(enum.IntEnum):
        START = 1767225600

    assert at_us(Loud(1.5)) == 1_500_000
    assert at_us(Moment.START) == 1_767_225_600_000_000


# -- what is legal --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("us", [0, 1, DUE_END_US - 1])
def test_a_due_from_1970_to_the_end_of_9999_is_legal(us: int) -> None:
    assert check_due(us) == us


@pytest.mark.parametrize(("us", "what"), [(-1, "before 1970"), (DUE_END_US, "year 9999"), (10**40, "year 9999")])
def test_a_due_outside_of_1970_to_9999_is_refused(us: int, what: str) -> None:
    with pytest.raises(BadArgument, match=what):
        check_due(us)


def test_without_delay_and_at_a_message_is_due_now() -> None:
    assert due_from(NOW_US, delay=None, at=None) == NOW_US


def test_delay_and_at_together_are_refused() -> None:
    with pytest.raises(BadArgument, match="not both"):
        due_from(NOW_US, delay=0, at=0)


def test_a_due_in_the_past_is_legal() -> None:
    assert due_from(NOW_US, delay=-3600, at=None) == NOW_US - 3600 * US_PER_S
    assert due_from(NOW_US, delay=None, at=0) == 0


@pytest.mark.parametrize("delay", [timedelta.max, 10**12, 1e300, 253_402_300_800])
def test_a_delay_beyond_the_year_9999_is_refused(delay: float | timedelta) -> None:
    with pytest.raises(BadArgument, match="year 9999"):
        due_from(NOW_US, delay=delay, at=None)


@pytest.mark.parametrize("at", [datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))), 253_402_300_800, 1e300])
def test_a_time_beyond_the_year_9999_is_refused(at: datetime | float) -> None:
    with pytest.raises(BadArgument, match="year 9999"):
        due_from(NOW_US, delay=None, at=at)


@pytest.mark.parametrize("at", [datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), -1, -0.000001])
def test_a_time_before_1970_is_refused(at: datetime | float) -> None:
    with pytest.raises(BadArgument, match="before 1970"):
        due_from(NOW_US, delay=None, at=at)


# -- durations as text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("90s", 90),
        ("1h30m", 5_400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("1.5h", 5_400),
        ("0.5", 0.5),
        ("1w2d3h4m5s", 604_800 + 172_800 + 10_800 + 240 + 5),
        ("250ms", 0.25),
        ("1s250ms", 1.25),
        ("1m500ms", 60.5),
        ("30m1h", 5_400),
        (" 90 ", 90),
        ("007", 7),
        ("1 hour", 3_600),
        ("90 min", 5_400),
        ("1 h 30 m", 5_400),
        ("2 weeks 1 day", 1_296_000),
        ("1hour30minutes", 5_400),
        ("1.5 hrs", 5_400),
        ("30 secs", 30),
        ("5 msec", 0.005),
    ],
)
def test_a_duration_is_read_in_every_form(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds * US_PER_S


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "soon",
            "-5",
            "+5",
            "1h30",
            "1 30",
            "h",
            "1  h",
            "1 hour, 3 min",
            "one hour",
            "1 Hour",
            "5 minutess",
            "1.h",
            ".5",
            ".5h",
            "1,5h",
            "1e3",
            "5M",
            "1H",
        ),
        *("1y", "1mo", "5us", "1h-5m", "inf", "nan", "0x10", "٣", "5s5", "1_000", "1h;", "90s\x00", "1.5.5"),
    ],
)
def test_what_is_not_a_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadArgument, match="is not a duration: write 90, 90s, 1h30m or 2d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "us"), [("0.0000001", 1), ("1.0000001s", 1_000_001), ("0.0001ms", 1), ("1.0001ms", 1_001)]
)
def test_a_duration_below_a_microsecond_is_rounded_up(text: str, us: int) -> None:
    assert parse_duration(text) == us


@given(st.integers(0, 10**15))
def test_a_duration_of_whole_microseconds_is_exact(us: int) -> None:
    text = f"{us // US_PER_S}.{us % US_PER_S:06d}"
    assert parse_duration(text) == parse_duration(text + "s") == us


def test_an_absurdly_long_duration_is_read_and_refused_as_a_due() -> None:
    with pytest.raises(BadArgument, match="year 9999"):
        check_due(NOW_US + parse_duration("9" * 3_000))


# -- times as text --------------------------------------------------------------------------------------------

MORNING = datetime(2026, 11, 21, 9, 30, 15, 250_000, tzinfo=BERLIN)


def test_now_is_now() -> None:
    assert parse_time("now", MORNING) == MORNING
    assert parse_time(" now ", MORNING) == MORNING


@pytest.mark.parametrize(
    ("text", "us"),
    [("@0", 0), ("@1767225600", 1_767_225_600_000_000), ("@1767225600.5", 1_767_225_600_500_000), ("@0.0000001", 1)],
)
def test_an_at_sign_means_epoch_seconds(text: str, us: int) -> None:
    assert at_us(parse_time(text, MORNING)) == us


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2027-01-01T09:00+01:00", "2027-01-01T08:00:00"),
        ("2027-01-01T09:00Z", "2027-01-01T09:00:00"),
        ("2027-01-01T09:00:30.123456Z", "2027-01-01T09:00:30.123456"),
        ("2027-01-01 09:00-05:45", "2027-01-01T14:45:00"),
        ("20270101T0900Z", "2027-01-01T09:00:00"),
    ],
)
def test_a_time_with_an_offset_is_that_moment_wherever_one_is(text: str, utc: str) -> None:
    for zone in (BERLIN, NEW_YORK, APIA):
        assert parse_time(text, MORNING.astimezone(zone)) == datetime.fromisoformat(utc + "+00:00")


@pytest.mark.parametrize(
    ("zone", "text", "said"),
    [
        (BERLIN, "2027-01-01T09:00", "2027-01-01T09:00:00+01:00"),
        (BERLIN, "2027-07-01T09:00", "2027-07-01T09:00:00+02:00"),
        (BERLIN, "2027-07-01", "2027-07-01T00:00:00+02:00"),
        (NEW_YORK, "2027-07-01 09:00:01", "2027-07-01T09:00:01-04:00"),
        (KATHMANDU, "2027-07-01T09:00", "2027-07-01T09:00:00+05:45"),
        # Jumps forward: a time that does not exist is moved behind the jump.
        (BERLIN, "2027-03-28T02:30", "2027-03-28T03:30:00+02:00"),
        (BERLIN, "2027-03-28T01:59:59", "2027-03-28T01:59:59+01:00"),
        (BERLIN, "2027-03-28T03:00", "2027-03-28T03:00:00+02:00"),
        (NEW_YORK, "2027-03-14T02:00", "2027-03-14T03:00:00-04:00"),
        (LORD_HOWE, "2027-10-03T02:15", "2027-10-03T02:45:00+11:00"),
        (APIA, "2011-12-30T12:00", "2011-12-31T12:00:00+14:00"),
        # Jumps back: of two times of one name, the first.
        (BERLIN, "2027-10-31T02:30", "2027-10-31T02:30:00+02:00"),
        (NEW_YORK, "2027-11-07T01:30", "2027-11-07T01:30:00-04:00"),
        (LORD_HOWE, "2027-04-04T01:45", "2027-04-04T01:45:00+11:00"),
    ],
)
def test_a_time_without_an_offset_is_local(zone: ZoneInfo, text: str, said: str) -> None:
    assert parse_time(text, MORNING.astimezone(zone)).isoformat() == said


@pytest.mark.parametrize(
    ("zone", "now", "text", "said"),
    [
        (BERLIN, "2026-11-21T09:30:15.25", "10:00", "2026-11-21T10:00:00+01:00"),
        (BERLIN, "2026-11-21T09:30:15.25", "09:30:16", "2026-11-21T09:30:16+01:00"),
        (BERLIN, "2026-11-21T09:30:15.25", "09:30:15", "2026-11-22T09:30:15+01:00"),
        (BERLIN, "2026-11-21T09:30:15.25", "9:30", "2026-11-22T09:30:00+01:00"),
        (BERLIN, "2026-11-21T09:30:15.25", "00:00", "2026-11-22T00:00:00+01:00"),
        (BERLIN, "2026-11-21T09:30:00", "09:30", "2026-11-22T09:30:00+01:00"),  # now is not the next occurrence
        (BERLIN, "2026-12-31T23:59:59", "23:59", "2027-01-01T23:59:00+01:00"),
        (BERLIN, "2027-03-27T12:00", "11:00", "2027-03-28T11:00:00+02:00"),  # 22 hours ahead
        (BERLIN, "2027-10-30T12:00", "11:00", "2027-10-31T11:00:00+01:00"),  # 24 hours ahead
        (BERLIN, "2027-03-28T01:00", "02:30", "2027-03-28T03:30:00+02:00"),
        (BERLIN, "2027-03-28T03:45", "02:30", "2027-03-29T02:30:00+02:00"),
        (NEW_YORK, "2027-11-07T00:00", "01:30", "2027-11-07T01:30:00-04:00"),
        (LORD_HOWE, "2027-10-03T01:00", "02:15", "2027-10-03T02:45:00+11:00"),
        (APIA, "2011-12-29T13:00", "12:00", "2011-12-31T12:00:00+14:00"),
    ],
)
def test_a_time_of_day_is_its_next_occurrence(zone: ZoneInfo, now: str, text: str, said: str) -> None:
    then = datetime.fromisoformat(now).replace(tzinfo=zone)
    assert parse_time(text, then).isoformat() == said


def test_a_time_of_day_in_the_second_passage_of_a_repeated_hour_is_a_few_minutes_ahead() -> None:
    now = datetime(2027, 10, 31, 2, 15, fold=1, tzinfo=BERLIN)
    assert parse_time("02:30", now).isoformat() == "2027-10-31T02:30:00+01:00"
    assert parse_time("02:10", now).isoformat() == "2027-11-01T02:10:00+01:00"


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.sampled_from(ZONES)),
    st.integers(0, 23),
    st.integers(0, 59),
)
def test_the_next_occurrence_is_ahead_and_at_most_two_days_away(now: datetime, hour: int, minute: int) -> None:
    now = now.astimezone(UTC).astimezone(now.tzinfo)  # not a time that a jump skips
    found = parse_time(f"{hour}:{minute:02}", now)
    assert timedelta(0) < found.astimezone(UTC) - now.astimezone(UTC) <= timedelta(hours=49)
    assert found.tzinfo is now.tzinfo


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "@", "@-5", "@1e9", "@ 5", "1767225600", "2027", "2027-13-01", "2027-02-30T09:00Z"),
        *("9", "9:5", "09:00:5", "09:00Z", "2027-01-01T25:00", "2027-01-01T09:00+25:00", "NOW", "٠٩:٠٠", "09：00"),
    ],
)
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="is not a time"):
        parse_time(text, MORNING)


@pytest.mark.parametrize("text", ["24:00", "23:60", "23:59:60", "99:99"])
def test_what_is_not_a_time_of_day_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="is not a time of day"):
        parse_time(text, MORNING)


@pytest.mark.parametrize("text", ["@253402300800", "@99999999999999999999", "@" + "9" * 400])
def test_epoch_seconds_beyond_the_year_9999_are_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="year 9999"):
        parse_time(text, MORNING)


def test_the_end_of_the_year_9999_is_legal_in_utc_and_beyond_it_west_of_it() -> None:
    assert check_due(at_us(parse_time("9999-12-31T23:59:59.999999Z", MORNING))) == DUE_END_US - 1
    with pytest.raises(BadArgument, match="year 9999"):
        check_due(at_us(parse_time("9999-12-31T23:59:59.999999-01:00", MORNING)))


@pytest.mark.parametrize(("text", "zone"), [("9999-12-31T23:00", NEW_YORK), ("0001-01-01T00:00", BERLIN)])
def test_a_local_time_at_the_end_of_the_calendar_is_refused(text: str, zone: ZoneInfo) -> None:
    with pytest.raises(BadArgument):
        check_due(at_us(parse_time(text, MORNING.astimezone(zone))))


# -- words ----------------------------------------------------------------------------------------------------

WEDNESDAY = datetime(2026, 11, 25, 10, 12, tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("9am", "2026-11-26T09:00"),
        ("9:30 PM", "2026-11-25T21:30"),
        ("9:30:15pm", "2026-11-25T21:30:15"),
        ("12am", "2026-11-26T00:00"),
        ("12 pm", "2026-11-25T12:00"),
        ("noon", "2026-11-25T12:00"),
        ("midnight", "2026-11-26T00:00"),
        ("at 9:00", "2026-11-26T09:00"),
        ("today 11:00", "2026-11-25T11:00"),
        ("today 9:00", "2026-11-25T09:00"),
        ("yesterday 9am", "2026-11-24T09:00"),
        ("tomorrow 9:00", "2026-11-26T09:00"),
        ("9:00 tomorrow", "2026-11-26T09:00"),
        ("  Tomorrow   at  9:00 ", "2026-11-26T09:00"),
        ("tomorrow noon", "2026-11-26T12:00"),
        ("mon 09:00", "2026-11-30T09:00"),
        ("Monday 9am", "2026-11-30T09:00"),
        ("wed 11:00", "2026-11-25T11:00"),
        ("wed 10:12", "2026-12-02T10:12"),
        ("next wed 11:00", "2026-12-02T11:00"),
        ("next friday 18:00", "2026-11-27T18:00"),
        ("18:00 thurs", "2026-11-26T18:00"),
        ("in 2 hours", "2026-11-25T12:12"),
        ("in 90", "2026-11-25T10:13:30"),
    ],
)
def test_words_for_a_time_are_read(text: str, said: str) -> None:
    found = parse_time(text, WEDNESDAY)
    assert found.replace(tzinfo=None) == datetime.fromisoformat(said)
    assert found.utcoffset() == timedelta(hours=1)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("tomorrow", "'tomorrow' has no time of day: write 'tomorrow 09:00'"),
        ("monday", "has no time of day"),
        ("next friday", "has no time of day"),
        ("tomorrow midnight", "the start or the end of that day"),
        ("13pm", "the hours are 1 to 12"),
        ("0am", "the hours are 1 to 12"),
        ("tomorrow 25:00", "is not a time of day"),
        ("in soon", "'soon' is not a duration"),
        ("in 2 months", "no fixed length: write 30d"),
        *[(text, "is not a time: write 09:00, 'tomorrow 9:00'") for text in (
            "9", "next week", "next 9:00", "mon tue 9:00", "9:0", "tomorrow 9", "morning", "9:00 9:00", "next", "in",
            "last mon 9:00", "noon noon", "٣:00", "9.30pm", "", "tomorrow;9:00",
        )],
    ],
)  # fmt: skip
def test_words_that_name_no_moment_are_refused_with_an_example(text: str, what: str) -> None:
    with pytest.raises(BadArgument) as caught:
        parse_time(text, WEDNESDAY)
    assert what in caught.value.what


@pytest.mark.parametrize(
    ("zone", "now", "text", "said"),
    [
        # The clocks skip 02:30.
        (BERLIN, "2027-03-27T12:00", "tomorrow 02:30", "2027-03-28T03:30:00+02:00"),
        (BERLIN, "2027-03-25T12:00", "sun 2:30am", "2027-03-28T03:30:00+02:00"),
        # 02:30 comes twice: the first, or the second when the first has passed.
        (BERLIN, "2027-10-30T12:00", "tomorrow 02:30", "2027-10-31T02:30:00+02:00"),
        (BERLIN, "2027-10-31T02:45", "today 02:30", "2027-10-31T02:30:00+01:00"),
        (BERLIN, "2027-10-31T02:45", "sun 02:30", "2027-10-31T02:30:00+01:00"),
        # A day of 23 or 25 hours: a duration is real time.
        (BERLIN, "2027-03-28T01:00", "in 2 hours", "2027-03-28T04:00:00+02:00"),
        (BERLIN, "2027-10-31T01:00", "in 2 hours", "2027-10-31T02:00:00+01:00"),
        (APIA, "2011-12-29T12:00", "tomorrow 12:00", "2011-12-31T12:00:00+14:00"),
    ],
)
def test_words_follow_the_clocks(zone: ZoneInfo, now: str, text: str, said: str) -> None:
    assert parse_time(text, datetime.fromisoformat(now).replace(tzinfo=zone)).isoformat() == said


_NOWS = st.builds(
    lambda s, zone: datetime.fromtimestamp(s, zone), st.integers(0, 4_000_000_000), st.sampled_from([*ZONES, KATHMANDU])
)
_CLOCKS = st.times().map(lambda t: t.replace(microsecond=0))
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _is_skipped(found: datetime, clock: str) -> bool:
    return found.strftime("%H:%M:%S") != clock


@given(_NOWS, _CLOCKS.map(str), st.sampled_from(_WEEKDAYS), st.booleans())
def test_a_weekday_is_the_first_such_day_with_this_time_still_to_come(
    now: datetime, clock: str, day: str, is_next: bool
) -> None:
    found = parse_time(f"{'next ' * is_next}{day} {clock}", now)
    ahead = found.astimezone(UTC) - now.astimezone(UTC)
    assert timedelta() < ahead <= timedelta(days=7, hours=25)
    if not _is_skipped(found, clock):
        assert _WEEKDAYS[found.weekday()] == day
        assert not is_next or found.date() > now.date()
        # A week earlier it had passed, or was today and "next" is not.
        earlier = found.replace(tzinfo=None, fold=0) - timedelta(days=7)
        assert earlier.replace(tzinfo=now.tzinfo).astimezone(UTC) <= now.astimezone(UTC) or is_next


@given(_NOWS, _CLOCKS.map(str), st.sampled_from(["today", "tomorrow", "yesterday"]))
def test_a_day_by_its_distance_is_that_day_at_that_time(now: datetime, clock: str, day: str) -> None:
    found = parse_time(f"{clock} {day}", now)
    days = {"yesterday": -1, "today": 0, "tomorrow": 1}[day]
    if not _is_skipped(found, clock):
        assert found.date() == now.date() + timedelta(days=days)
    assert parse_time(f"{day} {clock}", now) == found


@given(_NOWS, st.integers(0, 10**6))
def test_in_a_duration_is_real_time(now: datetime, seconds: int) -> None:
    assert parse_time(f"in {seconds} seconds", now).astimezone(UTC) - now.astimezone(UTC) == timedelta(seconds=seconds)


@given(st.text(max_size=20), _NOWS)
def test_any_text_is_a_time_or_a_bad_argument(text: str, now: datetime) -> None:
    for read in (lambda: parse_time(text, now), lambda: parse_duration(text)):
        with contextlib.suppress(BadArgument):
            read()
