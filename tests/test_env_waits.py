"""Conditions and events: they wake whom they should, and an interrupt at any point leaves every lock as it was."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType

import pytest

from filewheel import env
from filewheel.env import Condition, Event
from filewheel.kafka import Delivered, Delivery
from tests.support import REPO, eventually, interrupted

OF_WAITS = {"wait", "wait_for", "_take", "_pass", "_closed_gate", "notify", "notify_all", "set", "__init__"}


def of_waits(code: CodeType) -> bool:
    return code.co_filename == env.__file__ and code.co_name in OF_WAITS


def in_threads(count: int, function: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=function, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def is_free(lock: threading.RLock) -> bool:
    """Return whether another thread can take a lock."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(lock.acquire(timeout=5))
        if taken[0]:
            lock.release()

    in_threads(1, take)[0].join()
    return taken == [True]


def test_notify_wakes_one_thread_and_notify_all_the_others() -> None:
    lock = threading.RLock()
    condition = Condition(lock)
    woken: list[bool] = []

    def wait() -> None:
        with lock:
            woken.append(condition.wait(60))

    threads = in_threads(5, wait)
    eventually(lambda: len(condition._gates) == 5)
    with lock:
        condition.notify()
    eventually(lambda: len(woken) == 1)
    with lock:
        condition.notify()
        condition.notify()
    eventually(lambda: len(woken) == 3)
    time.sleep(0)
    assert len(woken) == 3
    with lock:
        condition.notify_all()
    for thread in threads:
        thread.join()
    assert woken == [True] * 5
    assert not condition._gates


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_wait_releases_the_lock_wholly_and_takes_it_as_often_as_before(depth: int) -> None:
    lock = threading.RLock()
    condition = Condition(lock)
    seen: list[bool] = []

    def other() -> None:
        with lock:
            seen.append(True)
            condition.notify_all()

    for _ in range(depth):
        lock.acquire()
    in_threads(1, other)
    assert condition.wait(60)
    assert seen == [True]
    for left in range(depth, 0, -1):
        assert lock._is_owned(), left  # type: ignore[attr-defined]
        lock.release()
    assert not lock._is_owned()  # type: ignore[attr-defined]


@pytest.mark.parametrize("timeout_s", [0, -1, 0.001, -0.0])
def test_a_wait_that_nobody_ends_returns_when_its_time_is_up(timeout_s: float) -> None:
    lock = threading.RLock()
    with lock:
        assert not Condition(lock).wait(timeout_s)
        assert not Condition(lock).wait_for(lambda: False, timeout_s)
        assert Condition(lock).wait_for(lambda: True, timeout_s)
    assert not Event().wait(timeout_s)


def test_a_time_that_no_lock_can_wait_for_is_waited_for_all_the_same() -> None:
    event = Event()
    threads = in_threads(1, lambda: event.wait(1e15))
    eventually(lambda: len(event._gates) == 1)
    event.set()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_an_event_ends_all_waits_until_it_is_cleared() -> None:
    event = Event()
    threads = in_threads(3, event.wait)
    eventually(lambda: len(event._gates) == 3)
    event.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert event.wait()
    assert event.is_set()
    event.clear()
    assert not event.is_set()
    assert not event.wait(0)
    assert not event._gates


def lines_interrupted(call: Callable[[], object], check: Callable[[], None]) -> int:
    """Interrupt a call before each of the lines that it runs among the waits; check after each time."""
    line, is_done = 0, False
    while not is_done:
        line += 1
        with interrupted(of_waits, line):
            call()
            is_done = True
        check()
    return line - 1


@pytest.mark.parametrize("timeout_s", [0, 0.001])
@pytest.mark.parametrize("depth", [1, 2])
def test_an_interrupt_at_any_line_of_a_wait_leaves_the_lock_as_it_was(timeout_s: float, depth: int) -> None:
    lock = threading.RLock()
    condition = Condition(lock)
    owned: list[bool] = []

    def wait() -> None:
        if depth == 2:
            with lock:
                once()
            return
        once()

    def once() -> None:
        with lock:
            try:
                condition.wait(timeout_s)
            finally:
                owned.append(lock._is_owned())  # type: ignore[attr-defined]

    def check() -> None:
        assert not lock._is_owned()  # type: ignore[attr-defined]
        assert is_free(lock)

    assert lines_interrupted(wait, check) > 8
    assert all(owned)


def test_an_interrupt_at_any_line_of_a_notify_loses_no_wake() -> None:
    lock = threading.RLock()
    condition = Condition(lock)
    woken: list[bool] = []

    def wait() -> None:
        with lock:
            woken.append(condition.wait(60))

    in_threads(2, wait)
    eventually(lambda: len(condition._gates) == 2)

    def notify() -> None:
        with lock:
            condition.notify_all()

    def check() -> None:
        assert not lock._is_owned()  # type: ignore[attr-defined]

    lines_interrupted(notify, check)
    eventually(lambda: woken == [True, True])


def test_an_interrupt_at_any_line_of_an_event_keeps_nobody_waiting() -> None:
    def use() -> None:
        event = Event()
        event.wait(0)
        event.set()
        event.wait()

    lines_interrupted(use, lambda: None)
    event = Event()
    lines_interrupted(event.set, lambda: None)
    assert event.wait(0)


def test_an_interrupt_at_any_line_of_the_wait_for_a_delivery_leaves_it_to_its_answer() -> None:
    deliveries: list[Delivery] = []

    def wait() -> None:
        deliveries.append(Delivery())
        with pytest.raises(TimeoutError):
            deliveries[-1].result(0)

    def check() -> None:
        if deliveries and deliveries[-1]._state == "RUNNING":
            answer = Delivered("t", 0, 1)
            thread = in_threads(1, lambda: deliveries[-1].set_result(answer))[0]
            thread.join(60)
            assert not thread.is_alive()
            assert deliveries.pop().result() == answer

    lines_interrupted(wait, check)


SIGNALS = """
import random, signal, sys, threading, time
from filewheel.env import Condition, Event, pause

class Interrupt(BaseException): pass
armed = False
def handler(*args):
    global armed
    if armed:
        armed = False  # two within microseconds come from no person
        raise Interrupt
signal.signal(signal.SIGALRM, handler)
lock = threading.RLock()
condition, event, stop = Condition(lock), Event(), False

def beside():
    while not stop:
        with lock:
            condition.notify_all()
        event.set()
        event.clear()
        pause(0)

thread = threading.Thread(target=beside, daemon=True)
thread.start()
count, end = 0, time.monotonic() + float(sys.argv[1])
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
while time.monotonic() < end:
    try:
        armed = True
        try:
            while time.monotonic() < end:
                if random.random() < 0.5:
                    with lock:
                        condition.wait(1e-5)
                else:
                    event.wait(1e-5)
                    event.set()
                    event.clear()
        finally:
            armed = False
    except Interrupt:
        count += 1
    assert not lock._is_owned()
stop = True
signal.setitimer(signal.ITIMER_REAL, 0)
thread.join(60)
assert not thread.is_alive()
print(count)
"""


def test_signals_at_any_moment_leave_the_locks_of_waits_as_they_were() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS, "2"], cwd=REPO, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


@pytest.mark.parametrize("package", ["filewheel", "cli"])
def test_no_wait_is_one_that_ctrl_c_breaks(package: str) -> None:
    of_python = re.compile(
        r"\bthreading\.(Condition|Event|Semaphore|Barrier)\b|\bqueue\.Queue\(|futures import .*\bwait\b"
    )
    for path in (REPO / package).rglob("*.py"):
        assert not of_python.search(path.read_text()), path
