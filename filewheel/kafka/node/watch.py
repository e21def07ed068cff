"""Looks at the log from outside, every few seconds: where it begins and ends, and how long it still keeps what waits.

A wheel is a copy. While the log holds the records from `low` on, any node can make it again; once retention has deleted
one of them, a lost disk loses records. The watch warns before that.
Owns the last figures of each partition. The questions wait for the cluster, so they run beside the threads of the
service, one round at a time. Invariants: what the cluster does not answer is unknown, never 0. A topic that was deleted
and made anew ends the node: the new one has other records at the offsets that were read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from filewheel.env import Clock
from filewheel.errors import ClusterError, FilewheelError, NoBroker, WrongSource
from filewheel.kafka.node.owner import Owner, PartitionState
from filewheel.kafka.node.tally import NodeCounters
from filewheel.kafka.node.transport import Topics, Transport
from filewheel.message import US_PER_S

log = logging.getLogger("filewheel.kafka")

LOOK_S = 15.0
"""The time between two looks."""
SOON_S = 1.0
"""The time until a look that is wanted soon."""
WARN_SHARE = 0.1
"""Warn when the record at `low` is deleted within this share of the retention."""


@dataclass(frozen=True, slots=True)
class LogFigures:
    """The log of one partition, as it was at the last look."""

    start: int
    end: int
    margin_s: float | None = None
    """How long the log still keeps the record at `low`; None: for ever, or not known."""
    is_short: bool = False
    """A lost wheel could not be rebuilt, or soon can not be."""


class LogWatch:
    """The figures of the logs that this node reads."""

    def __init__(
        self,
        transport: Transport,
        topics: Topics,
        owner: Owner,
        tally: NodeCounters,
        clock: Clock,
        run: Callable[[Callable[[], None]], None],
    ) -> None:
        """`topics`: as they were when the node started."""
        self.topics = topics
        """As they were at the last look."""
        self._transport = transport
        self._owner = owner
        self._tally = tally
        self._clock = clock
        self._run = run
        self._lock = threading.Lock()
        self._figures: dict[int, LogFigures] = {}
        self._next_us = 0
        self._is_looking = False
        self._is_ended = False
        self._stamps: dict[int, tuple[int, int]] = {}
        """The offset that was asked for last, and the timestamp of its record, by partition."""
        self.looks = 0
        """How often the cluster had an answer to everything."""
        self.silence = ""
        """What the last look had no answer to."""
        self.retention_ms: int | None = None
        """How long the delay topic keeps a record; None: for ever, or not known."""
        self.followed: Callable[[], Mapping[int, int]] = dict
        """The partitions whose logs are of interest beside the owned ones."""

    def figures(self) -> dict[int, LogFigures]:
        """Return the figures of the last look, by partition."""
        with self._lock:
            return dict(self._figures)

    def hurry(self) -> None:
        """Look soon: a client met a trouble, and the topic may be another one."""
        self._next_us = min(self._next_us, self._clock.steady_us() + round(SOON_S * US_PER_S))

    def step(self) -> None:
        """Begin a look if it is time. Does not wait."""
        now_us = self._clock.steady_us()
        if self._is_looking or now_us < self._next_us:
            return
        self._next_us = now_us + round(LOOK_S * US_PER_S)
        self._is_looking = True
        self._run(self._look_safely)

    def _look_safely(self) -> None:
        try:
            self.look()
            self.looks, self.silence = self.looks + 1, ""
        except ClusterError as exc:
            self.silence = exc.what
            if isinstance(exc, NoBroker) or not self._tally.may_say(exc.what):
                log.info("the log was not looked at: %s", exc)
            else:
                log.warning("%s", exc)
        except WrongSource:
            raise
        except Exception as exc:  # a mistake of ours: it must not end the service, and the watchdog says that it stays
            self.silence = repr(exc)
            if self._tally.may_say("look"):
                log.exception("the log could not be looked at")
        finally:
            self._is_looking = False

    def look(self) -> None:
        """Ask the cluster for the topics, and for the figures of all partitions.

        Raises WrongSource when the delay topic is another one now; ClusterError.
        """
        self._look_at_logs()
        topics = self._transport.check()
        if (topics.cluster_id, topics.topic_id) != (self.topics.cluster_id, self.topics.topic_id):  # mutant: kafka-anew
            raise WrongSource(
                f"the delay topic was deleted and made anew: its id was {self.topics.topic_id}, and is now "
                f"{topics.topic_id}"
                if topics.cluster_id == self.topics.cluster_id
                else f"the brokers are those of another cluster now, {topics.cluster_id}",
                hint="stop all nodes, delete the topic of its markers and the data directories, and make them anew by "
                "`filewheel kafka init`: then everything that the new topic holds goes out",
            )
        self.topics = topics

    def _look_at_logs(self) -> None:
        lows = self._lows()
        partitions = sorted({*lows, *self.followed()})
        # Before there are partitions, too: the first records are compared with it.
        self.retention_ms = self._transport.retention_ms()
        ranges = self._transport.ranges(partitions) if partitions else {}
        figures = {p: self._figures_of(p, *ranges[p], lows.get(p)) for p in partitions if p in ranges}
        with self._lock:
            self._figures = figures

    def _lows(self) -> dict[int, int]:
        """Return `low` of each partition that fires."""
        found = {}
        for owned in list(self._owner.owned.values()):
            wheel = owned.wheel
            if wheel is not None and owned.state is PartitionState.ACTIVE:
                try:
                    found[owned.partition] = wheel.low()
                except FilewheelError:  # its own thread reports it
                    continue
        return found

    def _figures_of(self, partition: int, start: int, end: int, low: int | None) -> LogFigures:
        if low is None or low >= end or self.retention_ms is None:
            is_short = low is not None and low < start
            self._warn(partition, low, start, None, is_short=is_short)
            return LogFigures(start, end, None, is_short)
        stamp_ms = self._stamp(partition, max(low, start))
        margin_s = None
        if stamp_ms is not None:
            margin_s = (stamp_ms + self.retention_ms) / 1000 - self._clock.now_us() / US_PER_S
        is_short = low < start or (margin_s is not None and margin_s < self.retention_ms / 1000 * WARN_SHARE)
        self._warn(partition, low, start, margin_s, is_short=is_short)
        return LogFigures(start, end, margin_s, is_short)

    def _stamp(self, partition: int, offset: int) -> int | None:
        """Return the timestamp of a record. It never changes, and `low` seldom does: each is asked for once."""
        known = self._stamps.get(partition)
        if known is not None and known[0] == offset:
            return known[1]
        if self._is_ended:
            return None
        stamp_ms = self._transport.timestamp_at(partition, offset)
        if stamp_ms is not None:
            self._stamps[partition] = (offset, stamp_ms)
        return stamp_ms

    def end(self) -> None:
        """Ask no more: a look that is under way ends soon."""
        self._is_ended = True

    def _warn(self, partition: int, low: int | None, start: int, margin_s: float | None, *, is_short: bool) -> None:
        if not is_short or not self._tally.may_say(f"margin {partition}"):
            return
        if low is not None and low < start:
            log.warning(
                "partition %d: the log begins at offset %d, and records from offset %d on wait: a lost wheel cannot be "
                "rebuilt. Keep this data directory, and raise retention.ms of the delay topic",
                partition,
                start,
                low,
            )
        else:
            log.warning(
                "partition %d: in %.0f s the log deletes a record that waits; then a lost wheel cannot be rebuilt. "
                "Raise retention.ms of the delay topic with `filewheel kafka init --retention ... --alter`",
                partition,
                margin_s or 0.0,
            )
