"""The time ahead: how many messages are due in each second of the next minute, minute of the next hour, and so on.

Bars start at whole seconds, minutes and half hours: most files of the wheel fit between two edges and are counted by
their headers, and the labels are familiar times. A view ends exactly a minute, an hour or a day from now, so its first
and last bars are partial. Overdue messages are counted separately.
Invariant: each message is counted once in each view that reaches as far as its due time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from filewheel.lookup.stats import Histogram
from filewheel.message import US_PER_S
from filewheel.tools.dump import iso

_DAY_S = 86_400
_BEYOND = ((2, "1 to 2 days"), (7, "2 to 7 days"), (28, "1 to 4 weeks"), (365, "1 to 12 months"))


@dataclass(frozen=True)
class BarRow:
    """A row of bars, equal in time except for the partial ends."""

    name: str
    unit: str
    start_us: int
    step_s: int
    end_us: int
    bars: int
    tick: int
    """The number of bars per label."""

    def edge(self, i: int) -> int:
        """Return the start of the i-th bar."""
        return min(self.end_us, self.start_us + i * self.step_s * US_PER_S)


def views(now_us: int) -> list[BarRow]:
    """Return the three views of the time ahead."""

    def view(name: str, unit: str, step_s: int, bars: int, tick: int) -> BarRow:
        step_us = step_s * US_PER_S
        return BarRow(name, unit, now_us // step_us * step_us, step_s, now_us + bars * step_us, bars + 1, tick)

    return [
        view("next minute", "a second", 1, 60, 10),
        view("next hour", "a minute", 60, 60, 10),
        view("next day", "half an hour", 1800, 48, 8),
    ]


class CountsAhead:
    """The counts of the time ahead, between the edges that it chooses."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.views = views(now_us)
        day = self.views[-1]
        self.beyond = [(label, day.start_us + days * _DAY_S * US_PER_S) for days, label in _BEYOND]
        edges = {now_us, *(end for _, end in self.beyond)}
        for view in self.views:
            edges.update(view.edge(i) for i in range(view.bars + 1))
        self.edges_us = sorted(edges)
        self._below: dict[int, int] = {}
        self._after = 0

    def fill(self, histogram: Histogram) -> None:
        """Take the counts between the edges."""
        total = histogram.before
        for edge, inside in zip(histogram.edges_us, [*histogram.counts, 0], strict=True):
            self._below[edge] = total
            total += inside
        self._after = histogram.after

    def _between(self, start_us: int, end_us: int) -> int:
        start_us, end_us = max(start_us, self.now_us), max(end_us, self.now_us)
        return self._below[end_us] - self._below[start_us]

    @property
    def overdue(self) -> int:
        """The number of overdue messages."""
        return self._below[self.now_us]

    def counts(self, view: BarRow) -> list[int]:
        """Return a view's bars."""
        return [self._between(view.edge(i), view.edge(i + 1)) for i in range(view.bars)]

    def far(self) -> list[tuple[str, int]]:
        """Return the counts beyond the next day, row by row."""
        rows = []
        day = self.views[-1]
        start = day.edge(day.bars)
        for label, end in self.beyond:
            rows.append((label, self._between(start, end)))
            start = end
        return [*rows, ("later", self._after)]

    def to_json(self) -> dict[str, Any]:
        """Return all counts."""
        shown = {
            view.name.removeprefix("next "): {
                "start": iso(view.start_us),
                "step_s": view.step_s,
                "counts": self.counts(view),
            }
            for view in self.views
        }
        return {"now": iso(self.now_us), "overdue": self.overdue, **shown, "beyond": dict(self.far())}
