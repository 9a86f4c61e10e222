"""What is known of a run beside its traces: its settings, its record, its steps, samples of its GPUs and hosts."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis.evidence.unseen import Unseen
from nightsweep.analysis.diagnosis.thresholds import BATCH_GROWTH, MEMORY_ROOM
from nightsweep.analysis.tables.column import empty
from nightsweep.analysis.tables.points import STEPS
from nightsweep.analysis.tables.telemetry import HOST_SAMPLES
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.launch_files import RankResult
from nightsweep.jobs.record.record import Record


@dataclass(frozen=True)
class Recorded:
    """`devices`: of all ranks. `steps`, `traced_steps`: of a point; `results`: what its ranks recorded at their end.
    `samples`: of each rank's GPU, in the timed window or while the trace ran. `hosts`: host_samples of the timed steps,
    else of the traced ones. `disturbed`: what outside of the job disturbed the timed steps (docs/protocol.md); None
    where nothing is known to have."""

    devices: pl.DataFrame = field(default_factory=lambda: empty(TRACE_TABLES["devices"]))
    point: Point | None = None
    record: Record = field(default_factory=lambda: Record(status="not_run"))
    results: Sequence[RankResult] = ()
    steps: pl.DataFrame = field(default_factory=lambda: empty(STEPS))
    traced_steps: pl.DataFrame = field(default_factory=lambda: empty(STEPS))
    samples: Mapping[int, pl.DataFrame] = field(default_factory=dict)
    hosts: pl.DataFrame = field(default_factory=lambda: empty(HOST_SAMPLES))
    disturbed: str | None = None

    def setting(self, name: str) -> Any:
        """The point's setting; None where there is no point."""
        return getattr(self.point, name) if self.point else None

    @property
    def is_script(self) -> bool:
        """Whether somebody's own script ran, as also where nothing but traces is known."""
        return self.point is None or self.point.workload == "command"

    @property
    def failed(self) -> str | None:
        """Why the run ended before its end; None where it did not, or nothing tells."""
        ended_early = self.record.status in ("failed", "cancelled")
        return (self.record.reason or self.record.status) if ended_early else None

    @functools.cached_property
    def unseen(self) -> Unseen:
        return Unseen(self.steps, self.traced_steps)

    @functools.cached_property
    def timed_ns(self) -> float | None:
        """Median time of a timed step of the slowest rank, ns."""
        middle = self.unseen.slowest_ms.median()
        return float(middle) * 1e6 if isinstance(middle, float) else None

    @property
    def recomputed(self) -> float | None:
        """Share of the hardware FLOPs that activation checkpointing adds, as the ranks counted; None without it, or
        where nothing tells."""
        counts = [(r.flops.step or 0, r.flops.hardware_step) for r in self.results if r.flops and r.flops.hardware_step]
        if not self.setting("activation_checkpointing") or not counts:
            return None
        return 1 - sum(model for model, _ in counts) / sum(hardware for _, hardware in counts)

    @functools.cached_property
    def tenants(self) -> int:
        """Processes on the GPU of a rank: as the point says, or counted on every rank's GPU (one process of a rank may
        open a context on the GPU of another)."""
        counts = [own["processes"].max() for own in self.samples.values()]
        counted = min((int(c) for c in counts if isinstance(c, int)), default=1)
        strangers = [own["foreign_processes"].max() for own in self.samples.values()]
        foreign = max((int(c) for c in strangers if isinstance(c, int)), default=0)
        return max(self.setting("tenants") or 1, counted, foreign + 1)

    @property
    def passes(self) -> int:
        """Backward passes of a step: as the point says, or as a script had them."""
        return int(self.setting("grad_accum") or max((r.passes or 1 for r in self.results), default=1))

    @property
    def workers(self) -> int | None:
        """Loader workers of a rank: as the point says, or as a script has them; None where it is not known."""
        set_by_point = self.setting("loader_workers")
        known = [r.loader_workers for r in self.results if r.loader_workers is not None]
        return int(set_by_point) if set_by_point is not None else max(known, default=None)

    @property
    def compiled(self) -> bool:
        return self.setting("compile") not in (None, "none")

    @functools.cached_property
    def memory(self) -> tuple[int, int] | None:
        """Peak of the allocator's reserved memory over ranks, and the smallest device's memory, bytes."""
        peaks = [r.peak_reserved_bytes for r in self.results if r.peak_reserved_bytes]
        gpus = [gpu.memory_bytes for host in self.record.hosts for gpu in host.gpus if gpu.memory_bytes]
        return (max(peaks), min(gpus)) if peaks and gpus else None

    @functools.cached_property
    def retries(self) -> int:
        """Times in the timed steps, else in the traced ones, that the allocator found no memory and gave its cache
        back."""
        steps = self.traced_steps if self.steps.is_empty() else self.steps
        if steps["alloc_retries"].null_count():
            return 0
        grown = steps.group_by("rank").agg(pl.col("alloc_retries").max() - pl.col("alloc_retries").min())
        return int(grown["alloc_retries"].sum())

    @functools.cached_property
    def room(self) -> int:
        """How many times as large a batch memory has room for, a power of two; 1 where that is not known, or where the
        allocator found none: what else is on the GPU is not in these numbers, nor is a limit of the process."""
        if self.memory is None or self.retries:
            return 1
        peak, whole = self.memory
        return int(2 ** max(0, math.floor(math.log2(MEMORY_ROOM.value * whole / peak))))

    @property
    def growth(self) -> int:
        """How many times as large a batch is proposed."""
        return min(int(BATCH_GROWTH.value), self.room)
