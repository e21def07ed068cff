"""The proof of a play: compare the confirmed messages of the producers with the fired ones of the keepers.

Invariant: it reads the records of the processes, and no wheel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..show.output import Output
from .stage import KeeperProcess


@dataclass
class Proof:
    """The comparison of confirmed and fired messages."""

    enqueued: int
    fired: int
    missing: list[str]
    unknown: list[str]
    early: int
    twice: int
    late_ms: list[float]
    """The lateness of each message's first firing, sorted."""

    @property
    def holds(self) -> bool:
        """Whether all messages fired, none early, and no unknown one."""
        return not (self.missing or self.unknown or self.early) and self.enqueued > 0

    def percentile(self, share: float) -> float:
        """Return the lateness that this share of messages did not exceed, in milliseconds."""
        return self.late_ms[min(len(self.late_ms) - 1, int(share * len(self.late_ms)))] if self.late_ms else 0.0


def prove(enqueued: list[str], keepers: list[KeeperProcess]) -> Proof:
    """Compare the confirmed with the fired messages."""
    times: Counter[str] = Counter()
    first: dict[str, float] = {}
    early = 0
    for keeper in keepers:
        for id_, late in keeper.fired:
            times[id_] += 1
            first[id_] = min(late, first.get(id_, late))
            early += late < 0
    promised = set(enqueued)
    return Proof(
        enqueued=len(enqueued),
        fired=len(times),
        missing=sorted(promised - times.keys()),
        unknown=sorted(times.keys() - promised),
        early=early,
        twice=sum(n > 1 for n in times.values()),
        late_ms=sorted(first.values()),
    )


def print_proof(out: Output, title: str, rows: Sequence[tuple[str, str, bool]]) -> None:
    """Print rows of (name, value, whether the value is good)."""
    out.write("")
    out.write(out.style(title, bold=True))
    left = max(len(name) for name, _, _ in rows)
    for name, value, good in rows:
        mark = out.style("ok " if good else "BAD", "green" if good else "red", bold=not good)
        out.write(f"  {mark}  {name.ljust(left)}  {value}")
