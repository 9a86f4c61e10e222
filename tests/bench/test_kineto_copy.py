"""What tests/bench/kineto_copy.py writes for other tools is what the export has, as our own readers tell both."""

import polars as pl
import pytest

from nightsweep.analysis.readers.kineto import reader as kineto
from nightsweep.analysis.readers.nsys import reader as nsys
from tests.bench import kineto_copy
from tests.labelled import kept

TIMES = ["start_ns", "end_ns"]
OF = {
    "kernels": [*TIMES, "device", "stream"],
    "copies": [*TIMES, "bytes", "direction", "source", "target"],
    "memsets": [*TIMES, "bytes"],
    "runtime": [*TIMES],
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    export = kept.unpacked("h2d_pageable_resnet50", folder) / "traced/trace-r0.sqlite"
    kineto_copy.write(export, folder / "trace-r0.json.gz", 0, 1)
    return nsys.read(export), kineto.read(folder / "trace-r0.json.gz")


@pytest.mark.parametrize("table", list(OF))
def test_the_same_events(both, table):
    """Times from the first event on, for the two formats count from other moments; µs with three digits are ns."""
    columns = OF[table]
    frames = []
    for trace in both:
        first = trace.events["kernels"]["start_ns"].min()
        times = [(pl.col(name) - first).alias(name) for name in TIMES]
        frames.append(trace.events[table].select(columns).with_columns(times).sort(columns))
    assert frames[0].height > 20
    assert frames[1].equals(frames[0])
