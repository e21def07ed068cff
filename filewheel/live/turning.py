"""The wheel as it turns: how many messages are due in each of the next seconds.

Reads the journals and the slot files of these seconds only, so it costs a few milliseconds for any backlog; a second
with very many messages is read in windows, within a limit.
Invariant: a count is that of all messages that are pending and due in its second, unless `is_cut` says that it is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from filewheel.env import Clock
from filewheel.laps.window import Budget
from filewheel.lookup.snapshot import DEAD_FLOOR
from filewheel.message import ID_MIN, US_PER_S, due_of, id_floor
from filewheel.tools.dump import iso
from filewheel.wheel import Wheel

SECONDS = 120
"""How far it looks: a minute to show, and as much again until the next look."""
OVERDUE_MAX = 10_000
"""More overdue messages than this are not counted here."""
LOOK_S = 1.0
"""The longest look; what it has not reached by then is not counted."""
_BUDGET = Budget(records=1 << 14, bytes=4 << 20)


@dataclass
class Turning:
    """The next seconds of a wheel."""

    now_us: int
    counts: list[int] = field(default_factory=lambda: [0] * SECONDS)
    """From the second that holds `now_us` on; of that one, those not due yet."""
    overdue: int = 0
    """Pending and due; at most OVERDUE_MAX."""
    has_more_overdue: bool = False
    is_cut: bool = False
    """There were too many to count in time: the later seconds are too low."""

    @property
    def start_s(self) -> int:
        """The second of the first count, since the epoch."""
        return self.now_us // US_PER_S

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return {
            "now": iso(self.now_us),
            "start_s": self.start_s,
            "counts": self.counts,
            "overdue": self.overdue,
            "overdue_is_more": self.has_more_overdue,
            "cut": self.is_cut,
        }


def turning(wheel: Wheel, clock: Clock) -> Turning:
    """Count the messages that are due in each of the next SECONDS. Raises DiskError."""
    found = Turning(clock.now_us())
    start_us = clock.steady_us()
    end_us = (found.start_s + SECONDS) * US_PER_S
    now = id_floor(found.now_us)
    with wheel.snapshot() as snapshot:
        window = snapshot.window(ID_MIN, min(now, DEAD_FLOOR), Budget(records=OVERDUE_MAX + 1, bytes=8 << 20))
        found.overdue = min(OVERDUE_MAX, len(window.found))
        found.has_more_overdue = window.cut or len(window.found) > OVERDUE_MAX
        lo, hi = now, min(id_floor(end_us), DEAD_FLOOR)
        while lo < hi:
            if clock.steady_us() - start_us > LOOK_S * US_PER_S:  # mutant: turning-unbounded
                found.is_cut = True
                break
            window = snapshot.window(lo, hi, _BUDGET)
            for id_ in window.found.ids():
                found.counts[due_of(id_) // US_PER_S - found.start_s] += 1
            lo = window.hi
    return found
