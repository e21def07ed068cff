"""The wheel as a producer and a reader see it, with no keeper running."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from filewheel import BadArgument, Cancelled, Closed, Forked, Keeper, MessageId, NotFound, NoWheel, TooLarge, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.laps.tidy import tidy
from tests.support import FakeClock, FaultyDisk


def test_an_enqueued_message_is_found_by_its_id_with_everything_it_was_given(wheel: Wheel) -> None:
    id_ = wheel.enqueue(b"remind ann", delay=90, topic="mail", headers={"to": "ann"})
    message = wheel.get(id_)
    assert message is not None
    assert (message.payload, message.topic, message.headers) == (b"remind ann", "mail", {"to": "ann"})
    assert (message.id, message.attempt, message.root) == (id_, 0, None)
    assert 89 < (message.due - datetime.now(UTC)).total_seconds() <= 90


def test_an_id_prints_as_its_text_and_the_text_works_as_the_id(wheel: Wheel) -> None:
    id_ = wheel.enqueue(b"x", delay=1000)
    assert len(str(id_)) == 26
    assert f"{id_}" == str(id_)
    assert MessageId.parse(str(id_).lower()) == id_
    found = wheel.get(str(id_))
    assert found is not None
    assert found.id == id_


def test_every_form_of_when_gives_the_due_it_says(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        moment = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        assert wheel.enqueue(b"", delay=1.5).due_us == clock.wall_us + 1_500_000
        assert wheel.enqueue(b"", delay=timedelta(days=2)).due_us == clock.wall_us + 2 * 86_400_000_000
        assert wheel.enqueue(b"", at=moment).due_us == 1_893_553_445_678_901
        assert wheel.enqueue(b"", at=1_893_553_445.678901).due_us == 1_893_553_445_678_901
        assert wheel.enqueue(b"").due_us == clock.wall_us
        assert wheel.enqueue(b"", delay=-3600).due_us == clock.wall_us - 3_600_000_000


def test_a_naive_datetime_is_refused_with_a_hint(wheel: Wheel) -> None:
    with pytest.raises(BadArgument, match=r"no time zone.*Try: datetime\.now\(timezone\.utc\)"):
        wheel.enqueue(b"x", at=datetime(2030, 1, 1))


def test_wrong_arguments_are_refused_and_enqueue_nothing(wheel: Wheel) -> None:
    with pytest.raises(BadArgument, match="not both"):
        wheel.enqueue(b"x", delay=1, at=2)
    with pytest.raises(BadArgument, match="bytes, not str"):
        wheel.enqueue("text")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="str to str"):
        wheel.enqueue(b"x", headers={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(BadArgument, match="after the year 9999"):
        wheel.enqueue(b"x", delay=1e15)
    with pytest.raises(BadArgument, match="seconds, not|number of seconds"):
        wheel.enqueue(b"x", delay=float("nan"))
    with pytest.raises(BadArgument, match="sync is"):
        wheel.enqueue(b"x", sync="sometimes")
    assert wheel.stats().pending == 0


def test_limits_are_named_with_what_was_given_and_what_is_allowed(tmp_path: Path) -> None:
    with Wheel.create(tmp_path / "w", payload_bytes_max=10) as wheel:
        wheel.enqueue(b"0123456789")
        with pytest.raises(TooLarge, match="11 bytes; the limit of this wheel is 10"):
            wheel.enqueue(b"0123456789a")
        with pytest.raises(TooLarge, match="topic has 256 bytes; the limit is 255"):
            wheel.enqueue(b"x", topic="t" * 256)
        with pytest.raises(TooLarge, match="65 headers; the limit is 64"):
            wheel.enqueue(b"x", headers={str(i): "" for i in range(65)})
        with pytest.raises(TooLarge, match="headers have"):
            wheel.enqueue(b"x", headers={"a": "b" * 20_000})
        assert wheel.stats().pending == 1


def test_a_batch_keeps_its_order_and_takes_one_value_or_one_for_each(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        ids = wheel.enqueue_many(
            [b"a", b"b", b"c"], delay=[3, 1, 2], topic=["x", "y", "x"], headers=[None, {"h": "1"}, {}]
        )
        assert [wheel.get(i).payload for i in ids] == [b"a", b"b", b"c"]  # type: ignore[union-attr]
        assert [m.payload for m in wheel.list()] == [b"b", b"c", b"a"]
        assert [m.payload for m in wheel.list(topic="x")] == [b"c", b"a"]
        assert wheel.get(ids[1]).headers == {"h": "1"}  # type: ignore[union-attr]
        assert len(wheel.enqueue_many((b"%d" % i for i in range(100)), delay=60)) == 100
        assert len(wheel.enqueue_many([])) == 0
        assert wheel.stats().pending == 103


def test_a_batch_with_one_wrong_value_enqueues_nothing(wheel: Wheel) -> None:
    with pytest.raises(BadArgument, match="2 values for 3 payloads"):
        wheel.enqueue_many([b"a", b"b", b"c"], delay=[1, 2])
    with pytest.raises(BadArgument):
        wheel.enqueue_many([b"a", "b"])  # type: ignore[list-item]
    with pytest.raises(BadArgument, match="no time zone"):
        wheel.enqueue_many([b"a", b"b"], at=[0, datetime(2030, 1, 1)])
    assert wheel.stats().pending == 0


def test_a_batch_larger_than_a_frame_is_enqueued_whole(tmp_path: Path) -> None:
    with Wheel.create(tmp_path / "w") as wheel:
        payloads = [bytes([i]) * 700_000 for i in range(30)]
        ids = wheel.enqueue_many(payloads, delay=60)
        assert [m.payload for m in wheel.list()] == payloads
        assert list(ids) == sorted(ids)


def test_cancel_tells_whether_the_message_was_pending(wheel: Wheel) -> None:
    id_ = wheel.enqueue(b"x", delay=60)
    assert wheel.cancel(id_) is Cancelled.STOPPED
    assert wheel.cancel(id_) is Cancelled.NOT_FOUND
    assert wheel.get(id_) is None
    assert list(wheel.list()) == []


def test_cancelling_many_returns_those_that_were_pending(wheel: Wheel) -> None:
    ids = list(wheel.enqueue_many([b"a", b"b", b"c"], delay=[1, 5000, 10**8]))
    stranger = MessageId.make(5, 6, 7)
    assert wheel.cancel_many([ids[0], stranger, str(ids[2])]) == {ids[0], ids[2]}
    assert [m.payload for m in wheel.list()] == [b"b"]


def test_rescheduling_gives_a_new_id_and_the_old_one_is_gone(wheel: Wheel) -> None:
    old = wheel.enqueue(b"x", delay=60, topic="t", headers={"a": "b"})
    new = wheel.reschedule(old, delay=600)
    assert wheel.get(old) is None
    message = wheel.get(new)
    assert message is not None
    assert (message.payload, message.topic, message.headers, message.root) == (b"x", "t", {"a": "b"}, old)
    newer = wheel.reschedule(new, delay=5)
    assert wheel.get(newer).root == old  # type: ignore[union-attr]
    assert [m.id for m in wheel.list()] == [newer]
    with pytest.raises(NotFound, match=f"no message {old} is pending"):
        wheel.reschedule(old, delay=1)


def test_lists_are_in_firing_order_and_bounded_by_time_topic_and_limit(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        now = clock.wall_us / 1e6
        for i in (5, 3, 9, 1, 7):
            wheel.enqueue(b"%d" % i, delay=i, topic=f"user:{i % 2}:{i}")
        assert [m.payload for m in wheel.list()] == [b"1", b"3", b"5", b"7", b"9"]
        assert [m.payload for m in wheel.list(after=now + 3, before=now + 9)] == [b"3", b"5", b"7"]
        assert [m.payload for m in wheel.list(limit=2)] == [b"1", b"3"]
        assert [m.payload for m in wheel.list(topic="user:1:[39]")] == [b"3", b"9"]
        assert [m.payload for m in wheel.peek(2)] == [b"1", b"3"]
        assert list(wheel.list(limit=0)) == []


def test_stats_and_histogram_count_what_is_pending(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        now = clock.wall_us / 1e6
        ids = wheel.enqueue_many([b"%d" % i for i in range(10)], delay=[10 * i for i in range(10)], topic="t")
        wheel.cancel(ids[3])
        stats = wheel.stats()
        assert (stats.pending, stats.dead, stats.keeper_pid) == (9, 0, None)
        assert stats.next_due == datetime.fromtimestamp(now, UTC)
        found = wheel.histogram([now, now + 20, now + 50, now + 60])
        assert (found.before, found.counts, found.after) == (0, [2, 2, 1], 4)
        assert wheel.topics() == {"t": 9}


def test_what_was_tidied_away_is_listed_and_counted_the_same(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        ids = wheel.enqueue_many(
            [b"%d" % i for i in range(50)], delay=[i * 97.3 for i in range(50)], topic=["a", "b"] * 25
        )
        wheel.cancel_many(ids[10:20])
        wheel.reschedule(ids[5], delay=10**7)
        before = [(m.id, m.payload) for m in wheel.list()]
        counts = wheel.stats().pending, wheel.topics(), wheel.histogram([0, clock.wall_us / 1e6 + 1000])
        assert tidy(open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=clock)))
        assert [(m.id, m.payload) for m in wheel.list()] == before
        assert (wheel.stats().pending, wheel.topics(), wheel.histogram([0, clock.wall_us / 1e6 + 1000])) == counts
        assert wheel.stats().lap_files > 1
        assert wheel.get(ids[1]) is not None
        assert wheel.get(ids[11]) is None
        # A cancel after the deal goes where the message went.
        assert wheel.cancel(ids[1])
        assert tidy(open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=clock)))
        assert wheel.get(ids[1]) is None
        assert wheel.stats().pending == counts[0] - 1


def test_eight_threads_enqueue_at_once_and_nothing_is_lost_or_shared(wheel: Wheel) -> None:
    ids: list[MessageId] = []

    def produce(n: int) -> None:
        for i in range(100):
            ids.append(wheel.enqueue(b"%d-%d" % (n, i), delay=60))

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 800
    assert {m.payload for m in wheel.list()} == {b"%d-%d" % (n, i) for n in range(8) for i in range(100)}


def test_a_closed_wheel_says_so(wheel_dir: Path) -> None:
    wheel = Wheel(wheel_dir)
    wheel.enqueue(b"x", delay=60)
    wheel.close()
    wheel.close()
    with pytest.raises(Closed, match="open it again"):
        wheel.enqueue(b"y")
    with pytest.raises(Closed):
        list(wheel.list())
    with pytest.raises(Closed):
        wheel.check_message(b"y")


def test_a_forked_child_gets_an_error_and_the_parent_goes_on(wheel_dir: Path) -> None:
    wheel = Wheel(wheel_dir)
    wheel.enqueue(b"parent", delay=60)
    keeper = Keeper(wheel_dir)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for call in (lambda: wheel.enqueue(b"child"), lambda: keeper.claim(), lambda: list(wheel.list())):
                try:
                    call()
                except Forked:
                    code += 10
            wheel.close()
            keeper.close()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 31
    wheel.enqueue(b"parent again", delay=60)
    wheel.close()
    keeper.close()
    with Wheel(wheel_dir) as again:
        assert [m.payload for m in again.list()] == [b"parent", b"parent again"]


def test_a_forked_child_that_lives_on_does_not_keep_the_keepers_lock(wheel_dir: Path) -> None:
    keeper = Keeper(wheel_dir)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    keeper.close()
    with Keeper(wheel_dir, wait=False):
        pass
    os.close(write)
    os.close(read)
    os.waitpid(pid, 0)


def test_a_missing_wheel_is_told_though_the_working_directory_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(NoWheel, match="^jobs.wheel: no such directory"):
        Wheel("jobs.wheel")


def test_a_directory_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        NoWheel,
        match=r"/missing: no such directory. Try: check the path, .* mounted; .*promote.*; .* `filewheel -C .* init`",
    ):
        Wheel(tmp_path / "missing")
    with pytest.raises(NoWheel, match=r"not a wheel \(it has no wheel.json\). Try: .*mounted; .*promote"):
        Wheel(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(NoWheel, match="not a directory"):
        Wheel(tmp_path / "file")


def test_sync_never_and_interval_are_durable_after_flush_and_close(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        for i in range(100):
            wheel.enqueue(b"%d" % i, delay=60)
        wheel.enqueue(b"interval", delay=60, sync=0.01)
        wheel.flush()
        assert wheel.stats().pending == 101
    with Wheel(wheel_dir) as wheel:
        assert wheel.stats().pending == 101


def test_an_enqueue_with_an_interval_is_flushed_without_another_call(wheel_dir: Path) -> None:
    watching = threading.Event()
    flushed = threading.Event()

    def note(kind: str, name: str) -> None:
        if kind == "fdatasync" and watching.is_set():
            flushed.set()

    with Wheel(wheel_dir, sync="never", env=SYSTEM.using(disk=lambda path: FaultyDisk(path, note))) as wheel:
        wheel.enqueue(b"makes the segment", delay=60)
        watching.set()
        wheel.enqueue(b"interval", delay=60, sync=0.01)
        assert flushed.wait(120)


def test_a_call_under_which_another_thread_closes_the_wheel_is_told_that_it_is_closed(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = Wheel(wheel_dir)
    wheel.enqueue(b"x", delay=60)
    monkeypatch.setattr(wheel, "_check", wheel.close)  # just after it was looked at whether it is open
    with pytest.raises(Closed):
        wheel.peek()


def test_a_keyed_enqueue_whose_handle_another_thread_closes_says_so(wheel_dir: Path) -> None:
    closed: list[Wheel] = []

    def close(kind: str, name: str) -> None:
        if kind == "open" and name.startswith("keys/") and closed:
            closed.pop().close()

    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, close))) as wheel:
        wheel.enqueue(b"x", delay=60)
        closed.append(wheel)
        with pytest.raises(Closed, match="another thread closed"):
            wheel.enqueue(b"x", delay=60, key="k")
    with Wheel(wheel_dir) as wheel:
        assert [m.payload for m in wheel.list()] == [b"x"]
        assert wheel.enqueue(b"y", delay=60, key="k")
