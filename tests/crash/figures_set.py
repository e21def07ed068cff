"""How a set of wheels bore a disaster, in figures: measured from the marks of a round, and added up in a table.

`python -m tests.crash.figures_set FILE...` prints the table of docs/replication.md from what
`python -m tests.crash.replicas NUMBER... --figures FILE` wrote. Times begin at the disaster and end with the load.
Invariant: it measures, and judges nothing: what may not be is told by verdict_set.py.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.disaster import DISASTERS
from tests.crash.marks import Mark

MS = 1_000_000


@dataclass(frozen=True)
class Figures:
    """What a round came to."""

    acked: int
    """Enqueues that were confirmed."""
    lost: int
    """Of these, those that neither fired nor wait."""
    twice: int
    """Messages that fired more than once."""
    twice_acked: int
    """Of these, those whose acknowledgement had returned before they fired again."""
    refused_ms: float | None
    """The longest time in which enqueues were refused and none was confirmed; None without a disaster."""
    late_ms: float | None
    """The longest time in which a confirmed message was due and not fired; None without a disaster."""
    promote_ms: float | None
    """How long `filewheel promote` took, from its start as a process."""


def measure(marks: Mapping[str, list[Mark]], pending: Collection[int]) -> Figures:
    """Measure a round; `pending` are the serials that wait in the primary at its end."""
    puts: dict[int, int] = {}
    dues: dict[int, int] = {}
    refusals: list[int] = []
    fires: dict[int, list[int]] = defaultdict(list)
    acks: dict[int, list[int]] = defaultdict(list)
    begin = end = promoted = None
    wall_us = 0
    for kind, since, at, *what in (m for lines in marks.values() for m in lines):
        if kind == "try-put":
            dues.update((serial, due_us) for serial, due_us in what[0])
        elif kind == "put":
            puts.update((serial, at) for serial, _ in what[0])
        elif kind == "refused":
            refusals.append(at)
        elif kind == "fire":
            for serial, _, _ in what[1]:
                fires[serial].append(at)
            # The last keeper's clock is ahead, and it comes when the load has ended.
            wall_us = wall_us or what[0] - at // 1000
        elif kind == "ack":
            for serial in what[0]:
                acks[serial].append(at)
        elif kind == "disaster":
            begin = at
        elif kind == "quiet":
            end = at
        elif kind == "promoted":
            promoted = at - since
    twice = [s for s, times in fires.items() if len(times) > 1]
    window = None if begin is None or end is None else (begin, end)
    return Figures(
        acked=len(puts),
        lost=sum(s not in fires and s not in pending for s in puts),
        twice=len(twice),
        twice_acked=sum(any(at < max(fires[s]) for at in acks[s]) for s in twice),
        refused_ms=None if window is None else _longest(puts.values(), window, refusals),
        late_ms=None
        if window is None
        else _latest({s: at for s, at in puts.items() if s in fires or s in pending}, dues, fires, window, wall_us),
        promote_ms=None if promoted is None else promoted / MS,
    )


def _latest(
    puts: Mapping[int, int],
    dues: Mapping[int, int],
    fires: Mapping[int, list[int]],
    window: tuple[int, int],
    wall_us: int,
) -> float:
    """Return how late a message was at most that could fire within a window; one that did not is late until its end."""
    begin, end = window
    latest = 0
    for serial, put_at in puts.items():
        ready = max((dues[serial] - wall_us) * 1000, put_at, begin)
        fired = min(fires.get(serial, [end]))
        if ready < end and fired > begin:
            latest = max(latest, min(fired, end) - ready)
    return latest / MS


def _longest(times: Iterable[int], window: tuple[int, int], containing: list[int]) -> float:
    """Return the longest time between two of these within a window that contains one of `containing`."""
    begin, end = window
    points = [begin, *sorted(t for t in times if begin < t < end), end]
    gaps = [b - a for a, b in itertools.pairwise(points) if any(a < t < b for t in containing)]
    return max(gaps, default=0) / MS


# -- the table -----------------------------------------------------------------------------------------------------

COLUMNS = (
    "failure", "of", "mode", "rounds", "confirmed", "lost", "fired twice (of these acknowledged)",
    "refused, ms: median / max", "late, ms: median / max",
)  # fmt: skip


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Return Markdown: a line for each disaster, victim and mode, with the policy where a mirror is struck."""
    order = ["kills alone", *DISASTERS]
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        fails = row["mode"] == "mirror" and row["victim"] == "backup" and row["disaster"]
        mode = f"mirror, {row['on_failure']}" if fails else row["mode"]
        groups[row["victim"] if row["disaster"] else "-", mode, row["disaster"] or "kills alone"].append(row)
    kinds = sorted(groups.items(), key=lambda g: (g[0][0] == "backup", g[0][0], g[0][1], order.index(g[0][2])))
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for (victim, mode, disaster), group in kinds:
        sums: Counter[str] = Counter()
        for row in group:
            sums.update({name: row[name] for name in ("acked", "lost", "twice", "twice_acked")})
        cells = [
            disaster, victim, mode, str(len(group)), f"{sums['acked']:,}",
            str(sums["lost"]), f"{sums['twice']} ({sums['twice_acked']})",
            _times(group, "refused_ms"), _times(group, "late_ms"),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _times(group: list[dict[str, Any]], name: str) -> str:
    known = [row[name] for row in group if row[name] is not None]
    return f"{statistics.median(known):,.0f} / {max(known):,.0f}" if known else "-"


if __name__ == "__main__":
    print(table(json.loads(line) for name in sys.argv[1:] for line in Path(name).read_text().splitlines()))
