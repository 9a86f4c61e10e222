"""Points as a file for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

from pathlib import Path

import prometheus_client

from nightsweep.analysis.sweep.dataset import Tables
from nightsweep.analysis.sweep.labels import plural
from nightsweep.analysis.tools.export import point_values
from nightsweep.jobs.record.input_error import InputError


def write(tables: Tables, out: str) -> str:
    """OUT, which the collector reads only if its name ends in .prom; replaced at once, so that it never reads half."""
    path = Path(out)
    if path.suffix != ".prom":
        raise InputError(f"--out {out}: the textfile collector reads only files that end in .prom")
    labels, registry = point_values.labels(tables), prometheus_client.CollectorRegistry()
    for gauge in point_values.gauges(tables):
        metric = prometheus_client.Gauge(
            f"nightsweep_{gauge.name}", gauge.meaning, [*point_values.LABELS, *gauge.labels], registry=registry
        )
        for point, own, value in gauge.rows():
            metric.labels(**labels[point], **own).set(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    prometheus_client.write_to_textfile(str(path), registry)
    return f"{path}: {plural(len(labels), 'point')}"
