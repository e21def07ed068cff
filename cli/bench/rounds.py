"""Rates, measured in rounds: each round has a slice of time for each kind of enqueue.

The speed of a disk varies from second to second, so rates to be compared are measured in succession, and a share is the
median of the rounds' shares. Bare calls and single enqueues, whose share is reported, follow each other directly and
alternate in order.
Invariant: a slice ends at its time or its count of messages, whichever is first, and does at least one operation.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

from filewheel import Wheel

from ..signals import uninterrupted

PAYLOAD = bytes(100)
SPREAD_S = 7200
THREADS = 8
INTERVAL_S = 0.05
KINDS = 7
"""The number of slices in a round."""

_RECORD = bytes(220)  # about the size of a frame with PAYLOAD
_FILL_BYTES = 1 << 20
_WARM_UP = 5  # the first commits of a writer make and preallocate its segment
# Limits the space of a round: some 50 MB for each kind.
_MESSAGES_MAX = 250_000


class Rounds:
    """The rates of all rounds so far."""

    def __init__(self, directory: Path, *, force: bool) -> None:
        self._bare_path = directory / "bare"
        self._force = force
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.flush_us: list[float] = []
        rng = random.Random(1)
        self._delays = [[60 + SPREAD_S * rng.random() for _ in range(1000)] for _ in range(8)]

    def run(self, path: Path, number: int, slice_s: float, tick: Callable[[], None]) -> None:
        """Measure one round on an empty wheel."""
        pair = [("bare", self._bare), ("one", self._one)]
        acts = [*(pair if number % 2 == 0 else reversed(pair)), ("threads", self._threads)]
        acts += [("batch_100", self._hundreds), ("batch_1000", self._thousands)]
        # Last, because the system must write these back.
        acts += [("interval", self._interval), ("never", self._never)]
        for name, act in acts:
            self.rates[name].append(act(path, slice_s))
            tick()

    def rate(self, name: str) -> float:
        """Return the median rate of one kind."""
        return median(self.rates[name])

    def share(self, name: str, yardstick: str) -> float:
        """Return the median share of one kind's rate in another's, round by round."""
        return median([a / b for a, b in zip(self.rates[name], self.rates[yardstick], strict=True)])

    def _bare(self, path: Path, slice_s: float) -> float:
        places = _FILL_BYTES // len(_RECORD)
        fd = os.open(self._bare_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, bytes(_FILL_BYTES), 0)
            os.fdatasync(fd)
            taken: list[float] = []
            start = before = time.perf_counter()
            while before - start < slice_s and len(taken) < _MESSAGES_MAX:
                os.pwrite(fd, _RECORD, len(taken) % places * len(_RECORD))
                os.fdatasync(fd)
                now = time.perf_counter()
                taken.append(now - before)
                before = now
        finally:
            os.close(fd)
        self.flush_us += [s * 1e6 for s in taken]
        return len(taken) / (before - start)

    def _one(self, path: Path, slice_s: float) -> float:
        with Wheel(path, force=self._force) as wheel:
            return _singles(wheel, slice_s)

    def _interval(self, path: Path, slice_s: float) -> float:
        with Wheel(path, sync=INTERVAL_S, force=self._force) as wheel:
            return _singles(wheel, slice_s)

    def _never(self, path: Path, slice_s: float) -> float:
        with Wheel(path, sync="never", force=self._force) as wheel:
            return _singles(wheel, slice_s)

    def _hundreds(self, path: Path, slice_s: float) -> float:
        return self._batches(path, slice_s, 100)

    def _thousands(self, path: Path, slice_s: float) -> float:
        return self._batches(path, slice_s, 1000)

    def _batches(self, path: Path, slice_s: float, size: int) -> float:
        payloads = [PAYLOAD] * size
        delays = itertools.cycle([d[:size] for d in self._delays])
        with Wheel(path, force=self._force) as wheel:
            for _ in range(_WARM_UP):
                wheel.enqueue_many(payloads, delay=next(delays), topic="mail")
            return size * _rate(
                lambda: wheel.enqueue_many(payloads, delay=next(delays), topic="mail"), slice_s, _MESSAGES_MAX // size
            )

    def _threads(self, path: Path, slice_s: float) -> float:
        with Wheel(path, force=self._force) as wheel:
            return _in_threads(lambda: wheel.enqueue(PAYLOAD, delay=3600, topic="mail"), slice_s)


def _singles(wheel: Wheel, slice_s: float) -> float:
    for _ in range(_WARM_UP):
        wheel.enqueue(PAYLOAD, delay=3600, topic="mail")
    return _rate(lambda: wheel.enqueue(PAYLOAD, delay=3600, topic="mail"), slice_s, _MESSAGES_MAX)


def _rate(act: Callable[[], object], slice_s: float, count_max: int) -> float:
    """Return the rate of sequential calls per second."""
    start = now = time.perf_counter()
    end = start + slice_s
    count = 0
    while now < end and count < count_max:
        act()
        count += 1
        now = time.perf_counter()
    return count / (now - start)


def _in_threads(act: Callable[[], object], slice_s: float) -> float:
    """Return the rate of concurrent calls from several threads per second."""
    counts: list[int] = []
    errors: list[BaseException] = []
    is_stopped = False

    def work() -> None:
        count = 0
        try:
            while not count or (not is_stopped and count < _MESSAGES_MAX // THREADS):
                act()
                count += 1
        except Exception as exc:
            errors.append(exc)
        counts.append(count)

    workers = [threading.Thread(target=work) for _ in range(THREADS)]
    start = time.perf_counter()
    try:
        with uninterrupted():  # otherwise a started thread could seem not started
            for worker in workers:
                worker.start()
        while any(w.is_alive() for w in workers) and (left := start + slice_s - time.perf_counter()) > 0:
            time.sleep(min(left, 0.05))
    finally:
        # Also after Ctrl-C: the wheel must not be closed while a thread uses it.
        is_stopped = True
        for worker in workers:
            if worker.ident is not None:
                worker.join()
    elapsed = time.perf_counter() - start
    if errors:
        raise errors[0]
    return sum(counts) / elapsed
