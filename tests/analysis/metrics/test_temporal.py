"""The breakdown by HTA's definitions: by hand, and the numbers that HTA itself gives of real traces."""

from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.metrics.steps.temporal import overlap_percent, temporal_breakdown
from nightsweep.analysis.readers.kineto import reader as kineto
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import EVENTS

DATA = Path(__file__).parents[2] / "data"
REAL = Path(__file__).parents[4] / "shared/traces"
NOTHING = {kind: column.empty(columns) for kind, columns in EVENTS.items()}

HTA = {
    DATA / "kineto-h200-ddp-r0.json.gz": (36013.26000781011, 5540.704999983311, 72876.98000001907, 4.09),
    DATA / "kineto-h200-ddp-r1.json.gz": (103464.41132033158, 4338.8779999911785, 315.516999989748, 0.0),
    REAL / "tracelens_h100_Qwen_Qwen1.5-0.5B-Chat.json.gz": (
        4005.531951174853, 45432.69799999893, 214.60199999809265, None,
    ),
    REAL / "tracelens_h100_facebook_timesformer-base-finetuned-k400.json.gz": (
        1559.2528222408146, 154855.5949999988, 3577.5790000259876, None,
    ),
}  # fmt: skip
"""idle, compute and non-compute time, us, and overlap, %, of HolisticTraceAnalysis 0.5.0 with pandas 2.3.3 and
HTA_DISABLE_NS_ROUNDING=1."""


@pytest.mark.parametrize("path", HTA, ids=lambda path: path.name)
def test_numbers_are_those_of_hta(path):
    if not path.exists():
        pytest.skip("no public traces here")
    events = kineto.read(path).events
    *parts, overlap = HTA[path]
    found = temporal_breakdown(events)
    assert [found[n] / 1000 for n in ("idle", "compute", "non_compute")] == pytest.approx(parts, abs=0.002, rel=0)
    assert found["span"] == found["idle"] + found["compute"] + found["non_compute"]
    assert overlap_percent(events) == (None if overlap is None else pytest.approx(overlap, abs=0.005))


def make_events(kernels, copies=()):
    def frame(kind, rows):
        made = pl.DataFrame(rows, schema=["name", "start_ns", "end_ns"], orient="row")
        return column.conform(made, EVENTS[kind]).collect()

    return NOTHING | {"kernels": frame("kernels", kernels), "copies": frame("copies", list(copies))}


def test_by_hand():
    kernels = [("gemm", 10, 30), ("gemm", 20, 40), ("ncclDevKernel_AllReduce", 35, 60), ("MemcpyKernel", 80, 90)]
    events = make_events(kernels, [("Memcpy HtoD", 5, 12), ("Memcpy DtoD", 95, 100)])
    assert temporal_breakdown(events) == {"span": 95, "idle": 25, "compute": 30, "non_compute": 40}
    assert overlap_percent(events) == pytest.approx(100 * 5 / 25)


def test_a_trace_without_gpu_events():
    assert temporal_breakdown(NOTHING) == {"span": 0, "idle": 0, "compute": 0, "non_compute": 0}
    assert overlap_percent(NOTHING) is None
