"""The levels of a service, and the names of their topics.

`delays` with the levels 5s and 1m has the topics `delays.5s` and `delays.1m`, and `delays.dlt` for dead letters. A
delay has one name, however it is written: 60s is 1m, so two nodes never mean two topics by one delay.
Invariant: the levels of a service are in ascending order, each one once, and all longer than 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from filewheel.checks import shown
from filewheel.errors import BadArgument
from filewheel.kafka.records.options import OnTargetError, Policy
from filewheel.timespec import parse_duration

LEVELS_MAX = 64
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_HINT = "ascending delays, such as 5s,30s,1m,10m,2h"
SLACK_S = 60.0
"""A record may name a due that is so much later than its level: the clocks of producers differ."""


@dataclass(frozen=True, slots=True, order=True)
class Level:
    """One delay, and the topic of the records that wait for it."""

    delay_ms: int

    @property
    def name(self) -> str:
        """The delay in the largest unit that divides it: `5s`, `90s`, `1m`."""
        suffix, unit_ms = next((suffix, ms) for suffix, ms in _UNITS if self.delay_ms % ms == 0)
        return f"{self.delay_ms // unit_ms}{suffix}"

    def topic(self, base: str) -> str:
        """Return the name of this level's topic."""
        return f"{base}.{self.name}"

    def policy(self, base: str, *, default_target: str = "", on_target_error: OnTargetError = "retry") -> Policy:
        """Return what the records of this level's topic mean. Raises BadArgument."""
        return Policy(
            self.topic(base),
            f"{base}.dlt",
            default_target,
            self.delay_ms / 1000 + SLACK_S,
            on_target_error=on_target_error,
            on_missing_target="retry",  # a level has no way back
        )


def parse_levels(text: str | Iterable[str]) -> tuple[Level, ...]:
    """Return the levels of `5s,30s,1m`, or of a list of such texts.

    Raises BadArgument when they are not ascending, or one is twice there, not longer than 0 or not whole milliseconds.
    """
    words = text.split(",") if isinstance(text, str) else list(text)
    levels = tuple(_parse(word.strip()) for word in words)
    for before, level in pairwise(levels):
        if before == level:
            raise BadArgument(f"the level {level.name} is there twice", hint=_HINT)
        if before > level:
            raise BadArgument(f"the level {level.name} stands after {before.name}", hint=_HINT)
    if len(levels) > LEVELS_MAX:
        raise BadArgument(
            f"{len(levels)} levels; there may be {LEVELS_MAX}", hint="`filewheel kafka run` takes any delay"
        )
    return levels


def _parse(word: str) -> Level:
    if not word:
        raise BadArgument("a level is missing", hint=_HINT)
    delay_us = parse_duration(word)
    if delay_us <= 0 or delay_us % 1000:
        raise BadArgument(f"a level is longer than 0, in whole milliseconds, not {shown(word)}", hint=_HINT)
    return Level(delay_us // 1000)


def level_for(levels: Sequence[Level], delay_s: float) -> Level:
    """Return the shortest level that is at least as long as a delay: the record is never early.

    Raises BadArgument when all are shorter.
    """
    for level in levels:
        if level.delay_ms >= delay_s * 1000:
            return level
    raise BadArgument(
        f"no level is as long as {delay_s:g} s", hint=f"the longest is {levels[-1].name if levels else 'none'}"
    )
