"""Makes `data/traces/day.csv` (`python -m tests.bench.make_trace > data/traces/day.csv`); nothing in it was observed.

A line says how many messages of a kind were enqueued in a minute, and how many of these were cancelled later; what a
kind is, `kinds.csv` beside it says. Invariant: the same seed makes the same bytes.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator

SEED = 20260101
MINUTES = 1440

# kind: messages in a day, share that is cancelled
DIURNAL = {
    "session": (150_000, 0.85),
    "payment": (70_000, 0.9),
    "retry": (110_000, 0.0),
    "morning": (60_000, 0.05),
    "weeks": (30_000, 0.0),
    "sla": (20_000, 0.6),
}
POLLERS = 70
NEWSLETTER = 50_000
NEWSLETTER_MINUTES = range(9 * 60 + 30, 9 * 60 + 58)


def activity(minute: int) -> float:
    """How busy people are: least at four in the morning, most in the early afternoon, with a dip at noon."""
    hour = minute / 60
    day = 0.55 - 0.45 * math.cos((hour - 4) / 24 * 2 * math.pi)
    return day * (1 - 0.15 * math.exp(-(((hour - 12.5) / 0.6) ** 2)))


def rows(seed: int = SEED) -> Iterator[tuple[int, str, int, int]]:
    """Yield (minute, kind, enqueued, cancelled)."""
    draw = random.Random(seed)
    whole = sum(activity(m) for m in range(MINUTES))
    for minute in range(MINUTES):
        for kind, (total, share) in DIURNAL.items():
            mean = total * activity(minute) / whole
            count = max(0, round(draw.gauss(mean, math.sqrt(mean))))
            yield minute, kind, count, min(count, round(count * share + draw.uniform(-0.5, 0.5)))
        yield minute, "poll", POLLERS, 0
        if minute in NEWSLETTER_MINUTES:
            even = NEWSLETTER // len(NEWSLETTER_MINUTES)
            last = minute == NEWSLETTER_MINUTES[-1]
            yield minute, "newsletter", even + (NEWSLETTER % len(NEWSLETTER_MINUTES) if last else 0), 0


def main() -> None:
    """Write the trace."""
    sys.stdout.write("minute,kind,enqueued,cancelled\n")
    for minute, kind, enqueued, cancelled in rows():
        sys.stdout.write(f"{minute // 60:02}:{minute % 60:02},{kind},{enqueued},{cancelled}\n")


if __name__ == "__main__":
    main()
