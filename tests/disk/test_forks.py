"""A child of a fork: it opens wheels of its own, inherits nothing that works, and keeps nobody out."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from filewheel import Forked, Keeper, Locked, Wheel
from filewheel.disk import forks
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import OsDisk
from filewheel.native import compiled
from tests.conftest import assert_whole
from tests.support import REPO, eventually

seen_by_all = pytest.mark.skipif(
    compiled.keep_from_children is None, reason="the loops in C were not built: `apt install gcc python3-dev`"
)


def in_child(fork: Callable[[], int], body: Callable[[], object]) -> int:
    """Run a body in a child; return its exit code, or the negative of the signal that ended it."""
    pid = fork()
    if pid == 0:
        code = 99
        try:
            signal.alarm(30)
            body()
            code = 0
        except BaseException as exc:
            os.write(2, f"in the child: {exc!r}\n".encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def libc_fork() -> int:
    """Fork as other C code does: Python's hooks are not run. (With the interpreter's lock held: CDLL lets go of it.)

    A thread of the test runner that has asked for that lock is not in the child, which would wait for it without end:
    for as long as the switch takes none may ask.
    """
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        time.sleep(4 * interval_s)  # one that asked before has had it by then
        pid: int = ctypes.PyDLL(None).fork()
    finally:
        sys.setswitchinterval(interval_s)
    return pid


@pytest.mark.parametrize("sync", ["never", 0.01, "always"])
def test_a_child_of_multiprocessing_opens_the_wheel_anew_and_enqueues(wheel_dir: Path, sync: Any) -> None:
    code = f"""
import gc, multiprocessing, sys
from filewheel import Wheel

def child(n):
    global wheel
    own = [bytearray(1 << 20) for _ in range(8)]
    wheel = None  # the inherited handle goes
    gc.collect()
    own += [bytearray(1 << 20) for _ in range(8)]
    with Wheel(sys.argv[1], sync={sync!r}) as mine:
        for i in range(50):
            mine.enqueue(b"%d-%d" % (n, i), delay=600)
    assert not any(map(any, own))

wheel = Wheel(sys.argv[1], sync={sync!r})
for i in range(50):
    wheel.enqueue(b"parent-%d" % i, delay=600)
context = multiprocessing.get_context("fork")
children = [context.Process(target=child, args=(n,)) for n in range(8)]
for c in children:
    c.start()
for c in children:
    c.join()
print([c.exitcode for c in children])
wheel.enqueue(b"parent again", delay=600)
wheel.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, wheel_dir], cwd=REPO, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{[0] * 8}\n"), done.stderr
    with Wheel(wheel_dir) as wheel:
        payloads = {m.payload for m in wheel.list()}
    parent = {b"parent-%d" % i for i in range(50)} | {b"parent again"}
    assert payloads == parent | {b"%d-%d" % (n, i) for n in range(8) for i in range(50)}
    assert_whole(wheel_dir)


@pytest.mark.parametrize("fork", [os.fork, libc_fork], ids=["Python's", "libc's"])
def test_each_call_of_an_inherited_handle_is_refused_and_the_parent_goes_on(
    wheel_dir: Path, fork: Callable[[], int]
) -> None:
    wheel = Wheel(wheel_dir, sync="never")
    for n in range(3):
        wheel.enqueue(b"%d" % n)
    keeper = Keeper(wheel_dir)

    def body() -> None:
        calls: list[Callable[[], object]] = [
            lambda: wheel.enqueue(b"child"),
            lambda: wheel.enqueue(b"child", sync="always"),
            lambda: wheel.enqueue_many([b"child"]),
            lambda: wheel.cancel("0" * 26),
            wheel.flush,
            lambda: wheel.check_message(b"child"),
            lambda: list(wheel.list()),
            keeper.claim,
        ]
        for call in calls:
            with pytest.raises(Forked):
                call()
        wheel.close()
        keeper.close()

    assert in_child(fork, body) == 0
    wheel.enqueue(b"3")
    batch = keeper.claim()
    assert [m.payload for m in batch] == [b"0", b"1", b"2", b"3"]
    keeper.ack(batch)
    with pytest.raises(Locked):
        Keeper(wheel_dir, wait=False)
    keeper.close()
    wheel.close()
    assert_whole(wheel_dir)


@pytest.mark.parametrize("fork", [os.fork, pytest.param(libc_fork, marks=seen_by_all)], ids=["Python's", "libc's"])
def test_an_inherited_handle_neither_writes_nor_closes_a_file_of_the_child(
    wheel_dir: Path, tmp_path: Path, fork: Callable[[], int]
) -> None:
    wheel = Wheel(wheel_dir, sync="never")
    for n in range(3):
        wheel.enqueue(b"%d" % n, delay=60)
    journal = wheel._journal
    assert journal is not None
    with journal.appender.lock:
        segment = journal.appender.lender.writer.segment
    assert segment is not None
    fd = segment.fd

    def body() -> None:
        own = [os.open(tmp_path / f"own-{n}", os.O_RDWR | os.O_CREAT) for n in range(20)]
        assert fd not in own
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(fd, b"x", 0)
        assert journal is not None
        with journal.appender.lock:
            journal.appender.lender.writer.release()
        for one in own:
            os.write(one, b"still mine")

    assert in_child(fork, body) == 0
    wheel.enqueue(b"3", delay=60)
    assert [m.payload for m in wheel.list()] == [b"0", b"1", b"2", b"3"]
    wheel.close()
    assert_whole(wheel_dir)


@pytest.fixture
def helpers() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "how", ["os.fork()", pytest.param("ctypes.PyDLL(None).fork()", marks=seen_by_all)], ids=["Python's", "libc's"]
)
def test_a_child_that_outlives_a_killed_keeper_keeps_nobody_out(wheel_dir: Path, helpers: list[int], how: str) -> None:
    code = f"""
import ctypes, os, sys, time
from filewheel import Keeper
keeper = Keeper(sys.argv[1], background=False)
child = {how}
if child == 0:
    print("there", os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code, wheel_dir], cwd=REPO, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    helpers.append(int(parent.stdout.readline().split()[1]))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    os.kill(helpers[0], 0)  # it lives
    Keeper(wheel_dir, wait=False, background=False).close()
    assert_whole(wheel_dir)


def test_a_child_that_is_forked_while_a_thread_waits_for_a_lock_is_not_handed_it(
    wheel_dir: Path, helpers: list[int]
) -> None:
    def waits() -> bool:
        with open("/proc/locks") as locks:
            return any("->" in line and f" {os.getpid()} " in line for line in locks)

    def wait_and_fork() -> None:
        waiter = open_directory(wheel_dir, write=True).disk
        fd = waiter.open("keeper.lock", "rw")
        threading.Thread(target=waiter.lock, args=(fd,), kwargs={"wait": True}, daemon=True).start()
        eventually(waits)
        child = os.fork()
        if child == 0:
            signal.pause()
        os.write(write, b"%d\n" % child)
        signal.pause()

    disk = open_directory(wheel_dir, write=True).disk
    first = disk.open("keeper.lock", "rw")
    disk.lock(first, wait=True)
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            wait_and_fork()
        finally:
            os._exit(1)
    helpers.append(int(os.read(read, 20)))
    disk.close(first)
    second = disk.open("keeper.lock", "rw")
    eventually(lambda: not disk.is_free(second))  # the one that waited has it; when it is gone, nobody has
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    eventually(lambda: disk.is_free(second))  # once the child has run at all: it closes what it inherited first
    for fd in (second, read, write):
        os.close(fd)


def test_a_child_collects_what_it_inherited_though_a_thread_of_its_parent_was_using_it(wheel_dir: Path) -> None:
    disk: OsDisk | None = OsDisk(str(wheel_dir))
    mutex = disk._mutex
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            held.set()
            done.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(120)

    def body() -> None:
        nonlocal disk
        signal.alarm(60)  # it would wait for ever
        disk = None
        gc.collect()

    try:
        assert in_child(os.fork, body) == 0
    finally:
        done.set()
        thread.join()


def test_the_number_of_a_child_is_another_than_that_of_its_parent_and_of_its_own_child() -> None:
    before = forks.now()

    def grandchild() -> None:
        assert forks.now() not in (before, numbers[-1])

    numbers: list[int] = []

    def body() -> None:
        numbers.append(forks.now())
        assert numbers[-1] != before
        assert in_child(libc_fork, grandchild) == 0

    assert in_child(libc_fork, body) == 0
    assert forks.now() == before


@seen_by_all
def test_what_is_no_descriptor_is_refused() -> None:
    assert compiled.keep_from_children is not None
    for fd in (-1, 1 << 20, 1 << 40):
        with pytest.raises(OverflowError):
            compiled.keep_from_children(fd)
