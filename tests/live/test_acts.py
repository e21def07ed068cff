"""Acts: proposed first, done to what is given, and reported as it was."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from filewheel import BadArgument, Fenced, FilewheelError, Keeper, MessageId, Scheduler, Wheel
from filewheel.live.acts import IDS_MAX, VERBS, Act, perform, propose
from filewheel.live.pausing import PauseAct, perform_pause, propose_pause
from tests.support import eventually
from tests.support_set import make_set


def bury(path: Path, *payloads: bytes, key: str | None = None) -> list[MessageId]:
    """Make dead letters, and return their ids."""
    with Wheel(path) as wheel, Keeper(path, background=False) as keeper:
        for payload in payloads:
            wheel.enqueue(payload, topic="webhook", key=key)
        for message in keeper.claim():
            keeper.bury(message, reason="exit code 1")
        return [message.id for message in wheel.list(dead=True)]


def test_a_proposal_changes_nothing_and_names_what_it_is_for(wheel: Wheel) -> None:
    ids = [wheel.enqueue(b"x", delay=60) for _ in range(3)]
    wheel.cancel(ids[1])
    found = propose(wheel, Act.of("cancel", [str(id_) for id_ in ids]))
    assert [m.id for m in found.found] == [ids[0], ids[2]]
    assert found.missing == [ids[1]]
    assert found.question == "Cancel 2 messages?"
    assert wheel.stats().pending == 2


def test_a_cancel_ends_what_it_was_given_and_nothing_else(wheel: Wheel) -> None:
    ids = [wheel.enqueue(b"x", delay=60) for _ in range(3)]
    done = perform(wheel, Act.of("cancel", [str(ids[0]), str(ids[0]), str(ids[1])]))
    assert done.done == {ids[0]: "stopped", ids[1]: "stopped"}
    assert done.text == "2 cancelled"
    assert [m.id for m in wheel.list()] == [ids[2]]


def test_a_cancel_of_what_had_begun_says_so(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir, background=False) as keeper:
        id_ = wheel.enqueue(b"x")
        batch = keeper.claim()
        done = perform(wheel, Act("cancel", (id_,)))
        assert done.done == {id_: "begun"}
        assert done.text == "1 cancelled, 1 had begun, or may have"
        keeper.ack(batch)


def test_a_kill_is_for_what_runs_and_says_why_it_cannot(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        waits = wheel.enqueue(b"waits", delay=60)
        assert propose(wheel, Act("kill", (waits,))).missing == [waits]
        assert "it waits" in perform(wheel, Act("kill", (waits,))).text
        assert "no dead letter" in perform(wheel, Act("drop", (waits,))).text
        assert wheel.get(waits) is not None
        runs = wheel.enqueue(b"runs")
        batch = eventually(keeper.claim)
        assert propose(wheel, Act("kill", (runs,))).question == "Kill 1 message that runs? It is dropped."
        done = perform(wheel, Act("kill", (runs,)))
        assert not done.done
        assert "program of its own" in done.failed[runs]
        keeper.ack(batch)
        with pytest.raises(BadArgument, match="one message"):
            Act("kill", (waits, runs))


def test_a_kill_of_a_coroutine_ends_it(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)

    @scheduler.on("slow")
    async def slow() -> None:
        await asyncio.sleep(600)

    with scheduler, Wheel(wheel_dir) as wheel:
        id_ = slow.enqueue()
        eventually(lambda: wheel.running().state_of(id_) == "running")
        assert perform(wheel, Act("kill", (id_,))).text == "1 killed"
        assert wheel.get(id_) is None


def test_a_message_fires_now_when_it_is_rescheduled_so(wheel: Wheel) -> None:
    id_ = wheel.enqueue(b"x", delay=9000)
    done = perform(wheel, Act("reschedule", (id_,)))
    (message,) = wheel.list()
    assert done.done == {id_: str(message.id)}
    assert message.root == id_
    assert message.due_us < id_.due_us


def test_a_dead_letter_is_revived_or_deleted_and_neither_touches_the_living(wheel_dir: Path) -> None:
    first, second = bury(wheel_dir, b"a", b"b")
    with Wheel(wheel_dir) as wheel:
        alive = wheel.enqueue(b"alive", delay=60)
        for verb in ("revive", "drop"):
            assert propose(wheel, Act(verb, (alive,))).missing == [alive]
        for verb in ("cancel", "reschedule"):
            assert propose(wheel, Act(verb, (first,))).missing == [first]
            assert perform(wheel, Act(verb, (first,))).missing == [first]
        assert propose(wheel, Act("revive", (first,), 90)).question == "Revive 1 dead letter, to fire in 90 seconds?"
        assert perform(wheel, Act("revive", (first,))).text == "1 revived"
        assert perform(wheel, Act("drop", (second,))).done == {second: "deleted"}
        assert not list(wheel.list(dead=True))
        assert sorted(m.payload for m in wheel.list()) == sorted([b"alive", b"a"])


def test_a_dead_letter_whose_key_another_message_has_is_reported_and_stays(wheel_dir: Path) -> None:
    (dead,) = bury(wheel_dir, b"a", key="oven")
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"another", delay=60, key="oven")
        done = perform(wheel, Act("revive", (dead,)))
        assert not done.done
        assert "oven" in done.failed[dead]
        assert done.text.startswith("0 revived, 1 failed: ")
        assert [m.id for m in wheel.list(dead=True)] == [dead]


def test_the_cancel_of_an_occurrence_says_which_schedule_it_ends(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)
    scheduler.schedule("nightly", 3600, "report")
    with Wheel(wheel_dir) as wheel:
        (message,) = wheel.list()
        found = propose(wheel, Act("cancel", (message.id,)))
        assert found.question == "Cancel 1 message? This ends the schedule nightly."
        assert found.to_json()["ends_schedules"] == ["nightly"]
        assert propose(wheel, Act("reschedule", (message.id,))).ends == []
    scheduler.stop()


@pytest.mark.parametrize("verb", VERBS)
def test_an_act_on_what_is_gone_does_nothing(wheel: Wheel, verb: str) -> None:
    id_ = wheel.enqueue(b"x", delay=60)
    wheel.cancel(id_)
    done = perform(wheel, Act.of(verb, [str(id_)]))
    assert done.missing == [id_]
    assert not done.done


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Act.of("explode", ["0" * 26]),
        lambda: Act.of("cancel", []),
        lambda: Act.of("cancel", ["x"]),
        lambda: Act.of("revive", ["0" * 26], -1),
        lambda: Act.of("revive", ["0" * 26], float("nan")),
        lambda: Act("cancel", tuple(MessageId.make(10**15, 1, n) for n in range(IDS_MAX + 1))),
    ],
)
def test_a_wrong_act_is_refused(wrong: object) -> None:
    with pytest.raises(BadArgument):
        wrong()  # type: ignore[operator]


def test_a_pause_is_proposed_and_done_by_its_name(wheel: Wheel) -> None:
    act = PauseAct.of("pause", "topic", "mail*", "the mail server is down")
    found = propose_pause(wheel, act)
    assert found.question == "Pause topic mail*? Nothing of it begins until a resume; what runs goes on."
    assert not wheel.paused()
    assert perform_pause(wheel, act).text == "topic mail* is paused"
    (pause,) = wheel.paused()
    assert (pause.what, pause.name, pause.why) == ("topic", "mail*", "the mail server is down")
    assert not propose_pause(wheel, act).is_needed
    perform_pause(wheel, PauseAct.of("pause", "wheel"))
    back = PauseAct.of("resume", "topic", "mail*")
    assert propose_pause(wheel, back).question == "Resume topic mail*? It stays paused while the wheel is."
    assert propose_pause(wheel, PauseAct.of("resume", "topic", "mail")).question == (
        "Topic mail is not paused by this name."
    )
    perform_pause(wheel, back)
    assert [str(one) for one in wheel.paused()] == ["the wheel"]
    assert perform_pause(wheel, back).text == "topic mail* was not paused any more"
    perform_pause(wheel, PauseAct.of("resume", "wheel"))
    assert not wheel.paused()


@pytest.mark.parametrize(
    "given",
    [
        ("stop", "wheel"), ("pause", "all"), ("pause", "wheel", "mail"), ("pause", "schedule", ""),
        ("pause", "schedule", "x" * 300), ("pause", "topic", "x" * 300), ("pause", "topic", "mail", "y" * 600),
        ("pause", "topic", "\ud800"), ("resume", "", "mail"),
    ],
)  # fmt: skip
def test_a_wrong_pause_is_refused(wheel: Wheel, given: tuple[str, ...]) -> None:
    with pytest.raises(FilewheelError):
        PauseAct.of(*given)
    assert not wheel.paused()


def test_a_backup_refuses_a_pause_and_names_the_primary(tmp_path: Path) -> None:
    primary, backup = tmp_path / "a.wheel", tmp_path / "b.wheel"
    make_set(primary, backup)
    with Wheel(backup) as wheel, pytest.raises(Fenced, match=r"a\.wheel"):
        perform_pause(wheel, PauseAct.of("pause", "wheel"))
