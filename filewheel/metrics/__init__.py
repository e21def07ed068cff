"""Counters, histograms and gauges of one process, the text format of Prometheus, and the file in which a scheduler
publishes its own.
"""

from filewheel.metrics.metrics import PREFIX, Metrics, summary

__all__ = ["PREFIX", "Metrics", "summary"]
