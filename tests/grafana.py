"""Dashboards for Grafana, laid out from groups of panels; what a panel asks is the business of its maker.

Invariant: no panel lies on another, and each has a number of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT, A_ROW = 8, 7, 3
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    help: str
    expression: str
    legend: str
    unit: str


def unit_of(name: str, *, is_counter: bool = False) -> str:
    """Return Grafana's name of the unit of a metric."""
    if is_counter:
        return "cps"
    return "s" if name.endswith("_seconds") else "bytes" if name.endswith("_bytes") else "short"


def board(
    uid: str, title: str, tags: Sequence[str], groups: Mapping[str, Sequence[Panel]], *, label: str, values: str
) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it: a row for each group, and a choice of the values of a label."""
    panels: list[dict[str, Any]] = []
    y = 0
    for group, members in groups.items():
        panels.append(
            {
                "id": len(panels) + 1, "type": "row", "title": group, "collapsed": False, "panels": [],
                "gridPos": {"h": 1, "w": WIDTH * A_ROW, "x": 0, "y": y},
            }
        )  # fmt: skip
        y += 1
        for n, panel in enumerate(members):
            panels.append(_drawn(panel, len(panels) + 1, n % A_ROW * WIDTH, y + n // A_ROW * HEIGHT))
        y += -(-len(members) // A_ROW) * HEIGHT
    return {
        "uid": uid,
        "title": title,
        "tags": list(tags),
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": label, "type": "query", "query": values, "multi": True, "includeAll": True,
                    "datasource": SOURCE, "refresh": 2,
                },
            ]
        },
        "panels": panels,
    }  # fmt: skip


def _drawn(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [{"refId": "A", "expr": panel.expression, "legendFormat": panel.legend}],
    }


def as_json(found: dict[str, Any]) -> str:
    """Return the file of a dashboard."""
    return json.dumps(found, indent=1) + "\n"


def cells_of(found: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the cells that the panels cover, each as often as it is covered."""
    places = [panel["gridPos"] for panel in found["panels"]]
    return [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
