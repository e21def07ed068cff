"""`init` and `enqueue`: one message, many, wrong ones; what people write for a time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from cli.input.lines import stdin
from cli.input.params import LOCAL, Local, read_time
from filewheel import BadArgument, MessageId, Wheel
from tests.cli.support import Fw, Terminal, environment, on_terminal
from tests.support import REPO

# -- one message ----------------------------------------------------------------------------------------------


def test_enqueue_prints_the_id_alone_so_that_a_shell_can_take_it(fw: Fw) -> None:
    result = fw("enqueue", "--in", "5m", "hi")
    assert result.out == f"{MessageId.parse(result.out.strip())}\n"
    assert result.err == ""
    shown = on_terminal("-C", fw.wheel, "enqueue", "--in", "5m", "hi")
    MessageId.parse(shown.out.strip())


def test_enqueue_with_json_prints_id_and_due(fw: Fw) -> None:
    (fields,) = fw("enqueue", "--at", "2027-01-01T09:00:00.25Z", "--json", "hi").json
    assert fields == {
        "id": fields["id"],
        "due": "2027-01-01T09:00:00.250000Z",
        "due_us": 1_798_794_000_250_000,
    }


@pytest.mark.parametrize(("args", "said"), [([], "--in 0"), (["--in", "1", "--at", "now"], "not both")])
def test_enqueue_without_a_time_or_with_two_is_a_usage_error(fw: Fw, args: list[str], said: str) -> None:
    result = fw("enqueue", *args, "hi", code=2)
    assert said in result.err
    assert fw.pending() == []


def test_enqueue_keeps_topic_headers_and_every_byte_of_the_body(fw: Fw) -> None:
    fw("enqueue", "--in", "1h", "--topic", "mail", "--header", "to=ann", "--header", "x=a=b", "-", stdin=b"\xff\0\n")
    (message,) = fw.pending()
    assert (message["topic"], message["headers"]) == ("mail", {"to": "ann", "x": "a=b"})
    assert message["payload_b64"] == "/wAK"


def test_enqueue_without_a_body_reads_a_pipe_and_refuses_a_terminal(fw: Fw) -> None:
    fw("enqueue", "--in", "1h", stdin="from a pipe\n")
    assert fw.pending()[0]["payload"] == "from a pipe\n"
    result = on_terminal("-C", fw.wheel, "enqueue", "--in", "1h")
    assert result.code == 2
    assert "BODY is missing" in result.out


@pytest.mark.parametrize("given", ["/dev/null", "closed"])
def test_enqueue_without_a_body_and_with_nothing_on_stdin_is_a_usage_error(fw: Fw, given: str) -> None:
    source = "<&-" if given == "closed" else "< /dev/null"
    shell = ["sh", "-c", f"exec {sys.executable} -m cli -C {fw.wheel} enqueue --in 1h {source}"]
    ended = subprocess.run(shell, cwd=REPO, env=environment(), capture_output=True, check=False, text=True)
    assert ended.returncode == 2, ended.stderr
    assert "stdin is empty" in ended.stderr
    assert fw.pending() == []


def test_a_stdin_that_python_found_closed_is_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert stdin().read() == b""


def test_an_empty_body_that_is_asked_for_is_a_message(fw: Fw) -> None:
    fw("enqueue", "--in", "1h", "-", stdin="")
    assert fw.pending()[0]["payload"] == ""


def test_a_delay_that_has_passed_fires_at_once_in_the_shell_as_in_python(fw: Fw) -> None:
    result = fw("enqueue", "--in", "-5s", "late")
    assert "5s ago: it waits for a keeper, and none runs: `filewheel run`" in result.err
    fw("enqueue", "--batch", stdin='{"in": "-1h", "payload": "b"}\n{"in": -7, "payload": "c"}\n')
    moved = fw("enqueue", "--in", "1h", "d").out.strip()
    fw("reschedule", moved, "--in", "-90")
    with Wheel(fw.wheel) as wheel:
        wheel.enqueue(b"python", delay=-5)
    assert {line["payload"] for line in fw("run", "--once").json} == {"late", "b", "c", "d", "python"}


@pytest.mark.parametrize("text", ["--5s", "-", "-x", "- 5s5", "-9999999w"])
def test_a_delay_that_is_none_is_refused(fw: Fw, text: str) -> None:
    fw("enqueue", f"--in={text}", "x", code=2)
    assert fw.pending() == []


def test_a_duration_that_is_no_delay_cannot_be_negative(fw: Fw) -> None:
    fw("inspect", "list", "--within", "-5s", code=2)


def test_ids_are_bare_when_piped_so_that_a_shell_can_take_them(fw: Fw) -> None:
    first = fw("enqueue", "--in", "1h", "x").lines
    second = fw("enqueue", "--in", "1h", "--lines", stdin="a\nb\n").lines
    cancelled = fw("cancel", *first, *second).lines
    assert [len(first), len(second)] == [1, 2]
    assert cancelled == first + second


def test_a_body_that_is_not_text_in_this_locale_arrives_as_it_was_typed(fw: Fw) -> None:
    command = [sys.executable, "-m", "cli", "-C", str(fw.wheel), "enqueue", "--in", "1h", b"\xff\xfe\xc3\xa4"]
    subprocess.run(command, cwd=REPO, env=environment(), check=True, capture_output=True)
    assert fw.pending()[0]["payload_b64"] == "//7DpA=="


def test_an_empty_body_is_a_message(fw: Fw) -> None:
    fw("enqueue", "--in", "1h", "")
    assert fw.pending()[0]["payload"] == ""


def test_a_past_time_is_accepted_with_a_note(fw: Fw) -> None:
    result = fw("enqueue", "--at", "2001-01-01T00:00Z", "late")
    assert "ago: it waits for a keeper" in result.err
    assert fw.pending()[0]["due"] == "2001-01-01T00:00:00.000000Z"


def test_a_time_without_a_zone_is_local_and_echoed_with_its_offset(fw: Fw) -> None:
    env = {"TZ": "Europe/Berlin"}
    result = fw.process("enqueue", "--at", "2027-07-01T09:00", "summer", env=env)
    assert "due 2027-07-01 09:00:00 +02:00" in result.err
    result = fw.process("enqueue", "--at", "2027-12-01T09:00", "winter", env=env)
    assert "due 2027-12-01 09:00:00 +01:00" in result.err
    assert [m["due"][:16] for m in fw.pending()] == ["2027-07-01T07:00", "2027-12-01T08:00"]


def test_a_time_with_a_zone_is_not_echoed(fw: Fw) -> None:
    assert fw("enqueue", "--at", "2027-07-01T09:00+02:00", "x").err == ""


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield LOCAL
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("now", "text", "utc"),
    [
        ("2027-06-01T10:00+02:00", "09:00", "2027-06-02T07:00+00:00"),
        ("2027-06-01T10:00+02:00", "10:30:15", "2027-06-01T08:30:15+00:00"),
        ("2027-03-27T12:00+01:00", "2027-03-28T02:30", "2027-03-28T01:30+00:00"),  # skipped: moved behind the jump
        ("2027-03-27T03:00+01:00", "02:45", "2027-03-28T01:45+00:00"),
        ("2027-10-30T12:00+02:00", "2027-10-31T02:30", "2027-10-31T00:30+00:00"),  # twice: the first
        ("2027-06-01T10:00+02:00", "2027-12-24", "2027-12-23T23:00+00:00"),
    ],
)
@pytest.mark.usefixtures("berlin")
def test_local_times_follow_the_rules_of_the_zone(now: str, text: str, utc: str) -> None:
    now_us = round(datetime.fromisoformat(now).timestamp() * 1_000_000)
    when = read_time(text, now_us)
    assert when.due_us == round(datetime.fromisoformat(utc).timestamp() * 1_000_000)
    assert when.is_local


@pytest.mark.usefixtures("berlin")
def test_a_local_time_has_the_offset_of_its_own_season() -> None:
    for text, hours in (("2027-01-01T12:00", 1), ("2027-07-01T12:00", 2)):
        moment = datetime.fromisoformat(text).replace(tzinfo=LOCAL)
        offset = moment.utcoffset()
        assert offset is not None
        assert offset.total_seconds() == hours * 3600
    second = datetime.fromisoformat("2027-10-31T01:30+00:00").astimezone(LOCAL)
    assert (second.hour, second.minute, second.fold) == (2, 30, 1)


@pytest.mark.parametrize("text", ["soon", "25:00", "0001-01-01T00:00", "1969-01-01T00:00Z", "@99999999999999", ""])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadArgument):
        read_time(text)


@pytest.mark.parametrize("text", ["soon", "5-", "5x", "9" * 90, "1e3"])
def test_a_duration_that_is_none_is_a_usage_error(fw: Fw, text: str) -> None:
    assert "duration" in fw("enqueue", f"--in={text}", "x", code=2).err or "9999" in fw(
        "enqueue", f"--in={text}", "x", code=2
    ).err  # fmt: skip


@pytest.mark.parametrize(
    "args", [["--header", "x"], ["--header", "=x"], ["--sync", "0"], ["--sync", "sometimes"], ["--topic", "t" * 300]]
)
def test_options_that_are_wrong_are_usage_errors_and_nothing_is_enqueued(fw: Fw, args: list[str]) -> None:
    fw("enqueue", "--in", "1", *args, "x", code=2)
    assert fw.pending() == []


def test_a_payload_over_the_limit_is_refused(tmp_path: Path) -> None:
    fw = Fw(tmp_path / "small")
    fw("init", "--payload-max", "1K")
    fw("enqueue", "--in", "1h", "x" * 1024)
    assert "1025 bytes" in fw("enqueue", "--in", "1h", "x" * 1025, code=2).err


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("64K", 65536), ("64KiB", 65536), ("64kB", 64000), ("1.5MB", 1_500_000)]
)
def test_init_takes_sizes_with_units(tmp_path: Path, text: str, size: int) -> None:
    (made,) = Fw(tmp_path / "w")("init", "--payload-max", text).json
    assert made["payload_bytes_max"] == size
    assert Path(made["path"]).is_absolute()


@pytest.mark.parametrize("args", [["--payload-max", "1TB"], ["--payload-max", "x"], ["--slots", "5"]])
def test_init_refuses_what_makes_no_wheel(tmp_path: Path, args: list[str]) -> None:
    Fw(tmp_path / "w")("init", *args, code=2)
    assert not (tmp_path / "w").exists()


# -- many -----------------------------------------------------------------------------------------------------


def test_each_line_is_a_message_and_an_empty_line_an_empty_one(fw: Fw) -> None:
    result = fw("enqueue", "--in", "1h", "--topic", "t", "--lines", stdin="one\n\nthree")
    assert len(result.lines) == 3
    assert [m["payload"] for m in fw.pending()] == ["one", "", "three"]
    assert [m["id"] for m in fw.pending()] == result.lines
    assert "enqueued 3 messages" in result.err


def test_lines_need_a_time(fw: Fw) -> None:
    assert "--in 0" in fw("enqueue", "--lines", stdin="x\n", code=2).err


def test_a_batch_has_its_own_times_and_the_options_are_for_lines_without(fw: Fw) -> None:
    rows = [
        {"payload": "a", "in": "2h"},
        {"payload": "b", "in": 60.5, "topic": "own"},
        {"payload_b64": "/w==", "at": "2027-01-01T00:00Z", "headers": {"k": "v"}},
        {"payload": "d", "due_us": 1_798_761_600_000_001},
        {"payload": "e"},
    ]
    stdin = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    fw("enqueue", "--batch", "--in", "1h", "--topic", "other", "--header", "h=1", stdin=stdin)
    found = {m.get("payload", "binary"): m for m in fw.pending()}
    now_us = min(m["enqueued_us"] for m in found.values())
    assert list(found) == ["b", "e", "a", "binary", "d"]
    assert 0 <= now_us + 60_500_000 - found["b"]["due_us"] < 10_000_000
    assert found["b"]["topic"] == "own"
    assert found["e"]["topic"] == "other"
    assert found["binary"]["headers"] == {"k": "v"}
    assert found["e"]["headers"] == {"h": "1"}
    assert found["d"]["due_us"] == 1_798_761_600_000_001


BAD_LINES = [
    "not json",
    "[]",
    '{"payload": "x"}',
    '{"in": "5m"}',
    '{"in": "5m", "payload": 5}',
    '{"in": "5m", "payload": "x", "payload_b64": "eA=="}',
    '{"in": "5m", "payload_b64": "*"}',
    '{"in": "soon", "payload": "x"}',
    '{"in": true, "payload": "x"}',
    '{"in": 1e999, "payload": "x"}',
    '{"in": "5m", "at": "now", "payload": "x"}',
    '{"at": 5, "payload": "x"}',
    '{"at": "0001-01-01T00:00", "payload": "x"}',
    '{"due_us": 1.5, "payload": "x"}',
    '{"due_us": -1, "payload": "x"}',
    '{"in": 1, "payload": "x", "topic": []}',
    '{"in": 1, "payload": "x", "topic": "\\ud800"}',
    '{"in": 1, "payload": "x", "headers": []}',
    '{"in": 1, "payload": "x", "headers": {"a": 1}}',
    '{"in": 1, "payload": "x", "topics": "t"}',
    '{"in": 1, "payload": "\\udc80"}',
    "[" * 50_000,
    '{"in": ' + "9" * 5000 + ', "payload": "x"}',
    '{"in": 1, "payload": "' + "x" * 1_048_577 + '"}',
]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:40])
def test_enqueue_batch_with_a_bad_line_enqueues_nothing_and_names_the_line(fw: Fw, line: str) -> None:
    good = '{"in": "1h", "payload": "good"}'
    result = fw("enqueue", "--batch", stdin=f"{good}\n{line}\n{good}\n", code=2)
    assert "line 2: " in result.err
    assert "nothing was enqueued" in result.err
    assert result.out == ""
    assert fw.pending() == []


def test_skip_bad_tells_each_bad_line_and_enqueues_the_others(fw: Fw) -> None:
    good = '{"in": "1h", "payload": "good"}'
    stdin = "\n".join([good, *BAD_LINES, good])
    result = fw("enqueue", "--batch", "--skip-bad", "--json", stdin=stdin, code=3)
    assert len(result.lines) == len(fw.pending()) == 2
    assert result.err.count("skipped\n") == len(BAD_LINES)
    assert result.error["error"] == "partly"
    assert result.error["code"] == 3


def test_a_line_over_the_limit_is_named_and_never_held_in_memory_whole(tmp_path: Path) -> None:
    fw = Fw(tmp_path / "small")
    fw("init", "--payload-max", "1K")
    stdin = "a" * 1024 + "\n" + "b" * 1025 + "\n" + "c\n"
    assert "line 2: over the limit" in fw("enqueue", "--in", "1h", "--lines", stdin=stdin, code=2).err
    assert fw.pending() == []
    fw("enqueue", "--in", "1h", "--lines", "--skip-bad", stdin=stdin, code=3)
    assert [len(m["payload"]) for m in fw.pending()] == [1024, 1]


def test_many_lines_come_in_order_and_more_than_a_portion_is_no_problem(fw: Fw) -> None:
    count = 25_000
    result = fw("enqueue", "--in", "1h", "--lines", stdin="".join(f"{i}\n" for i in range(count)))
    assert len(set(result.lines)) == count
    with Wheel(fw.wheel) as wheel:
        assert [m.payload for m in wheel.list()] == [b"%d" % i for i in range(count)]


def test_messages_that_fired_can_be_enqueued_again_as_they_were_printed(fw: Fw) -> None:
    fw.enqueue("--in", "0", "--topic", "t", "x")
    fired = fw.process("run", "--once").out
    (again,) = fw("enqueue", "--batch", stdin=fired).lines
    assert fw.pending()[0]["id"] == again != json.loads(fired)["id"]


@pytest.mark.parametrize(
    "args", [["--lines", "--batch"], ["--lines", "body"], ["--batch", "body"], ["--skip-bad", "x"]]
)
def test_options_that_do_not_go_together_are_usage_errors(fw: Fw, args: list[str]) -> None:
    fw("enqueue", "--in", "1", *args, stdin="x", code=2)
    assert fw.pending() == []


def test_a_terminal_sees_how_far_a_slow_input_is_and_nothing_of_it_stays(fw: Fw) -> None:
    line = '{"in": "1h", "payload": "x"}\n'
    command = f"\"$0\" -m cli -C '{fw.wheel}' enqueue --batch > /dev/null"
    terminal = Terminal(command=["sh", "-c", command, sys.executable], stdin=subprocess.PIPE)
    given = terminal.process.stdin
    assert given is not None
    lines = 0

    def write_line() -> None:
        nonlocal lines
        given.write(line)
        given.flush()
        lines += 1

    terminal.wait_for("\r\x1b[Kreading  ", meanwhile=write_line)  # however long the process takes to begin
    given.close()
    shown = terminal.finish().out
    seen = re.findall(r"\r\x1b\[Kreading  ([\d,]+)", shown)
    assert all(int(size.replace(",", "")) % len(line) == 0 for size in seen), shown
    assert shown.endswith(f"\r\x1b[Kenqueued {lines} messages\n")


# -- words for times ------------------------------------------------------------------------------------------


def test_words_for_a_time_are_taken_by_each_verb_and_what_was_understood_is_said(fw: Fw) -> None:
    said = fw("enqueue", "--at", "tomorrow 9am", "x").err
    assert " 09:00:00 " in said
    (message,) = fw("inspect", "list", "--after", "tomorrow 8:59", "--before", "tomorrow 9:01am").json
    assert fw("inspect", "list", "--after", "tomorrow noon").json == []
    said = fw("reschedule", message["id"], "--at", "mon 09:00").err
    assert "due Mon" in said or "due " in said
    (moved,) = fw("inspect", "list", "--before", "in 8 days").json
    assert datetime.fromisoformat(moved["due"]).astimezone().hour == 9
    assert fw("inspect", "list", "--within", "2 weeks", "--topic", "none").json == []
    (first, *_) = fw("when", "every 1 hour", "--from", "tomorrow 9:00", "--tz", "Europe/Berlin", "-n", "1").json
    assert first["in_s"] == 3600
    fw("enqueue", "--batch", stdin='{"in": "1 hour", "payload": "y"}\n{"at": "tomorrow 9:00", "payload": "z"}\n')
    assert len(fw.pending()) == 3


@pytest.mark.parametrize(
    ("option", "text", "what"),
    [
        ("--at", "tomorrow", "write 'tomorrow 09:00'"),
        ("--at", "yesterday 9:00", "has passed: write 'tomorrow 9:00', or 9:00 for the next one"),
        ("--at", "noonish", "write 09:00, 'tomorrow 9:00'"),
        ("--in", "2 months", "write 30d"),
    ],
)
def test_words_that_name_no_time_for_a_message_enqueue_nothing(fw: Fw, option: str, text: str, what: str) -> None:
    assert what in fw("enqueue", option, text, "x", code=2).err
    assert fw.pending() == []


def test_a_timeout_of_nothing_is_refused_and_nothing_is_enqueued(fw: Fw) -> None:
    assert "--timeout" in fw("enqueue", "--in", "1h", "--timeout", "0", "x", code=2).err
    assert fw.pending() == []


@pytest.mark.parametrize("named", ["Nowhere/City", ":US/Nowhere", "Nonsense"])
def test_a_zone_that_this_machine_lacks_is_not_taken_for_utc(
    fw: Fw, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """The C library takes it for UTC, without a word."""
    monkeypatch.setenv("TZ", named)
    for args in (["enqueue", "--at", "09:00", "x"], ["schedule", "load", "-"]):
        failed = fw(*args, stdin="@daily a\n", code=2)
        assert f"TZ={named.lstrip(':')}" in failed.err
    fw("enqueue", "--in", "5m", "x")
    fw("enqueue", "--at", "2027-07-01T09:00+02:00", "x")
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    fw("enqueue", "--at", "09:00", "x")
    assert len(fw.pending()) == 3
