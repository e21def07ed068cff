"""Schedulers as real processes on one wheel: one fires, the others take over; signals, kills, children.

What a program does is in a file that its calls append to. Nothing here is timed: what is waited for comes, or the
test fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filewheel import Message, MessageId, Scheduler, Wheel
from filewheel.env import SYSTEM_CLOCK
from filewheel.scheduling.runners.runner import Call
from filewheel.scheduling.runners.threads import Threads
from tests.support import REPO, eventually
from tests.support_wheel import keeper_pid

PROGRAM = """
import os, subprocess, sys, time
from filewheel import Retry, Scheduler

path, log = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
scheduler = Scheduler(path, threads=2, processes=1, in_flight=10)

def note(*words):
    os.write(log, (" ".join(map(str, words)) + chr(10)).encode())

@scheduler.on()
def work(name, takes_s=0.0):
    note("begun", name, os.getpid())
    time.sleep(takes_s)
    note("ended", name, os.getpid())
"""
RUN = """
if __name__ == "__main__":
    print("up", flush=True)
    scheduler.run(stop_s=3600)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def start(wheel_dir: Path, log: Path, tmp_path: Path) -> Iterator[Start]:
    """Start programs: each has what PROGRAM has, and more."""
    started: list[subprocess.Popen[str]] = []

    def one(more: str = "", *, wait: bool = True) -> subprocess.Popen[str]:
        script = tmp_path / f"program{len(started)}.py"
        script.write_text(PROGRAM + more + RUN)
        process = subprocess.Popen(
            [sys.executable, script, wheel_dir, log],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(REPO)},
        )  # fmt: skip
        started.append(process)
        return up(process) if wait else process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def up(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Wait until a program begins to fire or to stand by; return it."""
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def said(log: Path, verb: str) -> list[str]:
    """Return the names of which the log says this."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[1] for line in lines if line.startswith(verb + " ")]


def ends_well(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> None:
    """Ask a program to stop; it exits 0."""
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == 0


def firing(wheel_dir: Path) -> int:
    """Return the process that fires, when there is one."""
    return int(eventually(lambda: keeper_pid(wheel_dir)))


def pending(wheel_dir: Path) -> int:
    with Wheel(wheel_dir) as wheel:
        return len(list(wheel.list()))


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- one fires --------------------------------------------------------------------------------------------------------


def test_five_processes_of_one_program_call_each_message_once(start: Start, wheel_dir: Path, log: Path) -> None:
    processes = [up(p) for p in [start(wait=False) for _ in range(5)]]
    scheduler = Scheduler(wheel_dir)
    names = [f"m{i}" for i in range(300)]
    with scheduler.wheel:
        for i, name in enumerate(names):
            scheduler.enqueue("work", [name], delay=i / 600, sync="never")
        eventually(lambda: len(said(log, "ended")) >= len(names))
        assert firing(wheel_dir) in {p.pid for p in processes}
    for process in processes:
        ends_well(process)
    assert Counter(said(log, "begun")) == Counter(names)
    assert pending(wheel_dir) == 0


def test_when_the_one_that_fires_is_killed_another_calls_all_that_waits(
    start: Start, wheel_dir: Path, log: Path
) -> None:
    processes = {p.pid: p for p in (start(), start(), start(), start())}
    scheduler = Scheduler(wheel_dir)
    names = [f"m{i}" for i in range(300)]
    for name in names:
        scheduler.enqueue("work", [name, 0.002], sync="never")
    for kill in range(1, 4):
        eventually(lambda kill=kill: len(set(said(log, "ended"))) >= kill * 60)
        victim = processes.pop(firing(wheel_dir))
        victim.kill()
        victim.wait()
    eventually(lambda: set(said(log, "ended")) == set(names))
    scheduler.stop()
    (last,) = processes.values()
    ends_well(last)
    assert pending(wheel_dir) == 0
    # At most what a killed one had claimed is begun again: ten messages each time.
    again = sum(count - 1 for count in Counter(said(log, "begun")).values())
    assert again <= 3 * 10


def test_a_standby_takes_over_from_one_that_ended_as_asked(start: Start, wheel_dir: Path, log: Path) -> None:
    first = start()
    assert firing(wheel_dir) == first.pid
    second = start()
    scheduler = Scheduler(wheel_dir)
    scheduler.enqueue("work", ["one"])
    eventually(lambda: said(log, "ended") == ["one"])
    ends_well(first)
    scheduler.enqueue("work", ["two"])
    eventually(lambda: said(log, "ended") == ["one", "two"])
    assert firing(wheel_dir) == second.pid
    scheduler.stop()
    ends_well(second)


@pytest.mark.parametrize("fork", [False, True], ids=["a program", "a fork"])
def test_a_child_of_a_killed_program_does_not_keep_the_next_one_out(
    start: Start, wheel_dir: Path, log: Path, fork: bool
) -> None:
    begins = "pid = os.fork() or time.sleep(60)" if fork else "pid = subprocess.Popen(['sleep', '60']).pid"
    more = f"""
@scheduler.on()
def parent():
    {begins}
    note("child", pid)
    time.sleep(60)
"""
    first, second = start(more), start("@scheduler.on()\ndef parent(): note('ended', 'parent')\n")
    scheduler = Scheduler(wheel_dir)
    scheduler.enqueue("parent")
    (child,) = eventually(lambda: said(log, "child"))
    try:
        first.kill()
        first.wait()
        eventually(lambda: said(log, "ended") == ["parent"])
        os.kill(int(child), 0)  # it lives
    finally:
        os.kill(int(child), signal.SIGKILL)
    scheduler.stop()
    ends_well(second)


def test_a_killed_program_takes_the_processes_of_its_pool_with_it_and_their_calls_are_made_again(
    start: Start, wheel_dir: Path, log: Path
) -> None:
    handler = """
@scheduler.on(where="process")
def crunch():
    note("child", os.getpid())
    time.sleep({})
    note("ended", "crunch")
"""
    first = start(handler.format(600))
    assert firing(wheel_dir) == first.pid
    second = start(handler.format(0))
    scheduler = Scheduler(wheel_dir)
    scheduler.enqueue("crunch")
    (child,) = eventually(lambda: said(log, "child"))
    first.kill()
    first.wait()
    eventually(lambda: said(log, "ended") == ["crunch"])
    eventually(lambda: not is_alive(int(child)))
    scheduler.stop()
    ends_well(second)
    assert pending(wheel_dir) == 0


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_lets_the_calls_in_hand_end_and_begins_no_other(
    start: Start, wheel_dir: Path, log: Path, number: int
) -> None:
    process = start()
    scheduler = Scheduler(wheel_dir)
    for i in range(6):
        scheduler.enqueue("work", [f"m{i}", 1.0])
    eventually(lambda: len(said(log, "begun")) == 2)
    ends_well(process, number)
    assert sorted(said(log, "ended")) == sorted(said(log, "begun"))
    assert len(said(log, "ended")) + pending(wheel_dir) == 6
    assert pending(wheel_dir) > 0
    scheduler.stop()


@pytest.mark.parametrize("where", ["thread", "process"])
def test_a_second_signal_leaves_the_calls_in_hand_to_be_offered_again(
    start: Start, wheel_dir: Path, log: Path, where: str
) -> None:
    process = start(f"""
@scheduler.on(where="{where}")
def sleeper(takes_s):
    note("begun", "sleeper", os.getpid())
    time.sleep(takes_s)
""")
    scheduler = Scheduler(wheel_dir)
    scheduler.enqueue("sleeper", [600])
    eventually(lambda: said(log, "begun"))
    process.send_signal(signal.SIGTERM)
    ends_well(process, signal.SIGINT)
    assert pending(wheel_dir) == 1
    scheduler.stop()


def test_a_burst_of_signals_ends_a_program_like_two(start: Start, wheel_dir: Path, log: Path) -> None:
    process = start()
    scheduler = Scheduler(wheel_dir)
    scheduler.enqueue("work", ["long", 600])
    eventually(lambda: said(log, "begun"))
    for i in range(2000):
        process.send_signal((signal.SIGTERM, signal.SIGINT)[i % 2])
        if process.poll() is not None:
            break
    process.communicate(timeout=120)
    assert pending(wheel_dir) == 1
    scheduler.stop()


def test_a_call_that_was_not_seen_to_run_when_it_was_asked_is_not_begun(wheel_dir: Path) -> None:
    begun: list[str] = []
    scheduler = Scheduler(wheel_dir)
    handler = scheduler.on("late")(lambda: begun.append("late"))
    ended: list[Call] = []
    threads = Threads(1, lambda call: True, ended.append, SYSTEM_CLOCK, str(wheel_dir))
    asked: list[int] = []

    class AtTheLastMoment(dict[Call, threading.Thread]):
        """The scheduler stops between the taking of a call and the note that it runs."""

        def __setitem__(self, call: Call, thread: threading.Thread) -> None:
            threads.quiet()
            asked.append(threads.busy())
            super().__setitem__(call, thread)

    threads._running = AtTheLastMoment()
    threads.start(Call(handler, [Message(MessageId.make(0, 0, 0), b"", "late")], 0))
    eventually(lambda: asked)
    for thread in threads._threads:
        thread.join()
    assert asked == [0]
    assert not begun
    assert not ended


# -- handlers that misbehave, programs that differ --------------------------------------------------------------------


def test_a_handler_that_kills_its_process_of_the_pool_harms_nothing_else(
    start: Start, wheel_dir: Path, log: Path
) -> None:
    process = start("""
import ctypes
terms = {"where": "process", "retry": Retry(limit=1, delay_s=0)}

@scheduler.on(**terms)
def crashes():
    note("begun", "crashes")
    ctypes.string_at(0)

@scheduler.on(**terms)
def leaves():
    note("begun", "leaves")
    os._exit(3)

@scheduler.on(**terms)
def good(name):
    note("ended", name)
""")
    scheduler = Scheduler(wheel_dir)
    for i in range(3):
        scheduler.enqueue("crashes" if i % 2 else "leaves")
        scheduler.enqueue("good", [f"good{i}"])
        scheduler.enqueue("work", [f"work{i}"])
    good = {f"{kind}{i}" for kind in ("good", "work") for i in range(3)}
    eventually(lambda: good <= set(said(log, "ended")))
    with Wheel(wheel_dir) as wheel:
        letters = eventually(lambda: len(found := list(wheel.list(dead=True))) == 3 and found)
    assert sorted(m.topic for m in letters) == ["crashes", "leaves", "leaves"]
    assert all("its process" in m.headers["filewheel.reason"] for m in letters), [m.headers for m in letters]
    assert Counter(said(log, "begun"))["crashes"] == 2
    scheduler.stop()
    ends_well(process)


def test_what_another_process_enqueues_wakes_the_one_that_fires(start: Start, wheel_dir: Path, log: Path) -> None:
    # With nothing but the bell to wake it: it would look by itself after an hour only.
    process = start("""
import filewheel.keeper, filewheel.scheduling.dispatcher as dispatcher
filewheel.keeper.LOOK_S = dispatcher.LOOK_S = 3600
dispatcher.Dispatcher.wait.__defaults__ = (3600,)
""")
    firing(wheel_dir)
    scheduler = Scheduler(wheel_dir)
    for i in range(5):
        scheduler.enqueue("work", [f"now{i}"])
        scheduler.enqueue("work", [f"soon{i}"], delay=0.3)
        eventually(lambda i=i: {f"now{i}", f"soon{i}"} <= set(said(log, "ended")))
    scheduler.stop()
    ends_well(process)


def test_two_programs_with_different_handlers_leave_each_other_their_messages(
    start: Start, wheel_dir: Path, log: Path
) -> None:
    quick = "import filewheel.schedules.occurrences as o\no.WAIT_US = 100_000\n"
    handler = "@scheduler.on()\ndef {0}(i): note('ended', f'{0}{{i}}')\n"
    first = start(quick + handler.format("first"))
    assert firing(wheel_dir) == first.pid
    second = start(quick + handler.format("second"))
    scheduler = Scheduler(wheel_dir)
    for i in range(3):
        scheduler.enqueue("first", [i])
        scheduler.enqueue("second", [i])
    eventually(lambda: sorted(said(log, "ended")) == ["first0", "first1", "first2"])
    eventually(lambda: pending(wheel_dir) == 3)
    ends_well(first)
    scheduler.enqueue("first", [3])
    eventually(lambda: sorted(set(said(log, "ended")))[3:] == ["second0", "second1", "second2"])
    eventually(lambda: pending(wheel_dir) == 1)
    scheduler.stop()
    ends_well(second)
