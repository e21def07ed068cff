"""The metrics of the levels, read from the loop at each request and from another thread.

Invariant: each family stands in the table (node/meters.py), and reading changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from filewheel.kafka.levels.loop import LevelLoop, LevelPartition
from filewheel.kafka.node.fire import FiringStage
from filewheel.kafka.node.meters import LEVEL_METERS
from filewheel.message import US_PER_S
from filewheel.metrics.prometheus import Family, Sample


def families_of(loop: LevelLoop, names: Mapping[str, str], now_us: int) -> list[Family]:
    """Return the metrics of a loop; `names` has the level of each topic."""
    found = loop.partitions.copy()

    def by_topic(
        value: Callable[[LevelPartition], float], join: Callable[[list[float]], float] = sum
    ) -> dict[str, float]:
        values = {topic: [value(one) for place, one in found.items() if place[0] == topic] for topic in names}
        return {topic: join(each or [0]) for topic, each in values.items()}

    values: dict[str, Mapping[str, float]] = {
        "level_forwarded_total": loop.forwarded,
        "level_read": by_topic(lambda one: one.queue.waiting),
        "level_late_seconds": by_topic(lambda one: max(one.firing.counts.late_us, 0) / US_PER_S, max),
        "level_overdue_seconds": by_topic(lambda one: max(now_us - (one.first_due_us or now_us), 0) / US_PER_S, max),
        "level_partitions": by_topic(lambda one: 1),
        "level_partitions_stalled": by_topic(lambda one: one.firing.stage is FiringStage.BACKING_OFF),
        "level_gaps_total": loop.gaps,
    }
    families = []
    for meter in LEVEL_METERS:
        samples = [
            Sample(meter.full_name, ((meter.label, names[topic]),), value)
            for topic, value in values[meter.name].items()
        ]
        families.append(Family(meter.full_name, meter.kind.value, meter.help, samples))
    return families
