"""`inspect` and `stats`: beside a keeper, without one, on a damaged wheel; and no message steers the terminal."""

from __future__ import annotations

import json
import math
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from filewheel import Keeper, Scheduler, Wheel
from tests.cli.support import Fw, on_terminal

HOSTILE = "\x1b]0;title\x07\x9b2J\u202eevil\u2066"
UNKNOWN = "0" * 26


def fill(fw: Fw) -> list[str]:
    """Enqueue one message in each view, and one that is overdue."""
    rows = [
        {"in": 30, "topic": "mail.a", "payload": "soon"},
        {"in": "20m", "topic": "mail.b", "payload": "later"},
        {"in": "5h", "topic": "trial", "payload": "today"},
        {"in": "3d", "topic": "mail.a", "payload": "far"},
        {"at": "2001-01-01T00:00Z", "topic": "old", "payload": "overdue"},
    ]
    return fw.enqueue("--batch", stdin="\n".join(map(json.dumps, rows)))


# -- at a glance ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dealt", [False, True])
def test_inspect_counts_by_time_and_by_topic(fw: Fw, dealt: bool) -> None:
    fill(fw)
    if dealt:
        fw.deal()
    (found,) = fw("inspect").json
    assert found["stats"]["pending"] == 5
    assert found["topics"] == {"mail.a": 2, "mail.b": 1, "old": 1, "trial": 1}
    histogram = found["histogram"]
    assert histogram["overdue"] == 1
    assert [sum(histogram[name]["counts"]) for name in ("minute", "hour", "day")] == [1, 2, 3]
    assert histogram["beyond"]["2 to 7 days"] == 1
    assert fw("inspect", "--no-topics").json[0]["topics"] is None


def test_inspect_on_a_terminal_is_a_picture_of_80_columns(fw: Fw) -> None:
    fill(fw)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal("-C", fw.wheel, "inspect").out)
    for words in (
        "5 messages pending", "no keeper running", "overdue", "`filewheel run` fires it",
        "next minute  1 message", "next hour    2 messages", "next day     3 messages", "beyond", "by topic", "mail.a",
    ):  # fmt: skip
        assert words in shown, words
    assert "█" in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80  # the first is the wheel's own name


def test_inspect_and_stats_advise_run_for_plain_messages_and_work_where_calls_wait_too(fw: Fw) -> None:
    fill(fw)
    said = {verb: fw(verb, "--no-json").out for verb in ("inspect", "stats")}
    assert "overdue      1 message; `filewheel run` fires it" in said["inspect"]
    assert "none running; start `filewheel run`" in said["stats"]
    scheduler = Scheduler(fw.wheel)
    scheduler.enqueue("email", ["ann"])
    scheduler.stop()
    said = {verb: fw(verb, "--no-json").out for verb in ("inspect", "stats")}
    assert "overdue      1 call; `filewheel work MODULE:NAME` fires it\n" in said["inspect"]
    assert "\n             1 plain message; `work` fires those that have a handler of their topic\n" in said["inspect"]
    assert "none running; start `filewheel work MODULE:NAME`" in said["stats"]
    assert not any("`filewheel run`" in text for text in said.values())
    (plain,) = (m["id"] for m in fw("inspect", "list", "--before", "now").json if m["topic"] != "email")
    fw("cancel", plain)
    (line,) = (text for text in fw("inspect", "--no-json").lines if text.startswith("overdue"))
    assert line == "overdue      1 call; `filewheel work MODULE:NAME` fires it"


def test_stats_counts_one_file_as_one(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "x")
    said = fw("stats", "--no-json").out
    assert "in 1 file\n" in said
    assert "in 0 slot files and 0 lap files" in said


def test_inspect_draws_with_ascii_where_blocks_cannot_be_shown(fw: Fw) -> None:
    fill(fw)
    shown = on_terminal("-C", fw.wheel, "inspect", env={"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}).out
    assert shown.isascii()
    assert "+now---" in shown


def test_inspect_of_an_empty_wheel_says_so(fw: Fw) -> None:
    assert "nothing is pending; no keeper running" in fw("inspect", "--no-json").out
    assert "nothing is pending" in fw("inspect", "list", "--no-json").err
    assert fw("inspect", "list").out == ""


def test_inspect_beside_a_keeper_names_it_and_disturbs_nothing(fw: Fw) -> None:
    import os

    fill(fw)
    keeper = Keeper(fw.wheel)
    try:
        assert f"keeper {os.getpid()}" in fw("inspect", "--no-json").out
        assert fw("stats").json[0]["keeper_pid"] == os.getpid()
        assert len(fw.pending()) == 5
        batch = keeper.claim()
        assert len(fw.pending()) == 5
        keeper.ack(batch)
        assert len(fw.pending()) == 4
        (id_,) = fw.enqueue("--in", "1s", "x")
        fw("inspect", "slot", id_)
        fw("inspect", "journal")
        assert fw("verify").out == ""
    finally:
        keeper.close()


# -- the list -------------------------------------------------------------------------------------------------


def test_list_filters_by_topic_and_by_time(fw: Fw) -> None:
    fill(fw)

    def payloads(*args: object) -> list[str]:
        return [m["payload"] for m in fw("inspect", "list", *args).json]

    assert payloads() == ["overdue", "soon", "later", "today", "far"]
    assert payloads("--topic", "mail.a") == ["soon", "far"]
    assert payloads("--topic", "mail.*") == ["soon", "later", "far"]
    assert payloads("--within", "1h") == ["overdue", "soon", "later"]
    assert payloads("--after", "now", "--within", "1h") == ["soon", "later"]
    assert payloads("--before", "2002-01-01T00:00Z") == ["overdue"]
    assert payloads("--after", "2002-01-01T00:00Z", "--limit", "2") == ["soon", "later"]
    assert fw("inspect", "list", "--ids", "--limit", "1").lines == [fw.pending()[0]["id"]]
    fw("inspect", "list", "--dead", "--within", "1h", code=2)
    fw("inspect", "list", "--before", "now", "--within", "1h", code=2)


def test_list_is_20_on_a_terminal_and_everything_piped(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "--lines", stdin="".join(f"m{i}\n" for i in range(30)))
    assert len(fw.pending()) == 30
    shown = on_terminal("-C", fw.wheel, "inspect", "list").out
    assert "m19" in shown
    assert "m20" not in shown
    assert "20 shown, there are more: --limit 0 shows all" in shown
    shown = on_terminal("-C", fw.wheel, "inspect", "list", "--limit", "0", columns=120).out
    assert "m29" in shown
    assert "there are more" not in shown
    assert "in 59m" in shown or "in 1h" in shown


# -- one message ----------------------------------------------------------------------------------------------


def test_inspect_id_shows_one_message_whole(fw: Fw) -> None:
    (id_,) = fw.enqueue("--in", "1h", "--topic", "t", "--header", "k=v", "line 1\nline 2")
    (fields,) = fw("inspect", id_).json
    assert (fields["id"], fields["payload"], fields["size"]) == (id_, "line 1\nline 2", 13)
    assert fw("inspect", "list").json == [fields]
    shown = on_terminal("-C", fw.wheel, "inspect", id_.lower()).out
    assert id_ in shown
    assert "k: v" in shown
    assert "line 1\nline 2" in shown


def test_inspect_body_is_the_payload_byte_for_byte(fw: Fw) -> None:
    (id_,) = fw.enqueue("--in", "1h", "-", stdin=b"\x00\xff\n")
    assert fw("inspect", id_, "--body").raw == b"\x00\xff\n"


def test_inspect_of_an_unknown_id_exits_with_4_and_of_no_id_with_2(fw: Fw) -> None:
    assert "inspect list" in fw("inspect", UNKNOWN, code=4).err
    assert "neither a message id" in fw("inspect", "bogus", code=2).err


# -- records --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dealt", [False, True])
def test_inspect_slot_shows_what_became_of_a_message(fw: Fw, dealt: bool) -> None:
    live, gone = fw.enqueue("--in", "1h", "--lines", "--topic", "t", stdin="a\nb\n")
    if dealt:
        fw.deal()
    fw("cancel", gone)
    entries = fw("inspect", "slot", live).json
    puts = {e["id"]: e for e in entries if e["kind"] == "put"}
    assert puts[live]["live"] is True
    assert puts[gone]["live"] is False
    assert all(e["checksum"] == "ok" and e["covered"] is dealt for e in puts.values())
    (drop,) = [e for e in entries if e["kind"] == "drop"]
    assert (drop["id"], drop["reason"], drop["covered"]) == (gone, "cancelled", False)
    second = puts[live]["due"]
    assert fw("inspect", "slot", second).json == entries
    shown = fw("inspect", "slot", live, "--no-json").out
    assert re.search(rf"put +{gone} +dropped +t", shown)


def test_inspect_slot_gives_offsets_at_which_the_records_are(fw: Fw) -> None:
    from filewheel.format.record import unpack_put

    fw.enqueue("--in", "1h", "--lines", stdin="first\nsecond\n")
    for entry in fw("inspect", "slot", fw.pending()[0]["id"]).json:
        data = (fw.wheel / entry["file"]).read_bytes()[entry["offset"] : entry["offset"] + entry["bytes"]]
        assert str(unpack_put(data).id) == entry["id"]


def test_inspect_slot_of_a_second_without_records_exits_with_4(fw: Fw) -> None:
    fw("inspect", "slot", "5", code=4)
    fw("inspect", "slot", "what", code=2)


def test_inspect_journal_lists_segments_and_their_records(fw: Fw) -> None:
    (id_,) = fw.enqueue("--in", "1h", "x")
    (segment,) = fw("inspect", "journal").json
    assert (segment["puts"], segment["drops"], segment["covered"], segment["bad_bytes"]) == (1, 0, 0, 0)
    name = Path(segment["file"]).name
    entries = fw("inspect", "journal", name).json
    assert [e["kind"] for e in entries] == ["put", "seal"]
    assert entries[0]["id"] == id_
    assert fw("inspect", "journal", segment["file"]).json == entries
    assert fw("inspect", "journal", id_[12:20]).json == entries
    assert name.removesuffix(".log") in fw("inspect", "journal", "--no-json").out
    fw("inspect", "journal", "../../etc/passwd", code=4)


@pytest.mark.damages
def test_inspect_works_on_a_damaged_wheel_and_shows_where_it_is_bad(fw: Fw) -> None:
    lost, kept = fw.enqueue("--in", "1h", "lost")[0], fw.enqueue("--in", "1h", "kept")[0]
    fw.deal()
    (lap,) = (fw.wheel / "laps").glob("*.lap") if list((fw.wheel / "laps").glob("*.lap")) else [None]
    target = lap or next((fw.wheel / "laps").rglob("*.slot"))
    data = bytearray(target.read_bytes())
    data[data.index(b"lost")] ^= 1
    target.write_bytes(data)
    ids = [m["id"] for m in fw("inspect", "list", code=12).json]
    assert kept in ids or len(ids) <= 1
    entries = fw("inspect", "slot", lost).json
    assert "bad" in {e["checksum"] for e in entries}
    fw("inspect", code=12)
    fw("inspect", "--no-json", code=12)
    fw("stats", code=12)
    fw("inspect", "journal")
    assert fw("verify", "--json", code=12).error["error"] == "damaged"


# -- what a message carries -----------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [True, False])
def test_nothing_that_a_message_carries_reaches_the_terminal_raw(fw: Fw, as_json: bool) -> None:
    row = {"in": "1h", "topic": HOSTILE, "payload": HOSTILE, "headers": {HOSTILE: HOSTILE}}
    (id_,) = fw.enqueue("--batch", stdin=json.dumps(row))
    flag = "--json" if as_json else "--no-json"
    for args in ([], ["list"], [id_], ["slot", id_], ["journal", id_[12:20]]):
        result = fw("inspect", *args, flag)
        for text in (result.out, result.err):
            assert all(line.isprintable() for line in text.splitlines()), args
    shown = on_terminal("-C", fw.wheel, "inspect", id_, env={"NO_COLOR": "1"}).out
    assert "\x1b" not in shown
    assert "\\x1b]0;title\\x07\\x9b2J\\u202eevil\\u2066" in shown


def test_a_hostile_body_or_topic_in_an_error_is_escaped(fw: Fw) -> None:
    result = fw("enqueue", "--batch", stdin=json.dumps({"in": HOSTILE, "payload": "x"}), code=2)
    assert all(line.isprintable() for line in result.err.splitlines())
    result = fw("inspect", HOSTILE, code=2)
    assert all(line.isprintable() for line in result.err.splitlines())


# -- stats ----------------------------------------------------------------------------------------------------


def test_stats_has_the_numbers_that_monitoring_needs(fw: Fw) -> None:
    fill(fw)
    (stats,) = fw("stats").json
    assert {
        "pending", "dead", "quarantined", "next_due", "journal_bytes", "slot_files", "lap_files", "keeper_pid"
    } <= set(stats)  # fmt: skip
    assert stats["next_due"] == "2001-01-01T00:00:00.000000Z"
    assert stats["lag_s"] > 86_400
    assert stats["keeper_pid"] is None
    assert "5" in fw("stats", "--no-json").out


def test_stats_of_an_empty_wheel_has_no_next_due(fw: Fw) -> None:
    (stats,) = fw("stats").json
    assert (stats["next_due"], stats["pending"], stats["lag_s"]) == (None, 0, 0)
    assert "next_due_seconds" not in fw("stats", "--prometheus").out


def test_prometheus_output_is_in_the_exposition_format(fw: Fw) -> None:
    fill(fw)
    lines = fw("stats", "--prometheus").lines
    sample = re.compile(r'filewheel_[a-z_]+\{wheel="(?:[^"\\\n]|\\\\|\\")*"\} [-+0-9.e]+')
    names = set()
    for help_, type_, value in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name = value.partition("{")[0]
        assert help_.startswith(f"# HELP {name} ")
        assert type_ == f"# TYPE {name} gauge"
        assert sample.fullmatch(value), value
        names.add(name)
    assert {"filewheel_pending", "filewheel_next_due_seconds", "filewheel_keeper_up"} <= names
    assert any(re.match(r"filewheel_pending\{.*\} 5$", line) for line in lines)


def test_the_library_sees_what_the_command_line_shows(fw: Fw) -> None:
    ids = fill(fw)
    with Wheel(fw.wheel) as wheel:
        assert {str(m.id) for m in wheel.list()} == set(ids)


def test_arguments_of_a_call_that_json_does_not_have_are_listed_as_texts(fw: Fw) -> None:
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested]
    scheduler = Scheduler(fw.wheel)
    scheduler.enqueue("x", [{b"a": 1, None: 2, 5: [math.nan, math.inf], True: b"x"}, timedelta(seconds=5)], delay=60)
    scheduler.enqueue("y", [nested], delay=60)
    scheduler.stop()

    def no_number(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    one, other = (json.loads(line, parse_constant=no_number) for line in fw("inspect", "list", "--json").lines)
    assert one["args"] == [{"a": 1, "null": 2, "5": ["nan", "inf"], "true": {"b64": "eA=="}}, 5.0]
    assert other["args"] == [nested]
