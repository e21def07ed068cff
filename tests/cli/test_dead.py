"""`dead`: listed, revived and dropped by topic, age and error; asked before; what failed is named."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from filewheel import Keeper, MessageId, Settlement, Wheel
from tests.cli.support import Fw, Terminal, finish, on_terminal, stopped
from tests.support import FakeClock, eventually


def bury(fw: Fw, *names: str, reason: str = "no", key: str | None = None) -> list[str]:
    """Bury a message of each of these topics; return the dead letters' ids."""
    found = []
    with Wheel(fw.wheel) as wheel, Keeper(fw.wheel) as keeper:
        for name in names:
            wheel.enqueue(f"of {name}".encode(), topic=name, key=key)
            (message,) = keeper.claim(wait=True)
            dead = keeper.bury(message, reason=f"{reason}: {name}", failed=reason, details="line 1\nline 2")
            assert dead is not None
            found.append(str(dead))
    return found


def topics(fw: Fw, *args: str) -> list[str]:
    return [m["topic"] for m in fw("dead", "list", *args).json]


def test_list_shows_those_that_fit(fw: Fw) -> None:
    ids = bury(fw, "mail", "mail.out", reason="No Route") + bury(fw, "sms", reason="exit code 3")
    assert topics(fw) == ["mail", "mail.out", "sms"]
    assert topics(fw, "--topic", "mail*") == ["mail", "mail.out"]
    assert topics(fw, "--error", "ROUTE") == ["mail", "mail.out"]
    assert topics(fw, "--limit", "1") == ["mail"]
    assert topics(fw, "--limit", "0") == ["mail", "mail.out", "sms"]
    assert topics(fw, "--older", "1h") == topics(fw, "--newer", "0s") == []
    assert topics(fw, "--newer", "1h", "--older", "0s") == ["mail", "mail.out", "sms"]
    assert fw("dead", "list", "--ids").lines == ids
    first, *_ = fw("dead", "list").json
    assert first["died"]
    assert [a["details"] for a in first["attempts"]] == ["line 1\nline 2"]
    text = fw("dead", "list", "--no-json").out
    assert "REASON" in text
    assert "No Route: mail" in text
    shown = on_terminal("-C", fw.wheel, "dead", "list", "--limit", "2").out
    assert "2 shown, there are more" in shown
    assert "no dead letters that fit" in on_terminal("-C", fw.wheel, "dead", "list", "--topic", "none").out


def test_revive_by_error_prints_new_ids_and_leaves_the_others(fw: Fw) -> None:
    bury(fw, "a", "b", reason="no route")
    bury(fw, "c", reason="exit code 3")
    result = fw("dead", "revive", "--error", "no route", "--in", "1h", "--yes")
    assert [m["id"] for m in fw.pending()] == sorted(result.lines)
    assert "revived 2 dead letters" in result.err
    assert topics(fw) == ["c"]
    (last,) = fw("dead", "revive", "--all", "--yes", "--json").json
    assert last["new"] == last["id"]
    assert MessageId.parse(last["old"]).is_dead
    assert topics(fw) == []


@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_a_dry_run_prints_the_ids_that_fit_and_changes_nothing(fw: Fw, verb: str) -> None:
    ids = bury(fw, "a", "b", "c")
    result = fw("dead", verb, "--limit", "2", "--dry-run")
    assert result.lines == ids[:2]
    assert f"2 dead letters would be {'revived' if verb == 'revive' else 'dropped'}" in result.err
    assert fw("dead", verb, ids[2], "--dry-run", "--json").json == [{"id": ids[2]}]
    assert topics(fw) == ["a", "b", "c"]


def test_drop_takes_the_oldest_first(fw: Fw) -> None:
    ids = bury(fw, "a", "b", "c")
    result = fw("dead", "drop", "--limit", "2", "--yes", "--json")
    assert result.json == [{"id": id_, "dropped": True} for id_ in ids[:2]]
    assert topics(fw) == ["c"]
    fw("dead", "drop", "--older", "1h", "--yes")
    assert topics(fw) == ["c"]
    assert fw("dead", "drop", "--topic", "c", "--yes").lines == ids[2:]


def test_ids_need_no_question_and_come_from_stdin_too(fw: Fw) -> None:
    ids = bury(fw, "a", "b", "c")
    assert fw("dead", "drop", ids[1]).lines == [ids[1]]
    listed = fw("dead", "list").out
    assert len(fw("dead", "revive", "-", stdin=listed).lines) == 2
    assert topics(fw) == []


def test_without_a_terminal_a_choice_needs_yes_and_nothing_is_done_without(fw: Fw) -> None:
    bury(fw, "a")
    for verb in ("revive", "drop"):
        assert "--yes" in fw("dead", verb, "--all", code=2).err
    assert topics(fw) == ["a"]


@pytest.mark.parametrize(("answer", "left"), [("n", ["a", "b"]), ("y", [])])
def test_on_a_terminal_it_asks_with_the_number(fw: Fw, answer: str, left: list[str]) -> None:
    bury(fw, "a", "b")
    terminal = Terminal("-C", fw.wheel, "dead", "drop", "--error", "no")
    terminal.wait_for("Drop 2 dead letters that fit in ")
    terminal.type(f"{answer}\n")
    result = terminal.finish()
    assert result.code == (0 if answer == "y" else 1)
    assert ("nothing was dropped" in result.out) == (answer == "n")
    assert topics(fw) == left


@pytest.mark.parametrize(
    "args",
    [[], ["--all", "--topic", "a", "x" * 26], ["--limit", "0", "--yes"], ["--older", "soon"], ["--newer", "-1s"]],
)
def test_a_choice_that_makes_no_sense_is_a_usage_error(fw: Fw, args: list[str]) -> None:
    bury(fw, "a")
    for verb in ("revive", "drop"):
        fw("dead", verb, *args, code=2)
    assert topics(fw) == ["a"]


def test_a_pending_message_is_neither_revived_nor_dropped(fw: Fw) -> None:
    (dead,) = bury(fw, "a")
    (id_,) = fw.enqueue("--in", "1h", "x")
    for verb in ("revive", "drop"):
        assert f"{id_} is pending, and no dead letter" in fw("dead", verb, id_, code=4).err
    assert topics(fw) == ["a"]
    assert f"{id_}: it is no dead letter's id" in fw("dead", "drop", dead, id_, code=3).err
    assert len(fw.pending()) == 1
    assert topics(fw) == []


def test_one_that_has_gone_and_one_whose_key_is_held_are_named_and_the_rest_is_done(fw: Fw) -> None:
    gone, plain = bury(fw, "gone", "plain")
    (keyed,) = bury(fw, "keyed", key="k")
    fw("dead", "drop", gone)
    fw.enqueue("--in", "1h", "--key", "k", "now mine")
    result = fw("dead", "revive", "--in", "1h", gone, plain, keyed, code=3)
    assert len(result.lines) == 1
    assert f"{gone}: no message {gone} is pending" in result.err
    assert f"{keyed}: the key 'k' is held" in result.err
    assert "2 of 3 dead letters were not revived" in result.err
    assert topics(fw) == ["keyed"]
    assert "the key 'k'" in fw("dead", "revive", keyed, code=5).err
    assert "was revived or dropped" in fw("dead", "drop", gone, code=4).err
    assert "none of" not in fw("dead", "drop", gone, keyed, code=3).err
    assert topics(fw) == []


def test_two_administrators_at_once_revive_each_once(fw: Fw) -> None:
    with Wheel(fw.wheel) as wheel, Keeper(fw.wheel) as keeper:
        wheel.enqueue_many([b"%d" % n for n in range(3000)])
        while batch := keeper.claim(500):
            keeper.settle([Settlement(message.id, "buried", reason="no") for message in batch])
    first, second = (fw.start("dead", "revive", "--all", "--in", "1h", "--yes", "-q") for _ in range(2))
    ends = [finish(process) for process in (first, second)]
    assert {end.code for end in ends} <= {0, 3, 4}
    printed = [line for end in ends for line in end.lines]
    assert len(printed) == len(set(printed)) == 3000
    with Wheel(fw.wheel) as wheel:
        assert sorted(str(m.id) for m in wheel.list()) == sorted(printed)
        assert sorted(int(m.payload) for m in wheel.list()) == list(range(3000))
        assert not list(wheel.dead())


def test_an_interrupt_leaves_what_was_printed_done_and_the_rest_untouched(fw: Fw) -> None:
    count = 20_000
    with Wheel(fw.wheel) as wheel, Keeper(fw.wheel) as keeper:
        wheel.enqueue_many([b"%d" % n for n in range(count)])
        while batch := keeper.claim(1000):
            keeper.settle([Settlement(message.id, "buried", reason="no") for message in batch])
    with stopped(fw.start("dead", "revive", "--all", "--in", "1h", "--yes", "-q")) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip()]
        process.send_signal(signal.SIGINT)
        lines += process.stdout.read().split()  # the pipe's rest: some of it is in the buffer of this end
        assert process.wait(120) in (0, 130)
    with Wheel(fw.wheel) as wheel:
        alive = {str(m.id) for m in wheel.list()}
        dead = sum(1 for _ in wheel.dead())
    assert set(lines) <= alive  # a portion may be done whose ids were not printed any more
    assert len(alive) + dead == count
    assert len(alive) - len(lines) <= 1000


def test_one_that_died_by_a_clock_that_was_ahead_is_listed_and_revived(fw: Fw) -> None:
    clock = FakeClock()
    clock.step(10 * 365 * 86_400)
    with Wheel(fw.wheel, clock=clock) as wheel, Keeper(fw.wheel, clock=clock, background=False) as keeper:
        wheel.enqueue(b"", topic="ahead")
        keeper.bury(keeper.claim()[0], reason="no")
    assert topics(fw) == ["ahead"]
    assert topics(fw, "--older", "0s") == []
    assert len(fw("dead", "revive", "--all", "--yes", "--in", "1h").lines) == 1


@pytest.mark.parametrize("verb", ["run", "work"])
def test_run_and_work_drop_old_ones_by_themselves(fw: Fw, tmp_path: Path, verb: str) -> None:
    bury(fw, "old")
    time.sleep(0.05)  # older than 10 ms by any clock
    if verb == "run":
        result = fw.process("run", "--once", "--keep-dead", "10ms")
        assert "dropped 1 old dead letter" in result.err
    else:
        app = tmp_path / "app_of_dead.py"
        app.write_text(
            f"from filewheel import Scheduler\nscheduler = Scheduler({str(fw.wheel)!r})\n"
            "@scheduler.on()\ndef email(): ...\n"
        )
        fw.process("work", "app_of_dead:scheduler", "--once", "--keep-dead", "10ms", env={"PYTHONPATH": f"{tmp_path}"},
                   command=None)  # fmt: skip
    assert topics(fw) == []


def test_a_service_drops_them_while_it_runs(fw: Fw) -> None:
    bury(fw, "old")
    with stopped(fw.start("run", "--keep-dead", "10ms")) as process:
        eventually(lambda: not topics(fw))
        process.terminate()
        assert finish(process).code == 0


def test_help_of_the_group_is_shown_without_a_verb(fw: Fw) -> None:
    assert "revive" in fw("dead", code=2).err


@pytest.mark.damages
def test_a_damaged_file_is_named_and_the_readable_ones_are_listed(fw: Fw) -> None:
    bury(fw, "a")
    fw.deal()
    (lap,) = (fw.wheel / "laps").glob("*.lap")
    data = bytearray(lap.read_bytes())
    data[80] ^= 1
    lap.write_bytes(data)
    result = fw("dead", "list", code=12)
    assert json.loads("[" + ",".join(result.lines) + "]") == []
