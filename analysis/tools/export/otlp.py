"""Points for a receiver of OpenTelemetry: what each did when as spans, its numbers as metrics."""

from __future__ import annotations

import logging
from functools import partial

import polars as pl
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as metrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from nightsweep.analysis.sweep.dataset import Tables
from nightsweep.analysis.sweep.labels import plural
from nightsweep.analysis.tools.export import point_values
from nightsweep.jobs.record.input_error import InputError

AT_ONCE = 1000
"""Spans of a request: receivers refuse those of more than some MiB."""
RESOURCE = Resource({"service.name": "nightsweep"})


def write(tables: Tables, url: str) -> str:
    """Send all to a receiver of OTLP over HTTP at this address; headers and certificates are those of its environment
    variables (OTEL_EXPORTER_OTLP_HEADERS, ...)."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"--out {url}: expected the address of an OTLP receiver, such as http://localhost:4318")
    labels = point_values.labels(tables)
    reasons = Reasons()
    logging.getLogger("opentelemetry").addHandler(reasons)
    spans, base = spans_of(tables, labels), url.rstrip("/")
    to_spans, to_metrics = OTLPSpanExporter(f"{base}/v1/traces"), OTLPMetricExporter(f"{base}/v1/metrics")
    requests = [partial(to_spans.export, spans[at : at + AT_ONCE]) for at in range(0, len(spans), AT_ONCE)]
    for request in (*requests, partial(to_metrics.export, metrics_of(tables, labels))):
        if request().name != "SUCCESS":
            raise InputError(f"{url}: not everything was taken: {reasons.first}")
    return f"{url}: {plural(len(labels), 'point')}, {plural(len(spans), 'span')}"


class Reasons(logging.Handler):
    """What the exporter logs first, which is all that it says of why it fails: further lines are of its retries."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()


def spans_of(tables: Tables, labels: dict[str, dict[str, str]]) -> list[ReadableSpan]:
    """A trace of each point: itself, and below it the phases of its attempts whose beginning is known."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(sampler=ALWAYS_ON, resource=RESOURCE, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("nightsweep")
    settings = point_values.settings(tables)
    ended = {
        point: (status, why) for point, status, why in tables["points"].select("point_id", "status", "message").rows()
    }
    phases = tables["phases"].drop_nulls(("start_ns", "duration_ns")).sort("point_id", "start_ns")
    for part in phases.partition_by("point_id", maintain_order=True):
        point = part["point_id"][0]
        about = named({**settings[point], **labels[point]})
        top = tracer.start_span("point", start_time=part["start_ns"][0], attributes=about)
        status, why = ended[point]
        if status != "ok":
            top.set_status(trace.StatusCode.ERROR, why or status)
        for row in part.drop("point_id").iter_rows(named=True):
            start, name = row.pop("start_ns"), row.pop("phase")
            below = trace.set_span_in_context(top)
            span = tracer.start_span(name, below, start_time=start, attributes=named(row))
            span.end(start + row["duration_ns"])
        top.end(part.select((pl.col("start_ns") + pl.col("duration_ns")).max()).item())
    return list(kept.get_finished_spans())


def named(values: dict[str, object]) -> dict[str, str | int | float | bool]:
    """Attributes under a name of our own."""
    return {f"nightsweep.{name}": value for name, value in values.items() if isinstance(value, str | int | float)}


def metrics_of(tables: Tables, labels: dict[str, dict[str, str]]) -> metrics.MetricsData:
    """The gauges, each at the time at which its point ended; of points that did not run there are none."""
    every = point_values.gauges(tables)
    (ends,) = (gauge for gauge in every if gauge.name == point_values.ENDED)
    ended = {point: round(1e9 * seconds) for point, _, seconds in ends.rows()}
    found = [
        metrics.Metric(f"nightsweep.{gauge.name}", gauge.meaning, "", metrics.Gauge([
            metrics.NumberDataPoint({**labels[point], **own}, None, ended[point], value)
            for point, own, value in gauge.rows() if point in ended
        ]))
        for gauge in every if gauge is not ends
    ]  # fmt: skip
    scope = metrics.ScopeMetrics(InstrumentationScope("nightsweep"), found, "")
    return metrics.MetricsData([metrics.ResourceMetrics(RESOURCE, [scope], "")])
