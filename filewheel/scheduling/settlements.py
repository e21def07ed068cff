"""The settlements that the dispatcher has to write: collected one by one, written in batches.

On a full disk they wait and are written later. Plain successes are acknowledged in one call, by their ids.
Invariant: each claimed message is counted in `claimed` until its settlement is written, or another keeper fires it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from filewheel.env import Clock
from filewheel.errors import Damaged, DiskError, Fenced, FilewheelError, Locked, WheelFull
from filewheel.format.settings import Sync
from filewheel.message import RESULT, US_PER_S, Message
from filewheel.runs.run import EXPIRED, Detail
from filewheel.scheduling.claims import Claims
from filewheel.scheduling.events import Telemetry
from filewheel.scheduling.verdict import Verdict

log = logging.getLogger("filewheel.scheduling.dispatcher")

_FULL_RETRY_US = US_PER_S
NOT_RUN = Detail()

Report = Callable[[bytes, Detail], None]


class Settlements:
    """The verdicts of one keeper's messages that are not written yet. Belongs to the dispatcher's thread."""

    def __init__(
        self, keeper: Claims, clock: Clock, telemetry: Telemetry, puts_sync: Sync, report: Report | None = None
    ) -> None:
        """`report` takes what the history of runs does not know by itself."""
        self._report = report
        self._keeper = keeper
        self._clock = clock
        self._telemetry = telemetry
        self._puts_sync = puts_sync
        self._acknowledged: list[Message] = []
        self._verdicts: list[tuple[Message, Verdict]] = []
        self._retry_us = 0
        self._left: list[tuple[Message, Verdict]] = []
        self._left_retry_us = 0
        self.left: FilewheelError | None = None
        """Why some settlements wait for one bad file; the others are written."""
        self.full: WheelFull | None = None
        """Why some settlements cannot be written now."""
        self.claimed = 0
        """Messages that are claimed and not settled."""
        self.settled = 0
        """Messages that were settled so far."""

    def acknowledge(self, message: Message, ran: Detail) -> None:
        """Note that a message's call returned, without a next occurrence or a transaction."""
        self._acknowledged.append(message)
        if self._report is not None:
            self._report(message.id, ran)

    def add(self, message: Message, verdict: Verdict, ran: Detail = NOT_RUN) -> None:
        """Note the verdict on a message, and how its call ran."""
        self._verdicts.append((message, verdict))
        if self._report is not None and verdict.kind != "deferred":
            outcome = "acked" if verdict.kind == "acknowledged" else verdict.kind
            self._report(message.id, ran._replace(outcome=outcome))

    def count(self, number: int) -> None:
        """Note that this many messages are settled."""
        self.claimed -= number
        self.settled += number

    def _count(self, verdicts: Sequence[tuple[Message, Verdict]]) -> None:
        """Count verdicts that are written; a result that has expired is no work that was done."""
        self.count(len(verdicts))
        self.settled -= sum(v.kind == EXPIRED for _, v in verdicts)

    def retry_now(self) -> None:
        """Try at the next `write`, even if an attempt failed a moment ago."""
        self._retry_us = self._left_retry_us = 0

    def write(self) -> bool:
        """Write the noted settlements; return whether any were. On a full disk, or for a bad file, they wait."""
        if self._left and self._clock.steady_us() >= self._left_retry_us:
            self._verdicts, self._left = [*self._left, *self._verdicts], []
        acknowledged, verdicts = self._acknowledged, self._verdicts
        if not (acknowledged or verdicts) or (self._retry_us and self._clock.steady_us() < self._retry_us):
            return False
        try:
            if acknowledged:
                self._keeper.ack([m.id for m in acknowledged])
                self._acknowledged = []
                self.count(len(acknowledged))
                self._telemetry.acknowledged(acknowledged)
            if verdicts:
                self._settle(verdicts)
        except WheelFull as exc:
            self._wait_for_room(exc)
            return False
        except (Fenced, Locked):
            unwritten = self._keep_unwritten()
            log.warning("%d messages were not put back: another keeper fires them now", len(unwritten))
            self._verdicts = []
        self._retry_us, self.full = 0, None
        return True

    def _settle(self, verdicts: list[tuple[Message, Verdict]]) -> None:
        """Write verdicts; those that need one bad file are left for later, so that all others go on."""
        # A message that a job enqueued must be durable before it is called: after a power cut the job would enqueue it
        # again, under another id.
        # A result needs no flush: without it its call has not ended either.
        puts = any(RESULT not in put.headers for _, v in verdicts for put in v.settlement.puts)
        sync = self._puts_sync if puts else "never"
        try:
            moved_to = self._keeper.settle([v.settlement for _, v in verdicts], sync=sync)
        except (Damaged, DiskError) as exc:
            if not exc.is_of_one_file:
                raise
            self._leave(exc)
            return
        self._verdicts = []
        self.left = self.left if self._left else None
        self._count(verdicts)
        self._telemetry.settled(verdicts, moved_to)

    def _leave(self, exc: FilewheelError) -> None:
        """Leave what one bad file kept from being written, to be tried again each second."""
        left = self._keep_unwritten()
        self._verdicts = []
        self._left += left
        self._left_retry_us = self._clock.steady_us() + _FULL_RETRY_US
        if self.left is None:
            log.error("the outcomes of %d messages wait: %s", len(left), exc)
        self.left = exc

    def _wait_for_room(self, exc: WheelFull) -> None:
        self.full = exc
        self._retry_us = self._clock.steady_us() + _FULL_RETRY_US
        count = len(self._acknowledged) + len(self._keep_unwritten())
        log.critical("the outcomes of %d messages cannot be written yet: %s", count, exc)

    def _keep_unwritten(self) -> Sequence[tuple[Message, Verdict]]:
        """Report the written verdicts; keep and return the others."""
        written = [(m, v) for m, v in self._verdicts if not self._keeper.holds(m.id)]
        self._verdicts = [(m, v) for m, v in self._verdicts if self._keeper.holds(m.id)]
        self._count(written)
        self._telemetry.settled(written)
        return self._verdicts
