"""The wheel as it turns: how many messages are due in each of the next seconds.

Reads the journals and the slot files of these seconds only, so it costs a few milliseconds for any backlog; a second
with very many messages is read in windows, within a limit.
A message whose work has begun is pending, and waits for nothing: it is neither overdue nor next. One that is paused and
due waits for a resume: it is counted apart, and is not next.
Invariant: a count is that of all messages that are pending and due in its second, unless `is_cut` says that it is not.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from filewheel.env import Clock
from filewheel.errors import Damaged
from filewheel.format.pauses import PausedMessages, Pauses
from filewheel.format.record import ID
from filewheel.laps.window import Budget
from filewheel.lookup.snapshot import DEAD_FLOOR, Snapshot
from filewheel.message import ID_MIN, US_PER_S, due_of, id_floor
from filewheel.runs.run import Running
from filewheel.tools.dump import iso
from filewheel.wheel import Wheel

SECONDS = 120
"""How far it looks: a minute to show, and as much again until the next look."""
OVERDUE_MAX = 10_000
"""More overdue messages than this are not counted here."""
LOOK_S = 1.0
"""The longest look, at what is due and at what comes; what it has not reached by then is not counted."""
_ONE = Budget(records=1, bytes=1 << 16)
_DUE = Budget(records=OVERDUE_MAX + 1, bytes=8 << 20)
_BUDGET = Budget(records=1 << 14, bytes=4 << 20)


@dataclass
class Turning:
    """The next seconds of a wheel."""

    now_us: int
    counts: list[int] = field(default_factory=lambda: [0] * SECONDS)
    """From the second that holds `now_us` on; of that one, those not due yet."""
    overdue: int = 0
    """Pending, due, not begun and not paused; at most OVERDUE_MAX."""
    paused: int = 0
    """Pending, due and paused."""
    begun: int = 0
    """Pending, due, and worked on."""
    has_more_overdue: bool = False
    """There may be more of these: too many to count in time."""
    next_us: int | None = None
    """When the first message is due that has not begun and is not held back by now; None when none waits."""
    is_cut: bool = False
    """There were too many to count in time: the later seconds are too low."""

    @property
    def start_s(self) -> int:
        """The second of the first count, since the epoch."""
        return self.now_us // US_PER_S

    @property
    def lag_us(self) -> int:
        """How long the first message has been due that is not paused and has not begun; 0 when none is."""
        return 0 if self.next_us is None else max(0, self.now_us - self.next_us)

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return {
            "now": iso(self.now_us),
            "start_s": self.start_s,
            "counts": self.counts,
            "overdue": self.overdue,
            "overdue_paused": self.paused,
            "overdue_is_more": self.has_more_overdue,
            "next": None if self.next_us is None else iso(self.next_us),
            "next_us": self.next_us,
            "cut": self.is_cut,
        }


def turning(wheel: Wheel, clock: Clock) -> Turning:
    """Count the messages that are due in each of the next SECONDS. Raises DiskError."""
    found = Turning(clock.now_us())
    with wheel.snapshot() as snapshot:
        first = _overdue(wheel, snapshot, found, clock)
        lo, end = id_floor(found.now_us), min(id_floor((found.start_s + SECONDS) * US_PER_S), DEAD_FLOOR)
        end_us = clock.steady_us() + LOOK_S * US_PER_S
        while lo < end:
            if clock.steady_us() > end_us:
                found.is_cut = True
                break
            window = snapshot.window(lo, end, _BUDGET)
            ids = window.found.ids()
            first = first or ids[:1]
            for id_ in ids:
                found.counts[due_of(id_) // US_PER_S - found.start_s] += 1
            lo = window.hi
        first = first or snapshot.window(lo, DEAD_FLOOR, _ONE).found.ids()[:1]
    found.next_us = due_of(first[0]) if first else None
    return found


def _overdue(wheel: Wheel, snapshot: Snapshot, found: Turning, clock: Clock) -> list[bytes]:
    """Count what is due, has not begun, and is not paused; return its first id."""
    running, held = Running(), PausedMessages(Pauses())
    with contextlib.suppress(Damaged):  # then all that is due counts as overdue
        running = wheel.running()
    with contextlib.suppress(Damaged):
        held = PausedMessages(wheel.paused())
    first: list[bytes] = []
    lo, end = ID_MIN, min(id_floor(found.now_us), DEAD_FLOOR)
    end_us = clock.steady_us() + LOOK_S * US_PER_S
    while lo < end:
        window = snapshot.window(lo, end, _DUE)
        for put in window.puts:
            if running.pending_state(put[ID]) == "running":
                found.begun += 1  # also while it is paused: what runs goes on
            elif held.holds(put):
                found.paused += 1
            else:
                found.overdue += 1
                first = first or [put[ID]]
        lo = window.hi
        is_full = found.overdue > OVERDUE_MAX or (held.is_whole and found.paused > OVERDUE_MAX)
        if lo < end and (is_full or clock.steady_us() > end_us):
            found.has_more_overdue = True
            break
    found.has_more_overdue |= found.overdue > OVERDUE_MAX
    found.overdue = min(OVERDUE_MAX, found.overdue)
    return first
