"""`when`: what recurs, shown before it is relied on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from filewheel.schedules.cron import Cron
from filewheel.schedules.recurrence import Every
from tests.cli.support import invoke, on_terminal


def test_piped_it_is_one_object_a_time_without_any_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("when", "0 9 * * mon-fri", "--tz", "Europe/Berlin", "--from", "2026-03-27T09:00", "-n", 2)
    assert result.code == 0, result
    assert result.json == [
        {
            "due": "2026-03-30T07:00:00.000000Z",
            "due_us": 1774854000000000,
            "local": "2026-03-30T09:00:00+02:00",
            "in_s": 255_600.0,
            "moved": False,
        },
        {
            "due": "2026-03-31T07:00:00.000000Z",
            "due_us": 1774940400000000,
            "local": "2026-03-31T09:00:00+02:00",
            "in_s": 342_000.0,
            "moved": False,
        },
    ]
    assert result.err == ""
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_it_is_a_table_that_marks_what_a_gap_has_moved() -> None:
    args = ("when", "30 2 * * *", "--tz", "Europe/Berlin", "--from", "2026-03-28", "-n", "3")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(*args).out).splitlines()
    assert [line.rstrip() for line in shown] == [
        "Europe/Berlin                   UTC                      IN",
        "Sat 2026-03-28 02:30:00 +01:00  2026-03-28 01:30:00  2h 30m",
        "Sun 2026-03-29 03:00:00 +02:00  2026-03-29 01:00:00   1d 2h  moved by a gap",
        "Mon 2026-03-30 02:30:00 +02:00  2026-03-30 00:30:00   2d 1h",
    ]


def test_both_passes_of_a_fold_differ_in_their_offset() -> None:
    found = invoke("when", "*/30 2 * * *", "--tz", "Europe/Berlin", "--from", "2026-10-25", "-n", 4).json
    assert [line["local"][11:] for line in found] == [
        "02:00:00+02:00", "02:30:00+02:00", "02:00:00+01:00", "02:30:00+01:00",
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "interval_s"), [("90s", 90), ("90", 90), ("every 15m", 900), ("every 250ms", 0.25)])
def test_an_interval_is_shown_on_its_grid(text: str, interval_s: float) -> None:
    found = [line["due_us"] for line in invoke("when", text, "--from", "@1790000000", "-n", 3).json]
    every = Every(interval_s)
    first = every.after(1_790_000_000_000_000)
    assert found == [first, first + every.interval_us, first + 2 * every.interval_us]


def test_a_fraction_of_a_second_is_shown() -> None:
    result = invoke("when", "every 250ms", "--from", "2026-01-01", "-n", 2, "--no-json")
    assert "00:00:00.25 +00:00" in result.lines[1]
    assert "250ms" in result.lines[1]


def test_without_from_it_begins_now_and_shows_ten() -> None:
    found = invoke("when", "@hourly").json
    assert len(found) == 10
    assert all(0 < line["in_s"] <= 36_000 for line in found)
    assert [line["due_us"] for line in found[1:]] == [Cron("@hourly").after(line["due_us"]) for line in found[:-1]]


def test_a_time_without_a_zone_is_in_the_zone_of_the_schedule() -> None:
    for given in ("2026-01-01T09:00", "2026-01-01T00:00Z", "2026-01-01T01:00+01:00"):
        (found,) = invoke("when", "0 10 * * *", "--tz", "Asia/Tokyo", "--from", given, "-n", 1).json
        assert (found["local"], found["in_s"]) == ("2026-01-01T10:00:00+09:00", 3600.0)


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (["0 9 * *"], "has 4 fields", "from Monday to Friday"),
        (["0 9 * * foo"], "day-of-week 'foo': 'foo' is not 0 to 7 or sun to sat", "mon-fri"),
        (["0 0 30 2 *"], "never comes", "last day of February"),
        (["@daily", "--tz", "Europe/Berln"], "tz 'Europe/Berln' is not a time zone", "Europe/Berlin"),
        (["every day"], "'day' is neither an interval nor a cron expression", "every 15m"),
        (["0", "9", "README.md", "cli", "mon-fri"], "put the schedule in quotes", "filewheel when --help"),
        (["@daily", "--from", "soon"], "'soon' is not a time", None),
        (["@daily", "-n", "0"], "Invalid value for '-n'", "filewheel when --help"),
        ([], "Missing argument 'SCHEDULE", "filewheel when --help"),
        (["*/5 2 * 3 sunL", "--tz", "Europe/Berlin", "--from", "2026-01-01"], "does not come again", "a time of day"),
    ],
)
def test_what_is_wrong_is_a_usage_error_that_says_what_is_right(
    args: list[str], message: str, hint: str | None
) -> None:
    result = invoke("--json", "when", *args)
    assert (result.code, result.out) == (2, "")
    assert message in result.error["message"]
    assert (hint or "") in (result.error["hint"] or "")
