"""Points for other tools, read back by these tools' own libraries."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import polars as pl
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

import nightsweep
from nightsweep.analysis.tools import cli
from nightsweep.jobs.host.facts import ROOT

SET = ROOT / "data/h200-2026-11-27"
POINT = SET / "points/042c2f281434"
STALLED = ROOT / "data/h200-2026-11-21"


def run(*arguments):
    return cli.main(["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def tables():
    return nightsweep.read(SET)


@pytest.fixture(scope="module")
def slowest(tables):
    """Time of each step of POINT, of its slowest rank."""
    own = tables["steps"].filter(point_id=POINT.name)
    means = own.filter(phase="timed").group_by("rank").agg(pl.col("step_ms").mean()).sort("step_ms")
    assert means["step_ms"].last() == tables["points"].filter(point_id=POINT.name)["step_ms_mean"].item()
    return dict(own.filter(rank=means["rank"].last()).sort("step").select("step", "step_ms").rows())


def samples(file):
    families = text_string_to_metric_families(file.read_text())
    return {family.name: family.samples for family in families}


def test_a_textfile_for_prometheus(tables, tmp_path):
    assert run(SET, "--to", "prometheus", "--out", tmp_path / "n.prom") == 0
    found = samples(tmp_path / "n.prom")
    means = dict(tables["points"].select("point_id", "step_ms_mean").drop_nulls().rows())
    assert {s.labels["point_id"]: s.value * 1000 for s in found["nightsweep_step_seconds"]} == pytest.approx(means)
    traced = tables["breakdown"]["point_id"].unique().to_list()
    shares = dict.fromkeys(traced, 0.0)
    for sample in found["nightsweep_step_part_ratio"]:
        shares[sample.labels["point_id"]] += sample.value
    assert shares == pytest.approx(dict.fromkeys(traced, 1.0))
    held = tables["phases"].filter(pl.col("use") != "queue")["gpu_s"].sum()
    assert sum(s.value for s in found["nightsweep_gpu_seconds"]) == pytest.approx(held)
    causes = tables["diagnoses"].filter(pl.col("share") > 0)
    assert len(found["nightsweep_cause_ratio"]) == causes.height
    assert found["nightsweep_ok"][0].labels.keys() >= {"model", "strategy", "world_size", "config", "sweep"}


def test_a_point_that_is_not_ok_says_why(tmp_path):
    assert run(STALLED, "--to", "prometheus", "--out", tmp_path / "n.prom") == 0
    bad = {s.labels["reason"] for s in samples(tmp_path / "n.prom")["nightsweep_ok"] if s.value == 0}
    assert bad == {"stalled"}


def test_a_run_of_tensorboard(slowest, tables, tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    assert run(POINT, "--to", "tensorboard", "--out", tmp_path / "runs") == 0
    read = EventAccumulator(str(tmp_path / "runs" / POINT.name)).Reload()
    assert {event.step: event.value for event in read.Scalars("steps/step_ms")} == pytest.approx(slowest)
    row = tables["points"].row(by_predicate=pl.col("point_id") == POINT.name, named=True)
    assert read.Scalars("step_seconds")[0].value == pytest.approx(row["step_ms_mean"] / 1000)
    held = read.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    start = HParamsPluginData.FromString(held).session_start_info
    assert start.hparams["strategy"].string_value == row["strategy"]
    assert run(POINT, "--to", "tensorboard", "--out", tmp_path / "runs") == 2
    assert "expected a new or an empty folder" in capsys.readouterr().err


@pytest.fixture
def receiver():
    """A receiver of OTLP: its address, what it takes, and the status that it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            kind = ExportTraceServiceRequest if self.path == "/v1/traces" else ExportMetricsServiceRequest
            server.taken.append(kind.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(server.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.taken, server.status = [], 200
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_spans_and_metrics_over_otlp(receiver, tables, tmp_path, capsys):
    url = f"http://127.0.0.1:{receiver.server_port}"
    assert run(POINT, "--to", "otlp", "--out", url) == 0
    traces, metrics = receiver.taken
    spans = traces.resource_spans[0].scope_spans[0].spans
    (top,) = (span for span in spans if span.name == "point")
    phases = tables["phases"].filter(point_id=POINT.name)
    below = {(s.name, s.start_time_unix_nano) for s in spans if s.parent_span_id == top.span_id}
    assert below == set(phases.select("phase", "start_ns").rows()) and len(spans) == len(below) + 1
    assert top.start_time_unix_nano == phases["start_ns"].min()
    found = {metric.name: metric.gauge.data_points for metric in metrics.resource_metrics[0].scope_metrics[0].metrics}
    mean = tables["points"].row(by_predicate=pl.col("point_id") == POINT.name, named=True)["step_ms_mean"]
    (step,) = found["nightsweep.step_seconds"]
    assert step.as_double == pytest.approx(mean / 1000) and step.time_unix_nano > top.start_time_unix_nano
    receiver.status = 403
    capsys.readouterr()
    assert run(POINT, "--to", "otlp", "--out", url) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert url in line and "403" in line


@pytest.mark.parametrize(
    ("to", "out", "says"),
    [
        ("otlp", "points.json", "expected the address of an OTLP receiver"),
        ("prometheus", "points.txt", "reads only files that end in .prom"),
    ],
)
def test_a_wrong_place_gets_a_line(to, out, says, tmp_path, capsys):
    assert run(POINT, "--to", to, "--out", tmp_path / out) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and not list(tmp_path.iterdir())


def test_traces_have_no_points(tmp_path, capsys):
    trace = ROOT / "tests/data/kineto-cpu-r0.json.gz"
    assert run(trace, "--to", "prometheus", "--out", tmp_path / "n.prom") == 2
    assert "no points; expected results/SWEEP" in capsys.readouterr().err
