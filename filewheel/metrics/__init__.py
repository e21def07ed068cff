"""Metrics of one process, the text format of Prometheus, and the file with a scheduler's published metrics."""

from filewheel.metrics.gauges import disk_gauges, overdue_of
from filewheel.metrics.metrics import PREFIX, Metrics, summary
from filewheel.metrics.prometheus import GAUGE, Family, Sample, gauge, render, with_labels
from filewheel.metrics.published import Published, read_published, together

__all__ = [
    "GAUGE",
    "PREFIX",
    "Family",
    "Metrics",
    "Published",
    "Sample",
    "disk_gauges",
    "gauge",
    "overdue_of",
    "read_published",
    "render",
    "summary",
    "together",
    "with_labels",
]
