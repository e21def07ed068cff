"""What users of other schedulers suffer from, and what happens here: one test or a few for each situation.

The docstrings name reports of it. What a situation needs of real processes is in test_scheduler_takeover.py, of
recurring work in test_scheduler_schedules.py, of crashes in test_scheduler_crash.py.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from filewheel import Keeper, KeyHeld, Message, MessageId, Retry, Scheduler, Wheel, current_job
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.message import US_PER_S, to_datetime
from tests.cli.support import Fw
from tests.support import START_US, FakeClock, eventually, run

DAY_S = 86_400
YEAR_S = 365 * DAY_S
Make = Callable[..., Scheduler]


@pytest.fixture
def make(wheel_dir: Path) -> Iterator[Make]:
    """Make schedulers of one wheel, each with a handler `work` that notes its argument in `scheduler.called`."""
    made: list[Scheduler] = []

    def one(**options: Any) -> Scheduler:
        scheduler = Scheduler(wheel_dir, **{"sync": "never", **options})
        made.append(scheduler)
        return scheduler

    yield one
    for scheduler in made:
        scheduler.stop()


def noted(scheduler: Scheduler, name: str = "work", **terms: Any) -> list[Any]:
    """Define a handler that notes its argument; return the notes."""
    calls: list[Any] = []

    @scheduler.on(name, **terms)
    def work(what: Any = None) -> None:
        calls.append(what)

    return calls


def waiting(path: Path) -> list[Message]:
    with Wheel(path) as wheel:
        return list(wheel.list())


# -- 1: who fires -----------------------------------------------------------------------------------------------------


def test_two_schedulers_on_one_store_call_each_job_once(make: Make) -> None:
    """agronholm/apscheduler#129, agronholm/apscheduler#160, rq/rq#1354, taskiq-python/taskiq#244."""
    schedulers = [make(), make(), make()]
    calls = [noted(s) for s in schedulers]
    for scheduler in schedulers:
        scheduler.start()
    for i in range(200):
        schedulers[i % 3].enqueue("work", [i], delay=i / 1000)
    eventually(lambda: sum(map(len, calls)) >= 200)
    for scheduler in schedulers:  # each in turn hands over to the next
        scheduler.stop()
    assert sorted(what for some in calls for what in some) == list(range(200))


# -- 2: far times -----------------------------------------------------------------------------------------------------


def test_a_job_that_is_due_in_a_year_is_called_once_though_programs_come_and_go(make: Make, clock: FakeClock) -> None:
    """celery/kombu#337, celery/celery#2599, celery/celery#4400, celery/celery#7009."""
    calls: list[Any] = []
    for month in range(14):
        scheduler = make(clock=clock)
        found = noted(scheduler)
        if not month:
            scheduler.enqueue("work", ["happy new year"], delay=YEAR_S)
        scheduler.drain()
        scheduler.drain()
        scheduler.stop()
        calls += [(month, what) for what in found]
        clock.advance(31 * DAY_S)
    assert calls == [(12, "happy new year")]


def test_a_call_that_takes_for_ever_is_not_begun_a_second_time(make: Make, clock: FakeClock) -> None:
    """celery/celery#2481, celery/celery#3270: no lease runs out while the process lives that makes the call."""
    scheduler = make(clock=clock)
    goes_on, calls = threading.Event(), []

    @scheduler.on()
    def long() -> None:
        calls.append(1)
        goes_on.wait(60)

    scheduler.enqueue("long")
    scheduler.start()
    eventually(lambda: calls)
    clock.advance(10 * YEAR_S)
    others = noted(scheduler)
    scheduler.enqueue("work", ["other"])
    eventually(lambda: others)
    goes_on.set()
    scheduler.stop()
    assert calls == [1]


# -- 3: memory --------------------------------------------------------------------------------------------------------

_FILL = """
import sys
from filewheel import Wheel
with Wheel(sys.argv[1]) as wheel:
    count = int(sys.argv[2])
    for start in range(0, count, 10_000):
        delays = [60 + i * 7919 % 7200 for i in range(start, start + 10_000)]
        wheel.enqueue_many([b"x" * 100] * len(delays), delay=delays, topic="work", sync="never")
"""
_FIRE = """
import sys
from filewheel import Scheduler
scheduler = Scheduler(sys.argv[1])
called = []
scheduler.on("now")(called.append)
scheduler.start()
scheduler.wait_until_keeper(60)
for i in range(10):
    scheduler.enqueue("now", [i])
import time
end = time.monotonic() + 60
while len(called) < 10 and time.monotonic() < end:
    time.sleep(0.01)
scheduler.stop()
assert len(called) == 10, called
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")))
"""


def test_memory_does_not_grow_with_what_waits(wheel_dir: Path) -> None:
    """celery/celery#9849, celery/celery#978, rabbitmq/rabbitmq-delayed-message-exchange#228, Bogdanp/dramatiq#672."""
    run(_FILL, wheel_dir, 100_000)
    few_kib = int(run(_FIRE, wheel_dir))
    run(_FILL, wheel_dir, 100_000)
    many_kib = int(run(_FIRE, wheel_dir))
    assert many_kib < few_kib + 16_000
    assert many_kib < 100_000


# -- 4: late ----------------------------------------------------------------------------------------------------------


def test_what_is_hours_late_is_called_unless_it_says_otherwise_and_then_it_is_kept(
    make: Make, clock: FakeClock, wheel_dir: Path
) -> None:
    """agronholm/apscheduler#182, agronholm/apscheduler#146, agronholm/apscheduler#476; otherwise: coleifer/huey#226."""
    scheduler = make(clock=clock)
    calls = noted(scheduler)
    scheduler.enqueue("work", ["late"], delay=1)
    scheduler.enqueue("work", ["too late"], delay=1, skip_late_s=60)
    clock.advance(12 * 3600)
    scheduler.drain()
    assert calls == ["late"]
    with Wheel(wheel_dir) as wheel:
        (letter,) = wheel.list(dead=True)
    assert letter.headers["filewheel.reason"].startswith("skipped: 43199 s late")


# -- 5: killed between claim and call ---------------------------------------------------------------------------------


def test_what_was_claimed_by_a_process_that_is_killed_before_it_calls_is_called_by_the_next(
    make: Make, wheel_dir: Path
) -> None:
    """sidekiq/sidekiq#843, coleifer/huey#225, coleifer/huey#598, procrastinate-org/procrastinate#307."""
    code = """
    import os, signal, sys
    from filewheel import Keeper, Wheel
    with Keeper(sys.argv[1]) as keeper:
        print(len(keeper.claim(1000)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    scheduler = make()
    calls = noted(scheduler)
    for i in range(300):
        scheduler.enqueue("work", [i])
    with pytest.raises(AssertionError, match="-9"):
        run(code, wheel_dir)
    scheduler.drain()
    assert calls == list(range(300))


# -- 6: restarts ------------------------------------------------------------------------------------------------------


def test_a_restart_changes_no_due_time_and_calls_nothing_early(make: Make, clock: FakeClock, wheel_dir: Path) -> None:
    """nsqio/nsq#1107, apache/pulsar#22716, beanstalkd/beanstalkd#62, rabbitmq/rabbitmq-delayed-message-exchange#71."""
    delays = [5, 100, 4000, DAY_S, YEAR_S]
    first = make(clock=clock)
    for delay in delays:
        first.enqueue("work", [delay], delay=delay)
    first.stop()
    before = {m.id: m.due_us for m in waiting(wheel_dir)}
    called: list[tuple[float, Any]] = []
    for _ in range(5):
        scheduler = make(clock=clock)
        calls = noted(scheduler)
        scheduler.drain()
        assert not calls
        scheduler.stop()
    assert {m.id: m.due_us for m in waiting(wheel_dir)} == before
    for before_s, delay in zip([0, *delays], delays, strict=False):
        scheduler = make(clock=clock)
        calls = noted(scheduler)
        clock.advance(delay - before_s - 0.000_001)
        scheduler.drain()
        assert not calls
        clock.advance(0.000_001)
        scheduler.drain()
        called += [((clock.now_us() - START_US) / US_PER_S, what) for what in calls]
        scheduler.stop()
    assert called == [(delay, delay) for delay in delays]


# -- 7: changed programs ----------------------------------------------------------------------------------------------


def test_a_renamed_handler_leaves_its_jobs_and_its_schedule_waiting_and_not_deleted(
    make: Make, clock: FakeClock, wheel_dir: Path
) -> None:
    """agronholm/apscheduler#341, agronholm/apscheduler#99, Significant-Gravitas/AutoGPT#14218."""
    old = make(clock=clock)
    noted(old, "old name")
    for i in range(3):
        old.enqueue("old name", [i], delay=1)
    old.schedule("cleanup", 10, "old name", ["recurring"])
    old.stop()
    renamed = make(clock=clock)
    noted(renamed, "new name")
    for _ in range(3):
        clock.advance(301)
        renamed.drain()
    assert Counter(m.topic for m in waiting(wheel_dir)) == {"old name": 4}
    renamed.stop()
    repaired = make(clock=clock)
    calls = noted(repaired, "old name")
    clock.advance(301)
    repaired.drain()
    assert sorted(map(str, calls)) == ["0", "1", "2", "recurring"]


def test_a_handler_whose_arguments_changed_loses_no_job(make: Make, clock: FakeClock, wheel_dir: Path) -> None:
    """agronholm/apscheduler#341: what is stored is a name and plain data; a call that does not fit is a failure."""
    old = make(clock=clock)
    old.on("mail")(lambda to, subject: None)
    old.enqueue("mail", ["ann", "hello"])
    old.stop()
    new = make(clock=clock)
    new.on("mail", retry=Retry(limit=0))(lambda *, to: None)
    new.drain()
    with Wheel(wheel_dir) as wheel:
        (letter,) = wheel.list(dead=True)
        assert "TypeError" in letter.headers["filewheel.reason"]
        wheel.reschedule(letter.id, delay=0)
    repaired = make(clock=clock)
    calls: list[Any] = []
    repaired.on("mail")(lambda to, subject: calls.append((to, subject)))
    repaired.drain()
    assert calls == [("ann", "hello")]


# -- 8: cancel, and keys ----------------------------------------------------------------------------------------------


def test_a_cancel_holds_after_a_restart_and_releases_the_key(make: Make, clock: FakeClock, wheel_dir: Path) -> None:
    """celery/celery#1246, celery/celery#4300, readthedocs/common#109, apache/rocketmq#7991, hibiken/asynq#275."""
    first = make(clock=clock)
    id_ = first.enqueue("work", ["by id"], delay=10)
    first.enqueue("work", ["by key"], delay=10, key="report")
    assert first.cancel(id_)
    assert first.cancel(key="report")
    assert not first.cancel(id_)
    first.enqueue("work", ["another"], delay=10, key="report")
    first.stop()
    second = make(clock=clock)
    calls = noted(second)
    clock.advance(11)
    second.drain()
    assert calls == ["another"]
    assert not waiting(wheel_dir)


def test_a_job_that_fails_again_and_again_can_be_cancelled_by_its_key(
    make: Make, clock: FakeClock, wheel_dir: Path
) -> None:
    """celery/celery#4300: a retry is the same job."""
    scheduler = make(clock=clock)

    @scheduler.on("fails", retry=Retry(limit=9, delay_s=5, jitter=0))
    def fails() -> None:
        raise ValueError

    scheduler.enqueue("fails", key="report")
    scheduler.drain()
    (retry,) = waiting(wheel_dir)
    assert retry.attempt == 1
    assert scheduler.cancel(key="report")
    clock.advance(60)
    assert scheduler.drain() == 0
    assert not waiting(wheel_dir)


@pytest.mark.parametrize("end", ["done", "dead", "cancelled while it runs"])
def test_a_key_does_not_outlive_its_job(make: Make, clock: FakeClock, wheel_dir: Path, end: str) -> None:
    """hibiken/asynq#275, hibiken/asynq#492, hibiken/asynq#842, hibiken/asynq#1055."""
    scheduler = make(clock=clock)

    @scheduler.on(retry=Retry(limit=0))
    def ends() -> None:
        with pytest.raises(KeyHeld):
            scheduler.enqueue("ends", key="report")  # it is held as long as it runs
        if end == "dead":
            raise ValueError
        if end != "done":
            assert scheduler.cancel(key="report")

    for _ in range(3):
        scheduler.enqueue("ends", key="report")
        assert scheduler.drain() == 1
    assert scheduler.wheel.get(key="report") is None


# -- 9: clocks --------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_ahead_and_back_calls_each_job_once_and_stops_nothing(
    make: Make, clock: FakeClock, wheel_dir: Path
) -> None:
    """agronholm/apscheduler#35, agronholm/apscheduler#1066, agronholm/apscheduler#794, dbader/schedule#323."""
    scheduler = make(clock=clock)
    calls = noted(scheduler)
    scheduler.start()
    assert scheduler.wait_until_keeper(120)
    scheduler.enqueue("work", ["soon"], delay=10)
    scheduler.enqueue("work", ["in a year"], delay=YEAR_S)
    clock.step(50 * YEAR_S)
    eventually(lambda: len(calls) == 2)
    clock.step(-50 * YEAR_S)
    scheduler.enqueue("work", ["after"])
    eventually(lambda: len(calls) == 3)
    scheduler.stop()
    assert sorted(calls) == ["after", "in a year", "soon"]


def test_recurring_work_goes_on_when_a_clock_that_was_years_ahead_is_put_right(make: Make, clock: FakeClock) -> None:
    """agronholm/apscheduler#35, agronholm/apscheduler#526: the next occurrence was computed from the wrong time."""
    scheduler = make(clock=clock)
    ticks: list[int] = []
    scheduler.every(1, name="tick")(scheduler.on("tick")(lambda: ticks.append(1)))

    def next_due_us() -> int | None:
        """Return when the next occurrence is due, once that is soon. The first is there until its end is written."""
        found = scheduler.wheel.get(key="filewheel.every:tick")
        if found is None or found.id == first.id:
            return None
        return found.due_us if 0 < found.due_us - clock.now_us() < DAY_S * US_PER_S else None

    scheduler.start()
    assert scheduler.wait_until_keeper(120)
    first = scheduler.wheel.get(key="filewheel.every:tick")
    assert first is not None
    clock.step(50 * YEAR_S)
    eventually(lambda: ticks)
    clock.step(-50 * YEAR_S)
    for count in (2, 3):
        clock.advance((eventually(next_due_us) - clock.now_us()) / US_PER_S)
        eventually(lambda count=count: len(ticks) == count)


def test_a_jump_that_is_held_stops_neither_recurring_work_nor_retries(
    make: Make, clock: FakeClock, wheel_dir: Path
) -> None:
    """agronholm/apscheduler#526, agronholm/apscheduler#752: with on_jump="hold" the time that really passed counts."""
    scheduler = make(clock=clock, on_jump="hold")
    calls = noted(scheduler)
    ticks: list[int] = []
    tries: list[int] = []
    scheduler.every(1, name="tick")(scheduler.on("tick")(lambda: ticks.append(1)))

    @scheduler.on(retry=Retry(limit=9, delay_s=1, jitter=0))
    def fails() -> None:
        tries.append(current_job().attempt)
        if len(tries) < 3:
            raise ValueError

    scheduler.enqueue("work", ["in a year"], delay=YEAR_S)
    scheduler.enqueue("fails", delay=1)
    scheduler.start()
    assert scheduler.wait_until_keeper(120)
    clock.step(10 * YEAR_S)
    for count, tried in enumerate(
        (1, 1, 2, 2, 2, 3), 1
    ):  # retries a second and two seconds after the failures, or more
        clock.advance(1)
        eventually(lambda count=count, tried=tried: len(ticks) == count and len(tries) >= tried)
    assert not calls


# -- 10: zones --------------------------------------------------------------------------------------------------------


def test_a_day_whose_midnight_is_not_there_is_not_left_out(make: Make, clock: FakeClock) -> None:
    """agronholm/apscheduler#1059, agronholm/apscheduler#120, agronholm/apscheduler#606, celery/celery#1604."""
    clock.wall_us = int(datetime(2027, 3, 26, 12, tzinfo=UTC).timestamp()) * US_PER_S
    scheduler = make(clock=clock)
    days: list[str] = []

    @scheduler.every("0 0 * * *", tz="Asia/Beirut")  # the clocks go from 0:00 to 1:00 on March 28
    def daily() -> None:
        days.append(to_datetime(clock.now_us()).isoformat()[:13])

    scheduler.drain()
    for _ in range(3 * 24):
        clock.advance(3600)
        scheduler.drain()
    assert days == ["2027-03-26T22", "2027-03-27T22", "2027-03-28T21"]


# -- 11: everything at once -------------------------------------------------------------------------------------------


def test_what_is_all_due_at_the_full_hour_is_called_once_each_in_order(make: Make, clock: FakeClock) -> None:
    """apache/rocketmq#6566, camunda/camunda#14882, apache/activemq#728, sidekiq/sidekiq#2187."""
    scheduler = make(clock=clock)
    calls = noted(scheduler)
    full_hour = START_US // US_PER_S + 3600
    for i in range(3000):
        scheduler.enqueue("work", [i], at=full_hour)
    clock.advance(3600)
    scheduler.drain()
    assert calls == list(range(3000))


def test_a_crowd_of_slow_jobs_does_not_keep_others_waiting(make: Make) -> None:
    """apache/rocketmq#6566: a handler with a bound of its own waits for itself."""
    scheduler = make(in_flight=40)
    goes_on, slow = threading.Event(), []

    @scheduler.on("slow", concurrency=1)
    def takes_long(i: int) -> None:
        slow.append(i)
        goes_on.wait(60)

    calls = noted(scheduler)
    for i in range(200):
        scheduler.enqueue("slow", [i])
    scheduler.start()
    eventually(lambda: slow)
    scheduler.enqueue("work", ["quick"])
    eventually(lambda: calls)
    assert slow == [0]
    goes_on.set()


# -- 12: the disk -----------------------------------------------------------------------------------------------------


def test_one_old_job_does_not_keep_the_files_of_the_others(make: Make, clock: FakeClock, wheel_dir: Path) -> None:
    """beanstalkd/beanstalkd#570, beanstalkd/beanstalkd#359, beanstalkd/beanstalkd#622, apache/activemq#364."""
    scheduler = make(clock=clock)
    calls = noted(scheduler)
    scheduler.enqueue("work", ["far"], delay=YEAR_S)
    scheduler.schedule("tick", 60, "work")
    for i in range(1000):
        scheduler.enqueue("work", [i], delay=1 + i * 7 % 5000)
    for _ in range(9):
        clock.advance(600)
        scheduler.drain()
    scheduler.stop()
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:  # a drain leaves little to the next deal
        assert not keeper.claim()
    assert len([c for c in calls if c is not None]) == 1000
    files = [Path(folder) / name for folder, _, names in os.walk(wheel_dir / "laps") for name in names]
    assert len(files) <= 2, files
    assert sum(f.stat().st_size for f in files) < 2000
    assert not list((wheel_dir / "journal").iterdir())


# -- 13: bad records --------------------------------------------------------------------------------------------------


def test_a_job_whose_arguments_cannot_be_read_is_kept_and_the_others_are_called(
    make: Make, clock: FakeClock, wheel_dir: Path
) -> None:
    """peter-wangxu/persist-queue#180, beanstalkd/beanstalkd#44, apache/pulsar#25617."""
    scheduler = make(clock=clock)
    calls = noted(scheduler)
    scheduler.enqueue("work", ["before"])
    bad = Message(MessageId.make(START_US, 7, 7), b"\xc1 no msgpack", "work", {"filewheel.args": "msgpack"})
    odd = Message(
        MessageId.make(START_US, 7, 8), b"\x90", "work", {"filewheel.schedule": "{", "filewheel.history": "?"}
    )
    scheduler.wheel.add([bad, odd])
    scheduler.enqueue("work", ["after"])
    scheduler.drain()
    assert sorted(map(str, calls)) == ["after", "before"]
    with Wheel(wheel_dir) as wheel:
        (letter,) = wheel.list(dead=True)
        (waiting,) = wheel.list()
    assert letter.payload == bad.payload
    assert (waiting.root, waiting.payload) == (odd.id, odd.payload)
    assert "cannot be read here" in (waiting.waits or "")


@pytest.mark.damages
def test_bytes_that_rot_on_the_disk_cost_their_own_job_only(make: Make, clock: FakeClock, wheel_dir: Path) -> None:
    """peter-wangxu/persist-queue#142, apache/rocketmq#10668, apache/rocketmq#9654."""
    first = make(clock=clock, sync="always")  # what was never flushed may look like that after a power cut
    for i in range(100):
        first.enqueue("work", [f"job {i:02}"], delay=5)
    first.stop()
    (segment,) = (wheel_dir / "journal").iterdir()
    data = bytearray(segment.read_bytes())
    data[data.index(b"job 50")] ^= 1
    segment.write_bytes(data)
    scheduler = make(clock=clock)
    calls = noted(scheduler)
    clock.advance(5)
    scheduler.drain()
    assert calls == [f"job {i:02}" for i in range(100) if i != 50]
    assert list((wheel_dir / "quarantine").iterdir())


# -- 14: seeing -------------------------------------------------------------------------------------------------------


def test_what_is_scheduled_can_be_listed_with_nothing_running_and_beside_what_runs(make: Make, wheel_dir: Path) -> None:
    """celery/celery#5360, celery/celery#5321, celery/celery#4535, rabbitmq/rabbitmq-delayed-message-exchange#256."""
    scheduler = make()
    scheduler.enqueue("work", ["later"], delay=3600)
    scheduler.enqueue("work", ["keyed"], delay=7200, key="report")
    scheduler.schedule("nightly", "0 3 * * *", "work", tz="Europe/Berlin")
    scheduler.stop()
    fw = Fw(wheel_dir)

    def listed() -> list[tuple[str, str | None]]:
        return [(row["topic"], row["headers"].get("filewheel.key")) for row in fw.pending()]

    expected = [("work", None), ("work", "filewheel.every:nightly"), ("work", "report")]
    assert sorted(listed(), key=str) == sorted(expected, key=str)
    scheduler.start()
    assert scheduler.wait_until_keeper(120)
    assert sorted(listed(), key=str) == sorted(expected, key=str)


# -- 15: noticed ------------------------------------------------------------------------------------------------------


def test_what_is_enqueued_while_the_scheduler_sleeps_is_called_also_when_each_wake_up_is_lost(make: Make) -> None:
    """agronholm/apscheduler#305, agronholm/apscheduler#557, taskforcesh/bullmq#1658, OptimalBits/bull#2015."""

    class Deaf(OsDisk):
        """No bell is heard."""

        def open_hint(self, name: str) -> int | None:
            return None

    firing, other = make(), make(env=SYSTEM.using(disk=Deaf))
    calls = noted(firing)
    firing.start()
    assert firing.wait_until_keeper(120)
    for i in range(3):
        other.enqueue("work", [i], delay=0 if i < 2 else 0.7)
        eventually(lambda i=i: i in calls)


def test_eight_threads_enqueue_beside_the_one_that_fires_and_none_is_told_to_try_again(make: Make) -> None:
    """coleifer/huey#445, agronholm/apscheduler#843: "database is locked"."""
    scheduler = make()
    calls = noted(scheduler)
    steps: list[int] = []

    @scheduler.on()
    def chain(n: int) -> None:
        steps.append(n)
        if n:
            with current_job().transaction():
                scheduler.enqueue("chain", [n - 1])

    failures: list[BaseException] = []

    def enqueue(thread: int) -> None:
        try:
            for i in range(50):
                scheduler.enqueue("work", [thread * 50 + i], key=f"k{thread}-{i}" if i % 5 == 0 else None)
        except BaseException as exc:
            failures.append(exc)

    scheduler.start()
    scheduler.enqueue("chain", [20])
    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    eventually(lambda: len(calls) == 400 and len(steps) == 21)
    assert sorted(calls) == list(range(400))
    assert steps == list(range(20, -1, -1))
