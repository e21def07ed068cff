"""What the command line says is to be done next: it is true, and leads to what was looked for."""

from __future__ import annotations

import pytest

from filewheel import Every, Keeper, Scheduler, Wheel
from tests.cli.support import Fw, invoke, on_terminal


def test_what_is_due_already_fires_at_once_where_a_keeper_runs(fw: Fw) -> None:
    with Keeper(fw.wheel):
        assert "5s ago: it fires at once" in fw("enqueue", "--in", "-5s", "late").err
        lines = fw("enqueue", "--in", "-5s", "--lines", stdin="a\nb\n")
        assert "2 messages due already: they fire at once" in lines.err


def test_what_is_due_already_waits_where_none_runs_and_the_command_is_named(fw: Fw) -> None:
    one = fw("enqueue", "--in", "-5s", "--lines", stdin="a\n")
    assert "1 message due already: it waits for a keeper, and none runs: `filewheel run`" in one.err
    call = fw("enqueue", "--in", "-5s", "--topic", "mail", "--args", "[]")
    assert "none runs: `filewheel work" in call.err


def test_a_batch_counts_what_it_kept_apart_and_names_the_lines_whose_key_is_held(fw: Fw) -> None:
    (first,) = fw.enqueue("--in", "1h", "--key", "a", "x")
    lines = '{"key": "a", "payload": "1"}\n\n{"key": "b", "payload": "2"}\n{"key": "b", "payload": "3"}\n'
    kept = fw("enqueue", "--in", "2h", "--batch", "--on-conflict", "keep", "--json", stdin=lines)
    assert [row.get("kept", False) for row in kept.json] == [True, False, True]
    assert kept.json[0]["id"] == first
    assert kept.json[1]["id"] == kept.json[2]["id"]
    assert "enqueued 1 message, kept 2" in kept.err
    held = fw("enqueue", "--in", "2h", "--batch", stdin=lines, code=3)
    assert [line.partition(":")[2][1:8] for line in held.err.splitlines()[:3]] == ["line 1:", "line 3:", "line 4:"]


def test_one_message_that_was_kept_is_not_told_as_enqueued(fw: Fw) -> None:
    (first,) = fw.enqueue("--in", "1h", "--key", "a", "x")
    again = fw("enqueue", "--in", "-5", "--key", "a", "--on-conflict", "keep", "--json", "y")
    assert (again.json[0]["id"], again.json[0]["kept"]) == (first, True)
    assert "nothing was enqueued" in again.err
    assert "ago" not in again.err


def test_ids_of_a_library_s_batch_say_which_were_kept(fw: Fw) -> None:
    with Wheel(fw.wheel) as wheel:
        one = wheel.enqueue(b"1", delay=60, key="a")
        ids = wheel.enqueue_many([b"1", b"2", b"3"], delay=60, keys=["b", "a", None], on_conflict="keep")
        assert [id_.kept for id_ in ids] == [False, True, False]
        assert [ids[n].kept for n in range(3)] == [False, True, False]
        assert [id_.kept for id_ in ids[1:]] == [True, False]
        assert ids[1] == one
        assert not one.kept
        assert wheel.enqueue(b"2", delay=60, key="a", on_conflict="keep").kept


def test_a_message_that_moved_or_died_is_found_by_the_command_that_its_old_id_leads_to(fw: Fw) -> None:
    (old,) = fw.enqueue("--in", "1h", "x")
    (new,) = fw("reschedule", old, "--in", "0").lines
    for verb in (["inspect", old], ["cancel", old], ["reschedule", old, "--in", "1h"]):
        assert f"it is {new} now" in fw(*verb, code=4).err
    with Keeper(fw.wheel) as keeper:
        for message in keeper.claim():
            keeper.bury(message, reason="no such user")
    error = fw("inspect", old, "--json", code=4).error
    (dead,) = fw.dead()
    assert f"`filewheel inspect {dead['id']}` shows it" in error["hint"]
    assert f"`filewheel dead revive {dead['id']}`" in error["hint"]
    assert fw("inspect", dead["id"]).json[0]["root"] == old


def test_an_id_of_which_nothing_is_known_leads_to_the_lists(fw: Fw) -> None:
    gone = "0" * 25 + "1"
    assert "`filewheel inspect list`" in fw("inspect", gone, code=4).err
    assert "`filewheel dead list`" in fw("inspect", "slot", gone, code=4).err


def test_a_list_shows_a_handler_s_call_as_python_would_write_it(fw: Fw) -> None:
    with Scheduler(fw.wheel, threads=1) as scheduler:

        @scheduler.on("mail")
        def mail(to: str, times: int = 1) -> None: ...

        scheduler.enqueue(mail, ["ann"], {"times": 2}, delay=3600)
    assert "mail('ann', times=2)" in on_terminal("-C", fw.wheel, "inspect", "list", columns=100).out


@pytest.mark.parametrize("by_key", [False, True])
def test_a_cancel_that_ends_a_schedule_says_so_and_run_does_not_recommend_it(fw: Fw, by_key: bool) -> None:
    with Scheduler(fw.wheel, threads=1) as scheduler:

        @scheduler.on("beat")
        def beat() -> None: ...

        scheduler.schedule("pulse", Every(3600), beat)
    (row,) = fw.pending()
    refused = fw("run", "--once", code=2).err
    assert "filewheel work" in refused
    assert "would end the schedule" in refused
    which = ["--key", "filewheel.every:pulse"] if by_key else [row["id"]]
    cancelled = fw("cancel", "--json", *which)
    assert cancelled.json[0]["schedule"] == "pulse"
    assert "the schedule 'pulse' has ended" in cancelled.err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("list", "`filewheel inspect list`"),
        ("statz", "`filewheel stats`"),
        ("schedules", "`filewheel inspect schedules`"),
    ],
)
def test_a_command_that_there_is_not_leads_to_the_ones_like_it(typed: str, meant: str) -> None:
    result = invoke(typed)
    assert result.code == 2
    assert meant in result.err


def test_a_command_like_none_is_refused_without_a_guess() -> None:
    result = invoke("qqqq")
    assert "no command 'qqqq'" in result.err
    assert "did you mean" not in result.err


def test_init_where_a_wheel_is_fails_with_1_and_names_the_command_that_shows_it(fw: Fw) -> None:
    assert f"`filewheel -C {fw.wheel} inspect`" in fw("init", code=1).err


def test_a_cancel_that_came_late_says_what_becomes_of_the_message(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    with Keeper(fw.wheel) as keeper:
        (message,) = keeper.claim()
        error = fw("cancel", message.id, "--json", code=7).error
        keeper.ack(message)
    assert "goes on to its end" in error["message"]
    known = "nothing can end a program from outside, only the end of its process"
    assert error["hint"] in (known, f"`filewheel kill {message.id}` ends it")  # the list of a second ago knows where
