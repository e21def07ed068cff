"""Traces and metrics for OpenTelemetry: context in headers, a span for each message, instruments for the counters.

A message may fire days after it was enqueued. So the handler's span starts a new trace, with a link to the span that
enqueued the message; `same_trace=True` continues that trace.
Invariant: without a recording tracer, this module changes no message and no outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from filewheel.bridges.extra import need
from filewheel.message import TRACEPARENT, Message
from filewheel.metrics.metrics import BOUNDS_S, EVENTS, TIMES, Metrics

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Span, TracerProvider

_SCOPE = "filewheel"


def inject(headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the headers with the trace context of the current span, if any (`traceparent`, `tracestate`).

    An existing traceparent stays, with its tracestate.

    Raises BadArgument when OpenTelemetry is not installed.
    """
    found = dict(headers or {})
    if TRACEPARENT not in found:
        _w3c().inject(found)
    return found


@contextmanager
def span_for(message: Message, *, provider: TracerProvider | None = None, same_trace: bool = False) -> Iterator[Span]:
    """Run a handler inside a consumer span, which records its exceptions.

    The span links to the traceparent in the message's headers; with `same_trace` it is a child of it.

    Raises BadArgument when OpenTelemetry is not installed.
    """
    trace: Any = need("opentelemetry.trace", "otel")
    context = _w3c().extract(message.headers)
    origin = trace.get_current_span(context).get_span_context()
    attributes: dict[str, str | int] = {
        "messaging.system": "filewheel",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.topic,
        "messaging.message.id": str(message.id),
        "filewheel.attempt": message.attempt,
        "filewheel.due_us": message.due_us,
    }
    if message.root is not None:
        attributes["messaging.message.conversation_id"] = str(message.root)
    tracer = trace.get_tracer(_SCOPE, tracer_provider=provider)
    with tracer.start_as_current_span(
        f"process {message.topic}".rstrip(),
        context=context if same_trace and origin.is_valid else None,
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=[trace.Link(origin)] if origin.is_valid and not same_trace else [],
    ) as span:
        yield span


def meter(metrics: Metrics, provider: MeterProvider | None = None) -> None:
    """Register observable instruments for everything in `metrics`; each collection reads the metrics.

    Counters are `filewheel.<event>`, gauges `filewheel.<name>` (those registered so far). The API has no observable
    histogram. So each becomes three counters: `filewheel.<what>.bucket` with the attribute `le`, `.sum` and `.count`.

    Raises BadArgument when OpenTelemetry is not installed.
    """
    api: Any = need("opentelemetry.metrics", "otel")
    made = api.get_meter(_SCOPE, meter_provider=provider)
    observation = api.Observation

    for event, help_ in EVENTS.items():
        made.create_observable_counter(f"filewheel.{event}", [_counts(metrics, event, observation)], "{message}", help_)
    for what, help_ in TIMES.items():
        for part, unit in (("bucket", "{observation}"), ("sum", "s"), ("count", "{observation}")):
            made.create_observable_counter(
                f"filewheel.{what}.{part}", [_times(metrics, what, part, observation)], unit, help_
            )
    for name, help_ in metrics.gauge_names().items():
        made.create_observable_gauge(f"filewheel.{name}", [_gauge(metrics, name, observation)], "", help_)


Read = Callable[["CallbackOptions"], Iterable["Observation"]]


def _attributes(handler: str) -> dict[str, str]:
    return {"handler": handler} if handler else {}


def _counts(metrics: Metrics, event: str, observation: Any) -> Read:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        return [observation(n, _attributes(handler)) for handler, n in metrics.counts(event).items()]

    return read


def _times(metrics: Metrics, what: str, part: str, observation: Any) -> Read:
    def read(_: CallbackOptions) -> Iterator[Observation]:
        for handler, (buckets, sum_s) in metrics.times(what).items():
            attributes = _attributes(handler)
            if part == "sum":
                yield observation(sum_s, attributes)
            elif part == "count":
                yield observation(sum(buckets), attributes)
            else:
                total = 0
                for bound, count in zip((*BOUNDS_S, "+Inf"), buckets, strict=True):
                    total += count
                    yield observation(total, {**attributes, "le": str(bound)})

    return read


def _gauge(metrics: Metrics, name: str, observation: Any) -> Read:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        value = metrics.read(name)
        return [] if value is None else [observation(value)]

    return read


def _w3c() -> Any:
    return need("opentelemetry.trace.propagation.tracecontext", "otel").TraceContextTextMapPropagator()
