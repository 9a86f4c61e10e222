"""The GPU waits for its input: for the loader, for the CPU work on samples, or for the copy to the device."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis.cause import Cause, Fact, Share, replayed
from nightsweep.analysis.diagnosis.causes import memory_management
from nightsweep.analysis.diagnosis.causes.rule import HOST, Rule
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.remedies import proposals as remedies
from nightsweep.analysis.diagnosis.replay import changes, masks, pauses
from nightsweep.analysis.diagnosis.replay.edit import compose
from nightsweep.analysis.diagnosis.replay.what_if import Change
from nightsweep.analysis.diagnosis.thresholds import NOISE, Threshold

KEPT_UP = 2 / 3
"""Of what batches that are ready would give, where the interval begins: of 38 scripts whose loaders were remedied three
gained less (docs/diagnosis-accuracy.md)."""


def loader_wait(e: Evidence) -> Iterator[Cause]:
    """The launching thread waits for the next batch: in a range of the loader, or, where no range marks one, before a
    batch's copy to the device. The steps again, with batches that are there; and what timed steps wait longer than the
    trace's, which may live on batches loaded before. Two thirds are the lower end, for more workers may not keep up.
    Remedied by more workers it gives no more than these can, in proportion to their number. Where most of it is
    that a loader starts its workers anew, they can be kept: that gives these starts, half at least, and all of the wait
    at most. Without a trace the host's wait, of which the GPU may have worked through any part."""
    if preparing(e):
        return
    starts = float(e.of_lanes(lambda lane: lane.loader_starts).mean()) / e.step_ns if e.lanes else 0.0
    anew = min(starts, waiting(e))
    if anew > waiting(e) / 2 and not e.setting("persistent_workers"):
        yield _loading(e, "keep the loader's workers from one epoch to the next", ({"persistent_workers": True},), anew)
    else:
        yield _loading(e, "let more workers load, further ahead", _more_workers(e))


def cpu_preprocessing(e: Evidence) -> Iterator[Cause]:
    """The same wait, while the loader's workers compute (`cpu_busy`): preparing samples is what takes the time."""
    if preparing(e):
        proposals = (
            {"resize_on": "device", "pixels": "uint8"},
            {"resize_on": "device"},
            {"source": "raw", "loader": "mmap", "pixels": "uint8"},
            {"loader": "dali", "dali_on": "mixed"},
            {"loader": "mmap"},
            *_more_workers(e),
        )
        yield _loading(e, "prepare samples on the GPU, or once and for all", proposals)


def _loading(e: Evidence, advice: str, proposals: tuple[dict[str, Any], ...], anew: float = 0.0) -> Cause:
    remedy, waited, busy = remedies.choose(e.point, *proposals), host_wait(e), workers_busy(e)
    if e.lanes:
        share = replayed(anew, anew / 2, waiting(e)) if anew else replayed(waiting(e)).times(KEPT_UP)
        method = "the steps replayed with batches that are ready"
        if e.unseen_wait:
            method += ", and what timed steps wait longer than traced ones"
    else:
        share = Share(waited, 0.0, waited)
        method = "time of the host in the loader, timed steps: at most so much"
    rank, facts = _late_rank(e) if e.lanes else None, []
    if not e.steps.is_empty():
        facts.append(Fact("host's wait for the loader", host_wait(e, rank), "share of the timed step", "steps"))
    if e.workers is not None:
        facts.append(Fact("loader workers of a rank", e.workers, "", "points"))
    if busy is not None:
        facts.append(Fact("CPU time of a loader worker", busy, "share of its time", "host_samples"))
    if anew:
        facts.append(Fact("starting its workers anew", anew * e.step_ns / 1e6, "ms a step", "operators"))
    unmarked = e.part("idle_unmarked_data")
    if unmarked.any():
        before = e.part_ms("idle_unmarked_data", rank=rank)
        facts.append(Fact("of it before a batch's copy, in no range", before, "ms a step", "copies"))
    return Cause(
        gain=_as_fast_as_workers(e, share, remedy),
        method=method,
        advice=advice,
        remedy=remedy,
        evidence=facts,
        rank=rank,
        change=changes.without_loading if e.lanes else None,
        unseen=e.unseen_wait / e.step_ns if e.unseen_wait else 0.0,
    )


def _as_fast_as_workers(e: Evidence, share: Share, remedy: dict[str, Any]) -> Share:
    """The most that additional workers can give, if a step takes as long as the workers need for a batch: of a step
    that waits for workers all of it; of one that loads its batches itself what it waits."""
    have, more = e.workers, remedy.get("loader_workers")
    if have is None or not more or more <= have or share.value < NOISE.value:
        return share
    loading = max(host_wait(e), share.value) if have == 0 else float(have)
    most = 1 - loading / more
    return Share(min(share.value, most), min(share.low, most), min(share.high, most))


def _late_rank(e: Evidence) -> int | None:
    """The rank whose loader it is, by what is larger: the waits in the trace, or those that it did not see."""
    seen = e.gain(changes.without_loading).value * e.step_ns
    return e.unseen.rank_alone if e.unseen_wait > seen else e.rank_of(changes.without_loading)


def waiting(e: Evidence) -> float:
    """The share of the step that batches which are there give back, with what the trace does not see; 0 without one."""
    return min(1.0, e.gain(changes.without_loading).value + e.unseen_wait / e.step_ns) if e.lanes else 0.0


def host_wait(e: Evidence, rank: int | None = None) -> float:
    """Mean wait of the host for its loader over the mean step, timed if there are such, else traced; 0 without any. Of
    this rank, or of all."""
    steps = e.traced_steps if e.steps.is_empty() else e.steps
    steps = steps if rank is None else steps.filter(pl.col("rank") == rank)
    wait, step = steps["data_ms"].mean(), steps["step_ms"].mean()
    return min(1.0, float(wait) / float(step)) if isinstance(wait, float) and isinstance(step, float) else 0.0


def cores(e: Evidence) -> int | None:
    """CPU cores for each rank of a host."""
    count = e.record.hosts[0].cpu_cores if e.record.hosts else None
    return count // e.point.tasks_per_node if count and e.point else None


def workers_busy(e: Evidence) -> float | None:
    """CPU time of the loader's workers over their time; null without workers or samples. The ranks' own threads, which
    compute unless they wait for the loader, are left out."""
    workers = e.workers
    if not workers or e.point is None:
        return None
    percent = e.hosts.group_by("host").agg(pl.col("cpu_percent").median())["cpu_percent"].mean()
    ranks = e.point.tasks_per_node
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
    """Workers that would keep up with the rest of the step: fewer than there are cores where workers are seen to
    compute, else fewer than twice as many, for they may wait for storage."""
    if e.point is None:
        return ({"loader_workers": 4},)
    wait, have = max(host_wait(e), waiting(e)), max(e.workers or 0, 1)
    enough = math.ceil(have / max(1 - wait, 1 / 16)) + 1
    limit = (cores(e) or enough) * (1 if preparing(e) else 2) - 1
    able = max(have, min(enough, max(limit, 1)))
    more: dict[str, Any] = {"loader_workers": able} if able > (e.workers or 0) else {}
    ahead = {"prefetch_factor": 2 * (e.point.prefetch_factor or 2)}
    return ({**more, "across_epochs": True}, more, {"across_epochs": True}, ahead)


def h2d_pageable(e: Evidence) -> Iterator[Cause]:
    """Batches are copied from pageable memory. The steps again, with copies at the rate of page-locked memory for which
    the host does not wait, and without the time in which it frees a batch. Where batches come from worker processes a
    thread of the loader would free them and hold the GIL as long, so that `release_unlocked` is part of the remedy."""
    pinned: dict[str, Any] = {"pin_memory": True, "non_blocking": True}
    advice, facts, proposals = "page-locked memory and non-blocking copies", [], [pinned]
    if e.loader_holds_gil and pauses.freeing_ns(e.what_if.graph).any():
        advice = "page-locked memory, non-blocking copies, and batches freed without holding the GIL (release_unlocked)"
        alone = e.gain(_pinned(e, stalls=True)).value
        facts = [Fact("page-locked memory alone, about", alone, "share of the step", "runtime")]
        proposals = [{**pinned, "release_unlocked": True}, pinned]
    change = _pinned(e)
    yield from _copying(e, "pageable", proposals, facts, gain=e.gain(change), advice=advice, change=change)


def h2d_exposed(e: Evidence) -> Iterator[Cause]:
    """Copies of batches to the GPU beside which it does nothing, at the rate of page-locked memory. The steps again,
    with copies ahead on a stream of their own, which take as long as the link lets them; of what that leaves half, for
    bytes can be fewer, and all of it is the interval's upper end."""
    both = compose(_pinned(e), changes.with_batches_ahead)
    gained = e.gain(_pinned(e), then=changes.with_batches_ahead).value
    copying = changes.copying_ns(_pinned(e)(e.what_if.graph)) / e.step_ns
    beyond = max(0.0, copying - (1 - e.gain(both).value))
    hidden = max(0.0, gained - beyond)
    ahead = {"pin_memory": True, "non_blocking": True, "device_prefetch": True}
    share = replayed(hidden + (gained - hidden) / 2, hidden, gained)
    yield from _copying(e, "pinned", [ahead], gain=share, advice="copy the next batch ahead", change=both)


def batch_release(e: Evidence) -> Iterator[Cause]:
    """The loader's thread that pins batches also frees their shared memory, and holds Python's global interpreter lock
    (GIL) meanwhile: the launching thread stalls once a batch. These pauses are known by their length, that of freeing a
    batch's memory, and only where batches come from worker processes; another pause as long, once a batch, is taken for
    one (analysis/diagnosis/replay/pauses.py, `releasing`). The steps again, without these pauses. Not each step has
    one, and few steps are traced: where freeing takes 5 ms or longer, the share is what steps that are longer by such a
    time add to the mean timed step, and the interval reaches to what was traced, or to a third where that is none."""
    traced, timed, step = e.traced_stalls, e.timed_stalls, e.step_ns
    if not max(traced, timed):
        return
    yield Cause(
        gain=replayed(timed / step, min(traced or timed / 3, timed) / step, max(traced, timed) / step),
        method="the steps replayed without pauses as long as freeing a batch's memory takes, and timed steps that are "
        "longer by such a time",
        advice="free batches without holding the GIL (release_unlocked); send them as bytes, which are smaller",
        remedy=remedies.choose(e.point, {"release_unlocked": True}, {"pixels": "uint8"}),
        evidence=[Fact("what timed steps are longer by", timed / 1e6, "ms a step", "steps")] if timed != traced else [],
        evidence_of=functools.partial(_stalls, e),
        change=pauses.without_release,
        unseen=e.unseen_stalls / step,
    )


def _stalls(e: Evidence, rank: int | None) -> list[Fact]:
    graph = e.what_if.graph
    stalls = pauses.releasing(graph)
    count, _ = e.what_if.calls_a_step(stalls, rank)
    own = stalls & graph.calls_of_steps & (True if rank is None else graph.calls.rank == rank)
    paused = float(graph.calls.gap[own].sum()) / graph.rank_steps(rank)
    return [Fact("such pauses", count, "a step", "runtime"), Fact("time in them", paused / 1e6, "ms a step", "runtime")]


def _pinned(e: Evidence, *, stalls: bool = False) -> Change:
    return lambda graph: changes.with_pinned_batches(graph, pinned_bandwidth(e), stalls=stalls)


def _copying(
    e: Evidence, memory: str, proposals: list[dict[str, Any]], facts: Sequence[Fact] = (), **about: Any
) -> Iterator[Cause]:
    if memory_management.offloads(e) or not masks.of_batches(e.what_if.graph).any():
        return
    yield Cause(
        method="the steps replayed with faster copies to the device, or with copies ahead",
        remedy=remedies.choose(e.point, *proposals, {"pixels": "uint8"}),
        evidence=[fact for fact in facts if fact.value],
        evidence_of=functools.partial(_copies, e, memory),
        **about,
    )


def _copies(e: Evidence, memory: str, rank: int | None) -> list[Fact]:
    graph = e.what_if.graph
    waiting = masks.waits_for_batches(graph, masks.of_batches(graph, memory)) & (graph.calls.waits_for >= 0)
    count, waited = e.what_if.calls_a_step(waiting, rank)
    seen = (
        Fact("copies of batches", changes.copying_ns(graph, rank) / 1e6, "ms a step", "copies"),
        Fact(f"bandwidth from {memory} memory", bandwidth(e, memory) / 1e9, "GB/s", "copies"),
        Fact("waits of the host for these copies", waited / 1e6, "ms a step", "runtime"),
        Fact("such waits", count, "a step", "runtime"),
    )
    return [fact for fact in seen if fact.value]


def bandwidth(e: Evidence, memory: str) -> float:
    """Bytes over time of the copies of batches from this memory, bytes/s; 0 without any."""
    work = e.what_if.graph.work
    copies = masks.of_batches(e.what_if.graph, memory)
    return float(work.frame["bytes"].filter(copies).sum()) * 1e9 / max(float(work.duration[copies].sum()), 1.0)


PINNED_BYTES_PER_S = Threshold(
    25e9,
    "bytes/s",
    "What a copy from page-locked memory reaches.",
    "80 % of PCIe 4.0 x16, 31.5 GB/s in one direction",
)
HOPPER_BYTES_PER_S = Threshold(
    50e9,
    "bytes/s",
    "The same of NVIDIA's devices of compute capability 9.0 and later, which have PCIe 5.0.",
    "154 MB to an H100 (tests/labelled/scripts.yaml, copies_vision_loop): 54.7 GB/s",
)


def pinned_bandwidth(e: Evidence) -> float:
    """What copies from page-locked memory reach here, bytes/s."""
    known = e.devices.filter(pl.col("name").str.starts_with("NVIDIA"))["compute_capability"].cast(pl.Float64).min()
    newer = isinstance(known, float) and known >= 9.0
    return HOPPER_BYTES_PER_S.value if newer else PINNED_BYTES_PER_S.value


RULES = (
    Rule(loader_wait, HOST, traced=False),
    Rule(cpu_preprocessing, HOST, traced=False),
    Rule(h2d_pageable, HOST, below=0.6, above=0.6, leaves_compute=True),
    Rule(h2d_exposed, HOST, leaves_compute=True),
    Rule(batch_release, HOST, leaves_compute=True),
)
