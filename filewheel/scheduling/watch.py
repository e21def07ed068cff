"""What the scheduler tells of itself: counters, histograms, events and log lines, all from one place.

Invariant: nothing here decides anything; whatever fails in telling stops nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from filewheel.message import Message
from filewheel.scheduling.failure import Failure
from filewheel.scheduling.verdict import Verdict

log = logging.getLogger(__name__)


class Watch:
    """Takes note of what happens to messages."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def fired(self, handler: str, messages: Sequence[Message], now_us: int) -> None:
        """Note that a call begins."""
        self.counts["fired", handler] += len(messages)

    def ended(self, handler: str, took_us: int) -> None:
        """Note that a call ended."""

    def failed(self, message: Message, failure: Failure, verdict: Verdict) -> None:
        """Note that a call failed."""

    def settled(self, verdicts: Sequence[tuple[Message, Verdict]]) -> None:
        """Note what became of messages, once it is written."""
        for message, verdict in verdicts:
            self.counts[verdict.kind, message.topic] += 1
