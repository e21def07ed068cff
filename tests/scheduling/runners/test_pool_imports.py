"""The import of a function in a process of the pool: it comes before the call, and takes none of its time."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Message, MessageId
from filewheel.message import ARGS
from filewheel.scheduling.call import pack_call
from filewheel.scheduling.handler import Handler, Terms
from filewheel.scheduling.runners.pool import START_LIMIT_US, ProcessPool, Result
from filewheel.scheduling.runners.processes import Processes
from filewheel.scheduling.runners.runner import Call
from filewheel.values import MSGPACK
from tests.support import FakeClock, eventually
from tests.support_wheel import an_id

WAIT_S = 20
MODULE = """
import multiprocessing, os, time
from pathlib import Path

HERE = Path(__file__).parent

def note(file, text):
    with open(HERE / file, "a") as notes:
        notes.write(text)

if multiprocessing.parent_process() is not None:
    note("imports", "i")
    {trouble}

def job(request=b""):
    note("calls", "c")
    return request
"""
UNTIL_TOLD = "while not (HERE / 'go').exists(): time.sleep(0.005)"


class Module:
    """A module that causes trouble when a process imports it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self.name = "module_" + path.name.replace("-", "_")
        monkeypatch.syspath_prepend(path)

    def write(self, trouble: str) -> None:
        (self._path / f"{self.name}.py").write_text(MODULE.format(trouble=trouble))

    def count(self, file: str) -> int:
        """How many imports were begun, or calls made."""
        path = self._path / file
        return path.stat().st_size if path.exists() else 0

    def wait_for_import(self, number: int) -> None:
        eventually(lambda: self.count("imports") == number, WAIT_S)

    def go(self) -> None:
        (self._path / "go").touch()


class LookedAt(FakeClock):
    """A clock that moves only when told to, and counts the looks at it."""

    looks = 0

    def steady_us(self) -> int:
        now_us = super().steady_us()
        self.looks += 1
        return now_us


def pass_time(pool: ProcessPool, clock: LookedAt, seconds: float) -> None:
    """Let time pass, and wait until the pool's thread has acted on it."""
    clock.advance(seconds)
    for _ in range(2):  # with the second look, it has acted on the first
        looks = clock.looks
        pool._wake(pool._threads)
        eventually(lambda looks=looks: clock.looks > looks, WAIT_S)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    return Module(tmp_path, monkeypatch)


@pytest.fixture
def clock() -> LookedAt:
    return LookedAt()


@pytest.fixture
def pool(clock: LookedAt) -> Iterator[ProcessPool]:
    made = ProcessPool(1, clock=clock)
    yield made
    made.close(timeout_s=0)


class Sent:
    """A call that was submitted, its begins and results."""

    def __init__(self, pool: ProcessPool, target: str, *, timeout_s: float | None = 10) -> None:
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self.begins = 0
        pool.submit(target, b"x", timeout_s=timeout_s, done=self._results.put, begin=self._begin)

    def _begin(self) -> bool:
        self.begins += 1
        return True

    def result(self) -> Result:
        return self._results.get(timeout=WAIT_S)


def test_a_call_whose_import_takes_longer_than_its_time_is_made_once_and_in_time(
    pool: ProcessPool, clock: LookedAt, module: Module
) -> None:
    module.write(UNTIL_TOLD)
    sent = Sent(pool, f"{module.name}:job")
    module.wait_for_import(1)
    pass_time(pool, clock, 11)
    assert sent.begins == 0
    module.go()
    assert sent.result() == Result("returned", b"x")
    assert (sent.begins, module.count("imports"), module.count("calls")) == (1, 1, 1)


def test_a_handler_whose_import_takes_longer_than_its_time_out_is_called_once_and_in_time(
    clock: LookedAt, module: Module
) -> None:
    module.write(UNTIL_TOLD)
    job = __import__(module.name).job
    ended: queue.SimpleQueue[Call] = queue.SimpleQueue()
    runner = Processes(1, lambda call: True, ended.put, clock, "unused")
    message = Message(MessageId(an_id(5)), pack_call([], {})[0], "job", {ARGS: MSGPACK})
    handler = Handler.plain("job", job)
    handler.terms = Terms("process", timeout_s=10)
    call = Call(handler, [message], clock.now_us())
    try:
        runner.start(call)
        module.wait_for_import(1)
        assert call.begun_us == 0
        pass_time(runner._pool, clock, 11)
        module.go()
        assert ended.get(timeout=WAIT_S).outcomes is None
        assert call.begun_us == clock.steady_us()
    finally:
        runner.stop()
    assert (module.count("imports"), module.count("calls")) == (1, 1)


def test_a_call_whose_process_ends_during_the_import_is_given_to_another_process(
    pool: ProcessPool, module: Module
) -> None:
    module.write("if (HERE / 'imports').stat().st_size < 3: os._exit(7)")
    sent = Sent(pool, f"{module.name}:job")
    assert sent.result() == Result("returned", b"x")
    assert (sent.begins, module.count("imports"), module.count("calls")) == (1, 3, 1)


def test_a_call_whose_import_ends_every_process_fails_unbegun_and_others_are_made(
    pool: ProcessPool, module: Module
) -> None:
    module.write("os._exit(7)")
    sent = Sent(pool, f"{module.name}:job")
    other = Sent(pool, "tests.scheduling.pool_targets:echo")
    result = sent.result()
    assert (result.outcome, result.exit_status) == ("died", "7")
    assert result.message == (
        f"the call did not begin: 3 processes ended, the last one while it imported {module.name}:job: "
        "its process ended with exit code 7"
    )
    assert other.result() == Result("returned", b"x")
    assert (sent.begins, other.begins, module.count("imports")) == (0, 1, 3)


def test_a_call_without_a_time_out_whose_import_hangs_fails_unbegun_after_three_processes(
    pool: ProcessPool, clock: LookedAt, module: Module
) -> None:
    module.write(UNTIL_TOLD)
    sent = Sent(pool, f"{module.name}:job", timeout_s=None)
    for number in range(1, 4):
        module.wait_for_import(number)
        pass_time(pool, clock, START_LIMIT_US / 1_000_000)
    result = sent.result()
    assert (result.outcome, result.exit_status) == ("died", "SIGTERM")
    assert result.message.endswith(f"{module.name}:job: not imported within 120 s")
    assert (sent.begins, module.count("imports"), module.count("calls")) == (0, 3, 0)


def test_a_close_does_not_wait_for_an_import_and_the_call_was_not_begun(pool: ProcessPool, module: Module) -> None:
    module.write(UNTIL_TOLD)
    sent = Sent(pool, f"{module.name}:job")
    module.wait_for_import(1)
    pool.close(timeout_s=WAIT_S)
    assert sent.result() == Result("closed", message="the pool was closed before the call was begun")
    assert (sent.begins, module.count("calls")) == (0, 0)
