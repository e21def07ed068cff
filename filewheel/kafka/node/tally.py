"""What a node counts: records, units, take-overs, and how late they were.

A partition comes and goes; its counts stay here, because a counter of Prometheus only grows. Counting costs a lock and
two look-ups for each batch, not for each record.
Invariant: concurrent counts are never lost, and only names and labels of the table (meters.py) are counted.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter

from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.kafka.node.meters import METERS, Kind
from filewheel.kafka.records.headers import ERROR, kind_of_reason
from filewheel.kafka.records.record import Outgoing
from filewheel.message import US_PER_S
from filewheel.metrics.metrics import BOUNDS_S

_TOPIC = attrgetter("topic")
AGAIN_S = 3600
"""How long something that repeats is not logged again."""


class NodeCounters:
    """The counters and histograms of one node. Thread-safe."""

    def __init__(self, topic: str = "", dead_letter_topic: str = "", *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Start at zero. The two topics tell what becomes of a record by where it goes."""
        self._clock = clock
        self._back = topic
        self._dead = dead_letter_topic
        self._lock = threading.Lock()
        self._counts = {
            meter.name: dict.fromkeys(meter.values or ("",), 0) for meter in METERS if meter.kind is Kind.COUNTER
        }
        histograms = [meter.name for meter in METERS if meter.kind is Kind.HISTOGRAM]
        self._buckets = {name: [0] * (len(BOUNDS_S) + 1) for name in histograms}
        self._sums_s = dict.fromkeys(histograms, 0.0)
        self._assigned_us: dict[int, int] = {}
        self._said_us: dict[str, int] = {}

    # -- counting --------------------------------------------------------------------------------------------

    def count(self, name: str, n: int = 1, *, label: str = "") -> None:
        """Count `n` more."""
        with self._lock:
            self._counts[name][label] += n

    def count_all(self, name: str, counts: Mapping[str, int]) -> None:
        """Count several labels."""
        for label, n in counts.items():
            self.count(name, n, label=label)

    def observe(self, name: str, values_us: Iterable[int]) -> None:
        """Add durations in microseconds; less than 0 counts as 0. Cost: 0.2 µs each."""
        with self._lock:
            buckets = self._buckets[name]
            sum_us = 0
            for value_us in values_us:
                value_us = max(value_us, 0)
                buckets[bisect_left(BOUNDS_S, value_us / US_PER_S)] += 1
                sum_us += value_us
            self._sums_s[name] += sum_us / US_PER_S

    def took_in(self, targets: Iterable[str]) -> None:
        """Count records that were taken in, by the topics that they go to; "" is a cancellation."""
        for target, n in Counter(targets).items():
            self.count("in_total", n, label=self._in(target))

    def sent_out(self, records: Sequence[Outgoing], replaced: Collection[int]) -> None:
        """Count records that were confirmed. `replaced`: the indexes of those sent instead of a refused one.

        Cost: 0.05 µs each.
        """
        targets = Counter(map(_TOPIC, records))
        back = sum(records[n].topic == self._back for n in replaced)
        for target, n in targets.items():
            outcome = self._out(target)
            self.count("out_total", n - back if outcome == "rolled" else n, label=outcome)
        self.count("out_total", back, label="put_back")
        if self._dead in targets:
            dead = [(n, record) for n, record in enumerate(records) if record.topic == self._dead]
            kinds = ("refused" if n in replaced else _reason(record) for n, record in dead)
            self.count_all("dead_letters_total", Counter(kind for kind in kinds if kind))

    def was_late(self, ids: Sequence[bytes], now_us: int) -> None:
        """Add the lateness of messages, by their ids in ascending order. Cost: 0.05 µs each."""
        if not ids:
            return
        dues = struct.unpack(">" + "Q8x" * len(ids), b"".join(ids))  # in 1/64 µs
        buckets = [0] * (len(BOUNDS_S) + 1)
        left = len(ids)
        for n, bound_s in enumerate(BOUNDS_S):
            # Those with less lateness than the bound are due after this.
            first = bisect_left(dues, now_us - round(bound_s * US_PER_S) << 6, 0, left)
            buckets[n], left = left - first, first
            if not left:
                break
        buckets[-1] = left
        early = bisect_left(dues, now_us + 1 << 6)  # a clock that was set back
        sum_us = now_us * early - (sum(dues[:early]) >> 6)
        with self._lock:
            self._buckets["lateness_seconds"] = [
                had + new for had, new in zip(self._buckets["lateness_seconds"], buckets, strict=True)
            ]
            self._sums_s["lateness_seconds"] += sum_us / US_PER_S

    def _out(self, target: str) -> str:
        if target == self._dead:
            return "dead_letter"
        return "rolled" if target == self._back else "delivered"

    def _in(self, target: str) -> str:
        if target == self._dead:
            return "dead_letter"
        return "rolled" if target == self._back else "delayed" if target else "cancelled"

    # -- take-overs ------------------------------------------------------------------------------------------

    def assigned(self, partition: int) -> None:
        """A partition became ours."""
        with self._lock:
            self._assigned_us[partition] = self._clock.steady_us()

    def fires(self, partition: int) -> None:
        """A partition fires from now on. One that only got another sink counts no take-over."""
        with self._lock:
            since_us = self._assigned_us.pop(partition, None)
        if since_us is not None:
            self.count("takeovers_total")
            self.observe("takeover_seconds", [self._clock.steady_us() - since_us])

    def gave_away(self, partition: int) -> None:
        """A partition is not ours any more."""
        with self._lock:
            self._assigned_us.pop(partition, None)

    def may_say(self, what: str) -> bool:
        """Return whether to log something that repeats: at first, and once an hour."""
        now_us = self._clock.steady_us()
        with self._lock:
            said_us = self._said_us.get(what)
            if said_us is not None and now_us - said_us < AGAIN_S * US_PER_S:
                return False
            self._said_us[what] = now_us
            return True

    # -- reading ---------------------------------------------------------------------------------------------

    def counts(self, name: str) -> dict[str, int]:
        """Return a counter by label."""
        with self._lock:
            return dict(self._counts[name])

    def times(self, name: str) -> tuple[list[int], float]:
        """Return a histogram: the count of each bucket (not cumulative), and the sum in seconds."""
        with self._lock:
            return self._buckets[name].copy(), self._sums_s[name]


def _reason(record: Outgoing) -> str:
    """Return the kind of reason that a dead letter names; "" for a record whose target is the dead-letter topic."""
    reason = dict(record.headers).get(ERROR)
    return "" if reason is None else kind_of_reason(reason.decode("utf-8", "replace"))
