"""What outlives what: dropped timers, forks, the interpreter's exit, and a system that refuses threads."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from filewheel import DiskError, Forked
from filewheel.timers import BinaryHeap, DelayQueue, HashedUnordered, ScheduledExecutor, Timer, TimerState
from tests.support import REPO
from tests.test_keeper_no_threads import no_threads
from tests.timers.support import PATIENCE_S, soon

START: dict[str, Callable[..., Any]] = {
    "ScheduledExecutor": lambda timer, delay, fn: timer.schedule(delay, fn),
    "Timer": lambda timer, delay, fn: timer.call_later(delay, fn),
    "Timer of a heap": lambda timer, delay, fn: timer.call_later(delay, fn),
    "Timer of a hashed wheel": lambda timer, delay, fn: timer.call_later(delay, fn),
}
MAKE: dict[str, Callable[[], Any]] = {
    "ScheduledExecutor": lambda: ScheduledExecutor(2),
    "Timer": Timer,
    "Timer of a heap": lambda: Timer(BinaryHeap),
    "Timer of a hashed wheel": lambda: Timer(HashedUnordered),
}


@pytest.fixture(params=MAKE)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Threads:
    """The threads that timers of a class have started since the test began."""

    def __init__(self, name: str) -> None:
        self._prefix = f"filewheel-{name.split()[0]}-"
        self._before = set(threading.enumerate())

    def __call__(self) -> list[threading.Thread]:
        found = [one for one in threading.enumerate() if one.name.startswith(self._prefix)]
        return [one for one in found if one not in self._before]


@pytest.fixture
def threads(name: str) -> Threads:
    return Threads(name)


def test_a_timer_that_is_dropped_calls_what_is_pending_and_its_threads_end(name: str, threads: Threads) -> None:
    called = threading.Event()
    timer = MAKE[name]()
    START[name](timer, 0, int)
    START[name](timer, 0.05, called.set)
    assert threads()
    del timer
    gc.collect()
    assert called.wait(PATIENCE_S)
    soon(lambda: not threads())


def test_a_timer_that_is_dropped_with_nothing_pending_ends_its_threads(name: str, threads: Threads) -> None:
    timer = MAKE[name]()
    START[name](timer, 3_600, int).cancel()
    assert threads()
    del timer
    gc.collect()
    soon(lambda: not threads())


def test_the_last_cancel_after_a_drop_ends_the_threads(name: str, threads: Threads) -> None:
    timer = MAKE[name]()
    task = START[name](timer, 3_600, int)
    del timer
    gc.collect()
    assert threads()
    assert task.cancel()
    soon(lambda: not threads())


def test_a_dropped_executor_does_not_call_a_periodic_task_again() -> None:
    executor = ScheduledExecutor(1)
    future = executor.schedule_at_fixed_rate(0.001, 0.001, int)
    del executor
    gc.collect()
    soon(future.cancelled)


def test_a_dropped_timer_does_not_call_a_periodic_function_again_and_its_thread_ends() -> None:
    threads, called = Threads("Timer"), threading.Event()
    timer = Timer()
    task = timer.call_every(0.001, called.set)
    assert called.wait(PATIENCE_S)
    del timer
    gc.collect()
    soon(lambda: task.state is TimerState.STOPPED and not threads())


def test_where_no_thread_can_be_started_a_timer_refuses_and_holds_nothing(name: str) -> None:
    timer = MAKE[name]()
    with (
        no_threads(f"filewheel-{name.split()[0]}"),
        pytest.raises(DiskError, match="no thread can be started.*ulimit -u"),
    ):
        START[name](timer, 0.001, int)
    assert len(timer) == 0
    called = threading.Event()
    START[name](timer, 0.001, called.set)
    assert called.wait(PATIENCE_S)


def test_an_executor_with_one_thread_goes_on_where_no_second_can_be_started() -> None:
    with ScheduledExecutor(2) as executor:
        executor.submit(int).result(PATIENCE_S)
        with no_threads("filewheel-ScheduledExecutor"):
            assert executor.submit(str, 1).result(PATIENCE_S) == "1"


FORKED = """
import os, sys, threading
from filewheel import Forked
from filewheel.timers import BinaryHeap, DelayQueue, ScheduledExecutor, Timer
queue, executor, timer, heap = DelayQueue(), ScheduledExecutor(1), Timer(), Timer(BinaryHeap)
queue.put(1, 100)
starts = executor.schedule, timer.call_later, heap.call_later, timer.call_every
futures = [start(100, print) for start in starts]
pid = os.fork()
if pid == 0:
    calls = [
        lambda: queue.put(1), queue.take, queue.poll, queue.close, lambda: executor.submit(print), executor.shutdown,
        lambda: timer.call_later(1, print), timer.close, lambda: heap.call_later(1, print), heap.close,
        *(future.cancel for future in futures),
    ]
    refused = 0
    for call in calls:
        try:
            call()
        except Forked as exc:
            assert "make another after the fork" in str(exc)
            refused += 1
    del calls, call, queue, executor, timer, heap
    with ScheduledExecutor(1) as mine:
        assert mine.submit(str, 1).result(60) == "1"
    print("refused", refused, flush=True)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("parent cancels", [one.cancel() for one in futures])
"""


def test_in_another_process_than_its_own_a_queue_is_refused() -> None:
    queue: DelayQueue[int] = DelayQueue()
    queue._owner._pid = -1
    for call in (lambda: queue.put(1), queue.take, queue.poll, queue.peek, queue.close, lambda: queue.drain_to([])):
        with pytest.raises(
            Forked, match="this DelayQueue belongs to the process that made it. Try: make another after"
        ):
            call()


AT_EXIT = """
import threading, time
from filewheel.timers import DelayQueue, HashedUnordered, ScheduledExecutor, Timer
queue, executor, timer, hashed = DelayQueue(), ScheduledExecutor(2), Timer(), Timer(HashedUnordered)
begun = threading.Event()
def long():
    begun.set()
    time.sleep(0.2)
    print("ran to its end", flush=True)
executor.submit(long)
executor.schedule_at_fixed_rate(0, 0.001, int)
for start in (executor.schedule, timer.call_later, hashed.call_later, timer.call_every):
    start(3600, print, "never")
    start(0.000_001, int)
begun.wait(60)
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_in_a_forked_child_each_call_is_refused_and_the_parents_timers_are_as_they_were() -> None:
    assert run(FORKED) == "refused 14\nparent cancels [True, True, True, True]\n"


def test_at_the_interpreters_exit_pending_timers_are_given_up_and_a_call_that_runs_ends() -> None:
    assert run(AT_EXIT) == "ran to its end\n"


DUE_AT_EXIT = """
import os, time
from filewheel.timers import HashedUnordered, ScheduledExecutor, Timer
executor, timer, hashed = ScheduledExecutor(2), Timer(), Timer(HashedUnordered, tick=3600)
def work(number):
    time.sleep(0.01)
    os.write(1, f"{number}\\n".encode())  # in one piece
ended = lambda future: os.write(1, b"cancelled\\n" if future.cancelled() else b"ended\\n")
for number in range(10):
    executor.submit(work, number)
    timer.call_later(0, work, 100 + number)
    hashed.call_later(0.001, work, 200 + number)  # due in the middle of a tick
    hashed.call_later(3600, print, "never")
time.sleep(0.002)
executor.schedule(3600, print).add_done_callback(ended)
executor.schedule_at_fixed_rate(3600, 1, print).add_done_callback(ended)
"""


def test_what_is_due_at_the_interpreters_exit_is_called_and_an_executor_cancels_the_rest() -> None:
    printed = run(DUE_AT_EXIT).splitlines()
    numbers = [str(hundred + n) for hundred in (0, 100, 200) for n in range(10)]
    assert sorted(printed) == sorted([*numbers, "cancelled", "cancelled"])
    assert [line for line in printed if line in numbers[20:]] == numbers[20:]  # in their order


class Raises(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log is full")


@pytest.fixture
def log_that_raises() -> Iterator[None]:
    handler = Raises()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)


@pytest.mark.usefixtures("log_that_raises")
def test_a_handler_of_the_log_that_raises_ends_no_thread_of_a_timer(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: Any) -> None:
        raise ValueError

    timer = MAKE[name]()
    called = threading.Event()
    for _ in range(3):
        begun = START[name](timer, 0.001, fail)
        if isinstance(begun, Future):
            begun.add_done_callback(fail)
    START[name](timer, 0.05, called.set)
    assert called.wait(PATIENCE_S)
    assert "the log is full" in capfd.readouterr().err


@pytest.mark.usefixtures("log_that_raises")
def test_a_handler_of_the_log_that_raises_harms_no_timer_whose_executor_refuses() -> None:
    class Refuses(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            if refused.is_set():
                return super().submit(*args, **kwargs)
            refused.set()
            raise RuntimeError("full")

    refused, called = threading.Event(), threading.Event()
    with Refuses(1) as executor:
        timer = Timer(executor=executor)
        timer.call_later(0.001, int)
        assert refused.wait(PATIENCE_S)
        timer.call_later(0.001, called.set)
        assert called.wait(PATIENCE_S)


def test_the_library_does_not_import_the_timers_and_the_timers_import_nothing_of_the_store() -> None:
    program = "import sys, filewheel; print([m for m in sys.modules if m.startswith('filewheel.timers')])"
    assert run(program) == "[]\n"


def test_a_queue_that_is_dropped_while_a_thread_waits_lives_as_long_as_that(name: str) -> None:
    queue: DelayQueue[str] = DelayQueue()
    found: list[str] = []
    thread = threading.Thread(target=lambda taking=queue.take: found.append(taking()), daemon=True)  # type: ignore[misc]
    queue.put("a", 0.01)
    del queue
    thread.start()
    soon(lambda: found == ["a"])
