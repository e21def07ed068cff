"""A handle with after_fork="reopen": its first call in a child opens the wheel anew, and inherits nothing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from filewheel import BadArgument, Closed, Forked, Keeper, NoWheel, Wheel
from filewheel.disk.disk import SYSTEM, OsDisk
from tests.conftest import assert_whole
from tests.disk.test_forks import in_child, libc_fork, seen_by_all
from tests.support import open_below

both = pytest.mark.parametrize(
    "fork", [os.fork, pytest.param(libc_fork, marks=seen_by_all)], ids=["Python's", "libc's"]
)


def payloads(path: Path) -> list[bytes]:
    with Wheel(path) as wheel:
        return sorted(m.payload for m in wheel.list())


# Not libc's with an interval: the parent has a thread then, and a child that Python does not see may hang in Python.
@pytest.mark.parametrize(
    ("fork", "sync"),
    [
        (os.fork, "never"), (os.fork, 0.01), (os.fork, "always"),
        pytest.param(libc_fork, "never", marks=seen_by_all), pytest.param(libc_fork, "always", marks=seen_by_all),
    ],
)  # fmt: skip
def test_a_child_enqueues_through_an_inherited_handle_and_the_parent_goes_on(
    wheel_dir: Path, fork: Callable[[], int], sync: Any
) -> None:
    wheel = Wheel(wheel_dir, sync=sync, after_fork="reopen")
    wheel.enqueue(b"before", delay=60)

    def body() -> None:
        wheel.enqueue(b"child", delay=60)
        gc.collect()
        wheel.enqueue(b"child too", delay=60)
        assert in_child(fork, lambda: wheel.enqueue(b"grandchild", delay=60)) == 0
        wheel.close()

    assert in_child(fork, body) == 0
    wheel.enqueue(b"after", delay=60)
    wheel.close()
    assert payloads(wheel_dir) == [b"after", b"before", b"child", b"child too", b"grandchild"]
    assert_whole(wheel_dir)


def calls_of(wheel: Wheel, id_: bytes) -> list[Callable[[], object]]:
    return [
        lambda: wheel.enqueue(b"1", delay=60),
        lambda: wheel.enqueue(b"2", delay=60, key="other"),
        lambda: wheel.enqueue_many([b"3"], delay=60),
        lambda: wheel.enqueue_many([b"4"], delay=60, keys=["third"]),
        lambda: wheel.update(key="k", payload=b"new"),
        lambda: wheel.reschedule(key="k", delay=90),
        lambda: wheel.reschedule(id_, delay=90),
        lambda: wheel.cancel(id_),
        lambda: wheel.cancel_many(keys=["k"]),
        lambda: wheel.clear(),
        lambda: wheel.get(id_),
        lambda: wheel.check_message(b"x"),
        lambda: wheel.get(key="k"),
        lambda: list(wheel.list()),
        lambda: wheel.next_due(),
        lambda: wheel.stats(),
        lambda: wheel.topics(),
        lambda: wheel.flush(),
        lambda: wheel.snapshot().close(),
    ]


@pytest.mark.parametrize("number", range(19))
def test_whatever_the_child_calls_first_works(wheel_dir: Path, number: int) -> None:
    with Wheel(wheel_dir, after_fork="reopen") as wheel:
        plain = wheel.enqueue(b"plain", delay=60)
        wheel.enqueue(b"keyed", delay=60, key="k")
        assert wheel.get(key="k") is not None  # the finder has read, the files are open
        opened = open_below(wheel_dir)

        def body() -> None:
            calls = calls_of(wheel, plain)
            assert len(calls) == 19
            calls[number]()
            assert wheel._pid == os.getpid()
            wheel.close()

        assert in_child(os.fork, body) == 0
        assert open_below(wheel_dir) == opened
        wheel.enqueue(b"parent", delay=60)
    assert b"parent" in payloads(wheel_dir)
    assert_whole(wheel_dir)


def test_threads_of_a_child_that_begin_at_once_share_one_journal(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never", after_fork="reopen") as wheel:
        wheel.enqueue(b"x", delay=60)

        def body() -> None:
            begin = threading.Barrier(8)
            raised: list[BaseException] = []

            def play() -> None:
                begin.wait(120)
                try:
                    for _ in range(50):
                        wheel.enqueue(b"x", delay=60)
                except BaseException as exc:
                    raised.append(exc)

            threads = [threading.Thread(target=play) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert raised == []
            wheel.close()

        for _ in range(5):
            assert in_child(os.fork, body) == 0
    assert len(payloads(wheel_dir)) == 2001
    assert_whole(wheel_dir)


def test_a_child_waits_for_no_lock_that_a_thread_of_its_parent_had(wheel_dir: Path) -> None:
    wheel = Wheel(wheel_dir, after_fork="reopen")
    wheel.enqueue(b"parent", delay=60)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with wheel._opening, wheel._finder._lock:
            held.set()
            done.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(120)
    try:
        assert in_child(os.fork, lambda: (wheel.enqueue(b"child", delay=60), wheel.peek())) == 0
    finally:
        done.set()
        thread.join()
    wheel.close()
    assert payloads(wheel_dir) == [b"child", b"parent"]


def test_a_worker_of_multiprocessing_uses_the_handle_that_it_inherited(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, after_fork="reopen") as wheel:
        wheel.enqueue(b"0", delay=60)
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=wheel.enqueue, args=(b"%d" % n,), kwargs={"delay": 60}) for n in (1, 2, 3)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0, 0]
        assert sorted(m.payload for m in wheel.list()) == [b"0", b"1", b"2", b"3"]


def test_a_handle_that_was_closed_in_the_parent_or_in_the_child_stays_so_in_the_child(wheel_dir: Path) -> None:
    wheel = Wheel(wheel_dir, after_fork="reopen")

    def closes() -> None:
        wheel.close()
        with pytest.raises(Closed):
            wheel.enqueue(b"x")

    assert in_child(os.fork, closes) == 0
    wheel.enqueue(b"x", delay=60)
    wheel.close()
    assert in_child(os.fork, closes) == 0


def test_what_the_caller_set_stays_and_the_path_is_that_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[int] = []
    wheel = Wheel.open_or_create("w", sync="always", after_fork="reopen", on_flush=told.append)

    def body() -> None:
        os.chdir("/")
        wheel.enqueue(b"x", delay=60)
        assert told
        assert wheel.is_new

    assert in_child(os.fork, body) == 0
    assert told == []
    wheel.close()
    assert payloads(tmp_path / "w") == [b"x"]


def test_a_child_that_finds_no_wheel_any_more_is_told_so(wheel_dir: Path) -> None:
    wheel = Wheel(wheel_dir, after_fork="reopen")

    def body() -> None:
        os.rename(wheel_dir, f"{wheel_dir}.away")
        with pytest.raises(NoWheel):
            wheel.enqueue(b"x")
        os.rename(f"{wheel_dir}.away", wheel_dir)
        wheel.enqueue(b"x", delay=60)

    assert in_child(os.fork, body) == 0
    wheel.close()
    assert payloads(wheel_dir) == [b"x"]


def test_unless_it_was_chosen_a_handle_raises_in_a_child_and_a_keeper_always(wheel_dir: Path) -> None:
    with pytest.raises(BadArgument):
        Wheel(wheel_dir, after_fork="ignore")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Keeper(wheel_dir, after_fork="reopen")  # type: ignore[call-arg]
    with Wheel(wheel_dir) as wheel:

        def body() -> None:
            with pytest.raises(Forked, match="after_fork"):
                wheel.enqueue(b"x")

        assert in_child(os.fork, body) == 0


def test_a_signal_handler_in_the_middle_of_it_is_refused(wheel_dir: Path) -> None:
    raised: list[str] = []
    armed = False

    def interrupting(path: str) -> OsDisk:
        if armed:
            try:
                wheel.enqueue(b"from the handler")
            except Exception as exc:
                raised.append(type(exc).__name__)
        return OsDisk(path)

    wheel = Wheel(wheel_dir, after_fork="reopen", env=SYSTEM.using(disk=interrupting))

    def body() -> None:
        nonlocal armed
        armed = True
        wheel.enqueue(b"x", delay=60)
        assert raised == ["Reentered"]

    assert in_child(os.fork, body) == 0
    wheel.close()
    assert payloads(wheel_dir) == [b"x"]
