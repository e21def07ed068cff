"""The dashboard and the table of the page, made from the table of what a node measures (meters.py).

    python -m tests.kafka.dashboard > docs/examples/kafka/grafana.json
    python -m tests.kafka.dashboard --table

Invariant: each meter has exactly one panel, in the row of its group.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from filewheel.kafka.node.meters import GROUPS, LEVEL_METERS, METERS, Kind, Meter
from tests.grafana import Panel, as_json, board, unit_of

SELECT = 'topic=~"$topic"'


def expression(meter: Meter) -> str:
    """Return the query of a meter: a rate, a quantile, or the value of each node."""
    name = f"{meter.full_name}{{{SELECT}}}"
    if meter.kind is Kind.COUNTER:
        by = f" by ({meter.label})" if meter.label else ""
        return f"sum{by} (rate({name}[5m]))"
    if meter.kind is Kind.HISTOGRAM:
        return f"histogram_quantile(0.99, sum by (le) (rate({meter.full_name}_bucket{{{SELECT}}}[5m])))"
    by = f"by ({meter.label})" if meter.label else "by (node)"
    is_worst = meter.label == "partition" or meter.name.endswith("_seconds")
    worst = "min" if meter.name.startswith("margin") else "max" if is_worst else "sum"
    return f"{worst} {by} ({name})"


def panel(meter: Meter) -> Panel:
    """Return the panel of a meter."""
    is_histogram = meter.kind is Kind.HISTOGRAM
    return Panel(
        meter.name.removesuffix("_total").replace("_", " ") + (", p99" if is_histogram else ""),
        meter.help,
        expression(meter),
        "p99" if is_histogram else f"{{{{{meter.label or 'node'}}}}}",
        unit_of(meter.name, is_counter=meter.kind is Kind.COUNTER),
    )


def dashboard() -> dict[str, Any]:
    """Return the dashboard, as Grafana imports it."""
    meters = (*METERS, *LEVEL_METERS)
    groups = {group: [panel(meter) for meter in meters if meter.group == group] for group in GROUPS}
    return board(
        "filewheel-kafka", "filewheel: the delay service on Kafka", ("filewheel", "kafka"), groups,
        label="topic", values="label_values(filewheel_kafka_partitions, topic)",
    )  # fmt: skip


def table(meters: Sequence[Meter] = METERS) -> str:
    """Return a table of the page."""
    lines = ["| metric | kind | label | meaning |", "| --- | --- | --- | --- |"]
    for meter in meters:
        values = ": " + ", ".join(f"`{value}`" for value in meter.values) if meter.values else ""
        label = f"`{meter.label}`{values}" if meter.label else ""
        lines.append(f"| `{meter.full_name}` | {meter.kind.value} | {label} | {meter.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n{table(LEVEL_METERS)}" if "--table" in sys.argv[1:] else as_json(dashboard()))
