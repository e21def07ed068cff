"""What runs now: the list that a keeper publishes, and what its readers make of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from filewheel import Cancelled, Damaged, DiskError, Keeper, Killed, Wheel
from filewheel.disk.disk import SYSTEM
from filewheel.runs.kills import Asked
from filewheel.runs.run import STALE_US, Kill, Place
from filewheel.runs.running import LISTED_MAX
from filewheel.runs.times import BeginTimes
from tests.support import FakeClock, FaultyDisk, eventually

LIST = "running.json"


@pytest.fixture
def keeper(wheel_dir: Path) -> Iterator[Keeper]:
    """A keeper that publishes when the test says so."""
    with Keeper(wheel_dir, background=False, history=100) as opened:
        yield opened


def test_what_is_claimed_is_listed_until_it_is_settled(wheel: Wheel, keeper: Keeper) -> None:
    first = wheel.enqueue(b"a", topic="mail", key="ann")
    second = wheel.enqueue(b"b", topic="sms")
    later = wheel.enqueue(b"c", delay=60)
    batch = keeper.claim()
    keeper.observer.publish()
    running = wheel.running()
    assert [(run.id, run.topic, run.key, run.state) for run in running] == [
        (first, "mail", "ann", "running"), (second, "sms", None, "running"),
    ]  # fmt: skip
    assert (running.claimed, running.begun, running.keeper_pid) == (2, 2, os.getpid())
    assert [running.state_of(id_) for id_ in (first, second, later)] == ["running", "running", "waiting"]
    assert running[0].begun is not None
    assert str(running[0].place) == "program"
    keeper.ack(batch[0])
    keeper.observer.publish()
    assert [run.id for run in wheel.running()] == [second]
    keeper.ack(batch)
    keeper.observer.publish()
    assert not wheel.running()
    assert wheel.running().has_keeper


def test_a_message_that_waits_for_its_begin_is_claimed_and_then_runs_since_its_begin(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, background=False, history=9, clock=clock) as keeper:
        wheel.enqueue(b"a")
        batch = keeper.claim(begun=False)
        keeper.observer.publish()
        (run,) = wheel.running()
        assert (run.state, run.begun_us, run.place) == ("claimed", None, None)
        assert wheel.running().state_of(run.id) == "claimed"
        clock.advance(7)
        keeper.begin(batch)
        assert wheel.running().state_of(run.id) == "running", "the table of begins is not late"
        keeper.observer.publish()
        (run,) = wheel.running()
        assert (run.state, run.begun_us) == ("running", clock.now_us())
        keeper.unbegin(run.id)
        keeper.observer.publish()
        assert [run.state for run in wheel.running()] == ["claimed"]
        keeper.give_back(batch)
        keeper.observer.publish()
        assert wheel.running() == []
        assert wheel.running().state_of(run.id) == "waiting"


def test_of_a_message_that_is_given_back_nothing_runs_before_the_next_list(wheel: Wheel, keeper: Keeper) -> None:
    id_ = wheel.enqueue(b"a")
    batch = keeper.claim()
    keeper.observer.publish()
    keeper.give_back(batch)
    assert wheel.running() == []
    assert wheel.running().state_of(id_) == "waiting"


@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_of_a_keeper_that_has_ended_nothing_runs(wheel_dir: Path, wheel: Wheel, ended: str) -> None:
    id_ = wheel.enqueue(b"a")
    code = "import sys, time; from filewheel import Keeper; k = Keeper(sys.argv[1]); k.claim(); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(wheel_dir)])
    try:
        assert eventually(lambda: [run.id for run in wheel.running()] == [id_])
        kept = (wheel_dir / LIST).read_bytes()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (wheel_dir / LIST).write_bytes(kept)
    assert (wheel.running(), wheel.running().has_keeper) == ([], False)
    assert wheel.running().state_of(id_) == "waiting"
    with Keeper(wheel_dir, background=False):  # publishes nothing: the list is still that of the killed one
        found = wheel.running()
        assert (found, found.has_keeper, found.at_us, found.claimed) == ([], True, None, 0)
    with Keeper(wheel_dir, background=ended == "closed", history=10) as keeper:
        keeper.claim()
        if ended == "killed":  # otherwise its thread writes the list, and two at once would share the file aside
            keeper.observer.publish()
        assert eventually(lambda: [run.id for run in wheel.running()] == [id_])
    assert wheel.running() == []
    assert not (wheel_dir / LIST).exists()


def test_without_a_table_of_begins_the_list_of_the_keepers_own_process_counts(
    wheel_dir: Path, wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = wheel.enqueue(b"a")

    def fail(kind: str, name: str) -> None:
        if kind in ("open", "pwrite") and name == "begun":
            raise OSError(errno.EIO, "the disk fails")

    with Keeper(wheel_dir, background=False, history=9, env=SYSTEM.using(disk=lambda p: FaultyDisk(p, fail))) as keeper:
        keeper.claim()
        keeper.observer.publish()
        assert wheel.running().state_of(id_) == "running"
        fields = json.loads((wheel_dir / LIST).read_text())
        (wheel_dir / LIST).write_text(json.dumps(fields | {"pid": 1}))
        assert wheel.running() == []


def test_the_list_has_a_thousand_messages_and_counts_all(wheel: Wheel, keeper: Keeper) -> None:
    wheel.enqueue_many([b"x"] * (LISTED_MAX + 500), sync="never")
    waiting = keeper.claim(700, begun=False)
    keeper.claim(800)
    keeper.observer.publish()
    running = wheel.running()
    assert (len(running), running.claimed, running.begun) == (LISTED_MAX, LISTED_MAX + 500, 800)
    assert [run.state for run in running] == ["running"] * 800 + ["claimed"] * 200
    assert running.state_of(waiting.ids[0]) == "claimed"


def test_a_keeper_that_is_stuck_shows_by_the_age_of_its_list(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, background=False, history=9, clock=clock) as keeper:
        wheel.enqueue(b"a")
        keeper.claim()
        keeper.observer.publish()
        clock.advance(STALE_US / 1e6)
        assert not wheel.running().is_stale(clock.now_us())
        clock.advance(1)
        assert wheel.running().is_stale(clock.now_us())
        keeper.observer.publish()  # unchanged, and written all the same
        assert not wheel.running().is_stale(clock.now_us())


HOSTILE = {
    "empty": b"", "zeros": bytes(100), "text": b"no JSON", "list": b"[]", "nested": b"[" * 100_000,
    "no runs": b'{"at_us": 1, "pid": 1, "keeper": "", "claimed": 0, "begun": 0}',
    "negative": b'{"at_us": -1, "pid": 1, "keeper": "", "claimed": 0, "begun": 0, "runs": []}',
    "no id": b'{"at_us": 1, "pid": 1, "keeper": "", "claimed": 0, "begun": 0, "runs": [{"key": null, "id": "x"}]}',
    "not utf-8": b'{"at_us": 1, "pid": "\xff"}',
}  # fmt: skip


@pytest.mark.parametrize("what", [*HOSTILE, "fifo", "link", "directory", "huge"])
def test_a_foreign_file_in_the_place_of_the_list_is_named_and_stops_no_keeper(
    wheel_dir: Path, wheel: Wheel, keeper: Keeper, tmp_path: Path, what: str
) -> None:
    wheel.enqueue(b"a")
    place = wheel_dir / LIST
    other = tmp_path / "other"
    other.write_text("precious")
    if what in HOSTILE:
        place.write_bytes(HOSTILE[what])
    elif what == "fifo":
        os.mkfifo(place)
    elif what == "link":
        place.symlink_to(other)
    elif what == "directory":
        place.mkdir()
    else:
        place.touch()
        os.truncate(place, 1 << 40)
    with pytest.raises(Damaged, match=LIST):
        wheel.running()
    batch = keeper.claim()
    keeper.observer.publish()
    assert keeper.ack(batch) == 1
    assert other.read_text() == "precious"
    if what != "directory":
        assert len(wheel.running()) == 1, "the rename has put the list in its place"
    else:
        shutil.rmtree(place)


def test_a_keeper_whose_list_cannot_be_written_fires_on_and_says_so_once(
    wheel_dir: Path, wheel: Wheel, caplog: pytest.LogCaptureFixture
) -> None:
    wheel.enqueue_many([b"x"] * 3)

    def fail(kind: str, name: str) -> None:
        if kind == "open" and name.startswith(LIST):
            raise OSError(errno.ENOSPC, "no space")

    env = SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))
    with Keeper(wheel_dir, background=False, history=9, env=env) as keeper:
        for _ in range(3):
            batch = keeper.claim(1)
            keeper.observer.publish()
            keeper.ack(batch)
    assert len([r for r in caplog.records if "what runs" in r.message]) == 1


def test_a_defect_in_what_is_published_does_not_end_the_keeper(
    wheel: Wheel, keeper: Keeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wheel.enqueue(b"a")

    def fail(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("filewheel.firing.observer.render", fail)
    keeper.observer.look()
    assert keeper.ack(keeper.claim()) == 1
    assert "published" in caplog.text


class Commands:
    """A consumer that ends nothing until it is told to."""

    kind = "command"

    def __init__(self) -> None:
        self.asked: list[Kill] = []

    def places(self) -> list[tuple[bytes, Place]]:
        return []

    def kill(self, kill: Kill) -> str:
        self.asked.append(kill)
        return ""


def test_a_kill_is_answered_once_the_outcome_is_written(wheel: Wheel, keeper: Keeper) -> None:
    commands = Commands()
    keeper.set_worker(commands)  # type: ignore[arg-type]
    id_ = wheel.enqueue(b"a")
    keeper.claim()
    with Asked(wheel._dir, id_, "retry") as asked:
        keeper.observer.look()
        (kill,) = commands.asked
        assert (kill.id, kill.then, asked.look()) == (id_, "retry", None)
        kill.worked = True
        keeper.observer._answer_ended()
        assert asked.look() is None, "the message is still claimed"
        keeper.nack(id_, failed="killed")
        keeper.observer._answer_ended()
        assert asked.look() is Killed.KILLED


@pytest.mark.parametrize(("then", "answer"), [("retry", "cancelled"), ("bury", "cancelled"), ("cancel", "killed")])
def test_a_kill_of_a_message_that_was_cancelled_while_it_ran_says_that_it_is_dropped(
    wheel: Wheel, keeper: Keeper, then: Literal["cancel", "retry", "bury"], answer: str
) -> None:
    commands = Commands()
    keeper.set_worker(commands)  # type: ignore[arg-type]
    id_ = wheel.enqueue(b"a")
    keeper.claim()
    assert wheel.cancel(id_) is Cancelled.BEGUN
    with Asked(wheel._dir, id_, then) as asked:
        keeper.observer.look()
        (kill,) = commands.asked
        kill.worked = True
        if then == "retry":
            keeper.nack(id_, failed="killed")
        elif then == "bury":
            keeper.bury(id_, failed="killed")
        else:
            keeper.ack(id_)
        keeper.observer._answer_ended()
        result = asked.look()
    assert result == answer
    assert result
    assert not list(wheel.list())
    assert not list(wheel.list(dead=True))


@pytest.mark.parametrize("how", ["acked", "cancelled"])
def test_a_message_that_has_ended_is_gone_once_the_list_has_been_written_again(
    wheel: Wheel, keeper: Keeper, how: str
) -> None:
    id_ = wheel.enqueue(b"a")
    keeper.claim()
    keeper.observer.publish()
    if how == "cancelled":
        wheel.cancel(id_)
        assert wheel.running().state_of(id_) == "running", "it goes on to its end"
    keeper.ack(id_)
    keeper.observer.publish()
    assert wheel.running().state_of(id_) == "gone"
    assert wheel.running().state_of(wheel.enqueue(b"b")) == "waiting"


def test_a_request_to_an_earlier_keeper_kills_nothing_in_the_life_of_the_next(wheel_dir: Path, wheel: Wheel) -> None:
    id_ = wheel.enqueue(b"a")
    with Keeper(wheel_dir, background=False) as keeper:
        keeper.claim()
        asked = Asked(wheel._dir, id_, "cancel")
    commands = Commands()
    with Keeper(wheel_dir, background=False, history=9) as keeper:
        keeper.set_worker(commands)  # type: ignore[arg-type]
        keeper.claim()
        keeper.observer.look()
        assert commands.asked == []
        assert asked.look() is Killed.NO_KEEPER
        assert os.listdir(wheel_dir / "kills") == []


def test_a_request_that_nobody_waits_for_any_more_is_removed_with_its_answer(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, background=False, history=9, clock=clock) as keeper:
        Asked(wheel._dir, wheel.enqueue(b"a", delay=60), "cancel")  # the asker is killed
        keeper.observer.look()
        (name,) = os.listdir(wheel_dir / "kills")
        assert name.endswith(".ended")
        for _ in range(2):
            clock.advance(31)
            keeper.observer.look()
        assert os.listdir(wheel_dir / "kills") == []


@pytest.mark.parametrize("what", ["foreign", "fifo", "link", "many"])
def test_foreign_files_among_the_requests_stay_and_stop_nothing(
    wheel_dir: Path, wheel: Wheel, keeper: Keeper, tmp_path: Path, what: str
) -> None:
    place = wheel_dir / "kills"
    id_ = wheel.enqueue(b"a")
    keeper.claim()
    if what == "link":
        place.symlink_to(tmp_path)
    else:
        place.mkdir()
        names = [f"{id_}-{bytes(8).hex()}-{n:08x}.{'cancel' if what == 'many' else 'kill'}" for n in range(250)]
        for name in [*names, "../x".replace("/", "_"), f"{id_}-x-y.cancel", str(id_).lower()]:
            os.mkfifo(place / name) if what == "fifo" else (place / name).touch()
    for _ in range(4):
        keeper.observer._looked_us = None
        keeper.observer.look()
    left = {"foreign": 253, "fifo": 253, "many": 3, "link": 0}[what]
    assert len([n for n in os.listdir(place) if n != "jobs.wheel"]) == left
    if what == "link":
        with pytest.raises(DiskError, match="kills"):
            wheel.kill(id_)
    else:
        assert wheel.kill(id_, timeout_s=0) is Killed.TIMED_OUT
    assert keeper.ack(id_) == 1


def test_the_begin_of_a_message_is_known_however_much_began_since() -> None:
    claimed = {bytes([1] * 16): b""}
    times = BeginTimes(claimed)
    times.note([*claimed], (7, 7))
    for n in range(40):
        times.note([n.to_bytes(8, "big") + i.to_bytes(8, "big") for i in range(1000)], (8, 8))
    assert times.find(claimed) == dict.fromkeys(claimed, (7, 7))
    assert sum(len(ids) for _, ids in times._newest) < 40_000
    times.forget({})
    assert times.find(claimed) == {}
