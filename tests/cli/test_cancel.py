"""`cancel` and `reschedule`: by id, many, all, and what is not pending."""

from __future__ import annotations

import pytest

from filewheel import Keeper, MessageId
from tests.cli.support import Fw, Terminal, on_terminal

UNKNOWN = "0" * 26


# -- cancel ---------------------------------------------------------------------------------------------------


def test_cancel_prints_what_was_pending_and_tells_what_was_not(fw: Fw) -> None:
    a, b = fw.enqueue("--in", "1h", "--lines", stdin="a\nb")
    result = fw("cancel", a, UNKNOWN, code=3)
    assert result.lines == [a]
    assert UNKNOWN in result.err
    assert [m["id"] for m in fw.pending()] == [b]
    assert a in fw("cancel", a, code=4).err
    fw("cancel", a, UNKNOWN, "--json", code=4)
    assert fw("cancel", b.lower(), "--json").json == [{"id": b, "cancelled": True, "outcome": "stopped"}]


def test_cancel_says_which_of_what_it_cancelled_had_begun_and_ends_with_7(fw: Fw) -> None:
    a, b, c, d = fw.enqueue("--in", "0", "--lines", stdin="a\nb\nc\nd")
    (keyed,) = fw.enqueue("--in", "0", "--key", "k", "e")
    with Keeper(fw.wheel) as keeper:
        keeper.claim(begun=False)
        keeper.begin([MessageId.parse(a), MessageId.parse(b), MessageId.parse(keyed)])
        one = fw("cancel", a, "--json", code=7)
        (told,) = one.json
        told.pop("running_since", None)  # the list of what runs, which is written each second, may know it already
        assert told == {"id": a, "cancelled": True, "outcome": "begun"}
        assert f"{a} had begun when it was cancelled" in one.err
        both = fw("cancel", b, c, UNKNOWN, code=3)
        assert both.lines == [b, c]
        assert f"{b} had begun" in both.err
        assert f"{c} had" not in both.err
        assert fw("cancel", "--key", "k", code=7).lines == [keyed]
        assert fw("cancel", "--all", "--yes").lines == [d]
        assert {str(MessageId(i)) for i in keeper.begin([MessageId.parse(c), MessageId.parse(d)])} == {c, d}


def test_cancel_all_tells_how_many_were_stopped_in_time(fw: Fw) -> None:
    fw.enqueue("--in", "0", "--lines", stdin="a\nb\nc")
    with Keeper(fw.wheel) as keeper:
        keeper.claim(2)
        result = fw("cancel", "--all", "--yes", code=7)
        assert len(result.lines) == 3
        assert "cancelled 3 pending messages: 1 in time" in result.err


def test_cancel_reads_ids_or_json_lines_from_stdin(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "--lines", stdin="a\nb\nc\nd")
    ids = fw("inspect", "list", "--ids").out
    first, *rest = ids.splitlines()
    assert fw("cancel", "-", stdin=f"{first}\n\n").lines == [first]
    assert fw("cancel", "-", stdin=fw("inspect", "list").out).lines == rest
    assert fw.pending() == []


@pytest.mark.damages
@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_of_an_id_in_a_file_that_cannot_be_read_nobody_says_that_it_has_ended(fw: Fw, harm: str) -> None:
    lost, _ = fw.enqueue("--in", "1h", "a")[0], fw.enqueue("--in", "1h", "b")[0]
    (gone,) = fw.enqueue("--in", "50d", "c")
    fw("cancel", gone)
    fw.deal()
    lap = next(p for p in sorted(fw.wheel.glob("laps/*.lap")))
    before = lap.read_bytes()
    if harm == "missing":
        lap.unlink()
    else:
        lap.write_bytes(before[:90] + bytes([before[90] ^ 1]) + before[91:])
    said = f"{lost} cannot be found, and laps/{lap.name}, which may hold it, is {harm}"
    for verb in (["inspect", lost], ["reschedule", lost, "--in", "5m"], ["cancel", lost]):
        found = fw(*verb, "--json", code=12).error
        assert found["message"].startswith(said)
        assert ("restore what is missing" in found["hint"]) == (harm == "missing")
    assert "of 2 ids" in fw("cancel", lost, gone, code=12).err
    # Of this one it is known, in spite of what cannot be read: it was cancelled.
    assert "fired, was cancelled, has moved, or is another wheel's" in fw("inspect", lost, code=4).err
    lap.write_bytes(before)
    assert [m["payload"] for m in fw.pending()] == ["b"]


@pytest.mark.damages
def test_of_a_key_whose_message_lies_in_a_missing_file_nobody_says_that_it_is_free(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "--key", "k", "a")
    fw.deal()
    (lap,) = fw.wheel.glob("laps/*.lap")
    before = lap.read_bytes()
    lap.unlink()
    for verb in (["cancel"], ["reschedule", "--in", "5m"]):
        found = fw(*verb, "--key", "k", code=12).err
        assert (
            f"the messages with the key 'k' cannot be found, and laps/{lap.name}, which may hold them, is missing"
            in found
        )
        assert "no message holds the key 'free'" in fw(*verb, "--key", "free", code=4).err
    lap.write_bytes(before)
    fw("cancel", "--key", "k")


@pytest.mark.damages
def test_the_records_of_a_second_whose_file_is_missing_are_not_told_to_be_none(fw: Fw) -> None:
    (lost,) = fw.enqueue("--in", "1h", "a")
    fw.deal()
    (lap,) = fw.wheel.glob("laps/*.lap")
    lap.unlink()
    assert f"and laps/{lap.name}, which may hold them, is missing" in fw("inspect", "slot", lost, code=12).err


def test_a_dump_names_the_ids_of_its_messages_and_its_last_line_none(fw: Fw) -> None:
    ids = fw.enqueue("--in", "1h", "--lines", stdin="a\nb")
    assert fw("cancel", "-", stdin=fw("dump").out).lines == ids
    assert "line 1: " in fw("cancel", "-", stdin='{"topic": "a"}\n', code=2).err


def test_cancel_with_an_id_that_is_none_does_nothing_and_names_the_line(fw: Fw) -> None:
    (good,) = fw.enqueue("--in", "1h", "x")
    fw("cancel", good, "bogus", code=2)
    assert "line 2: " in fw("cancel", "-", stdin=f"{good}\nbogus\n", code=2).err
    assert len(fw.pending()) == 1
    fw("cancel", code=2)
    fw("cancel", "--topic", "x", code=2)
    fw("cancel", "--all", good, code=2)


def test_cancel_all_asks_on_a_terminal_and_needs_yes_elsewhere(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "--topic", "keep", "x")
    fw.enqueue("--in", "1h", "--topic", "drop.1", "x")
    assert "--yes" in fw("cancel", "--all", code=2).err
    assert len(fw.pending()) == 2
    terminal = Terminal("-C", fw.wheel, "cancel", "--all", "--topic", "drop.*")
    terminal.wait_for("Cancel 1 pending message with topic drop.*")
    terminal.type("n\n")
    assert terminal.finish().code == 1
    assert len(fw.pending()) == 2
    terminal = Terminal("-C", fw.wheel, "cancel", "--all", "--topic", "drop.*")
    terminal.wait_for("[y/N]")
    terminal.type("y\n")
    assert terminal.finish().code == 0
    assert [m["topic"] for m in fw.pending()] == ["keep"]
    fw("cancel", "--all", "--yes")
    assert fw.pending() == []


# -- reschedule -----------------------------------------------------------------------------------------------


def test_reschedule_prints_the_new_id_and_the_message_is_the_same(fw: Fw) -> None:
    (old,) = fw.enqueue("--in", "1h", "--topic", "t", "--header", "k=v", "x")
    (moved,) = fw("reschedule", old, "--at", "2027-01-01T00:00Z", "--json").json
    assert moved["old"] == old
    assert moved["due"] == "2027-01-01T00:00:00.000000Z"
    (message,) = fw.pending()
    assert message["id"] == moved["new"] == moved["id"]
    assert (message["topic"], message["headers"], message["payload"]) == ("t", {"k": "v"}, "x")
    assert message["root"] == old


def test_reschedule_of_many_says_which_were_unknown(fw: Fw) -> None:
    ids = fw.enqueue("--in", "1h", "--lines", stdin="a\nb\nc")
    result = fw("reschedule", "-", "--in", "2h", stdin="\n".join([*ids, UNKNOWN]), code=3)
    assert result.lines == [row["id"] for row in fw.pending()]
    assert UNKNOWN in result.err
    assert len(fw.pending()) == 3
    fw("reschedule", *ids, "--in", "1", code=4)
    fw("reschedule", "--in", "1", code=2)
    fw("reschedule", fw.pending()[0]["id"], code=2)


def test_reschedule_prints_a_bare_id_piped_and_on_a_terminal_that_the_next_verb_takes(fw: Fw) -> None:
    (old,) = fw.enqueue("--in", "1h", "x")
    (new,) = fw("reschedule", old, "--in", "2h").lines
    assert [row["id"] for row in fw.pending()] == [new]
    shown = on_terminal("-C", fw.wheel, "reschedule", new, "--in", "3h")
    assert shown.out.strip() == fw.pending()[0]["id"]


def test_reschedule_brings_a_dead_letter_back_to_life(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    keeper = Keeper(fw.wheel)
    for message in keeper.claim():
        keeper.bury(message, reason="no such user")
    keeper.close()
    (dead,) = fw.dead()
    assert dead["headers"]["filewheel.reason"] == "no such user"
    assert dead["dead"] is True
    fw("reschedule", dead["id"], "--in", "1h")
    assert fw.dead() == []
    assert fw.pending()[0]["headers"] == {}
