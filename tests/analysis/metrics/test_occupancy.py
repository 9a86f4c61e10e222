"""Occupancy from launch shapes, against NVIDIA's calculator and what Kineto wrote."""

import gzip
import json
import os
from math import prod
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.metrics.kernels.occupancy import COLUMNS, occupancy
from nightsweep.analysis.tables.events import DEVICES, EVENTS

# A folder of TraceLens's traces (AMD-AGI/TraceLens, tests/traces/h100), where there is one.
TRACES = sorted(Path(os.environ.get("TRACELENS_TRACES", "/nonexistent")).glob("*h100_*.json.gz"))

# Limits of an SM: warps, blocks, shared memory (CUDA C++ Programming Guide, technical specifications).
DEVICE = {
    "7.0": (64, 32, 98_304),
    "7.5": (32, 16, 65_536),
    "8.0": (64, 32, 167_936),
    "8.6": (48, 16, 102_400),
    "9.0": (64, 32, 233_472),
    "12.0": (48, 24, 102_400),
}


def device(capability="9.0", **more):
    warps, blocks, shared = DEVICE[capability]
    limits = {"warps_per_sm": warps, "blocks_per_sm": blocks, "shared_bytes_per_sm": shared, "registers_per_sm": 65_536}
    row = {"rank": 0, "device": 0, "sm_count": 132, "compute_capability": capability, **limits, **more}
    return pl.DataFrame([row], schema={name: column.dtype for name, column in DEVICES.items()})


def kernels(*launches):
    """Launches of (blocks, threads, registers, shared_bytes)."""
    rows = [
        {"rank": 0, "device": 0, "blocks": b, "threads": t, "registers": r, "shared_bytes": s}
        for b, t, r, s in launches
    ]
    return pl.DataFrame(rows, schema={name: column.dtype for name, column in EVENTS["kernels"].items()})


# (registers, threads, shared): resident blocks as cudaOccMaxActiveBlocksPerMultiprocessor of cuda_occupancy.h (CUDA
# 13.0) gives them, by compute capability; 65,536 registers, maximum carve-out. Cases that cannot be launched are out.
CALCULATOR = {
    (16, 256, 0): {"7.0": 8, "7.5": 4, "8.0": 8, "8.6": 6, "9.0": 8, "12.0": 6},
    (40, 256, 0): {"7.0": 6, "7.5": 4, "8.0": 6, "8.6": 6, "9.0": 6, "12.0": 6},
    (64, 256, 0): {"7.0": 4, "7.5": 4, "8.0": 4, "8.6": 4, "9.0": 4, "12.0": 4},
    (32, 96, 0): {"7.0": 21, "7.5": 10, "8.0": 21, "8.6": 16, "9.0": 21, "12.0": 16},
    (33, 1024, 0): {"7.0": 1, "7.5": 1, "8.0": 1, "8.6": 1, "9.0": 1, "12.0": 1},
    (32, 32, 0): {"7.0": 32, "7.5": 16, "8.0": 32, "8.6": 16, "9.0": 32, "12.0": 24},
    (168, 128, 0): {"7.0": 3, "7.5": 3, "8.0": 3, "8.6": 3, "9.0": 3, "12.0": 3},
    (80, 128, 25_600): {"7.0": 3, "7.5": 2, "8.0": 6, "8.6": 3, "9.0": 6, "12.0": 3},
    (246, 128, 81_920): {"7.0": 1, "8.0": 2, "8.6": 1, "9.0": 2, "12.0": 1},
    (168, 384, 231_424): {"9.0": 1},
    (63, 32, 5_376): {"7.0": 18, "7.5": 12, "8.0": 26, "8.6": 16, "9.0": 32, "12.0": 16},
    (128, 512, 114_688): {"8.0": 1, "9.0": 1},
    (0, 64, 0): {"7.0": 32, "7.5": 16, "8.0": 32, "8.6": 16, "9.0": 32, "12.0": 24},
    (96, 160, 1): {"7.0": 4, "7.5": 4, "8.0": 4, "8.6": 4, "9.0": 4, "12.0": 4},
}


@pytest.mark.parametrize("capability", DEVICE)
def test_resident_blocks_are_the_calculators(capability):
    cases = [(shape, blocks[capability]) for shape, blocks in CALCULATOR.items() if capability in blocks]
    found = occupancy(kernels(*((10**6, t, r, s) for (r, t, s), _ in cases)), device(capability))
    warps = DEVICE[capability][0]
    expected = [resident * -(-t // 32) / warps for (_, t, _), resident in cases]
    assert found["theoretical_occupancy"].to_list() == pytest.approx(expected)
    assert found["waves"].to_list() == pytest.approx([10**6 / 132 / resident for _, resident in cases])


def test_worked_by_hand():
    """H100: 168 registers x 32 = 5,376, which is 21 units of 256; a quarter SM's 16,384 hold 3 such warps, so 12 warps
    or 3 blocks of 4 stay: 12 of 64. 66 blocks reach half the 132 SMs, half a block each: 2 warps of 64."""
    found = occupancy(kernels((66, 128, 168, 0)), device()).row(0, named=True)
    assert {name: found[name] for name in COLUMNS} == pytest.approx(
        {
            "waves": 66 / 132 / 3,
            "est_sm_efficiency": 0.5,
            "theoretical_occupancy": 12 / 64,
            "est_achieved_occupancy": 2 / 64,
        }
    )


def test_null_in_null_out():
    found = occupancy(kernels((66, 128, None, 0), (None, 128, 32, 0), (66, 128, 32, 0)), device())
    assert found["theoretical_occupancy"].to_list() == [None, 1.0, 1.0]
    assert found["est_achieved_occupancy"].to_list() == [None, None, 2 / 64]
    assert found["est_sm_efficiency"].to_list() == [0.5, None, 0.5]
    unknown = occupancy(kernels((66, 128, 32, 0)), device(shared_bytes_per_sm=None))
    assert unknown["theoretical_occupancy"].to_list() == [None]


def test_a_device_that_the_trace_does_not_describe():
    found = occupancy(kernels((66, 128, 32, 0)), device(device=1))
    assert found.select(COLUMNS).row(0) == (None, None, None, None)


def test_below_compute_capability_7_only_the_grid_is_judged():
    found = occupancy(kernels((66, 128, 32, 0)), device(compute_capability="6.0"))
    assert found.select(COLUMNS).row(0) == (None, 0.5, None, None)


def test_limit_of_blocks_follows_from_compute_capability():
    found = occupancy(kernels((10**6, 32, 32, 0)), device(blocks_per_sm=None))
    assert found["theoretical_occupancy"].to_list() == [0.5]


def test_adds_its_columns_and_no_other():
    launched = kernels((2, 32, 32, 0), (1, 32, 32, 0)).with_columns(rank=pl.lit(None, pl.Int64))
    found = occupancy(launched, device(rank=None))
    assert found.columns == [*launched.columns, *COLUMNS]
    assert found["blocks"].to_list() == [2, 1]
    assert found["est_sm_efficiency"].null_count() == 0


# Of TraceLens's H100 traces: grid, block, registers, shared memory, and Kineto's est. achieved occupancy %.
KINETO = [
    ((17888, 1, 1), (128, 1, 1), 16, 0, 100),
    ((559, 1, 1), (32, 16, 1), 32, 16, 100),
    ((18, 1, 1), (128, 1, 1), 20, 0, 1),
    ((5, 16, 16), (128, 1, 1), 255, 49152, 13),
    ((1056, 1, 1), (128, 1, 1), 32, 0, 50),
    ((4, 2, 1), (128, 1, 1), 80, 25600, 0),
    ((70, 1, 1), (128, 1, 1), 26, 0, 3),
    ((7, 24, 128), (256, 1, 1), 36, 2112, 75),
    ((192, 1, 1), (512, 1, 1), 32, 0, 36),
    ((25088, 1, 1), (32, 4, 1), 34, 24, 75),
    ((1, 1, 37632), (32, 1, 1), 63, 5376, 50),
    ((200, 4, 96), (128, 1, 1), 252, 32768, 13),
    ((301152, 1, 1), (1024, 1, 1), 32, 128, 100),
    ((100, 1, 1), (32, 4, 1), 158, 528, 5),
]


def estimate(rows):
    """Percent, rounded as Kineto does."""
    found = occupancy(kernels(*((prod(g), prod(b), r, s) for g, b, r, s, _ in rows)), device(blocks_per_sm=None))
    return [int(100 * share + 0.5) for share in found["est_achieved_occupancy"]]


def test_kinetos_numbers():
    assert estimate(KINETO) == [row[-1] for row in KINETO]


def test_kineto_writes_0_above_48_kib():
    """A GEMM of one block of 12 warps an SM, which Kineto has as 0 %."""
    assert estimate([((132, 1, 1), (384, 1, 1), 168, 231424, 0)]) == [round(100 * 12 / 64)]


@pytest.mark.skipif(not TRACES, reason="TRACELENS_TRACES names no folder of traces")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_kinetos_numbers_on_whole_traces(path):
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    found = [event["args"] for event in events if event.get("cat") == "kernel"]
    keys = ("grid", "block", "registers per thread", "shared memory", "est. achieved occupancy %")
    rows = [tuple(args[key] for key in keys) for args in found if args["shared memory"] <= 48 * 1024]
    assert len(rows) > 100
    assert estimate(rows) == [row[-1] for row in rows]
