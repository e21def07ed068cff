"""Handlers' calls on the command line: enqueue --args, a call shown for people, recurring work listed."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from cli.show.calls import when_of
from cli.show.text import width
from filewheel import Cron, Every, Retry, Scheduler
from filewheel.schedules.recurrence import read_recurrence
from filewheel.testing import FakeClock, advance
from tests.cli.support import Fw, invoke, on_terminal

# -- enqueue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "args", "kwargs"),
    [
        ('["ann", 2]', ["ann", 2], {}),
        ('{"to": "ann", "times": 2}', [], {"to": "ann", "times": 2}),
        ("[]", [], {}),
        ("{}", [], {}),
        ('[{"a": [1, null, 1.5, true]}, "ü"]', [{"a": [1, None, 1.5, True]}, "ü"], {}),
    ],
)
def test_args_are_what_the_handler_is_called_with(
    fw: Fw, given: str, args: list[object], kwargs: dict[str, object]
) -> None:
    called: list[object] = []
    scheduler = Scheduler(fw.wheel)

    @scheduler.on("email")
    def email(*args: object, **kwargs: object) -> None:
        called.append((list(args), kwargs))

    (id_,) = fw("enqueue", "--in", "0", "--topic", "email", "--header", "a=b", "--args", given).lines
    (shown,) = fw("inspect", id_).json
    assert (shown["args"], shown["kwargs"]) == (args, kwargs)
    assert shown["headers"] == {"a": "b", "filewheel.args": "json"}
    line = json.dumps({"in": 0, "topic": "email", "args": json.loads(given), "headers": {"a": "b"}})
    fw("enqueue", "--batch", stdin=line)
    assert scheduler.drain() == 2
    assert called == [(args, kwargs)] * 2
    scheduler.stop()


def test_a_key_and_args_go_together(fw: Fw) -> None:
    (id_,) = fw("enqueue", "--in", "1h", "--topic", "email", "--args", "[1]", "--key", "k").lines
    (shown,) = fw("inspect", id_).json
    assert shown["headers"] == {"filewheel.key": "k", "filewheel.args": "json"}
    fw("enqueue", "--topic", "email", "--batch", stdin='{"in": 60, "args": [2], "key": "l"}')
    assert [m["payload"] for m in fw.pending()] == ["[[2],{}]", "[[1],{}]"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--args", "[1]", "body"], "BODY or --args"),
        (["--args", "[1]", "--topic", "", "--in", "1"], "--topic"),
        (["--args", "ann"], "not JSON"),
        (["--args", '"ann"'], "a JSON list, or an object"),
        (["--args", "3"], "a JSON list, or an object"),
        (["--args", "[NaN]"], "cannot be stored"),
        (["--args", '["\\ud800"]'], "cannot be stored"),
        (["--args", "[" * 120_000], "nested too deeply"),
        (["--args", "[1]", "--lines"], "lines of --batch"),
        (["--args", "[1]", "--batch"], "lines of --batch"),
    ],
)
def test_args_that_make_no_call_are_refused_and_nothing_is_enqueued(fw: Fw, args: list[str], said: str) -> None:
    due = [] if "--in" in args else ["--in", "1h", "--topic", "email"]
    result = fw("enqueue", *due, *args, code=2)
    assert said in result.err
    assert fw.pending() == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"args": [1], "payload": "x", "topic": "t"}, "line 1: give a payload or args"),
        ({"args": [1]}, "line 1: args are those of a handler"),
        ({"args": "ann", "topic": "t"}, "line 1: args are a JSON list"),
        ({"args": None, "topic": "t"}, "line 1: args are a JSON list"),
    ],
)
def test_a_line_with_args_that_make_no_call_is_named(fw: Fw, line: dict[str, object], said: str) -> None:
    assert said in fw("enqueue", "--in", "1", "--batch", stdin=json.dumps(line), code=2).err


# -- one message -----------------------------------------------------------------------------------------------


def test_a_dead_letter_shows_its_call_its_reason_and_each_attempt(fw: Fw) -> None:
    clock = FakeClock()
    scheduler = Scheduler(fw.wheel, clock=clock)

    @scheduler.on(retry=Retry(limit=1, delay_s=60, jitter=0))
    def email(to: str, *, raw: bytes, when: datetime) -> None:
        raise ConnectionError("away\x1b[2J")

    email.enqueue("ann", raw=b"\xff", when=datetime(2029, 1, 1, tzinfo=UTC))
    advance(scheduler, clock, 60)
    scheduler.stop()
    (dead,) = fw.dead()
    (shown,) = fw("inspect", dead["id"]).json
    assert shown["args"] == ["ann"]
    assert shown["kwargs"] == {"raw": {"b64": "/w=="}, "when": "2029-01-01T00:00:00+00:00"}
    error = "ConnectionError: away\x1b[2J"
    details = [attempt.pop("details") for attempt in shown["attempts"]]
    assert shown["attempts"] == [
        {"at": "2029-01-01T00:00:00.000000Z", "attempt": 0, "error": error},
        {"at": "2029-01-01T00:01:00.000000Z", "attempt": 1, "error": error},
    ]
    assert all(f'File "{__file__}", line ' in d and d.endswith(error) for d in details), details
    text = fw("inspect", "--no-json", dead["id"]).out
    assert "reason    ConnectionError: away\\x1b[2J (after 2 attempts)" in text
    assert "call      email('ann', raw=b'\\xff', when=datetime.datetime(2029, 1, 1, 0, 0" in text
    assert ", try 1: ConnectionError: away\\x1b[2J" in text
    assert ", try 2: ConnectionError: away\\x1b[2J" in text
    assert "filewheel.history" not in text
    assert "filewheel.details" not in text
    where = re.findall(r'^ +\| +File "(.*)", line \d+, in email$', text, re.MULTILINE)
    assert where == [__file__, __file__]
    assert text.count('|     raise ConnectionError("away') == 2
    assert "\x1b" not in text


def test_what_cannot_be_read_is_shown_as_it_is(fw: Fw) -> None:
    headers = ["--header", "filewheel.args=json", "--header", "filewheel.history=x", "--header", "filewheel.schedule=y"]
    (id_,) = fw("enqueue", "--in", "1h", *headers, "no json").lines
    (shown,) = fw("inspect", id_).json
    assert not {"args", "attempts"} & set(shown)
    assert shown["schedule"]["unreadable"] == "its definition is not one of this version"
    text = fw("inspect", "--no-json", id_).out
    assert "filewheel.schedule: y" in text
    assert "filewheel.history: x" in text
    assert text.endswith("no json\n")


# -- recurring work --------------------------------------------------------------------------------------------


def test_recurring_work_is_listed_with_what_it_calls_and_when_it_comes_next(fw: Fw) -> None:
    clock = FakeClock()
    scheduler = Scheduler(fw.wheel, clock=clock)

    @scheduler.every("0 9 * * mon-fri", tz="Europe/Berlin", missed="skip")
    def report() -> None: ...

    @scheduler.every(timedelta(hours=30), name="cleaning\x1b[2J", args=[3])
    @scheduler.on("clean")
    def clean(days: int) -> None: ...

    assert fw("inspect", "schedules").out == ""
    scheduler.drain()
    scheduler.schedule("per-user", "@daily", "digest", ["ann"], missed="all")
    scheduler.enqueue("digest", ["bob"], delay=60)
    found = {line["name"]: line for line in fw("inspect", "schedules").json}
    assert set(found) == {"report", "cleaning\x1b[2J", "per-user"}
    assert fw("inspect", "schedules", "per*").json == [found["per-user"]]
    each = found["per-user"]
    assert each.pop("next").endswith("T00:00:00.000000Z")
    assert each.pop("next_us") == Cron("@daily").after(clock.now_us())
    (shown,) = fw("inspect", each.pop("id")).json
    assert each == {
        "name": "per-user", "when": "0 0 * * *", "tz": "UTC", "missed": "all", "declared": False, "handler": "digest",
        "topic": "digest", "body": "digest('ann')", "attempt": 0,
    }  # fmt: skip
    assert shown["schedule"] == {k: each[k] for k in ("name", "when", "tz", "missed", "declared")}
    assert (found["report"]["tz"], found["report"]["declared"]) == ("Europe/Berlin", True)
    assert (found["cleaning\x1b[2J"]["when"], found["cleaning\x1b[2J"]["tz"]) == ("every 1d6h", None)
    text = fw("inspect", "schedules", "--no-json").out
    header, *rows = text.splitlines()
    assert header.split() == ["NAME", "WHEN", "ZONE", "NEXT", "(local)", "TOPIC", "MISSED", "FROM", "BODY"]
    (row,) = [row for row in rows if row.startswith("report")]
    assert "0 9 * * mon-fri  Europe/Berlin" in row or "0 9 * * 1-5  Europe/Berlin" in row
    assert any(row.startswith("cleaning\\x1b[2J  every 1d6h") for row in rows)
    said = "schedule  per-user: 0 0 * * * in UTC; missed: all; started at run time"
    assert said in fw("inspect", "--no-json", shown["id"]).out
    scheduler.stop()


def test_no_recurring_work_is_said_on_a_terminal(fw: Fw) -> None:
    assert "no recurring work" in on_terminal("-C", fw.wheel, "inspect", "schedules").out
    assert "no recurring work of that name" in on_terminal("-C", fw.wheel, "inspect", "schedules", "x*").out


@pytest.mark.parametrize(
    "seconds",
    [
        0.001, 0.25, 1, 59, 90, 3600, 5400, 86_400, 90_061, 604_800, 1_000_000, 31_536_000, 31_536_001.5, 31_622_400,
        31_644_000, 10**11 - 1,
    ],
)  # fmt: skip
def test_an_interval_is_written_so_that_it_can_be_read_again(seconds: float) -> None:
    text, zone = when_of(Every(seconds))
    assert read_recurrence(text) == Every(seconds)
    assert zone is None


# -- on terminals of some width ----------------------------------------------------------------------------------


def plain_lines(shown: str) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]


def test_schedules_with_zones_and_dead_letters_fit_into_80_columns(fw: Fw) -> None:
    scheduler = Scheduler(fw.wheel, unknown="bury")
    args = {"tz": "America/Argentina/ComodRivadavia"}
    scheduler.schedule("a-rather-long-name", "*/15 9-17 * * mon-fri", "a.rather.long.handler", **args)
    scheduler.enqueue("a.topic.that.is.long", ["日本語" * 20], key="a-key-that-is-long")
    scheduler.drain()
    scheduler.stop()
    fw.enqueue("--in", "1h", "--topic", "日本語" * 9, "--key", "k" * 40, "body " * 30)
    for verb in (["schedules"], ["list"], ["list", "--dead"]):
        lines = plain_lines(on_terminal("-C", fw.wheel, "inspect", *verb).out)
        assert len(lines) > 1
        assert max(map(width, lines)) <= 80, lines


def test_a_wide_terminal_shows_topics_whole_and_what_a_narrow_one_leaves_out(fw: Fw) -> None:
    scheduler = Scheduler(fw.wheel)
    scheduler.schedule("nightly", "@daily", "report", tz="Europe/Berlin")
    scheduler.stop()
    topic = "customers.emea.germany.invoices.overdue"
    fw.enqueue("--in", "1h", "--topic", topic, "x")
    wide = on_terminal("-C", fw.wheel, "inspect", "schedules", columns=160).out
    assert "FROM" in wide
    assert "FROM" not in on_terminal("-C", fw.wheel, "inspect", "schedules").out
    assert topic in on_terminal("-C", fw.wheel, "inspect", "list", columns=160).out
    assert topic in on_terminal("-C", fw.wheel, "inspect", columns=160).out
    assert topic not in on_terminal("-C", fw.wheel, "inspect").out
    for n in range(20):
        fw.enqueue("--in", "1h", "--topic", f"topic{n}", "x")
    assert "more topics" in on_terminal("-C", fw.wheel, "inspect").out
    assert "more topic" not in on_terminal("-C", fw.wheel, "inspect", rows=70).out


def test_the_exit_codes_of_the_help_fit_into_80_columns() -> None:
    lines = invoke("--help", env={"COLUMNS": "80"}).out.splitlines()
    codes = lines[lines.index("  Exit codes:") :]
    assert len(codes) > 12
    assert max(map(len, codes)) <= 80
