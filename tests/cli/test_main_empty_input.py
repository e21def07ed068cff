"""Input that is empty or cut short is no instruction: no verb takes it for "all", or for a job that does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from filewheel import Keeper
from tests.cli.support import Fw


@pytest.fixture
def fw(wheel_dir: Path) -> Fw:
    made = Fw(wheel_dir)
    made("schedule", "nightly", "@daily", "backup.sh")
    made.enqueue("--in", "1h", "waits")
    (id_,) = made.enqueue("--in", "0", "dies")
    with Keeper(wheel_dir) as keeper:
        (message,) = keeper.claim()
        keeper.bury(message, reason="no route")
    assert str(message.id) == id_
    return made


UNTOUCHED = (
    ("cancel", "--all", "--topic", "", "--yes"),
    ("dead", "drop", "--error", "", "--yes"),
    ("dead", "drop", "--topic", "", "--yes"),
    ("dead", "revive", "--error", "", "--yes"),
    ("schedule", "edit", "nightly", "--body", "-"),
    ("schedule", "nightly", "@daily", "-"),
    ("schedule", "nightly", "@daily"),
    ("schedule", "load", "-", "--tz", "UTC", "--source", "s", "--prune"),
    ("unschedule", ""),
    ("pause", "--schedule", ""),
    ("kill", "--schedule", ""),
    ("enqueue", "--in", "0"),
    ("load", "-"),
    ("cancel", ""),
    ("reschedule", "", "--in", "0"),
)


@pytest.mark.parametrize("args", UNTOUCHED, ids=" ".join)
def test_an_empty_filter_name_or_body_is_refused_and_changes_nothing(fw: Fw, args: tuple[str, ...]) -> None:
    before = fw("dump").out
    result = fw.process(*args, stdin="", code=20 if args[0] == "kill" else 2)
    assert result.err
    assert fw("dump").out == before
    assert fw("stats").json[0]["paused"] == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("cancel", "-"), "no ids on stdin: nothing was cancelled"),
        (("reschedule", "-", "--in", "0"), "no ids on stdin: nothing was moved"),
        (("dead", "drop", "-"), "dropped 0 dead letters"),
        (("dead", "revive", "-"), "revived 0 dead letters"),
        (("enqueue", "--in", "0", "--lines"), "enqueued 0 messages"),
        (("enqueue", "--batch"), "enqueued 0 messages"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_an_empty_list_on_stdin_is_nothing_to_do_and_says_so(fw: Fw, args: tuple[str, ...], says: str) -> None:
    before = fw("dump").out
    assert says in fw.process(*args, stdin="").err
    assert fw("dump").out == before


@pytest.mark.parametrize(
    ("args", "stdin"),
    [
        (("cancel", "-"), "{id}\n01K52WPZBJM0PRDC"),
        (("enqueue", "--batch"), '{"in": 5, "payload": "a"}\n{"in": 5, "paylo'),
        (("load", "-", "--new-ids"), '{dump}{"id": "01K52WPZBJM0PRDCR0'),
    ],
)
def test_of_a_list_that_is_cut_short_nothing_is_done(fw: Fw, args: tuple[str, ...], stdin: str) -> None:
    before = fw("dump").out
    first = fw("inspect", "list", "--ids").lines[0]
    text = stdin.replace("{id}", first).replace("{dump}", before)
    fw.process(*args, stdin=text, code=2)
    assert fw("dump").out == before
