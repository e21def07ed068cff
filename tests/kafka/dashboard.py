"""The dashboard and the table of the page, made from the table of what a node measures (meters.py).

    python -m tests.kafka.dashboard > docs/examples/kafka/grafana.json
    python -m tests.kafka.dashboard --table

Invariant: each meter has exactly one panel, in the row of its group.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from filewheel.kafka.node.meters import GROUPS, LEVEL_METERS, METERS, Kind, Meter

WIDTH, HEIGHT, A_ROW = 8, 7, 3
SELECT = 'topic=~"$topic"'
UNITS = {"seconds": "s", "bytes": "bytes"}


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


def unit(meter: Meter) -> str:
    """Return Grafana's name of a meter's unit."""
    if meter.kind is Kind.COUNTER:
        return "cps"
    return next((shown for end, shown in UNITS.items() if meter.name.endswith(f"_{end}")), "short")


def panel(meter: Meter, number: int, x: int, y: int) -> dict[str, Any]:
    """Return the panel of a meter."""
    title = meter.name.removesuffix("_total").replace("_", " ")
    if meter.kind is Kind.HISTOGRAM:
        title += ", p99"
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": meter.help,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit(meter)}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "expr": expression(meter),
                "legendFormat": f"{{{{{meter.label or 'node'}}}}}" if meter.kind is not Kind.HISTOGRAM else "p99",
            }
        ],
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for group in GROUPS:
        panels.append(
            {
                "id": len(panels) + 1, "type": "row", "title": group, "collapsed": False, "panels": [],
                "gridPos": {"h": 1, "w": WIDTH * A_ROW, "x": 0, "y": y},
            }
        )  # fmt: skip
        y += 1
        meters = [meter for meter in (*METERS, *LEVEL_METERS) if meter.group == group]
        for n, meter in enumerate(meters):
            panels.append(panel(meter, len(panels) + 1, n % A_ROW * WIDTH, y + n // A_ROW * HEIGHT))
        y += -(-len(meters) // A_ROW) * HEIGHT
    query = "label_values(filewheel_kafka_partitions, topic)"
    return {
        "uid": "filewheel-kafka",
        "title": "filewheel: the delay service on Kafka",
        "tags": ["filewheel", "kafka"],
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "topic", "type": "query", "query": query, "multi": True, "includeAll": True,
                    "datasource": {"type": "prometheus", "uid": "${datasource}"}, "refresh": 2,
                },
            ]
        },
        "panels": panels,
    }  # fmt: skip


def as_json() -> str:
    """Return the file of the dashboard."""
    return json.dumps(dashboard(), indent=1) + "\n"


def table(meters: Sequence[Meter] = METERS) -> str:
    """Return a table of the page."""
    lines = ["| metric | kind | label | meaning |", "| --- | --- | --- | --- |"]
    for meter in meters:
        values = ": " + ", ".join(f"`{value}`" for value in meter.values) if meter.values else ""
        label = f"`{meter.label}`{values}" if meter.label else ""
        lines.append(f"| `{meter.full_name}` | {meter.kind.value} | {label} | {meter.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n{table(LEVEL_METERS)}" if "--table" in sys.argv[1:] else as_json())
