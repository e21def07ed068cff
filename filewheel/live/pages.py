"""Pages of the pending messages, or of the dead letters: a bounded piece of a walk, and where to go on.

Ids are sorted by due, so a page begins after the last id of the page before, and costs the same anywhere in the
backlog. A search that finds little stops after a time; its page is then short, and names where to go on.
Invariant: a page is part of one walk in firing order: pages that follow each other's `next_id` leave out no message
that was pending throughout, and show none twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from filewheel.checks import check_flag, check_whole
from filewheel.env import Clock
from filewheel.errors import BadArgument, Damaged
from filewheel.format.limits import check_topic
from filewheel.format.pauses import Pauses
from filewheel.format.record import ID, unpack_put
from filewheel.laps.window import Budget
from filewheel.live.message_fields import row_fields
from filewheel.live.pause_fields import held_fields
from filewheel.lookup.snapshot import DEAD_FLOOR, WALK_BUDGET, Filter, Snapshot
from filewheel.message import ID_END, ID_MIN, US_PER_S, Message, MessageId, due_of, id_after, id_floor
from filewheel.runs.run import Running
from filewheel.tools.dump import iso
from filewheel.wheel import Wheel

PAGE_MAX = 200
"""The largest page."""
SCAN_S = 0.4
"""The longest scan for one page."""
PAGE_BYTES = 4 << 20
"""A page ends early when its messages have more bytes."""
_FIRST = Budget(records=1 << 11, bytes=4 << 20)
_LOOK_EACH = 512
"""How many messages are compared between two looks at the clock."""


@dataclass(frozen=True)
class Query:
    """A request for a page. Raises BadArgument for a wrong one."""

    topic: str | None = None
    """A name, or a glob with * and ?."""
    from_us: int | None = None
    until_us: int | None = None
    """Due from the one to below the other."""
    dead: bool = False
    """The dead letters instead; the times are then those of their deaths."""
    after: MessageId | None = None
    """The last id of the page before."""
    limit: int = 50

    def __post_init__(self) -> None:
        check_whole("limit", self.limit, least=1)
        if self.limit > PAGE_MAX:
            raise BadArgument(f"a page has at most {PAGE_MAX} messages, not {self.limit:,}")
        if self.topic is not None:
            check_topic(self.topic)
        check_flag("dead", self.dead)

    def which(self) -> Filter:
        """Return the messages that it reads."""
        base = due_of(DEAD_FLOOR) if self.dead else 0
        ceiling = ID_END if self.dead else DEAD_FLOOR
        lo = DEAD_FLOOR if self.dead else ID_MIN
        if self.from_us is not None:
            lo = max(lo, id_floor(base + max(0, self.from_us)))
        if self.until_us is not None:
            ceiling = min(ceiling, id_floor(base + max(0, self.until_us)))
        if self.after is not None:
            lo = max(lo, id_after(self.after))
        return Filter(lo, ceiling, self.topic)


@dataclass
class Page:
    """Messages in firing order, and how far the search came."""

    messages: list[Message] = field(default_factory=list)
    scanned: int = 0
    """How many messages were looked at."""
    next_id: MessageId | None = None
    """Go on after this id; None at the end."""
    reached_us: int | None = None
    """Every message that is due before this was looked at; None at the end."""
    damaged: int = 0
    """Damaged places that were met."""

    def to_json(self, now_us: int, running: Running, pauses: Pauses) -> dict[str, Any]:
        """Return all fields, the messages as rows, each with its state and the pauses that hold it."""
        rows = []
        for message in self.messages:
            state = {} if message.is_dead else {"state": running.pending_state(message.id)}
            rows.append(row_fields(message) | state | held_fields(message, pauses))
        return {
            "now": iso(now_us),
            "messages": rows,
            "scanned": self.scanned,
            "next": None if self.next_id is None else str(self.next_id),
            "reached": None if self.reached_us is None else iso(self.reached_us),
            "damaged": self.damaged,
        }


def read_page(wheel: Wheel, query: Query, clock: Clock) -> Page:
    """Read a page. Cost: a few milliseconds, at most SCAN_S and one window. Raises DiskError."""
    page, which = Page(), query.which()
    size = 0
    end_us = clock.steady_us() + round(SCAN_S * US_PER_S)
    with wheel.snapshot() as snapshot:
        last = which.lo
        for put in _puts(snapshot, which.lo, which.hi):
            if len(page.messages) == query.limit or size > PAGE_BYTES:
                _stop(page, query, last)
                break
            page.scanned += 1
            last = put
            if which.fits(put):
                size += len(put)
                with contextlib.suppress(Damaged):
                    page.messages.append(unpack_put(put))
            if page.scanned % _LOOK_EACH == 0 and clock.steady_us() > end_us:
                _stop(page, query, last)
                break
        page.damaged = len(snapshot.problems())
    return page


def _stop(page: Page, query: Query, last: bytes) -> None:
    """End a page before the end of the walk: `last` is the last message that was looked at."""
    page.next_id = MessageId(last[ID])
    page.reached_us = page.next_id.due_us - (due_of(DEAD_FLOOR) if query.dead else 0)


def _puts(snapshot: Snapshot, lo: bytes, hi: bytes) -> Iterator[bytes]:
    """Walk in windows, the first of them small: it has most pages."""
    budget = _FIRST
    while lo < hi:
        window = snapshot.window(lo, hi, budget)
        yield from window.puts
        lo, budget = window.hi, WALK_BUDGET
