"""Memory costs time: asked for and given back in every step, too tight, kept on the host, or left unused."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.cause import Cause, Fact, Share
from nightsweep.analysis.diagnosis.causes.rule import DEVICE, HOST, Rule
from nightsweep.analysis.diagnosis.evidence import batch
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.remedies import proposals as remedies
from nightsweep.analysis.diagnosis.replay import changes
from nightsweep.analysis.diagnosis.thresholds import Threshold
from nightsweep.analysis.metrics.steps.parts import LARGE_BYTES
from nightsweep.analysis.tables.part_names import COPIES

TO_HOST = tuple(part for part in COPIES if part.startswith("copy_dtoh"))
FROM_HOST = tuple(part for part in COPIES if part.startswith("copy_htod"))

OFFLOAD_COPIES = Threshold(
    16,
    "copies",
    "Copies of 1 MiB and more from the host in a step; more are weights or states, not a batch.",
    "a batch is one to four tensors for each micro-batch",
)
WEIGHTS = Threshold(
    256 << 20,
    "bytes",
    "Likewise so much in them.",
    "batches of many passes or pictures: up to 128 MB a step; offloaded weights and activations: from 517 MB "
    "(tests/data/scripts)",
)
OFFLOAD_BYTES = Threshold(
    32 << 20,
    "bytes",
    "Likewise so much in a step to page-locked memory of the host as well as from the host: gradients and weights.",
    "checkpoints are read into pageable memory",
)
OFFLOAD_EXPOSED = Threshold(
    0.5,
    "share",
    "Likewise, where the steps are not known: of the trace, exposed copies from the host.",
    "assumed: batches that take longer to copy than to compute are rare",
)


def offloads(e: Evidence) -> bool:
    """Whether weights or states live on the host: as the point says, else by the number of large copies from there."""
    if e.setting("offload") is not None:
        return bool(e.setting("offload") != "none")
    if not e.lanes:
        return False
    graph, steps = e.what_if.graph, e.what_if.graph.device_steps()
    large = graph.work.frame.filter(pl.Series(graph.counted_work), pl.col("bytes") >= LARGE_BYTES)
    back, out = large.filter(direction="HtoD"), large.filter(direction="DtoH", target="pinned")
    if min(back["bytes"].sum(), out["bytes"].sum()) > OFFLOAD_BYTES.value * steps:
        return True
    many = back.height > OFFLOAD_COPIES.value * steps and back["bytes"].sum() > WEIGHTS.value * steps
    if e.lanes[0].source != "none":
        return many
    return many and e.share(np.sum([e.part(part) for part in FROM_HOST], axis=0)).value > OFFLOAD_EXPOSED.value


def allocator_churn(e: Evidence) -> Iterator[Cause]:
    """Memory is taken from the driver and given back in the middle of training (cudaMalloc, cudaFree, empty_cache).
    The steps again, without these calls."""
    if e.retries:
        return
    change = remedies.choose(e.point, {"empty_cache": False}, {"allocator": "expandable"})
    yield Cause(
        gain=e.gain(changes.without_allocations),
        method="the steps replayed without calls of the driver's allocator",
        advice="let the caching allocator keep its memory: no empty_cache, sizes that repeat",
        remedy=change if e.point is None or e.point.empty_cache or e.point.allocator == "default" else {},
        evidence_of=functools.partial(_calls, e),
        change=changes.without_allocations,
    )


def _calls(e: Evidence, rank: int | None) -> list[Fact]:
    count, _ = e.what_if.calls_a_step(e.what_if.graph.calls.allocates, rank)
    return [Fact("calls of the driver's allocator", count, "a step", "runtime")]


def memory_pressure(e: Evidence) -> Iterator[Cause]:
    """Memory is too tight: the allocator tries again after giving its cache back, or weights and optimizer live on the
    host. The steps again, without these calls; or without copies of what is offloaded and pauses of the host, which
    computes the optimizer's step."""
    if not e.retries and not offloads(e):
        return
    change = changes.without_offload if offloads(e) else changes.without_allocations
    smaller = {"micro_batch": max(1, (e.setting("micro_batch") or 1) // 2)}
    proposals = [{"offload": "none"}] if offloads(e) else [{"allocator": "expandable"}, smaller]
    yield Cause(
        gain=e.gain(change) if e.lanes else Share(),
        method="the steps replayed without offloading, or without the allocator's retries",
        advice="keep on the GPU what fits there"
        if offloads(e)
        else "leave memory room: sizes that repeat, a smaller batch",
        remedy=remedies.choose(e.point, *proposals),
        evidence_of=functools.partial(_pressed, e),
        change=change if e.lanes else None,
    )


def _pressed(e: Evidence, rank: int | None) -> list[Fact]:
    facts = [Fact("allocations tried again in the steps", e.retries, "", "steps")] if e.retries else []
    if e.retries and e.lanes:
        facts += _calls(e, rank)
    if offloads(e) and e.lanes:
        copies = e.part_ms(*TO_HOST, *FROM_HOST, rank=rank)
        facts.append(Fact("copies from and to the host that nothing hides", copies, "ms a step", "breakdown"))
    return facts


def memory_headroom(e: Evidence) -> Iterator[Cause]:
    """Memory has room for a batch twice as large or more. Time of the optimizer's kernels, which do not depend on the
    batch, that a batch as large as memory allows would save a sample; the rest that it may give is `launch_bound`. A
    remark where the batch is small: then it is `small_batch` that has the same remedy."""
    if e.memory is None or e.growth < 2:
        return
    share = e.share(batch.optimizer_saving(e)).times(0.5) if e.lanes and not batch.is_small(e) else Share()
    yield Cause(
        gain=share,
        method=f"time of optimizer kernels x (1 - 1/{e.growth}), of the time a sample",
        advice="enlarge the batch: more samples share one optimizer step",
        remedy=remedies.choose(e.point, *remedies.larger_batch(e.point, e.growth)),
        evidence=[
            Fact("peak of reserved memory", e.memory[0] / e.memory[1], "share of the device's", "ranks"),
            Fact("room for a batch larger by", e.room, "times", "ranks"),
        ],
    )


RULES = (
    Rule(allocator_churn, HOST, below=0.5, above=1.75),
    Rule(memory_headroom, DEVICE, traced=False, remark=True),
    Rule(memory_pressure, HOST, traced=False, remark=True, below=0.5, leaves_compute=True),
)
