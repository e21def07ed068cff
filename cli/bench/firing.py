"""Measure firing: the rate for a backlog, and the lateness of messages that another process enqueues.

Invariants: lateness is the time from a message's due time until its consumer has it; no process outlives its
measurement.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filewheel
from filewheel import Keeper, Wheel

from ..failure import Failure
from ..signals import uninterrupted
from .rounds import PAYLOAD

RATE_PER_S = 200
_AHEAD_S = 0.3
_PATIENCE_S = 5.0

# force: the creation of the wheel has already decided about network file systems.
_PRODUCER = """
import sys, time
from filewheel import Wheel
path, rate, count, delay = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
with Wheel(path, sync="never", force=True) as wheel:
    start = time.monotonic()
    for i in range(count):
        time.sleep(max(0.0, start + i / rate - time.monotonic()))
        wheel.enqueue(b"x" * 100, delay=delay, topic="mail")
"""


def backlog(path: Path, count: int, *, force: bool) -> float:
    """Return the rate at which a backlog in the laps is fired and acknowledged, in messages per second."""
    now = time.time()
    with Wheel.create(path, sync="never", force=force) as wheel, Keeper(path, force=force):
        for _ in range(count // 1000):
            # Due in a minute or later, so that they are dealt and not fired; then the clock makes them overdue.
            dues = [now + 60 + 0.6 * i for i in range(1000)]
            wheel.enqueue_many([PAYLOAD] * 1000, at=dues, topic="mail")
    with Keeper(path, clock=_Later(700), force=force) as keeper:
        start = time.perf_counter()
        fired = 0
        for batch in keeper.batches(limit=1000, wait=False):
            fired += keeper.ack(batch)
        elapsed = time.perf_counter() - start
    if fired != count // 1000 * 1000:
        raise Failure("failed", f"{fired} messages fired of {count}: this is a bug of filewheel, please report it")
    return fired / elapsed


class _Later:
    """The system's clock plus some seconds."""

    def __init__(self, ahead_s: int) -> None:
        self._ahead_us = ahead_s * 1_000_000

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self._ahead_us

    def steady_us(self) -> int:
        return time.monotonic_ns() // 1000


def lateness(path: Path, seconds: float, tick: Callable[[], None], *, force: bool) -> list[float]:
    """Return each message's lateness in milliseconds while another process enqueues some hundreds per second."""
    Wheel.create(path, force=force).close()
    count = max(1, int(RATE_PER_S * seconds))
    late_ms: list[float] = []
    with Keeper(path, force=force) as keeper, _producer(path, RATE_PER_S, count, _AHEAD_S) as producer:
        end = time.monotonic() + seconds + _AHEAD_S + _PATIENCE_S
        while len(late_ms) < count:
            batch = keeper.claim(1000)
            now = time.time_ns() // 1000
            late_ms += [(now - m.due_us) / 1000 for m in batch]
            keeper.ack(batch)
            if not batch:
                keeper.wait(0.1)
            tick()
            if producer.poll():
                raise Failure("failed", f"the process that enqueues has failed: {_reason(producer)}")
            if time.monotonic() > end:
                raise Failure("failed", "what another process enqueued did not fire in time; is the machine busy?")
    return late_ms


@contextlib.contextmanager
def _producer(*args: object) -> Iterator[subprocess.Popen[str]]:
    # This library first, then the path of this process.
    where = [str(Path(filewheel.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, where))}
    process: subprocess.Popen[str] | None = None
    try:
        with uninterrupted():  # otherwise it could run unknown to this process
            # In a separate session: a Ctrl-C reaches only this process, which then ends the other.
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PRODUCER, *map(str, args)],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
        yield process
    finally:
        if process is not None:
            with uninterrupted():
                if process.poll() is None:
                    process.kill()
                process.communicate()


def _reason(process: subprocess.Popen[str]) -> str:
    """Return the last stderr line of a failed process."""
    assert process.stderr is not None
    return (process.stderr.read().strip() or f"exit code {process.returncode}").splitlines()[-1]
