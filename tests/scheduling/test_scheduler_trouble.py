"""A scheduler in trouble: disks that are full or fail, programs that fork, start twice, stop and start again."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from filewheel import (
    AsyncScheduler,
    BadArgument,
    Closed,
    Locked,
    MessageId,
    Poisoned,
    Retry,
    Scheduler,
    Wheel,
    WheelFull,
    current_job,
)
from filewheel.disk import locks
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.key_entries import BUCKET_BYTES_MAX
from filewheel.keys.index import Keys
from filewheel.scheduling import dispatcher, engine
from filewheel.testing import FakeClock as PassingClock
from filewheel.testing import advance
from tests.scheduling.stage import dead_letters, make, stage, waiting
from tests.support import FakeClock, FaultyDisk, eventually


class Trouble:
    """Makes chosen calls of a disk fail while it is on."""

    def __init__(self, kind: str, code: int) -> None:
        self.kind = kind
        self.code = code
        self.on = False
        self.times = 0

    def disk(self, path: str) -> FaultyDisk:
        def fail(kind: str, name: str) -> None:
            if self.on and kind == self.kind and "journal" in name:
                self.times += 1
                raise OSError(self.code, os.strerror(self.code))

        return FaultyDisk(path, fail)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after trouble are short."""
    monkeypatch.setattr(engine, "_PAUSE_S", 0.01)
    monkeypatch.setattr(engine, "STANDBY_S", 0.01)
    monkeypatch.setattr(dispatcher, "_FULL_RETRY_US", 10_000)


def test_on_a_full_disk_outcomes_are_kept_and_written_when_there_is_room(
    wheel_dir: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    full = Trouble("pwrite", errno.ENOSPC)
    called: list[str] = []
    scheduler = Scheduler(wheel_dir, clock=clock, env=SYSTEM.using(disk=full.disk))

    @scheduler.on(retry=Retry(limit=1, delay_s=600, jitter=0))
    def work(how: str) -> None:
        called.append(how)
        if how == "chain":
            with current_job().transaction():
                scheduler.enqueue("work", ["next"], delay=900)
        elif how == "fails":
            raise ValueError

    for how in ("fine", "chain", "fails"):
        work.enqueue(how)
    with stage(wheel_dir, clock, scheduler, env=SYSTEM.using(disk=full.disk)) as on_stage:
        on_stage.step()
        full.on = True
        on_stage.finish()
        for _ in range(5):
            clock.advance(1.1)
            on_stage.step()
        assert full.times >= 5
        assert "the outcomes of 3 messages cannot be written yet" in caplog.text
        assert len(waiting(scheduler.wheel)) == 3
        full.on = False
        clock.advance(1.1)
        on_stage.step()
        assert on_stage.dispatcher.claimed == 0
    assert called == ["fine", "chain", "fails"]
    assert [(m.attempt, m.topic) for m in waiting(scheduler.wheel)] == [(1, "work"), (0, "work")]
    scheduler.stop()


def test_what_could_not_be_written_is_tried_once_more_at_the_end(wheel_dir: Path, clock: FakeClock) -> None:
    full = Trouble("pwrite", errno.ENOSPC)
    called = []
    scheduler = Scheduler(wheel_dir, clock=clock, env=SYSTEM.using(disk=full.disk))
    scheduler.on("x")(lambda: called.append(1))
    scheduler.enqueue("x")
    with stage(wheel_dir, clock, scheduler, env=SYSTEM.using(disk=full.disk)) as on_stage:
        on_stage.step()
        full.on = True
        on_stage.finish()
        full.on = False
        on_stage.dispatcher.settle_all()
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


def test_time_that_passes_on_a_full_disk_ends_with_what_became_of_calls_unwritten_and_says_so(wheel_dir: Path) -> None:
    full = Trouble("pwrite", errno.ENOSPC)
    called: list[int] = []
    clock = PassingClock()
    scheduler = Scheduler(wheel_dir, clock=clock, env=SYSTEM.using(disk=full.disk))

    @scheduler.on("work")
    def work(n: int) -> None:
        called.append(n)
        full.on = len(called) == 2

    work.enqueue(1)
    scheduler.enqueue("work", [2], delay=5)
    (wheel_dir / "ballast").unlink(missing_ok=True)
    with pytest.raises(WheelFull, match="it fires again"):
        advance(scheduler, clock, 10)
    full.on = False
    assert scheduler.drain() == 1
    assert called == [1, 2, 2]
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


def test_a_drain_whose_retry_waits_for_the_lock_of_a_producer_to_its_end_says_that_the_call_is_made_again(
    wheel_dir: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    called = []
    scheduler = make(wheel_dir, clock)

    @scheduler.on(retry=Retry(limit=3, delay_s=60))
    def work() -> None:
        called.append(1)
        raise ValueError

    id_ = work.enqueue()
    with (
        locks.holding_ids(open_directory(wheel_dir, write=True), [id_]),
        pytest.raises(Locked, match="it fires again"),
    ):
        scheduler.drain()
    assert "it fires again" in caplog.text
    assert [m.attempt for m in waiting(scheduler.wheel)] == [0]
    assert scheduler.drain() == 1
    assert [m.attempt for m in waiting(scheduler.wheel)] == [1]
    assert called == [1, 1]
    scheduler.stop()


@pytest.mark.damages
def test_a_bad_file_of_keys_leaves_the_outcomes_that_need_it_and_every_other_call_goes_on(
    wheel_dir: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []
    scheduler = make(wheel_dir, clock)

    @scheduler.on("work", retry=Retry(limit=3, delay_s=60))
    def work(n: int) -> None:
        called.append(n)
        raise ValueError

    for n in range(4):
        scheduler.enqueue("work", [n], delay=n, key=f"k{n}")
    clock.advance(1)
    bad = wheel_dir / layout.key_file(Keys(open_directory(wheel_dir, write=False)).hash_of("k0")[0])
    kept = bad.read_bytes() if bad.exists() else b""
    bad.touch()
    os.truncate(bad, BUCKET_BYTES_MAX + 1)
    with stage(wheel_dir, clock, scheduler) as played:
        for _ in range(4):
            played.step()
            played.finish()
            clock.advance(1)
        assert called == [0, 1, 2, 3]
        assert sorted(m.attempt for m in waiting(scheduler.wheel)) == [0, 1, 1, 1]
        assert [r.levelno for r in caplog.records if "outcomes of 1 messages wait" in r.getMessage()] == [logging.ERROR]
        assert isinstance(played.dispatcher.settle_all(), Damaged)
        bad.write_bytes(kept)
        assert played.dispatcher.settle_all() is None
    assert [m.attempt for m in waiting(scheduler.wheel)] == [1] * 4
    scheduler.stop()


def test_a_stop_on_a_full_disk_logs_that_what_was_called_fires_again(
    wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = Trouble("pwrite", errno.ENOSPC)
    ended = threading.Event()
    scheduler = Scheduler(wheel_dir, env=SYSTEM.using(disk=full.disk))

    @scheduler.on()
    def work() -> None:
        full.on = not ended.is_set()
        ended.set()

    scheduler.start()
    work.enqueue()
    assert ended.wait(120)
    scheduler.stop()
    assert [r for r in caplog.records if r.levelno == logging.ERROR and "it fires again" in r.getMessage()]
    full.on = False
    assert scheduler.drain() == 1
    scheduler.stop()


def test_a_keeper_whose_flush_failed_is_opened_anew_and_firing_goes_on(
    wheel_dir: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Trouble("fdatasync", errno.EIO)
    took_over, called = threading.Semaphore(0), threading.Semaphore(0)
    scheduler = Scheduler(wheel_dir, env=SYSTEM.using(disk=bad.disk))
    scheduler.on("x")(lambda: called.release())
    scheduler.on_event(lambda e: took_over.release(), ["took_over"])
    producer = Scheduler(wheel_dir)
    with scheduler:
        assert took_over.acquire(timeout=120)
        producer.enqueue("x")
        assert called.acquire(timeout=120)
        bad.on = True
        producer.enqueue("x")
        assert called.acquire(timeout=120)
        eventually(lambda: "a flush failed" in caplog.text)
        bad.on = False
        assert took_over.acquire(timeout=120)
        producer.enqueue("x")
        assert called.acquire(timeout=120)
        eventually(lambda: waiting(producer.wheel) == [])
    producer.stop()


def test_a_scheduler_is_started_once_and_can_be_started_again_after_it_was_stopped(wheel_dir: Path) -> None:
    called = threading.Semaphore(0)
    scheduler = Scheduler(wheel_dir)
    scheduler.on("x")(lambda: called.release())
    for _ in range(2):
        scheduler.start()
        with pytest.raises(BadArgument, match="started already"):
            scheduler.start()
        with pytest.raises(BadArgument, match="it fires or stands by"):
            scheduler.drain()
        scheduler.enqueue("x")
        assert called.acquire(timeout=120)
        scheduler.stop()
        scheduler.stop()
    assert scheduler.drain() == 0
    assert not scheduler.wait_until_keeper(0)
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


def test_a_standby_takes_over_when_the_keeper_stops(wheel_dir: Path, quick: None) -> None:
    order: list[str] = []
    done = threading.Semaphore(0)

    def made(name: str) -> Scheduler:
        scheduler = Scheduler(wheel_dir)

        def handler() -> None:
            order.append(name)
            done.release()

        scheduler.on("x")(handler)
        return scheduler

    first, second = made("first"), made("second")
    first.start()
    assert first.wait_until_keeper(120)
    second.start()
    second.enqueue("x")
    assert done.acquire(timeout=120)
    assert not second.wait_until_keeper(0)
    first.stop()
    assert second.wait_until_keeper(120)
    second.enqueue("x")
    assert done.acquire(timeout=120)
    second.stop()
    assert order == ["first", "second"]


def test_stop_lets_the_call_in_hand_end_and_begins_nothing_that_is_queued(wheel_dir: Path) -> None:
    began, go_on = threading.Semaphore(0), threading.Event()
    ended: list[int] = []
    scheduler = Scheduler(wheel_dir, threads=1)

    @scheduler.on("x")
    def x(n: int) -> None:
        began.release()
        assert go_on.wait(120)
        ended.append(n)

    for n in range(5):
        x.enqueue(n)
    scheduler.start()
    assert began.acquire(timeout=120)
    stopping = threading.Thread(target=scheduler.stop)
    stopping.start()
    made = scheduler._engine
    eventually(lambda: scheduler._engine is None)
    assert made is None or eventually(made._stop.is_set)
    runner_is_quiet(stopping)
    go_on.set()
    stopping.join(120)
    assert ended == [0]
    assert len(waiting(scheduler.wheel)) == 4
    scheduler.stop()


def runner_is_quiet(stopping: threading.Thread) -> None:
    """Wait until the engine waits for the call in hand: it has told the threads to begin nothing more."""
    import sys

    def waits() -> bool:
        return any(
            frame.f_code.co_name == "_end_calls" or (frame.f_back and frame.f_back.f_code.co_name == "_end_calls")
            for frame in stack()
        )

    def stack():  # type: ignore[no-untyped-def]
        for frame in sys._current_frames().values():
            while frame is not None:
                yield frame
                frame = frame.f_back  # type: ignore[assignment]

    eventually(waits)
    assert stopping.is_alive()


def test_a_call_that_does_not_end_in_time_is_offered_again(wheel_dir: Path) -> None:
    began, go_on, ended = threading.Semaphore(0), threading.Event(), threading.Event()
    scheduler = Scheduler(wheel_dir, threads=1)

    @scheduler.on("x")
    def x() -> None:
        began.release()
        go_on.wait(120)
        ended.set()

    id_ = x.enqueue()
    scheduler.start()
    assert began.acquire(timeout=120)
    scheduler.stop(timeout_s=0)
    go_on.set()
    assert ended.wait(120)
    # what it returned after the end counts for nothing
    assert [m.id for m in waiting(scheduler.wheel)] == [id_]
    assert scheduler.drain() == 1
    scheduler.stop()


def test_the_forked_child_of_a_program_with_a_scheduler_may_enqueue(wheel_dir: Path) -> None:
    called = threading.Semaphore(0)
    got: list[str] = []
    scheduler = Scheduler(wheel_dir)

    @scheduler.on("x")
    def x(who: str) -> None:
        got.append(who)
        called.release()

    with scheduler:
        x.enqueue("parent")
        assert called.acquire(timeout=120)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                x.enqueue("child")
                scheduler.stop()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert called.acquire(timeout=120)
        x.enqueue("parent")
        assert called.acquire(timeout=120)
    assert got == ["parent", "child", "parent"]


def test_dead_letters_and_waiting_messages_of_a_scheduler_that_never_fired_are_there_for_the_next(
    wheel_dir: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    first = make(wheel_dir, clock)
    first.on("x", retry=Retry(limit=0))(lambda: 1 / 0)
    first.enqueue("x")
    first.enqueue("y", delay=5)
    with caplog.at_level(logging.CRITICAL):
        first.drain()
    first.stop()
    second = make(wheel_dir, clock)
    assert len(dead_letters(second)) == 1
    assert [m.topic for m in waiting(second.wheel)] == ["y"]
    second.stop()


def test_claimed_messages_of_a_stage_that_is_left_are_offered_again(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock)
    called: list[int] = []
    x = scheduler.on("x")(called.append)
    for n in range(3):
        x.enqueue(n)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        on_stage.finish(1)
    assert called == [0]
    assert scheduler.drain() == 2
    assert called == [0, 1, 2]
    scheduler.stop()


def test_after_a_flush_that_failed_a_scheduler_enqueues_and_fires_again_without_a_restart(
    wheel_dir: Path, quick: None
) -> None:
    broken = Trouble("fdatasync", errno.EIO)
    called: list[int] = []
    scheduler = Scheduler(wheel_dir, env=SYSTEM.using(disk=broken.disk))

    @scheduler.on("x")
    def x(n: int) -> None:
        called.append(n)

    with scheduler:
        assert scheduler.wait_until_keeper(60)
        held = scheduler.wheel
        x.enqueue(1)
        eventually(lambda: 1 in called)
        broken.on = True
        with pytest.raises(Poisoned):
            x.enqueue(2)
        broken.on = False
        x.enqueue(3)
        eventually(lambda: 3 in called)
        assert scheduler.cancel(x.after(60, 4))
        with pytest.raises(Poisoned):
            held.enqueue(b"")  # a handle that a program has is its own matter
    assert called.count(1) == called.count(3) == 1


def test_threads_that_enqueue_while_a_flush_fails_go_on_with_one_new_handle(wheel_dir: Path) -> None:
    broken = Trouble("fdatasync", errno.EIO)
    scheduler = Scheduler(wheel_dir, env=SYSTEM.using(disk=broken.disk))
    sent: list[MessageId] = []
    wrong: list[BaseException] = []
    ready = threading.Barrier(5)

    def send() -> None:
        ready.wait()
        for n in range(200):
            try:
                sent.append(scheduler.enqueue("x", [n], delay=60))
            except (Poisoned, Closed):  # it may be written, and is not confirmed
                pass
            except BaseException as exc:
                wrong.append(exc)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    for _ in range(5):
        before = len(sent)
        eventually(lambda: len(sent) > before + 20 or not any(t.is_alive() for t in threads))  # noqa: B023
        broken.on = True
        eventually(lambda: broken.times or not any(t.is_alive() for t in threads))
        broken.on, broken.times = False, 0
    for thread in threads:
        thread.join()
    assert not wrong
    with Wheel(wheel_dir) as wheel:
        assert set(sent) <= {message.id for message in wheel.list()}
    scheduler.stop()


def test_a_wheel_that_a_program_closed_is_opened_again_by_its_scheduler(scheduler: Scheduler) -> None:
    with scheduler.wheel as wheel:
        wheel.enqueue(b"", delay=60)
    scheduler.enqueue("x", delay=60)
    assert len(waiting(scheduler.wheel)) == 2


def test_after_a_flush_that_failed_an_async_scheduler_enqueues_again(wheel_dir: Path) -> None:
    broken = Trouble("fdatasync", errno.EIO)
    scheduler = AsyncScheduler(wheel_dir, env=SYSTEM.using(disk=broken.disk))

    async def main() -> None:
        await scheduler.enqueue("x", delay=60)
        broken.on = True
        failed = await asyncio.gather(*(scheduler.enqueue("x", delay=60) for _ in range(3)), return_exceptions=True)
        assert [type(exc) for exc in failed] == [Poisoned] * 3
        broken.on = False
        await asyncio.gather(*(scheduler.enqueue("x", [n], delay=60) for n in range(3)))
        await scheduler.stop()

    asyncio.run(main())
    with Wheel(wheel_dir) as wheel:
        assert sorted(job.args for job in wheel.list() if job.args) == [[0], [1], [2]]
