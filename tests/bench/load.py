"""The load: payloads and due times, the same for every peer of a round."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

US = 1_000_000

SHAPES = ("two hours", "one second", "soon", "a year")


class Load:
    """Payloads and due times from one seed."""

    def __init__(
        self, seed: int, payload_bytes: int = 100, shape: str = "two hours", start_us: int | None = None
    ) -> None:
        self._random = random.Random(seed)
        self._shape = shape
        # Not from now: what is due while others are still enqueued is fired, and that is another workload ("soon").
        self._start_us = start_us if start_us is not None else time.time_ns() // 1000 + 300 * US
        pool = 1000 if payload_bytes <= 4096 else 20
        self._payloads = [self._random.randbytes(payload_bytes) for _ in range(pool)]

    def payloads(self, count: int) -> list[bytes]:
        """Return this many payloads; a thousand differ."""
        return (self._payloads * (count // len(self._payloads) + 1))[:count]

    def dues_us(self, count: int) -> list[int]:
        """Return due times of the shape, in no order."""
        draw = self._random.random
        start = self._start_us
        if self._shape == "one second":
            return [start + int(draw() * (US - 1)) for _ in range(count)]
        if self._shape == "soon":  # nine of ten within ten seconds from now
            now = time.time_ns() // 1000
            return [now + int(draw() * (10 if draw() < 0.9 else 7200) * US) for _ in range(count)]
        span_s = {"two hours": 7200, "ten minutes": 600, "a day": 86_400, "a year": 31_536_000}[self._shape]
        return [start + int(draw() * span_s * US) for _ in range(count)]


def timed(act: Callable[[int], object], seconds: float, most: int = 1 << 60) -> tuple[int, float]:
    """Call `act(0)`, `act(1)`, ... for some seconds or up to `most` times; return how often, and how long it took."""
    clock = time.perf_counter
    start = now = clock()
    end = start + seconds
    done = 0
    while now < end and done < most:
        act(done)
        done += 1
        now = clock()
    return done, now - start


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
