"""One scheduler that several threads start, stop and use at once."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import BadArgument, Keeper, Scheduler
from filewheel.scheduling import engine, life
from tests.support import eventually

OTHER_S = 0.3
"""How long one thread waits for the other to come in between; what keeps it out makes it wait in vain."""


def together(*acts: Callable[[], object]) -> list[BaseException]:
    """Call each in a thread of its own; return what they raised."""
    raised: list[BaseException] = []

    def call(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as exc:
            raised.append(exc)

    threads = [threading.Thread(target=call, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return raised


def test_of_two_threads_that_start_a_scheduler_one_does(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(wheel_dir)
    both = threading.Barrier(2)
    made: list[engine.Engine] = []
    new = scheduler._new_engine

    def slow() -> engine.Engine:
        made.append(new())
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(OTHER_S)
        return made[-1]

    monkeypatch.setattr(scheduler, "_new_engine", slow)
    raised = together(scheduler.start, scheduler.start)
    scheduler.stop()
    for each in made:
        each.stop(0)  # also one that nobody knows of any more
    assert [type(exc) for exc in raised] == [BadArgument]
    Keeper(wheel_dir, wait=False).close()


def test_a_stop_beside_a_start_ends_what_was_started(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(wheel_dir)
    begins, stopped = threading.Event(), threading.Event()

    class Slow(threading.Thread):
        def start(self) -> None:
            if self.name == "filewheel-scheduler":
                begins.set()
                stopped.wait(OTHER_S)
            super().start()

    def stop() -> None:
        assert begins.wait(120)
        scheduler.stop()
        stopped.set()

    other = threading.Thread(target=lambda: raised.extend(together(stop)))
    raised: list[BaseException] = []
    other.start()
    monkeypatch.setattr(life.threading, "Thread", Slow)
    scheduler.start()
    other.join(120)
    assert not raised
    assert scheduler._engine is None
    Keeper(wheel_dir, wait=False).close()


def test_a_second_scheduler_of_one_process_warns_that_it_fires_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Scheduler(tmp_path / "w"), Scheduler(tmp_path / "w")
    with caplog.at_level(logging.WARNING, "filewheel"):
        first.start()
        assert first.wait_until_keeper(120)
        second.start()
        eventually(lambda: "standing by" in caplog.text)
    first.stop()
    second.stop()
    assert "standing by: this very process" in caplog.text


def test_a_stop_after_ctrl_c_during_the_start_waits_for_the_thread_that_fires(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    threads = set(threading.enumerate())
    scheduler = Scheduler(wheel_dir)
    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        scheduler.start()
    scheduler.stop()
    assert not set(threading.enumerate()) - threads
