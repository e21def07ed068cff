"""Bridges: what prometheus_client scrapes, and what OpenTelemetry's own SDK exports. Skipped where they are absent."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from filewheel import BadArgument, Message
from filewheel.bridges import extra, otel, prometheus
from filewheel.message import TRACEPARENT
from filewheel.metrics.metrics import BOUNDS_S, Metrics
from tests.cli.support import environment
from tests.support_wheel import an_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def filled() -> Metrics:
    metrics = Metrics()
    metrics.count("fired", 'we"ird\n', 3)
    metrics.count("took_over")
    metrics.observe("lateness", "mail", 0.3)
    metrics.observe("lateness", "mail", 4000)
    metrics.gauge("in_flight", "Now.", lambda: 2)
    metrics.gauge("silent", "Nothing.", lambda: None)
    return metrics


def test_a_bridge_without_its_package_says_what_to_install() -> None:
    with pytest.raises(BadArgument, match=r"no_such_package is not installed.*pip install 'filewheel\[prometheus\]'"):
        extra.need("no_such_package.inner", "prometheus")


def test_filewheel_and_its_bridges_are_imported_without_the_packages() -> None:
    code = (
        "import sys\nfor name in ('prometheus_client', 'opentelemetry'): sys.modules[name] = None\n"
        "from filewheel import BadArgument\nfrom filewheel.bridges import otel, prometheus\n"
        "from filewheel.metrics.metrics import Metrics\n"
        "for use in (lambda: prometheus.collector(Metrics()), otel.inject, lambda: otel.meter(Metrics())):\n"
        "    try: use()\n    except BadArgument as exc: print(exc.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert [line.count("pip install 'filewheel[") for line in done.stdout.splitlines()] == [1, 1, 1]


# -- prometheus_client ----------------------------------------------------------------------------------------


def test_a_registry_scrapes_what_is_counted_at_that_moment() -> None:
    client = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    metrics = filled()
    registry = client.CollectorRegistry()
    registry.register(prometheus.collector(metrics))
    metrics.count("fired", 'we"ird\n')

    def value(name: str, **labels: str) -> Any:
        return registry.get_sample_value(name, labels)

    assert value("filewheel_fired_total", handler='we"ird\n') == 4
    assert value("filewheel_took_over_total") == 1
    assert value("filewheel_lateness_seconds_bucket", handler="mail", le="0.5") == 1
    assert value("filewheel_lateness_seconds_bucket", handler="mail", le="+Inf") == 2
    assert value("filewheel_lateness_seconds_count", handler="mail") == 2
    assert value("filewheel_in_flight") == 2
    assert value("filewheel_silent") is None


def test_what_a_registry_prints_is_what_the_metrics_print() -> None:
    client = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    metrics = filled()
    registry = client.CollectorRegistry()
    registry.register(prometheus.collector(metrics, {"wheel": "jobs"}))

    printed = client.generate_latest(registry).decode()
    parser = pytest.importorskip("prometheus_client.parser")
    theirs, ours = (
        sorted(
            (s.name, tuple(sorted(s.labels.items())), s.value)
            for family in parser.text_string_to_metric_families(text)
            for s in family.samples
        )
        for text in (printed, metrics.text({"wheel": "jobs"}))
    )
    assert theirs == ours
    assert len(ours) > len(BOUNDS_S)


def test_two_wheels_with_labels_of_their_own_share_a_registry() -> None:
    client = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    registry = client.CollectorRegistry()
    for name in ("one", "two"):
        registry.register(prometheus.collector(filled(), {"wheel": name}))
    for name in ("one", "two"):
        assert registry.get_sample_value("filewheel_in_flight", {"wheel": name}) == 2


# -- OpenTelemetry --------------------------------------------------------------------------------------------


@pytest.fixture
def tracing() -> Any:
    """A tracer provider and what it has exported."""
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def a_message(**headers: str) -> Message:
    return Message(an_id(1_800_000_000), b"x", "mail", headers, 2, 0)


def test_the_context_of_the_current_span_goes_into_the_headers(tracing: Any) -> None:
    provider, _ = tracing
    mine = {"to": "ann"}
    with provider.get_tracer("test").start_as_current_span("order") as span:
        headers = otel.inject(mine)
        assert f"{span.get_span_context().trace_id:032x}" in headers[TRACEPARENT]
        assert otel.inject({TRACEPARENT: PARENT}) == {TRACEPARENT: PARENT}
    assert headers["to"] == "ann"
    assert mine == {"to": "ann"}


def test_without_a_span_the_headers_stay_as_they_are() -> None:
    pytest.importorskip("opentelemetry", reason="opentelemetry-api is not installed")
    assert otel.inject({"to": "ann"}) == {"to": "ann"}
    assert otel.inject() == {}


def test_the_span_of_a_message_has_a_trace_of_its_own_with_a_link_to_who_enqueued_it(tracing: Any) -> None:
    provider, exporter = tracing
    message = a_message(**{TRACEPARENT: PARENT})
    with otel.span_for(message, provider=provider) as current:
        assert otel.inject()[TRACEPARENT].split("-")[1] == f"{current.get_span_context().trace_id:032x}"
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind.name) == ("process mail", "CONSUMER")
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACE]
    assert f"{span.context.trace_id:032x}" != TRACE
    assert dict(span.attributes) == {
        "messaging.system": "filewheel",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(message.id),
        "filewheel.attempt": 2,
        "filewheel.due_us": message.due_us,
    }


def test_on_demand_the_span_of_a_message_continues_the_trace(tracing: Any) -> None:
    provider, exporter = tracing
    with otel.span_for(a_message(**{TRACEPARENT: PARENT}), provider=provider, same_trace=True):
        pass
    (span,) = exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent.span_id == 0x00F067AA0BA902B7
    assert not span.links


@pytest.mark.parametrize("headers", [{}, {TRACEPARENT: "nonsense"}, {TRACEPARENT: f"00-{'0' * 32}-{'0' * 16}-01"}])
def test_a_message_without_a_valid_traceparent_has_a_span_without_links(tracing: Any, headers: dict[str, str]) -> None:
    provider, exporter = tracing
    for same_trace in (False, True):
        with otel.span_for(a_message(**headers), provider=provider, same_trace=same_trace):
            pass
    assert [(len(span.links), span.parent) for span in exporter.get_finished_spans()] == [(0, None), (0, None)]


def test_what_a_handler_raises_is_recorded_and_goes_on(tracing: Any) -> None:
    provider, exporter = tracing
    with pytest.raises(ValueError, match="boom"):
        with otel.span_for(a_message(), provider=provider):
            raise ValueError("boom")
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code.name == "ERROR"
    assert [event.name for event in span.events] == ["exception"]


def test_without_a_tracer_a_message_is_handled_as_ever() -> None:
    pytest.importorskip("opentelemetry", reason="opentelemetry-api is not installed")
    with otel.span_for(a_message(**{TRACEPARENT: PARENT})) as span:
        assert not span.is_recording()


def test_instruments_export_what_is_counted_when_they_are_read() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="opentelemetry-sdk is not installed")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    metrics = filled()
    otel.meter(metrics, provider)
    metrics.count("fired", 'we"ird\n')
    found = {
        (metric.name, *sorted(point.attributes.items())): point.value
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    provider.shutdown()
    assert found["filewheel.fired", ("handler", 'we"ird\n')] == 4
    assert found["filewheel.took_over",] == 1
    assert found["filewheel.in_flight",] == 2
    assert found["filewheel.lateness.sum", ("handler", "mail")] == pytest.approx(4000.3)
    assert found["filewheel.lateness.count", ("handler", "mail")] == 2
    buckets = {dict(key[1:])["le"]: n for key, n in found.items() if key[0] == "filewheel.lateness.bucket"}
    assert len(buckets) == len(BOUNDS_S) + 1
    assert (buckets["0.25"], buckets["0.5"], buckets["3600.0"], buckets["+Inf"]) == (0, 1, 1, 2)
    assert not any("silent" in key[0] for key in found)
