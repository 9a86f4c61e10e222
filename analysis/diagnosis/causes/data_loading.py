"""The GPU waits for its input: for the loader, for the CPU work on samples, or for the copy to the device."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import polars as pl

from analysis.diagnosis.cause import Cause, Fact, Share, list_cause
from analysis.diagnosis.causes import memory_management
from analysis.diagnosis.causes.insufficient_parallelism import waits_of
from analysis.diagnosis.causes.rule import Rule
from analysis.diagnosis.evidence.evidence import Evidence, Floats
from analysis.diagnosis.remedies import proposals as remedies
from analysis.diagnosis.thresholds import Threshold

CAUSE = "data_loading"
LARGE_BYTES = 1 << 20


def loader_wait(e: Evidence) -> list[Cause]:
    """The launching thread waits for the next batch and the GPU is idle: in a range of the loader, or, where no range
    marks one, before a batch's copy to the device (such idle time may have another reason: half is the interval's
    lower end); and what timed steps wait longer than the trace's, which may live on batches loaded before. Without a
    trace the host's wait, of which the GPU may have worked through any part."""
    return [] if preparing(e) else _loading(e, "loader_wait", "let more workers load, further ahead", _more_workers(e))


def cpu_preprocessing(e: Evidence) -> list[Cause]:
    """The same wait, while the loader's workers compute (`cpu_busy`): preparing samples is what takes the time."""
    if not preparing(e):
        return []
    proposals = (
        {"resize_on": "device", "pixels": "uint8"},
        {"resize_on": "device"},
        {"source": "raw", "loader": "mmap", "pixels": "uint8"},
        {"loader": "dali", "dali_on": "mixed"},
        {"loader": "mmap"},
        *_more_workers(e),
    )
    return _loading(e, "cpu_preprocessing", "prepare samples on the GPU, or once and for all", proposals)


def _loading(e: Evidence, kind: str, advice: str, proposals: tuple[dict[str, Any], ...]) -> list[Cause]:
    marked, unmarked = (e.length(lambda lane, p=p: lane.sets[p]) for p in ("idle_data_wait", "idle_unmarked_data"))  # type: ignore[misc]
    if e.lanes:
        share = e.share(marked + unmarked)
        share = share.times(0.5) if unmarked.sum() > marked.sum() else share
        share = share.plus(e.unseen_wait, e.step_ns)
        method = "idle time of the device while its launching thread waits for a batch"
        if e.unseen_wait.value:
            method += ", and what timed steps wait longer than traced ones"
    else:
        waited = host_wait(e)
        share = Share(waited, 0.0, waited)
        method = "time of the host in the loader, timed steps: at most so much"
    facts = (
        [Fact("host's wait for the loader", host_wait(e), "share of the timed step", "steps")]
        if not e.steps.is_empty()
        else []
    )
    if e.point is not None:
        facts.append(Fact("loader workers of a rank", e.point.loader_workers, "", "points"))
    busy = workers_busy(e)
    if busy is not None:
        facts.append(Fact("CPU time of a loader worker", busy, "share of its time", "host_samples"))
    if e.lanes and unmarked.sum() > 0:
        facts.append(
            Fact("of it before a batch's copy, in no range", float(unmarked.mean()) / 1e6, "ms a step", "copies")
        )
    return list_cause(
        CAUSE,
        kind,
        share,
        "idle",
        method=method,
        advice=advice,
        remedy=remedies.choose(e.point, *proposals),
        evidence=facts,
    )


def host_wait(e: Evidence) -> float:
    """Mean wait of the host for its loader over the mean step, timed if there are such, else traced; 0 without any."""
    steps = e.traced_steps if e.steps.is_empty() else e.steps
    if steps.is_empty():
        return 0.0
    wait, step = steps["data_ms"].mean(), steps["step_ms"].mean()
    return min(1.0, float(wait) / float(step)) if isinstance(wait, float) and isinstance(step, float) else 0.0


def cores(e: Evidence) -> int | None:
    """CPU cores for each rank of a host."""
    count = e.record.hosts[0].cpu_cores if e.record.hosts else None
    return count // e.point.processes_per_node if count and e.point else None


def workers_busy(e: Evidence) -> float | None:
    """CPU time of the loader's workers over their time; null without workers or samples. The ranks' own threads, which
    compute unless they wait for the loader, are left out."""
    workers = e.setting("loader_workers")
    if not workers or e.hosts.is_empty() or e.point is None:
        return None
    percent = e.hosts.group_by("host").agg(pl.col("cpu_percent").median())["cpu_percent"].mean()
    ranks = e.point.processes_per_node
    own = ranks * (1 - host_wait(e))
    return max(0.0, (float(percent) / 100 - own) / (ranks * workers)) if isinstance(percent, float) else None


CPU_BUSY = Threshold(
    0.70,
    "share",
    "Loader workers that compute for so much of their time prepare samples, and wait for none.",
    "workers that only copy (tests/data/labelled, h2d_pageable_resnet50): 0.52",
)


def preparing(e: Evidence) -> bool:
    busy = workers_busy(e)
    return busy is not None and busy >= CPU_BUSY.value


def _more_workers(e: Evidence) -> tuple[dict[str, Any], ...]:
    """Workers that would keep up with the rest of the step, as far as there are cores."""
    if e.point is None:
        return ({"loader_workers": 4},)
    wait, have = host_wait(e), max(e.point.loader_workers, 1)
    enough = math.ceil(have / max(1 - wait, 1 / 16)) + 1
    workers = max(have, min(enough, max((cores(e) or enough) - 1, 1)))
    more: dict[str, Any] = {"loader_workers": workers}
    ahead = {"prefetch_factor": 2 * e.point.prefetch_factor}
    return ({**more, "across_epochs": True}, more, {"across_epochs": True}, ahead)


def h2d_pageable(e: Evidence) -> list[Cause]:
    """Batches are copied from pageable memory. The exposed time of these copies x (1 - their bandwidth / that of
    page-locked memory), and the idle time after the host's waits for them, which non-blocking copies do away with."""
    if memory_management.offloads(e):
        return []
    slow = 1 - min(1.0, bandwidth(e, "pageable") / pinned_bandwidth(e))
    copies, lost = e.part("copy_htod_pageable"), e.length(lambda lane: lane.lost["copy_pageable"])
    return _copy_causes(
        e, "h2d_pageable", copies * slow + lost * e.host_scale, "pageable", {"pin_memory": True, "non_blocking": True}
    )


def h2d_exposed(e: Evidence) -> list[Cause]:
    """Copies of batches to the GPU beside which it does nothing, at the speed of page-locked memory, and the idle time
    after the host's waits for these. Copied ahead on a stream of their own they are hidden, as far as there is compute
    to hide them; of the rest half, for bytes can be fewer. All of it is the interval's upper end."""
    if memory_management.offloads(e):
        return []
    fast = min(1.0, bandwidth(e, "pageable") / pinned_bandwidth(e))
    rest = e.part("copy_htod_pageable") * fast + e.part("copy_htod_pinned") + e.part("copy_htod")
    lost = e.length(lambda lane: lane.lost["copy_pinned"])
    hidden = np.minimum(rest, e.part("compute"))
    change = {"pin_memory": True, "non_blocking": True, "device_prefetch": True}
    causes = _copy_causes(e, "h2d_exposed", hidden + (rest - hidden) / 2 + lost * e.host_scale, "pinned", change)
    whole = e.share(rest + lost * e.host_scale)
    return [_with_high(cause, whole.high) for cause in causes]


def _with_high(cause: Cause, high: float | None) -> Cause:
    return dataclasses.replace(cause, high=high if cause.high is None or high is None else max(high, cause.high))


def _copy_causes(e: Evidence, kind: str, amount: Floats, memory: str, change: dict[str, Any]) -> list[Cause]:
    count, waited = waits_of(e, f"copy_{memory}")
    moved = e.of_lanes(
        lambda lane: lane.summed(
            _batches(lane.own["copies"], None)["start_ns"], _batches(lane.own["copies"], None)["bytes"]
        )
    )
    if not e.lanes or not moved.sum():
        return []
    return list_cause(
        CAUSE,
        kind,
        e.share(amount),
        "none",
        method="exposed copies to the device, and idle time after the host's waits for them",
        advice="page-locked memory and non-blocking copies" if memory == "pageable" else "copy the next batch ahead",
        remedy=remedies.choose(e.point, change, {"pixels": "uint8"}),
        evidence=[
            Fact("copied to the device", float(moved[e.judged].mean()) / 1e6, "MB a step", "copies"),
            Fact(f"bandwidth from {memory} memory", bandwidth(e, memory) / 1e9, "GB/s", "copies"),
            Fact("waits of the host for these copies", float(waited[e.judged].mean()) / 1e6, "ms a step", "runtime"),
            Fact("such waits", float(count[e.judged].mean()), "a step", "runtime"),
        ],
    )


def _batches(copies: pl.DataFrame, memory: str | None) -> pl.DataFrame:
    own = copies.filter(pl.col("direction") == "HtoD", pl.col("bytes") > 0)
    return own if memory is None else own.filter(pl.col("source") == memory)


def bandwidth(e: Evidence, memory: str) -> float:
    """Bytes over time of large copies from this memory to the device, bytes/s; of all where none is large; 0 without
    any."""
    own = [_batches(lane.own["copies"], memory) for lane in e.lanes]
    copies = pl.concat(own) if own else pl.DataFrame()
    if copies.is_empty():
        return 0.0
    large = copies.filter(pl.col("bytes") >= LARGE_BYTES)
    used = large if large.height else copies
    return float(used["bytes"].sum()) * 1e9 / max(float((used["end_ns"] - used["start_ns"]).sum()), 1.0)


PINNED_BYTES_PER_S = Threshold(
    25e9,
    "bytes/s",
    "What a copy from page-locked memory reaches, where the trace has no large one to compare.",
    "80 % of PCIe 4.0 x16, 31.5 GB/s in one direction",
)


def pinned_bandwidth(e: Evidence) -> float:
    """What copies from page-locked memory reach here, bytes/s."""
    large = [_batches(lane.own["copies"], "pinned").filter(pl.col("bytes") >= LARGE_BYTES).height for lane in e.lanes]
    return max(bandwidth(e, "pinned"), PINNED_BYTES_PER_S.value) if sum(large) else PINNED_BYTES_PER_S.value


RULES = (
    Rule(CAUSE, loader_wait, traced=False),
    Rule(CAUSE, cpu_preprocessing, traced=False),
    Rule(CAUSE, h2d_pageable),
    Rule(CAUSE, h2d_exposed),
)
