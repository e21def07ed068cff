"""A trace for `timers show`: one start or stop of a timer a line, in the order of time.

    # a comment
    0 start login 5         at tick 0, a timer that is due 5 ticks later
    3 stop login

Invariant: a trace that was read can be played: times do not run back, and each stop has its start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from filewheel import BadArgument

LINES_MOST = 10_000
TICKS_MOST = 1_000_000_000
_HINT = "a line is TICK start NAME DELAY, or TICK stop NAME"


@dataclass(frozen=True)
class TraceStep:
    """One line: at a tick, a timer starts with a delay in ticks, or stops (None)."""

    tick: int
    name: str
    delay: int | None


def read_trace(lines: Iterable[str], path: str) -> list[TraceStep]:
    """Return the steps of a trace. Raises BadArgument with the number of the wrong line."""
    steps: list[TraceStep] = []
    started: set[str] = set()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            if len(steps) == LINES_MOST:
                raise ValueError(f"more than {LINES_MOST:,} lines")
            step = _step(words)
            if steps and step.tick < steps[-1].tick:
                raise ValueError(f"tick {step.tick} comes after tick {steps[-1].tick}")
            if (step.delay is None) != (step.name in started):
                raise ValueError(f"{step.name} {'was not started' if step.delay is None else 'was started before'}")
        except ValueError as exc:
            raise BadArgument(f"line {number}: {exc}", path=path, hint=_HINT) from exc
        started.add(step.name)
        steps.append(step)
    if not steps:
        raise BadArgument("the trace has no step", path=path, hint=_HINT)
    return steps


def _step(words: list[str]) -> TraceStep:
    if len(words) == 4 and words[1] == "start":
        return TraceStep(_number(words[0]), words[2], _number(words[3]))
    if len(words) == 3 and words[1] == "stop":
        return TraceStep(_number(words[0]), words[2], None)
    raise ValueError(f"{' '.join(words)[:40]!r} is no step")


def _number(word: str) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 10 or int(word) > TICKS_MOST:
        raise ValueError(f"{word[:40]!r} is no number from 0 to {TICKS_MOST:,}")
    return int(word)
