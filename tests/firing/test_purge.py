"""`purge`: what has ended is in no file when it returns, with a keeper, without one, and beside programs that write."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from filewheel import BadArgument, Keeper, Scheduler, Wheel, add_backup
from filewheel.disk.directory import open_directory
from filewheel.firing import housekeeper
from filewheel.firing.purge import Purged
from filewheel.laps import window
from filewheel.laps.deal import Deal
from filewheel.tools.verify import verify
from tests.conftest import assert_whole
from tests.support import FakeClock, eventually

SECRET = b"secret-payload-4711"
LIVING = b"living-payload-0815"
DAY_S = 86_400


def files_with(path: Path, data: bytes) -> list[str]:
    """Return the files of a directory that have these bytes: what `grep -r` finds."""
    return [str(p.relative_to(path)) for p in sorted(path.rglob("*")) if p.is_file() and data in p.read_bytes()]


def raising(error: OSError) -> Callable[..., NoReturn]:
    """Return a function that raises this."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


class Stage:
    """A wheel, with a clock that stands or the machine's."""

    def __init__(self, path: Path, clock: FakeClock | None) -> None:
        self.path = path
        self.clock = clock
        Wheel.create(path, clock=self.clock).close()
        self.wheel = Wheel(path, clock=self.clock)

    def keeper(self) -> Keeper:
        return Keeper(self.path, clock=self.clock, background=False, history=100)

    def deal(self, keeper: Keeper) -> None:
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()

    def fill(self, keeper: Keeper) -> None:
        """Have messages that end in every way, and some that wait, in journals, slots, laps and the history."""
        for payload in (SECRET, LIVING):
            some = payload is SECRET
            self.wheel.enqueue_many([payload] * 20, delay=[400 * DAY_S + n for n in range(20)], topic="far")
            self.wheel.enqueue_many([payload] * 20, delay=[60 + n for n in range(20)], topic="near")
            self.wheel.enqueue(payload, delay=100 * DAY_S, key=f"key of {payload.decode()}", topic="keyed")
            self.deal(keeper)
            if some:
                self.wheel.cancel_many([m.id for m in self.wheel.list()])
        self.wheel.enqueue_many([SECRET] * 5, topic="due")
        self.wheel.enqueue(SECRET, topic="again")
        for message in keeper.claim(100):
            if message.topic == "again":
                keeper.bury(message, reason="no such address: " + SECRET.decode())
            else:
                keeper.ack(message)
        keeper._store.own.flush()
        self.wheel.cancel_many([m.id for m in self.wheel.dead()])
        self.wheel.enqueue(LIVING, key="same", delay=50 * DAY_S)
        self.wheel.enqueue(SECRET, key="replaced", delay=50 * DAY_S)
        self.wheel.enqueue(LIVING, key="replaced", delay=51 * DAY_S, on_conflict="replace")
        keeper.observer.publish()

    def living(self) -> int:
        with Wheel(self.path, clock=self.clock) as wheel:
            found = list(wheel.list())
        assert {m.payload for m in found} == {LIVING}
        return len(found)


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Without a keeper, on a clock that stands."""
    made = Stage(tmp_path / "jobs.wheel", FakeClock())
    yield made
    made.wheel.close()
    if request.node.get_closest_marker("damages") is None:
        assert_whole(made.path)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Stage]:
    """For a keeper with its thread, by the machine's clock."""
    made = Stage(tmp_path / "jobs.wheel", None)
    yield made
    made.wheel.close()
    assert_whole(made.path)


def test_without_a_keeper_nothing_of_what_has_ended_is_in_any_file(stage: Stage) -> None:
    with stage.keeper() as keeper:
        stage.fill(keeper)
        keeper._store.ingest(test_locks=True)
    assert files_with(stage.path, SECRET)
    before = stage.living()
    done = stage.wheel.purge()
    assert done
    assert (done.unreached, done.history) == ((), 6)
    assert files_with(stage.path, SECRET) == []
    assert stage.living() == before == 43


def test_beside_a_keeper_that_fires_nothing_of_what_has_ended_is_in_any_file(running: Stage) -> None:
    with running.keeper() as keeper:
        running.fill(keeper)
    with Keeper(running.path) as keeper:
        before = running.living()
        soon = running.wheel.enqueue(LIVING, delay=0.2)
        assert running.wheel.purge(timeout_s=15)
        assert files_with(running.path, SECRET) == []
        assert running.living() in (before, before + 1)
        assert eventually(lambda: soon in [keeper.ack(batch) and batch.ids[0] for batch in [keeper.claim()] if batch])
        assert running.wheel.purge(timeout_s=15)


def test_what_is_pending_stays_and_a_second_purge_does_nothing(stage: Stage) -> None:
    ids = stage.wheel.enqueue_many([LIVING] * 100, delay=DAY_S)
    assert stage.wheel.purge()
    assert stage.wheel.purge() == Purged()
    assert stage.wheel.purge(ids[:1]).unreached[0].place == str(ids[0])
    assert len(list(stage.wheel.list())) == 100


@pytest.mark.parametrize("how", ["ids", "topic", "key"])
def test_a_choice_keeps_the_rest_of_the_history(stage: Stage, how: str) -> None:
    with stage.keeper() as keeper:
        first = stage.wheel.enqueue(SECRET, topic="a", key="k")
        stage.wheel.enqueue(SECRET, topic="b")
        keeper.ack(keeper.claim())
    assert len(stage.wheel.history()) == 2
    named: dict[str, object] = {"ids": {"ids": [first]}, "topic": {"topic": "a"}, "key": {"key": "k"}}[how]  # type: ignore[assignment]
    assert stage.wheel.purge(**named).history == 1  # type: ignore[arg-type]
    assert [e.topic for e in stage.wheel.history()] == ["b"]
    assert files_with(stage.path, SECRET) == []
    for choice in ({"ids": [first], "topic": "a"}, {"topic": "a", "key": "k"}):
        with pytest.raises(BadArgument, match="one of them"):
            stage.wheel.purge(**choice)  # type: ignore[arg-type]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_id_of_a_message_that_was_tried_again_takes_the_history_of_all_its_tries(stage: Stage, which: int) -> None:
    ids = [stage.wheel.enqueue(SECRET, topic="a", key="ann@example.org")]
    stage.wheel.enqueue(LIVING, topic="b")
    with stage.keeper() as keeper:
        for _ in range(2):
            tried, *others = keeper.claim()
            ids.append(keeper.nack(tried, delay=0, failed="550 ann@example.org is unknown"))  # type: ignore[arg-type]
            keeper.ack(others)
    (listed,) = stage.wheel.list()
    assert listed.id == ids[2], "the id that lists show"
    stage.wheel.cancel(listed.id)
    assert stage.wheel.purge([ids[which]]).history == 2
    assert [end.topic for end in stage.wheel.history()] == ["b"]
    assert files_with(stage.path, b"ann@example.org") == []


def test_an_empty_list_of_ids_is_no_choice_of_everything(stage: Stage) -> None:
    stage.wheel.enqueue(SECRET)
    with stage.keeper() as keeper:
        keeper.ack(keeper.claim())
    for nothing in ([], iter([])):
        with pytest.raises(BadArgument, match="no ids were given"):
            stage.wheel.purge(nothing)
    assert len(stage.wheel.history()) == 1


def test_what_is_chosen_and_waits_is_named_and_stays(stage: Stage) -> None:
    first = stage.wheel.enqueue(LIVING, delay=DAY_S, key="k", topic="mail.ann")
    moved = stage.wheel.reschedule(first, delay=2 * DAY_S)
    stage.wheel.enqueue(LIVING, delay=DAY_S, topic="mail.bob")
    for choice in ({"ids": [first]}, {"ids": [moved]}, {"key": "k"}, {"topic": "mail.ann"}):
        done = stage.wheel.purge(**choice)  # type: ignore[arg-type]
        assert [(one.place, one.what[:9], "cancel" in one.hint) for one in done.unreached] == [
            (str(moved), "it waits:", True)
        ]
    (named,) = stage.wheel.purge(topic="mail.*").unreached
    assert named.what.startswith("it waits, and 1 more do")
    stage.wheel.cancel(moved)
    assert stage.wheel.purge([first])
    assert stage.wheel.purge(topic="mail.ann")
    assert str(moved) not in str([*stage.wheel.list()])


def test_a_dead_letter_that_is_chosen_is_named_until_it_is_dropped(stage: Stage) -> None:
    stage.wheel.enqueue(SECRET, topic="mail.ann")
    with stage.keeper() as keeper:
        for message in keeper.claim():
            keeper.bury(message, reason="no such address")
    (letter,) = stage.wheel.dead()
    assert [one.place for one in stage.wheel.purge(topic="mail.ann").unreached] == [str(letter.id)]
    stage.wheel.cancel(letter.id)
    assert stage.wheel.purge(topic="mail.ann")
    assert files_with(stage.path, SECRET) == []


@pytest.mark.parametrize("how", ["ids", "topic", "key"])
def test_the_result_of_a_chosen_call_is_named_until_it_is_cancelled(tmp_path: Path, how: str) -> None:
    path = tmp_path / "jobs.wheel"
    clock = FakeClock()
    scheduler = Scheduler(path, clock=clock)

    @scheduler.on("mail.ann", result_for="1h")
    def ann() -> str:
        return SECRET.decode()

    @scheduler.on("mail.bob", result_for="1h")
    def bob() -> str:
        return LIVING.decode()

    id_ = ann.options(key="k").enqueue()
    bob.enqueue()
    assert scheduler.drain() == 2
    scheduler.stop()
    choice: dict[str, object] = {"ids": {"ids": [id_]}, "topic": {"topic": "mail.ann"}, "key": {"key": "k"}}[how]  # type: ignore[assignment]
    with Wheel(path, clock=clock) as wheel:
        for _ in range(2):  # a second call knows it still
            (one,) = wheel.purge(**choice).unreached  # type: ignore[arg-type]
            assert (wheel.get(one.place).topic, str(id_) in one.what) == ("filewheel.result", True)
        assert {ended.topic for ended in wheel.history()} == {"mail.ann", "mail.bob"}
        wheel.cancel(one.place)
        assert wheel.purge(**choice)  # type: ignore[arg-type]
        assert [ended.topic for ended in wheel.history()] == ["mail.bob"]
        assert len(list(wheel.list(topic="filewheel.result"))) == 1
    assert files_with(path, SECRET) == []
    assert_whole(path)


def test_bytes_of_a_deal_that_was_cut_off_are_taken_out_too(stage: Stage) -> None:
    with stage.keeper() as keeper:
        stage.wheel.enqueue(LIVING, delay=400 * DAY_S)
        stage.deal(keeper)
    (lap,) = stage.path.glob("laps/*.lap")
    lap.write_bytes(lap.read_bytes() + SECRET)  # what no checkpoint covers
    assert stage.wheel.purge()
    assert files_with(stage.path, SECRET) == []
    assert stage.living() == 1


def test_the_keys_of_what_has_ended_are_not_in_the_index(stage: Stage) -> None:
    from filewheel.keys.index import Keys

    with stage.keeper() as keeper:
        for n in range(40):
            stage.wheel.enqueue(SECRET, delay=DAY_S, key=f"gone {n}")
            stage.wheel.enqueue(LIVING, delay=DAY_S, key=f"here {n}")
        stage.deal(keeper)
        for n in range(40):
            stage.wheel.cancel(key=f"gone {n}")
    assert stage.wheel.purge()
    keys = Keys(open_directory(stage.path, write=False))
    assert [keys.ids_of(f"gone {n}") for n in range(40)] == [[]] * 40
    assert all(stage.wheel.get(key=f"here {n}") is not None for n in range(40))


def test_a_program_that_writes_leaves_its_journal_and_one_that_rests_is_named(running: Stage) -> None:
    with Wheel(running.path) as other, Keeper(running.path):
        gone = other.enqueue(SECRET, delay=DAY_S)
        other.enqueue(LIVING, delay=DAY_S)
        other.cancel(gone)
        done = running.wheel.purge(timeout_s=1)
        assert [one.place for one in done.unreached] == files_with(running.path, SECRET)
        assert ["in use" in one.what for one in done.unreached] == [True]
        time.sleep(0.3)  # a writer looks five times a second at most
        other.enqueue(LIVING, delay=DAY_S)  # it sees the mark, and goes on in a new segment
        assert running.wheel.purge(timeout_s=15)
        assert files_with(running.path, SECRET) == []
        assert len(list(other.list())) == 2


def test_a_purge_waits_for_a_program_that_writes_now_and_then(running: Stage) -> None:
    program = """
        import sys, time
        from filewheel import Wheel
        with Wheel(sys.argv[1]) as wheel:
            wheel.cancel(wheel.enqueue(sys.argv[2].encode(), delay=86400))
            print("ready", flush=True)
            while True:
                wheel.enqueue(sys.argv[3].encode(), delay=86400)
                time.sleep(0.3)
    """
    command = [sys.executable, "-c", "import textwrap; exec(textwrap.dedent(" + repr(program) + "))"]
    child = subprocess.Popen(
        [*command, str(running.path), SECRET.decode(), LIVING.decode()], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert running.wheel.purge(timeout_s=15)
        assert files_with(running.path, SECRET) == []
    finally:
        child.kill()
        child.communicate()


@pytest.mark.damages
def test_bytes_in_quarantine_are_named_and_removed_only_on_request(stage: Stage) -> None:
    with stage.keeper() as keeper:
        id_ = stage.wheel.enqueue(SECRET, delay=400 * DAY_S, topic="lost")
        stage.deal(keeper)
    stage.wheel.close()
    (lap,) = stage.path.glob("laps/*.lap")
    data = bytearray(lap.read_bytes())
    data[-1 - 8] ^= 1
    lap.write_bytes(data)
    with stage.keeper() as keeper:
        keeper.claim()
        stage.clock.advance(401 * DAY_S)
        keeper.claim()
        stage.deal(keeper)
    with Wheel(stage.path, clock=stage.clock) as wheel:
        (item,) = [p for p in files_with(stage.path, SECRET[:10]) if p.startswith("quarantine")]
        for choice in (
            {},
            {"topic": "other"},
            {"ids": [id_]},
        ):  # unreadable bytes say of nobody that they are not theirs
            assert item in [one.place for one in wheel.purge(**choice).unreached]  # type: ignore[arg-type]
        assert wheel.purge(topic="lost", quarantine=True).quarantine == 1
        assert wheel.purge()
    assert files_with(stage.path, SECRET[:10]) == []
    assert list((stage.path / "quarantine").iterdir()) == []


@pytest.mark.damages
def test_a_file_that_cannot_be_read_whole_or_is_missing_is_named(stage: Stage) -> None:
    with stage.keeper() as keeper:
        near, far = (stage.wheel.enqueue(SECRET, delay=days * DAY_S) for days in (100, 400))
        stage.wheel.enqueue_many([LIVING] * 2, delay=[100 * DAY_S, 400 * DAY_S])
        stage.deal(keeper)
        stage.wheel.cancel_many([near, far])
        stage.deal(keeper)
    first, second = sorted(stage.path.glob("laps/*.lap"))
    data = bytearray(first.read_bytes())
    data[80] ^= 1  # in the frame of the messages
    first.write_bytes(data)
    second.rename(stage.path / "elsewhere")
    places = {one.place: one.what for one in stage.wheel.purge().unreached}
    assert (places[f"laps/{first.name}"], places[f"laps/{second.name}"]) == (
        "it cannot be read whole", "the file is missing",
    )  # fmt: skip


def test_a_primary_names_its_backups(stage: Stage) -> None:
    add_backup(stage.path, stage.path.with_name("backup.wheel"))
    with stage.keeper() as keeper:
        stage.wheel.cancel(stage.wheel.enqueue(SECRET, delay=DAY_S))
        stage.deal(keeper)
    done = stage.wheel.purge(timeout_s=0.1)
    assert str(stage.path.with_name("backup.wheel")) in [one.place for one in done.unreached]


def test_a_keeper_that_does_not_answer_is_named_and_the_request_is_withdrawn(running: Stage) -> None:
    with running.keeper():  # without its thread
        running.wheel.cancel(running.wheel.enqueue(SECRET, delay=DAY_S))
        done = running.wheel.purge(timeout_s=0.2)
        assert "has the wheel" in done.unreached[0].what
        assert list((running.path / "kills").iterdir()) == []
    assert running.wheel.purge()
    assert files_with(running.path, SECRET) == []


def test_on_a_full_disk_a_purge_is_not_done_and_the_keeper_goes_on(
    running: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeper, "RETRY_US", 0)
    running.wheel.cancel(running.wheel.enqueue(SECRET, delay=DAY_S))
    with Keeper(running.path) as keeper:
        with monkeypatch.context() as full:
            full.setattr(Deal, "run", raising(OSError(errno.ENOSPC, "no space")))
            assert "in time" in running.wheel.purge(timeout_s=1).unreached[0].what
        soon = running.wheel.enqueue(LIVING)
        assert eventually(lambda: soon in keeper.claim().ids)
        assert running.wheel.purge(timeout_s=15)
    assert files_with(running.path, SECRET) == []


def test_a_read_error_in_a_file_is_named_and_ends_no_keeper(running: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with running.keeper() as keeper:
        gone = running.wheel.enqueue(SECRET, delay=100 * DAY_S)
        running.wheel.enqueue(LIVING, delay=100 * DAY_S)
        running.deal(keeper)
        running.wheel.cancel(gone)
    with Keeper(running.path) as keeper:
        with monkeypatch.context() as broken:
            broken.setattr(window, "scan", raising(OSError(errno.EIO, "input/output error")))
            (one,) = running.wheel.purge(timeout_s=15).unreached
            assert (one.place[:5], one.what) == ("laps/", "it cannot be read whole")
        soon = running.wheel.enqueue(LIVING)
        assert eventually(lambda: soon in keeper.claim().ids)
        assert running.wheel.purge(timeout_s=15)
    assert files_with(running.path, SECRET) == []


def test_a_file_that_could_not_be_read_once_is_cleaned_all_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage.keeper() as keeper:
        gone = stage.wheel.enqueue(SECRET, delay=100 * DAY_S)
        stage.wheel.enqueue(LIVING, delay=100 * DAY_S)
        stage.deal(keeper)
        stage.wheel.cancel(gone)
    with monkeypatch.context() as broken:
        once = iter([False])
        whole = Deal._is_whole
        broken.setattr(Deal, "_is_whole", lambda deal, file: next(once, True) and whole(deal, file))
        assert stage.wheel.purge()
    assert files_with(stage.path, SECRET) == []
    assert [m.payload for m in stage.wheel.list()] == [LIVING]


def test_a_request_of_a_purge_that_was_killed_is_done_by_the_next_keeper(running: Stage) -> None:
    with running.keeper() as keeper:
        running.fill(keeper)
    (running.path / "kills").mkdir(exist_ok=True)
    (running.path / "kills" / "0badcafe.purge").touch()
    with Keeper(running.path):
        assert eventually(lambda: not list((running.path / "kills").iterdir()))
        left = [p for p in files_with(running.path, SECRET) if not p.startswith("history")]
        assert [p.partition("/")[0] for p in left] == ["journal"], "the one that this test has open"


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_a_purge_that_is_killed_loses_nothing_and_the_next_one_finishes(stage: Stage, after_s: float) -> None:
    with stage.keeper() as keeper:
        stage.fill(keeper)
    before = stage.living()
    child = os.fork()
    if child == 0:
        try:
            with Wheel(stage.path, clock=stage.clock) as wheel:
                wheel.purge()
        finally:
            os._exit(0)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert stage.living() == before
    assert not verify(open_directory(stage.path, write=False)).damage
    assert stage.wheel.purge()
    assert files_with(stage.path, SECRET) == []
    assert stage.living() == before


def test_a_scheduler_that_fires_leaves_the_journal_in_which_it_has_started_its_schedules(tmp_path: Path) -> None:
    path = tmp_path / "jobs.wheel"
    scheduler = Scheduler(path)
    called = threading.Event()

    @scheduler.every(1, name=f"every second, {SECRET.decode()}")
    def work() -> None:
        called.set()

    with scheduler, Wheel(path) as wheel:
        assert called.wait(30)
        assert eventually(lambda: wheel.history() != [])
        assert wheel.purge(timeout_s=15)
    assert_whole(path)
