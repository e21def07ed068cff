"""Counters, histograms and gauges of one process, cheap enough to be always on.

A count costs two dict look-ups under one lock, an observation a bisection more; text is formatted only on request.
Counts are labelled by handler. Topics without a handler count too, so the number of labels is limited: later ones
share the label "(other)".
Invariant: memory is bounded by HANDLERS_MAX, and concurrent counts are never lost.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from filewheel.checks import check_done, check_function, shown
from filewheel.errors import BadArgument
from filewheel.metrics.prometheus import COUNTER, GAUGE, HISTOGRAM, Family, Sample, is_name, render, with_labels

log = logging.getLogger(__name__)

PREFIX = "filewheel_"
HANDLERS_MAX = 1000
LABEL_CHARS_MAX = 255
OTHER = "(other)"

EVENTS = {
    "enqueued": "Messages enqueued by this process.",
    "fired": "Messages handed to a handler.",
    "acknowledged": "Messages whose handler returned.",
    "retried": "Messages put back for another attempt after a failure.",
    "dead": "Messages that became dead letters.",
    "skipped": "Messages not started because they were too late.",
    "coalesced": "Messages not started because a call of the same name started after they were due.",
    "missed": 'Occurrences of a schedule not started, with missed="skip", because they were too late.',
    "deferred": "Messages put back unstarted because of catch_up_per_s.",
    "timed_out": "Handlers that ran longer than they may.",
    "killed": "Calls that `filewheel kill` ended.",
    "unknown": "Messages that the firing program has no handler for, or whose schedule it does not declare or cannot "
    "read; the label is the topic.",
    "cancelled": "Messages cancelled by this process.",
    "dead_dropped": "Dead letters dropped because they were older than keep_dead_s.",
    "took_over": "How often this process became the keeper.",
}
"""The counters, named `filewheel_<event>_total`, with their help texts."""
_OF_NO_HANDLER = frozenset({"unknown", "took_over"})

TIMES = {
    "lateness": "From the due time to the start of the handler.",
    "handler": "How long a handler ran.",
    "sync": "How long one flush to the disk took.",
}
"""The histograms, named `filewheel_<what>_seconds`, with their help texts."""

BOUNDS_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
)
"""The upper bounds of the buckets, in seconds; a last bucket has the larger values."""


class _Times:
    """One histogram: the count of each bucket, and the sum."""

    __slots__ = ("buckets", "sum_s")

    def __init__(self, buckets: list[int] | None = None, sum_s: float = 0.0) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1) if buckets is None else buckets
        self.sum_s = sum_s


class _Gauge:
    __slots__ = ("failed", "help", "read")

    def __init__(self, help_: str, read: Callable[[], float | None]) -> None:
        self.help = help_
        self.read = read
        self.failed = False


class Metrics:
    """The counters, histograms and gauges of one process. Thread-safe."""

    def __init__(self, *, handlers_max: int = HANDLERS_MAX) -> None:
        """Start at zero. `handlers_max` bounds the handler labels."""
        # Reentrant: a signal handler may count during a count of its thread.
        self._lock = threading.RLock()
        self._counts: dict[str, dict[str, int]] = {event: {} for event in EVENTS}
        self._times: dict[str, dict[str, _Times]] = {what: {} for what in TIMES}
        self._gauges: dict[str, _Gauge] = {}
        self._handlers: set[str] = {"", OTHER}
        self._handlers_end = handlers_max + len(self._handlers)

    # -- counting --------------------------------------------------------------------------------------------

    def reserve(self, handlers: Iterable[str]) -> None:
        """Give these handlers labels and zero counters, before topics of unknown handlers can take the labels.

        A monitor detects the first increase only of an existing counter.
        """
        for handler in handlers:
            for event in EVENTS:
                if event not in _OF_NO_HANDLER:
                    self.count(event, handler, 0)

    def count(self, event: str, handler: str = "", n: int = 1) -> None:
        """Count an event `n` times. Cost: about 0.25 µs.

        Raises BadArgument when the event is unknown or `n` is negative.
        """
        if n < 0:
            raise BadArgument(f"a counter only grows: n is {n}")
        with self._lock:
            try:
                self._counts[event][handler] += n
            except KeyError:
                by_handler = _known(self._counts, event, "event")
                label = self._label(handler)
                by_handler[label] = by_handler.get(label, 0) + n

    def observe(self, what: str, handler: str, value_s: float) -> None:
        """Add a duration in seconds to a histogram; less than 0 counts as 0. Cost: about 0.35 µs.

        Raises BadArgument when no such thing is timed.
        """
        if not value_s > 0:  # a clock that was set back, or NaN, which would spoil the sum
            value_s = 0.0
        with self._lock:
            try:
                times = self._times[what][handler]
            except KeyError:
                times = _known(self._times, what, "time").setdefault(self._label(handler), _Times())
            times.buckets[bisect_left(BOUNDS_S, value_s)] += 1
            times.sum_s += value_s

    def observe_all(self, what: str, handler: str, values_s: Sequence[float]) -> None:
        """Add durations to a histogram, as `observe` adds one. Cost: about 0.15 µs each.

        Raises BadArgument when no such thing is timed.
        """
        if not values_s:
            return
        self.observe(what, handler, values_s[0])
        with self._lock:
            times = self._times[what].get(handler) or self._times[what][OTHER]
            buckets = times.buckets
            for value_s in values_s[1:]:
                if not value_s > 0:
                    value_s = 0.0
                buckets[bisect_left(BOUNDS_S, value_s)] += 1
                times.sum_s += value_s

    def _label(self, handler: str) -> str:
        """Return the label of a new handler name."""
        if handler in self._handlers:
            return handler
        if len(self._handlers) >= self._handlers_end or len(handler) > LABEL_CHARS_MAX:
            return OTHER
        self._handlers.add(handler)
        return handler

    def gauge(self, name: str, help: str, read: Callable[[], float | None]) -> None:
        """Register the gauge `filewheel_<name>`: each reading calls `read()`. None, or an exception, leaves it out.

        An existing gauge of this name is replaced.

        Raises BadArgument when the name is invalid, or that of a counter or histogram, and for a coroutine function.
        """
        taken = {event + end for event in EVENTS for end in ("", "_total")} | {f"{what}_seconds" for what in TIMES}
        if not name or not is_name(PREFIX + name) or name in taken:
            raise BadArgument(
                f"{name!r} cannot be a gauge's name", hint="letters, digits and _, and no counter's or histogram's name"
            )
        check_function("read", read)
        with self._lock:
            self._gauges[name] = _Gauge(help, read)

    # -- reading ---------------------------------------------------------------------------------------------

    def counts(self, event: str) -> dict[str, int]:
        """Return the counts of an event by handler, sorted by name."""
        with self._lock:
            return dict(sorted(_known(self._counts, event, "event").items()))

    def times(self, what: str) -> dict[str, tuple[list[int], float]]:
        """Return a histogram by handler: the count of each bucket (not cumulative), and the sum in seconds."""
        with self._lock:
            found = sorted(_known(self._times, what, "time").items())
            return {handler: (times.buckets.copy(), times.sum_s) for handler, times in found}

    def gauge_names(self) -> dict[str, str]:
        """Return the gauges' names, sorted, with their help texts."""
        with self._lock:
            return {name: gauge.help for name, gauge in sorted(self._gauges.items())}

    def read(self, name: str) -> float | None:
        """Read one gauge; None when it has no value, or fails (logged once)."""
        with self._lock:
            gauge = self._gauges.get(name)
        if gauge is None:
            return None
        # Without the lock: `read` may count, or wait for a counting thread.
        try:
            value = gauge.read()
            check_done("it", value)
            return value if value is None or isinstance(value, int) else float(value)
        except Exception:
            if not gauge.failed:
                log.warning("the gauge %s%s cannot be read; logged once", PREFIX, name, exc_info=True)
            gauge.failed = True
            return None

    def quantile(self, what: str, handler: str | None, q: float) -> float | None:
        """Estimate a quantile in seconds (q=0.99: 99 of 100 values are below it); None without observations.

        `handler` None means all handlers. Assumes an even spread within a bucket, and returns at most the last bound.
        """
        by_handler = self.times(what)
        chosen = by_handler.values() if handler is None else filter(None, [by_handler.get(handler)])
        return quantile_of([sum(column) for column in zip(*(buckets for buckets, _ in chosen), strict=True)], q)

    def families(self) -> list[Family]:
        """Return everything as families of samples, always in the same order."""
        found: list[Family] = []
        for event, help_ in EVENTS.items():
            name = f"{PREFIX}{event}_total"
            samples = [Sample(name, _labels(handler), n) for handler, n in self.counts(event).items()]
            found.append(Family(name, COUNTER, help_, samples))
        for what, help_ in TIMES.items():
            name = f"{PREFIX}{what}_seconds"
            samples = []
            for handler, (buckets, sum_s) in self.times(what).items():
                samples += histogram(name, _labels(handler), buckets, sum_s)
            found.append(Family(name, HISTOGRAM, help_, samples))
        for name, help_ in self.gauge_names().items():
            value = self.read(name)
            if value is not None:
                found.append(Family(PREFIX + name, GAUGE, help_, [Sample(PREFIX + name, (), value)]))
        return [f for f in found if f.samples]

    def text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return all metrics in the text format of Prometheus (0.0.4), with these labels added to each sample."""
        return render(with_labels(self.families(), labels or {}))

    def snapshot(self) -> dict[str, Any]:
        """Return all metrics as plain dicts (see `summary`)."""
        return summary(self.families())


def _known(table: dict[str, Any], name: str, word: str) -> Any:
    try:
        return table[name]
    except KeyError:
        raise BadArgument(f"no {word} is called {name!r}", hint=f"one of {', '.join(table)}") from None


def _labels(handler: str) -> tuple[tuple[str, str], ...]:
    return (("handler", handler),) if handler else ()


def histogram(name: str, labels: tuple[tuple[str, str], ...], buckets: list[int], sum_s: float) -> list[Sample]:
    """Return the samples of a histogram: `buckets` are the counts between BOUNDS_S, not cumulative."""
    samples = []
    total = 0
    for bound, count in zip((*BOUNDS_S, float("inf")), buckets, strict=True):
        total += count
        le = "+Inf" if bound == float("inf") else repr(bound)
        samples.append(Sample(f"{name}_bucket", (*labels, ("le", le)), total))
    return [*samples, Sample(f"{name}_sum", labels, sum_s), Sample(f"{name}_count", labels, total)]


def quantile_of(buckets: list[int], q: float) -> float | None:
    """Estimate a quantile in seconds from counts in the buckets of BOUNDS_S; None when all are 0.

    Raises BadArgument unless q is from 0 to 1.
    """
    if not 0 <= q <= 1:
        raise BadArgument(f"a quantile is from 0 to 1, not {shown(q)}")
    wanted = q * sum(buckets)
    below = 0
    for i, count in enumerate(buckets):
        if count and below + count >= wanted:
            if i == len(BOUNDS_S):
                return BOUNDS_S[-1]
            low = BOUNDS_S[i - 1] if i else 0.0
            return low + (BOUNDS_S[i] - low) * (wanted - below) / count
        below += count
    return None


def summary(families: Iterable[Family]) -> dict[str, Any]:
    """Return families as dicts for JSON, with names without `filewheel_` and unit.

    `counters` and `histograms` map name → handler → a count, or an object with `count`, `sum_s`, `p50_s`, `p99_s` and
    `buckets` (pairs of upper bound, None for the last, and cumulative count); `gauges` map name → number.
    """
    found: dict[str, Any] = {"counters": {}, "histograms": {}, "gauges": {}}
    for family in families:
        name = family.name.removeprefix(PREFIX)
        if family.kind == COUNTER:
            counter = found["counters"].setdefault(name.removesuffix("_total"), {})
            counter.update((_handler_of(s), s.value) for s in family.samples)
        elif family.kind == HISTOGRAM:
            found["histograms"][name.removesuffix("_seconds")] = _summary_of_times(family)
        else:
            found["gauges"].update((name, s.value) for s in family.samples)
    return found


def _handler_of(sample: Sample) -> str:
    return dict(sample.labels).get("handler", "")


def _summary_of_times(family: Family) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for sample in family.samples:
        times = found.setdefault(_handler_of(sample), {"count": 0, "sum_s": 0.0, "buckets": []})
        if sample.name.endswith("_bucket"):
            le = float(dict(sample.labels).get("le", "inf"))
            times["buckets"].append([None if le == float("inf") else le, sample.value])
        else:
            times["sum_s" if sample.name.endswith("_sum") else "count"] = sample.value
    for times in found.values():
        bounds, totals = zip(*times["buckets"], strict=True) if times["buckets"] else ((), ())
        if bounds == (*BOUNDS_S, None):  # a version with other buckets wrote it: no estimate
            apart = [int(total - before) for before, total in zip((0, *totals), totals, strict=False)]
            times["p50_s"], times["p99_s"] = quantile_of(apart, 0.5), quantile_of(apart, 0.99)
    return found
