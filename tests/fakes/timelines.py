"""Random timelines of one process: nested ranges, calls in them, and activities on several streams."""

from __future__ import annotations

import random

import polars as pl

from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import DEVICES, EVENTS, Trace

PROCESS = 77


def _ranges(rng, thread, start, end, depth, out):
    """Nested push/pop ranges, depth first."""
    at = start
    while depth and at < end - 4:
        first = rng.randint(at, min(end - 3, at + 300))
        last = rng.randint(first + 1, min(end, first + 900))
        out.append((first, last, f"range {rng.randint(0, 4)}", thread))
        _ranges(rng, thread, first, last, depth - 1, out)
        at = last + rng.randint(0, 50)


def _activities(rng, calls):
    """Kernels and copies, some launched by calls and some by none, on three streams of which each is in order."""
    free, kernels, copies = {7: 0, 8: 0, 9: 0}, [], []
    for place, (start, *_) in enumerate(calls):
        for _ in range(rng.choice((0, 1, 1, 1, 3))):
            stream = rng.choice(tuple(free))
            first = max(free[stream], start + rng.randint(0, 200))
            last = free[stream] = first + rng.randint(0, 150)
            correlation = place if rng.random() < 0.95 else 10**6 + place
            row = {"start_ns": first, "end_ns": last, "device": 0, "stream": stream, "process": PROCESS}
            row["correlation"] = correlation
            if rng.random() < 0.7:
                kernels.append(row | {"name": rng.choice(("gemm", "elementwise_kernel", "ncclDevKernel_AllReduce"))})
            else:
                kind = {"direction": rng.choice(("HtoD", "DtoH", "DtoD")), "source": "pageable", "target": "pinned"}
                copies.append(row | kind | {"name": "Memcpy", "bytes": rng.randint(1, 99)})
    return kernels, copies


def random_trace(seed: int, crossing: bool = False) -> Trace:
    """A trace of two launching threads and four steps."""
    rng = random.Random(seed)
    ranges, calls = [(1000 * k, 1000 * k + 950, f"step {k}", 1) for k in range(4)], []
    for start, end, _, _ in tuple(ranges):
        _ranges(rng, 1, start, end, 4, ranges)
    _ranges(rng, 2, 0, 4000, 4, ranges)
    for thread in (1, 2):
        at = rng.randint(0, 30)
        while at < 4100:
            took = rng.randint(1, 20)
            name = rng.choice(("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaMalloc"))
            calls.append((at, at + took, name, thread))
            at += took + rng.randint(0, 60)
    if crossing:
        ranges += [(s, s + rng.randint(1, 2500), "crossing", 1) for s in rng.sample(range(4000), 6)]
    rng.shuffle(calls)
    kernels, copies = _activities(rng, sorted(calls))
    order = {call: place for place, call in enumerate(sorted(calls))}
    own = {"process": PROCESS}
    rows = {
        "kernels": kernels,
        "copies": copies,
        "runtime": [_host(c) | own | {"correlation": order[c]} for c in calls],
        "nvtx": [_host(r) | own | {"style": "push_pop"} for r in sorted(ranges)],
    }
    events = {
        kind: column.conform(pl.DataFrame(rows[kind], infer_schema_length=None), columns).collect()
        if rows.get(kind)
        else column.empty(columns)
        for kind, columns in EVENTS.items()
    }
    return Trace(events, column.empty(DEVICES), facts={"format": "random"})


def _host(row):
    return dict(zip(("start_ns", "end_ns", "name", "thread"), row, strict=True))
