"""`schedule`, `schedule list`, `schedule edit`, `unschedule`: what they do, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from filewheel import Retry, Scheduler, Wheel, retry_of, timeout_of
from tests.cli.support import Fw, Terminal, on_terminal


def one(fw: Fw, *args: object, stdin: str | None = None) -> dict[str, Any]:
    """Run a verb that prints one schedule, and return it as `schedule list` shows it."""
    (made,) = fw(*args, stdin=stdin).json
    (listed,) = fw("schedule", "list", made["name"]).json
    assert made == listed | {"done": made["done"]}
    assert isinstance(made, dict)
    return made


@pytest.mark.parametrize(
    ("words", "when", "body"),
    [
        (["0 3 * * *", "echo hi"], "0 3 * * *", "echo hi"),
        (["every 90s", "echo hi"], "every 1m30s", "echo hi"),
        (["every", "90s", "echo hi"], "every 1m30s", "echo hi"),
        (["EVERY", "5m", "echo hi"], "every 5m", "echo hi"),
        (["@daily", "--", "-x"], "0 0 * * *", "-x"),
        (["--at", "2090-01-01T09:00Z", "echo hi"], "at 2090-01-01T09:00:00Z", "echo hi"),
        (["--tz", "Asia/Tokyo", "@daily", "x"], "0 0 * * *", "x"),
    ],
)
def test_a_schedule_is_started_with_its_times_and_its_body(fw: Fw, words: list[str], when: str, body: str) -> None:
    made = one(fw, "schedule", "n", *words)
    assert (made["name"], made["when"], made["body"]) == ("n", when, body)
    assert (made["done"], made["declared"]) == ("started", False)


def test_the_body_may_come_from_stdin(fw: Fw) -> None:
    assert one(fw, "schedule", "a", "@daily", stdin="one\ntwo\n")["body"] == "one\ntwo\n"
    assert one(fw, "schedule", "b", "@daily", "-", stdin="x")["body"] == "x"


def test_all_options_are_kept_and_the_same_again_changes_nothing(fw: Fw) -> None:
    options = "--tz Asia/Tokyo --missed skip --grace 5m --jitter 10m --start 2089-01-01 --end 2090-01-01 --count 7"
    given = ["schedule", "n", "0 9 * * *", "x", *options.split(), "--topic", "t", "--header", "a=b"]
    made = one(fw, *given)
    expected = {
        "tz": "Asia/Tokyo", "missed": "skip", "jitter_s": 600, "count": 7, "left": 7, "topic": "t",
        "start": "2088-12-31T15:00:00.000000Z", "end": "2089-12-31T15:00:00.000000Z",
    }  # fmt: skip
    assert {name: made[name] for name in expected} == expected
    assert one(fw, *given) == made | {"done": "unchanged"}
    assert one(fw, *given[:3], "y", *given[4:])["done"] == "replaced"


def test_a_name_that_is_held_is_kept_or_refused_if_that_is_asked_for(fw: Fw) -> None:
    one(fw, "schedule", "n", "@daily", "x")
    assert one(fw, "schedule", "n", "@hourly", "y", "--on-conflict", "keep")["body"] == "x"
    result = fw("schedule", "n", "@hourly", "y", "--on-conflict", "reject", code=5)
    assert "there is a schedule 'n' already" in result.err


def test_with_args_it_calls_a_handler(fw: Fw) -> None:
    made = one(fw, "schedule", "n", "@daily", "--topic", "email", "--args", '["ann", 2]')
    assert made["body"] == "email('ann', 2)"
    assert "only a scheduler" in fw.process("run", "--once", code=2).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "0 3 * * *", "x"], "'list' is a verb of `filewheel schedule`, so it cannot be the name"),
        (["edit", "@daily", "x"], "'edit' is a verb"),
        (["load", "every", "5m", "x"], "'load' is a verb"),
        (["list", "--at", "09:00", "x"], "'list' is a verb"),
        (["n"], "when? Give a cron expression"),
        (["n", "0", "3", "*", "*", "*", "x"], "put the cron expression in quotes"),
        (["n", "@daily", "echo", "hi"], "put the body in quotes: 'hi'"),
        (["0 3 * * *", "backup.sh"], "where the NAME of the schedule comes"),
        (["n", "61 * * * *", "x"], "minute '61'"),
        (["n", "every 0s", "x"], "an interval is 0.001 s or more"),
        (["n", "every", "moon", "x"], "neither an interval nor a cron expression"),
        (["n", "--at", "2001-01-01T00:00Z", "x"], "has passed"),
        (["n", "--at", "soon", "x"], "is not a time"),
        (["n", "--at", "09:00", "--count", "3", "x"], "a single time has no start, end or count"),
        (["n", "@daily", "x", "--tz", "Mars"], "Mars"),
        (["n", "@daily", "x", "--count", "0"], "--count '0' is not a number from 1"),
        (["n", "@daily", "x", "--jitter", "-5"], "duration"),
        (["n", "every 90s", "x", "--jitter", "90s"], "the jitter is shorter than the interval"),
        (["n", "* * * * *", "x", "--jitter", "60s"], "shorter than the time between two occurrences, 60 s"),
        (["n", "@daily", "x", "--end", "2001-01-01"], "no time before its end"),
        (["n", "@daily", "x", "--args", "[1]"], "BODY or --args"),
        (["n", "@daily", "--args", "[1]"], "--topic"),
        (["x" * 300, "@daily", "x"], "the name of a schedule"),
        (["n", "@daily", "x", "--header", "filewheel.key=k"], "the schedule's own"),
        (["edit", "n"], "nothing to change"),
        (["edit", "n", "@daily", "x"], "put the body in quotes"),
        (["edit", "n", "no"], "neither an interval"),
        ([], "Usage: filewheel schedule"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_changes(fw: Fw, words: list[str], said: str) -> None:
    assert said in fw("schedule", *words, code=2).err
    assert fw.pending() == []


def test_an_edit_changes_what_is_given_and_nothing_else(fw: Fw) -> None:
    before = one(fw, "schedule", "n", "0 9 * * *", "x", "--tz", "Asia/Tokyo", "--end", "2090-01-01", "--count", "5")
    for args, changed in (
        (["0 10 * * *"], {"when": "0 10 * * *"}),
        (["--tz", "Europe/Berlin"], {"tz": "Europe/Berlin"}),
        (["--body", "y"], {"body": "y"}),
        (["--topic", "t"], {"topic": "t", "handler": "t"}),
        (["--missed", "all", "--jitter", "5m"], {"missed": "all", "jitter_s": 300}),
    ):
        after = one(fw, "schedule", "edit", "n", *args)
        kept = {name: value for name, value in before.items() if name not in ("id", "next", "next_us", "done")}
        assert {name: after[name] for name in kept | changed} == kept | changed
        before = after
    gone = one(fw, "schedule", "edit", "n", "--end", "none", "--count", "none")
    assert not {"end", "count", "left"} & gone.keys()
    assert one(fw, "schedule", "edit", "n", "--topic", "t")["done"] == "unchanged"
    assert one(fw, "schedule", "edit", "n", "every", "90s", "--jitter", "0")["tz"] is None
    assert "there is no schedule 'm'" in fw("schedule", "edit", "m", "--topic", "t", code=4).err


def test_an_edit_sets_the_retries_and_the_time_out_and_takes_them_away(fw: Fw) -> None:
    def terms() -> tuple[int, float | None]:
        with Wheel(fw.wheel) as wheel:
            (found,) = wheel.schedules("n")
            return retry_of(found.occurrence, Retry(limit=9)).limit, timeout_of(found.occurrence)

    one(fw, "schedule", "n", "@daily", "x", "--retries", "2", "--header", "a=b")
    one(fw, "schedule", "edit", "n", "--timeout", "30s")
    assert terms() == (2, 30.0)
    one(fw, "schedule", "edit", "n", "--retries", "none", "--header", "c=d")
    assert terms() == (9, 30.0)
    one(fw, "schedule", "edit", "n", "--timeout", "none")
    assert terms() == (9, None)
    for wrong in (["--retries", "-1"], ["--retries", "two"], ["--timeout", "soon"], ["--timeout", "0s"]):
        assert wrong[0] in fw("schedule", "edit", "n", *wrong, code=2).err
    assert terms() == (9, None)


def test_ended_schedules_are_named_and_so_are_those_that_are_not_there(fw: Fw) -> None:
    fw("schedule", "a", "@daily", "x")
    fw("schedule", "b", "@daily", "x")
    assert fw("unschedule", "a").json == [{"name": "a", "ended": True, "outcome": "stopped"}]
    assert "there is no schedule 'a'" in fw("unschedule", "a", code=4).err
    assert fw("unschedule", "a", "b", code=3).json == [{"name": "b", "ended": True, "outcome": "stopped"}]
    assert fw("schedule", "list").out == ""


def test_a_schedule_of_a_program_is_not_changed_from_the_shell(fw: Fw) -> None:
    scheduler = Scheduler(fw.wheel)
    scheduler.every("@daily", name="theirs")(scheduler.on("tick")(print))
    scheduler.drain()
    scheduler.stop()
    for args in (["theirs", "@hourly", "x"], ["edit", "theirs", "@hourly"]):
        result = fw("schedule", *args, code=5)
        assert "program" in result.err
        assert "--on-conflict" not in result.err
    assert "starts it again" in fw("unschedule", "theirs").err


def test_the_list_fits_eighty_columns_and_inspect_schedules_is_the_same(fw: Fw) -> None:
    with Wheel(fw.wheel) as wheel:
        zone = "America/Argentina/Buenos_Aires"
        wheel.schedule("a name that is long indeed", "0 9 1-7 jan-mar mon", b"x" * 300, topic="t" * 60, tz=zone)
        wheel.schedule("b", 5400, b"echo \x1b[2J", missed="skip")
    shown = on_terminal("-C", fw.wheel, "schedule", "list", columns=80, env={"NO_COLOR": "1"}).out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert shown.splitlines()[0].split() == ["NAME", "WHEN", "ZONE", "NEXT", "(local)", "TOPIC", "MISSED", "BODY"]
    assert "\x1b[2J" not in shown
    assert fw("inspect", "schedules").json == fw("schedule", "list").json
    wide = on_terminal("-C", fw.wheel, "schedule", "list", columns=200, env={"NO_COLOR": "1"}).out
    assert "FROM" in wide.splitlines()[0]


def test_on_a_terminal_a_schedule_is_confirmed_in_a_line(fw: Fw) -> None:
    shown = Terminal("-C", fw.wheel, "schedule", "n", "every 5m", "x").finish().out
    assert "started n: next " in shown
    assert "no keeper runs: `filewheel run -- sh` fires it" in shown
    fw("unschedule", "n")


def test_the_help_has_the_options_of_a_schedule_and_its_verbs(fw: Fw) -> None:
    text = fw("schedule", "--help").out
    for word in ("--at", "--jitter", "--count", "edit", "list", "load"):
        assert word in text
    assert "--at" in fw("schedule", "n", "--help").out


def test_a_schedule_that_there_is_not_is_not_found_and_a_pattern_that_fits_none_is_an_empty_list(fw: Fw) -> None:
    for verb in (["schedule", "list"], ["inspect", "schedules"]):
        assert "there is no schedule 'nope'" in fw(*verb, "nope", code=4).err
        assert fw(*verb, "nope*").out == ""
