"""The command line with unique keys: enqueue, cancel, reschedule, inspect, and how they end."""

from __future__ import annotations

import json

import pytest

from tests.cli.support import Fw, on_terminal


def test_a_key_that_is_held_is_exit_code_5_and_names_the_message(fw: Fw) -> None:
    (first,) = fw("enqueue", "--in", "1h", "--key", "oven", "1").lines
    result = fw("enqueue", "--in", "1h", "--key", "oven", "--json", "2", code=5)
    assert result.out == ""
    assert (result.error["error"], result.error["code"]) == ("key-held", 5)
    assert first in result.error["message"]
    assert fw("enqueue", "--in", "1h", "--key", "oven", "--on-conflict", "keep", "2").lines == [first]
    (second,) = fw("enqueue", "--in", "1h", "--key", "oven", "--on-conflict", "replace", "2").lines
    assert [(m["id"], m["headers"]) for m in fw.pending()] == [(second, {"filewheel.key": "oven"})]


@pytest.mark.parametrize(
    "args",
    [
        ["enqueue", "--in", "1h", "--key", "", "x"],
        ["enqueue", "--in", "1h", "--key", "k" * 256, "x"],
        ["enqueue", "--in", "1h", "--on-conflict", "keep", "x"],
        ["enqueue", "--in", "1h", "--on-conflict", "what", "--key", "k", "x"],
        ["enqueue", "--in", "1h", "--key", "k", "--lines"],
        ["cancel", "--key", "k", "--all"],
        ["cancel", "--key", "k", "0" * 26],
        ["reschedule", "--key", "k", "0" * 26, "--in", "1"],
        ["reschedule", "--in", "1"],
    ],
)
def test_a_key_where_it_means_nothing_is_a_usage_error(fw: Fw, args: list[str]) -> None:
    fw(*args, code=2)
    assert fw.pending() == []


def test_cancel_and_reschedule_find_a_message_by_its_key(fw: Fw) -> None:
    (first,) = fw("enqueue", "--in", "1h", "--key", "oven", "1").lines
    (moved,) = fw("reschedule", "--key", "oven", "--in", "2h", "--json").json
    assert moved["old"] == first
    (said,) = fw("cancel", "--key", "oven", "--json").json
    assert said == {"id": moved["new"], "key": "oven", "cancelled": True, "outcome": "stopped"}
    assert "oven" in fw("cancel", "--key", "oven", code=4).err
    assert "oven" in fw("reschedule", "--key", "oven", "--in", "1h", code=4).err
    (second,) = fw("enqueue", "--in", "1h", "--key", "oven", "1").lines
    assert fw("cancel", "--key", "oven").lines == [second]


def test_lines_of_a_batch_have_keys_and_one_that_is_held_is_passed_over(fw: Fw) -> None:
    fw("enqueue", "--in", "1h", "--key", "b", "0")
    rows = [{"in": 3600, "payload": str(i), "key": key} for i, key in enumerate("abac", 1)] + [
        {"in": 3600, "payload": "plain"}
    ]
    result = fw("enqueue", "--batch", stdin="\n".join(map(json.dumps, rows)), code=3)
    assert len(result.lines) == 3
    assert result.err.count("is held") == 2
    found = {m["headers"].get("filewheel.key"): m["payload"] for m in fw.pending()}
    assert found == {"a": "1", "b": "0", "c": "4", None: "plain"}
    again = fw("enqueue", "--batch", "--on-conflict", "replace", stdin="\n".join(map(json.dumps, rows)))
    assert len(again.lines) == 5
    assert sorted(m["payload"] for m in fw.pending()) == ["2", "3", "4", "plain", "plain"]


def test_what_was_listed_can_be_enqueued_again_with_its_key(fw: Fw) -> None:
    fw("enqueue", "--in", "1h", "--key", "a", "--header", "to=ann", "1")
    listed = fw("inspect", "list").out
    fw("enqueue", "--batch", stdin=listed, code=3)
    fw("cancel", "--key", "a")
    fw("enqueue", "--batch", "--sync", "never", stdin=listed)
    assert fw.pending()[0]["headers"] == {"filewheel.key": "a", "to": "ann"}
    fw("enqueue", "--in", "0", "--topic", "t", "twice")
    fw("run", "--once", "--retries", "1", "--backoff", "1h..1h", "--", "false", code=3)
    failed = [line for line in fw("inspect", "list", "--topic", "t").lines if "attempts" in json.loads(line)]
    fw("enqueue", "--batch", stdin="\n".join(failed))
    fw("schedule", "nightly", "@daily", "x")
    (planted,) = [line for line in fw("inspect", "list").lines if "schedule" in json.loads(line)]
    error = fw("enqueue", "--batch", stdin=planted, code=2).err
    assert "`filewheel dump` and `load`" in error
    line = json.dumps({**json.loads(listed), "key": "other"})
    assert "line 1: " in fw("enqueue", "--batch", stdin=line, code=2).err
    assert "line 1: " in fw("enqueue", "--batch", stdin='{"in": 1, "payload": "", "key": 5}', code=2).err


def test_inspect_shows_the_key(fw: Fw) -> None:
    fw("enqueue", "--in", "1h", "plain")
    assert "KEY" not in on_terminal("-C", fw.wheel, "inspect", "list").out
    (id_,) = fw("enqueue", "--in", "1h", "--key", "oven", "1").lines
    shown = on_terminal("-C", fw.wheel, "inspect", "list").out
    assert "KEY" in shown
    assert "oven" in shown
    lines = on_terminal("-C", fw.wheel, "--color", "never", "inspect", id_).out.splitlines()
    assert ["key", "oven"] in [line.split() for line in lines]


def test_a_dump_with_keys_that_are_held_is_not_loaded(fw: Fw) -> None:
    fw("enqueue", "--in", "1h", "--key", "a", "1")
    dumped = fw("dump").out
    fw("load", stdin=dumped)
    refused = fw("load", "--new-ids", "--json", stdin=dumped, code=5).error
    assert "cancel --key a" in refused["hint"]
    assert "on-conflict" not in refused["hint"], "load has no such option"
    fw("cancel", "--key", "a")
    fw("load", "--new-ids", stdin=dumped)
    fw("enqueue", "--in", "1h", "--key", "a", "2", code=5)
