"""The history of runs: how the last messages ended, kept in files that stay small and stop nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from filewheel import BadArgument, Keeper, Settlement, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.runs.history import ROOM_BYTES
from filewheel.runs.run import Place, Work
from filewheel.tools.verify import verify
from tests.support import FakeClock


@pytest.fixture
def keeper(wheel_dir: Path, clock: FakeClock) -> Iterator[Keeper]:
    """A keeper that keeps ten ends, and writes them when the test says so."""
    with Keeper(wheel_dir, background=False, history=10, clock=clock) as opened:
        yield opened


def files(wheel_dir: Path) -> dict[str, int]:
    """The files of the history, and how many lines each has."""
    return {p.name: p.read_bytes().count(b"\n") for p in sorted((wheel_dir / "history").iterdir())}


def fire(wheel: Wheel, keeper: Keeper, count: int, topic: str = "t") -> None:
    wheel.enqueue_many([b"x"] * count, topic=topic)
    keeper.ack(keeper.claim(count))
    keeper.observer.publish()


def test_each_end_says_what_it_was_when_it_was_due_and_begun_and_how_it_ended(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    acked, retried, dead, ran = (wheel.enqueue(b"x", topic=t, key=f"k-{t}") for t in ("a", "b", "c", "d"))
    due_us = clock.now_us()
    clock.advance(2)
    batch = keeper.claim()
    clock.advance(3)
    keeper.ack(batch[0])
    again = keeper.nack(batch[1], delay=60)
    buried = keeper.bury(batch[2], reason="no such host")
    wheel.cancel(ran)
    assert keeper.nack(batch[3]) is None
    keeper.observer.publish()
    found = {ended.id: ended for ended in wheel.history()}
    assert [e.id for e in wheel.history()] == [ran, dead, retried, acked], "the newest first"
    assert [found[i].outcome for i in (acked, retried, dead, ran)] == ["acked", "retried", "dead", "cancelled"]
    assert [found[i].moved_to for i in (acked, retried, dead, ran)] == [None, again, buried, None]
    for id_, topic in ((acked, "a"), (retried, "b"), (dead, "c")):
        ended = found[id_]
        assert (ended.topic, ended.key, ended.attempt, ended.place) == (topic, f"k-{topic}", 0, "program")
        assert (ended.due_us, ended.begun_us, ended.took_us) == (due_us, due_us + 2_000_000, 3_000_000)
        assert ended.ended_us == due_us + 5_000_000
    assert found[dead].error == "no such host"
    assert found[dead].failed
    assert not found[acked].failed


def test_the_attempts_of_a_message_share_its_first_id(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    first = wheel.enqueue(b"x")
    keeper.nack(keeper.claim()[0], delay=1)
    clock.advance(2)
    keeper.ack(keeper.claim())
    keeper.observer.publish()
    assert [(e.outcome, e.attempt) for e in wheel.history(id=first)] == [("acked", 1), ("retried", 0)]


def test_a_message_that_is_deferred_has_not_ended(wheel: Wheel, keeper: Keeper) -> None:
    wheel.enqueue(b"x")
    (message,) = keeper.claim()
    keeper.observer.history.report(message.id, Work(5, 7, "loop"))
    keeper.settle([Settlement(message.id, "deferred", delay=9)])
    keeper.observer.publish()
    assert wheel.history() == []


def test_what_a_consumer_says_of_a_failure_is_the_error_and_its_place_is_kept(wheel: Wheel, keeper: Keeper) -> None:
    class Commands:
        kind = "command"

        def places(self) -> list[tuple[bytes, Place]]:
            return []

    keeper.set_worker(Commands())  # type: ignore[arg-type]
    one, other = wheel.enqueue(b"x"), wheel.enqueue(b"y")
    keeper.claim()
    wheel.cancel(other)
    keeper.nack(one, failed="exit code 3")
    keeper.bury(other, reason="after 3 tries", failed="exit code 4")
    keeper.observer.publish()
    cancelled, retried = wheel.history()
    assert (retried.outcome, retried.error, retried.place) == ("retried", "exit code 3", "command")
    assert (cancelled.outcome, cancelled.error, cancelled.place) == ("cancelled", "exit code 4", "command")


def test_what_a_scheduler_reports_is_kept_except_of_a_message_that_was_cancelled(wheel: Wheel, keeper: Keeper) -> None:
    one, other = wheel.enqueue(b"x"), wheel.enqueue(b"y")
    for message in keeper.claim():
        keeper.observer.history.report(message.id, Work(5, 7, "loop"))
    wheel.cancel(other)
    skipped = Settlement(one, "buried", reason="no such host", outcome="skipped")
    keeper.settle([skipped, replace(skipped, id=other)])
    keeper.observer.publish()
    ended = {each.id: each for each in wheel.history()}
    assert (ended[one].outcome, ended[one].error, ended[one].begun_us, ended[one].took_us) == (
        "skipped", "no such host", 5, 7,
    )  # fmt: skip
    assert (ended[other].outcome, ended[other].place) == ("cancelled", "loop")


def test_it_is_searched_by_topic_failure_time_and_limit(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    for topic in ("mail-a", "mail-b", "sms"):
        clock.advance(1)
        fire(wheel, keeper, 1, topic)
    wheel.enqueue(b"x", topic="mail-c", key="k-c")
    keeper.bury(keeper.claim()[0])
    keeper.observer.publish()

    def topics(**options: object) -> list[str]:
        return [e.topic for e in wheel.history(**options)]  # type: ignore[arg-type]

    assert topics() == ["mail-c", "sms", "mail-b", "mail-a"]
    assert topics(topic="mail-*") == ["mail-c", "mail-b", "mail-a"]
    assert topics(failed=True) == ["mail-c"]
    assert topics(since=(clock.now_us() - 1_000_000) / 1e6) == ["mail-c", "sms", "mail-b"]
    assert topics(limit=2) == ["mail-c", "sms"]
    assert topics(limit=0) == []
    assert topics(key="k-c") == ["mail-c"]
    assert topics(key="k") == []


@pytest.mark.parametrize(
    "options", [{"limit": -1}, {"topic": 3}, {"failed": "yes"}, {"since": "noon"}, {"id": "x"}, {"key": 5}], ids=str
)
def test_a_wrong_argument_is_refused(wheel: Wheel, options: dict[str, object]) -> None:
    with pytest.raises(BadArgument):
        wheel.history(**options)  # type: ignore[arg-type]


def test_at_least_as_many_ends_are_kept_as_asked_and_at_most_twice_as_many(
    wheel_dir: Path, wheel: Wheel, keeper: Keeper
) -> None:
    done = 0
    for count in (3, 4, 5, 1, 9, 10, 2, 7, 10):
        fire(wheel, keeper, count)
        done += count
        kept = files(wheel_dir)
        assert min(done, 10) <= sum(kept.values()) <= 20, kept
        assert len(kept) <= 2, kept
        assert len(wheel.history()) == sum(kept.values())


def test_of_many_ends_between_two_looks_only_the_last_are_kept_in_memory(wheel: Wheel, keeper: Keeper) -> None:
    ids = wheel.enqueue_many([b"x"] * 100)
    for _ in range(25):
        keeper.ack(keeper.claim(4))
    assert keeper.observer.history._noted < 20
    keeper.observer.publish()
    assert [e.id for e in wheel.history()] == list(ids)[:-11:-1]


def test_the_payloads_of_large_messages_are_not_kept(wheel: Wheel, keeper: Keeper) -> None:
    wheel.enqueue(b"x" * 100_000, topic="big")
    keeper.ack(keeper.claim())
    assert all(some.puts is None for some in keeper.observer.history._some)
    keeper.observer.publish()
    assert [e.topic for e in wheel.history()] == ["big"]


def test_the_next_keeper_goes_on_behind_a_torn_line(wheel_dir: Path, wheel: Wheel, clock: FakeClock) -> None:
    for life in range(3):
        with Keeper(wheel_dir, background=False, history=10, clock=clock) as keeper:
            fire(wheel, keeper, 2)
        with open(wheel_dir / "history" / "000001.jsonl", "ab") as file:
            file.write((b'{"id": "01', bytes(40), b'[1]\n"x"\n\xff\n{}\n')[life])
    assert len(wheel.history()) == 6
    assert [*files(wheel_dir)] == ["000001.jsonl"]


@pytest.mark.parametrize("what", ["fifo", "link", "hard link", "huge", "directory"])
def test_a_foreign_file_in_the_history_is_left_alone_and_stops_nothing(
    wheel_dir: Path, wheel: Wheel, keeper: Keeper, tmp_path: Path, what: str
) -> None:
    place = wheel_dir / "history" / "000005.jsonl"
    place.parent.mkdir()
    other = tmp_path / "other"
    other.write_text("precious\n")
    if what == "fifo":
        os.mkfifo(place)
    elif what == "link":
        place.symlink_to(other)
    elif what == "hard link":
        os.link(other, place)
    elif what == "directory":
        place.mkdir()
    else:
        place.touch()
        os.truncate(place, 1 << 40)
    fire(wheel, keeper, 2)
    assert len(wheel.history()) == 2
    assert (place.parent / "000006.jsonl").exists()
    assert other.read_text() == "precious\n"
    assert not verify(open_directory(wheel_dir, write=False)).damage


@pytest.mark.parametrize("what", ["file", "link", "highest"])
def test_without_a_place_for_the_history_the_keeper_fires_on_and_says_so_once(
    wheel_dir: Path, wheel: Wheel, keeper: Keeper, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = wheel_dir / "history"
    if what == "file":
        place.write_text("mine")
    elif what == "link":
        place.symlink_to(tmp_path)
    else:
        place.mkdir()
        (place / "999999999999.jsonl").touch()
        (place / "999999999999.jsonl").write_text("\n" * 10)
    before = sorted(os.listdir(tmp_path))
    fire(wheel, keeper, 2)
    fire(wheel, keeper, 2)
    assert wheel.history() == []
    assert sorted(os.listdir(tmp_path)) == before
    assert len([r for r in caplog.records if "history" in r.message]) == 1


class NearlyFull(OsDisk):
    """A real disk that says how much room it has."""

    room = ROOM_BYTES - 1

    def free_bytes(self) -> int:
        return self.room


def test_on_a_disk_that_is_nearly_full_the_room_is_left_for_acknowledgements(
    wheel_dir: Path, wheel: Wheel, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = SYSTEM.using(disk=NearlyFull)
    with Keeper(wheel_dir, background=False, history=10, clock=clock, env=env) as keeper:
        fire(wheel, keeper, 2)
        assert wheel.history() == []
        assert not (wheel_dir / "history").exists()
        monkeypatch.setattr(NearlyFull, "room", ROOM_BYTES)
        fire(wheel, keeper, 3)
        assert len(wheel.history()) == 3


def test_a_write_that_fails_loses_ends_and_nothing_else(
    wheel_dir: Path, wheel: Wheel, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(OsDisk):
        broken = True

        def open(self, name: str, mode: str) -> int:
            if name.startswith("history/") and self.broken:
                raise OSError(errno.EIO, "the disk fails")
            return super().open(name, mode)

    env = SYSTEM.using(disk=Fails)
    with Keeper(wheel_dir, background=False, history=10, clock=clock, env=env) as keeper:
        fire(wheel, keeper, 2)
        fire(wheel, keeper, 2)
        Fails.broken = False
        fire(wheel, keeper, 1)
    assert len(wheel.history()) == 1
    assert len([r for r in caplog.records if "history" in r.message]) == 1


def test_a_keeper_without_a_history_writes_none(wheel_dir: Path, wheel: Wheel) -> None:
    with Keeper(wheel_dir, history=0) as keeper:
        wheel.enqueue(b"x")
        keeper.claim()
    with Keeper(wheel_dir, background=False) as keeper:
        keeper.ack(keeper.claim())
    assert not (wheel_dir / "history").exists()
    with pytest.raises(BadArgument, match="history"):
        Keeper(wheel_dir, history=-1)


def test_a_keeper_in_use_writes_what_it_has_at_its_end(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", topic="mail")
        with Keeper(wheel_dir) as keeper:
            keeper.ack(keeper.claim())
        assert [e.topic for e in wheel.history()] == ["mail"]
