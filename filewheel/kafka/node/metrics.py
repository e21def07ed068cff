"""The metrics of a node, as families of samples.

Each gauge is read when it is asked for, without a lock of the service. A partition that goes away in between is left
out.
Invariant: each family stands in the table (meters.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from filewheel.env import Clock
from filewheel.errors import FilewheelError, WheelFull
from filewheel.kafka.node.fire import FiringStage
from filewheel.kafka.node.health import NodeHealth
from filewheel.kafka.node.meters import METERS, Kind, Meter
from filewheel.kafka.node.owner import Owned, Owner, PartitionState
from filewheel.kafka.node.tally import NodeCounters
from filewheel.kafka.node.watch import LogWatch
from filewheel.message import US_PER_S
from filewheel.metrics.metrics import histogram
from filewheel.metrics.prometheus import Family, Sample

Values = dict[str, float]
"""Label → value; the label is "" when there is none."""


@dataclass
class NodeMetrics:
    """Reads the metrics of one node. From any thread."""

    owner: Owner
    tally: NodeCounters
    watch: LogWatch
    clock: Clock
    health: Callable[[], NodeHealth]
    standby: Callable[[], Mapping[int, int]]
    """How far each wheel of the standby has taken its log in."""
    clock_offset_us: Callable[[], int | None] = lambda: None
    """This clock minus that of the brokers; None when it is not known."""

    def families(self) -> list[Family]:
        """Return everything, in the order of the table; what is not known is left out."""
        gauges = self._gauges()
        families = [self._family(meter, gauges) for meter in METERS]
        return [family for family in families if family.samples]

    def _family(self, meter: Meter, gauges: Mapping[str, Values]) -> Family:
        name = meter.full_name
        if meter.kind is Kind.HISTOGRAM:
            return Family(name, meter.kind.value, meter.help, histogram(name, (), *self.tally.times(meter.name)))
        values: Mapping[str, float] = (
            self.tally.counts(meter.name) if meter.kind is Kind.COUNTER else gauges.get(meter.name, {})
        )
        samples = [Sample(name, ((meter.label, label),) if label else (), value) for label, value in values.items()]
        return Family(name, meter.kind.value, meter.help, samples)

    def _gauges(self) -> dict[str, Values]:
        found = self._of_node()
        for owned in sorted(self.owner.owned.values(), key=lambda o: o.partition):
            for name, value in self._of_partition(owned):
                found.setdefault(name, {})[str(owned.partition)] = value
        for partition, figures in sorted(self.watch.figures().items()):
            found.setdefault("log_start_offset", {})[str(partition)] = figures.start
            if figures.margin_s is not None:
                found.setdefault("margin_seconds", {})[str(partition)] = figures.margin_s
        return found

    def _of_node(self) -> dict[str, Values]:
        every = list(self.owner.owned.values())
        standby = self.standby()
        figures = self.watch.figures()
        problems = Counter(problem.severity for problem in self.health().problems)
        found: dict[str, Values] = {
            "partitions": {
                s.value: sum(o.state is s for o in every) for s in PartitionState if s is not PartitionState.GONE
            },
            "partitions_standby": {"": len(standby)},
            "partitions_stalled": {"": sum(_is_stalled(o) for o in every)},
            "partitions_paused": {"": sum(o.is_paused for o in every)},
            "partitions_disk_full": {"": sum(isinstance(o.error, WheelFull) for o in every)},
            "standby_lag_records": {str(p): max(figures[p].end - n, 0) for p, n in standby.items() if p in figures},
            "problems": {severity: problems[severity] for severity in ("failing", "warning")},
        }
        if self.watch.retention_ms is not None:
            found["retention_seconds"] = {"": self.watch.retention_ms / 1000}
        offset_us = self.clock_offset_us()
        if offset_us is not None:
            found["clock_offset_seconds"] = {"": offset_us / US_PER_S}
        return found

    def _of_partition(self, owned: Owned) -> Iterator[tuple[str, float]]:
        yield "queue_records", owned.queued
        yield "queue_bytes", owned.queued_bytes
        wheel = owned.wheel
        figures = self.watch.figures().get(owned.partition)
        if wheel is None:
            return
        ingested = wheel.ingested
        yield "ingested_offset", ingested
        if figures is not None:
            yield "lag_records", max(figures.end - ingested, 0)
        try:
            waiting, low, due_us = wheel.waiting, wheel.low(), wheel.next_due_us()
        except FilewheelError:  # it was closed meanwhile, or failed: its state says so
            return
        if waiting is not None:
            yield "waiting", waiting
        in_hand_us = owned.firing.first_due_us if owned.firing is not None else None
        dues_us = [us for us in (due_us, in_hand_us) if us is not None]
        overdue_us = self.clock.now_us() - min(dues_us) if dues_us else 0
        yield "overdue_seconds", max(overdue_us, 0) / US_PER_S
        if owned.state is PartitionState.ACTIVE:
            yield "low_offset", low
            if figures is not None:
                yield "margin_records", low - figures.start


def _is_stalled(owned: Owned) -> bool:
    return owned.firing is not None and owned.firing.stage is FiringStage.BACKING_OFF
