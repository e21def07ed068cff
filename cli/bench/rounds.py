"""Rates, measured in rounds: in each round every kind of enqueue gets a slice of time, turn about.

A disk is faster in one second than in the next, so what is to be compared is measured close together, and a share is
the median of the rounds' shares. The bare calls and the single enqueue, of which the share is asked, follow each other
directly, and take turns in being first.
Invariant: a slice ends by its clock and by its count of messages, whichever is first, and does something at least once.
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
"""How many slices a round has."""

_RECORD = bytes(220)  # a frame that holds PAYLOAD has about this size
_FILL_BYTES = 1 << 20
_WARM_UP = 5  # the first commits of a writer make its segment and fill it ahead
# What bounds the room that a round takes: some 50 MB for each kind.
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
        # Last, what leaves the system with something to write back.
        acts += [("interval", self._interval), ("never", self._never)]
        for name, act in acts:
            self.rates[name].append(act(path, slice_s))
            tick()

    def rate(self, name: str) -> float:
        """Return the median rate of one kind."""
        return median(self.rates[name])

    def share(self, name: str, yardstick: str) -> float:
        """Return the median of what one kind reached of another in the same round."""
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
    """Return how often a second something can be done, one after the other."""
    start = now = time.perf_counter()
    end = start + slice_s
    count = 0
    while now < end and count < count_max:
        act()
        count += 1
        now = time.perf_counter()
    return count / (now - start)


def _in_threads(act: Callable[[], object], slice_s: float) -> float:
    """Return how often a second it is done when several threads do it at once."""
    counts: list[int] = []
    errors: list[BaseException] = []
    stopped = threading.Event()

    def work() -> None:
        count = 0
        try:
            while not count or (not stopped.is_set() and count < _MESSAGES_MAX // THREADS):
                act()
                count += 1
        except Exception as exc:
            errors.append(exc)
        counts.append(count)

    workers = [threading.Thread(target=work) for _ in range(THREADS)]
    start = time.perf_counter()
    try:
        with uninterrupted():  # or a thread could be on its way, and look as if it had not been started
            for worker in workers:
                worker.start()
        while any(w.is_alive() for w in workers) and (left := start + slice_s - time.perf_counter()) > 0:
            stopped.wait(min(left, 0.05))
    finally:
        # Also after Ctrl-C: the wheel must not be closed under a thread that uses it.
        stopped.set()
        for worker in workers:
            if worker.ident is not None:
                worker.join()
    elapsed = time.perf_counter() - start
    if errors:
        raise errors[0]
    return sum(counts) / elapsed
