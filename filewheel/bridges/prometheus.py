"""Metrics for prometheus_client: a collector for a program that exposes a registry.

    REGISTRY.register(collector(metrics))

Invariant: each scrape reads the current metrics, with the names of `Metrics.text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from filewheel.bridges.extra import need
from filewheel.metrics.metrics import Metrics
from filewheel.metrics.prometheus import COUNTER, with_labels

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector


def collector(metrics: Metrics, labels: Mapping[str, str] | None = None) -> Collector:
    """Return a collector to register with prometheus_client; it adds `labels` to each sample.

    The labels distinguish several wheels of one process: `{"wheel": "jobs"}`.

    Raises BadArgument when prometheus_client is not installed.
    """
    core: Any = need("prometheus_client.metrics_core", "prometheus")
    base: Any = need("prometheus_client.registry", "prometheus").Collector
    fixed = dict(labels or {})

    def collect(_: object) -> Iterator[Metric]:
        for family in with_labels(metrics.families(), fixed):
            name = family.name.removesuffix("_total") if family.kind == COUNTER else family.name
            metric = core.Metric(name, family.help, family.kind)
            for sample in family.samples:
                metric.add_sample(sample.name, dict(sample.labels), sample.value)
            yield metric

    def describe(_: object) -> list[Metric]:
        return []  # otherwise registration would read every gauge for its name

    made = type("FilewheelCollector", (base,), {"collect": collect, "describe": describe})
    found: Collector = made()
    return found
