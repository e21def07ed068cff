"""The trace of a day, read from `data/traces/` and made into single enqueues and cancels at milliseconds.

Invariant: the same seed makes the same events, for every peer; nothing is cancelled later than half a minute of the
trace before it is due, so that whether a cancel comes in time does not depend on who is quick.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TRACES = Path(__file__).parents[2] / "data" / "traces"
DAY_S = 86_400
SPEED = 100
"""By how much a replay is quicker than the day."""


@dataclass(frozen=True)
class Enqueue:
    """One message of the trace: when it is enqueued and when it is due, in seconds since midnight."""

    at_s: float
    due_s: float
    number: int


@dataclass(frozen=True)
class Cancel:
    """The cancel of a message, by its number."""

    at_s: float
    number: int


Due = Callable[[float, random.Random], float]


def kinds() -> dict[str, tuple[Due, tuple[float, float]]]:
    """Read the kinds: when one is due, and between how many seconds after its enqueue a cancel comes."""
    found = {}
    with (TRACES / "kinds.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            low, _, high = row["cancelled_after_s"].partition("-")
            found[row["kind"]] = (_due(row["due"]), (float(low or 0), float(high or 0)))
    return found


def _due(text: str) -> Due:
    """Make a rule from its text: `+10|30` (one of these delays), `10:00:00` today, `09:00-10:00 next day`."""
    if text.startswith("+"):
        delays = [float(d) for d in text[1:].split("|")]
        return lambda at_s, draw: at_s + draw.choice(delays)
    times, _, next_day = text.partition(" ")
    first, _, last = times.partition("-")
    start, end = _clock_s(first), _clock_s(last or first)
    plus = DAY_S if next_day else 0
    return lambda at_s, draw: plus + draw.uniform(start, end)


def _clock_s(text: str) -> float:
    """Read HH:MM or HH:MM:SS."""
    parts = [int(p) for p in text.split(":")]
    return parts[0] * 3600 + parts[1] * 60 + (parts[2] if len(parts) > 2 else 0)


def events(seed: int, start_s: float, end_s: float) -> tuple[list[Enqueue], list[Cancel]]:
    """Return what happens in a window of the day, each list in order of time; numbers count from 0."""
    draw = random.Random(seed)
    rules = kinds()
    found: list[tuple[float, float, float]] = []  # at, due, cancelled at (0: never)
    with (TRACES / "day.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            minute_s = _clock_s(row["minute"])
            if not start_s <= minute_s < end_s:
                continue
            due, (low, high) = rules[row["kind"]]
            for i in range(int(row["enqueued"])):
                at_s = minute_s + draw.random() * 60
                due_s = due(at_s, draw)
                cancel_s = at_s + draw.uniform(low, high) if i < int(row["cancelled"]) else 0.0
                found.append((at_s, due_s, cancel_s if cancel_s <= due_s - 30 else 0.0))
    found.sort()
    enqueues = [Enqueue(at_s, due_s, n) for n, (at_s, due_s, _) in enumerate(found)]
    cancels = sorted((c, n) for n, (_, _, c) in enumerate(found) if 0 < c < end_s)
    return enqueues, [Cancel(at_s, n) for at_s, n in cancels]
