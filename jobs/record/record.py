"""The record of a point, record.json: how its runs ended, where and with what.

A launcher writes it last, and the Slurm executor's driver writes it for a point whose launcher could not. The tables
`points` and `failures` are made from it. The table of fields in docs/formats.md is written from the types here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from msgspec import Struct, field

from nightsweep.jobs.host.facts import Host, SlurmJob, Software
from nightsweep.jobs.host.terminal import harmless
from nightsweep.jobs.point.point import Value
from nightsweep.jobs.record.failures import Reason
from nightsweep.jobs.record.launch_files import Event
from nightsweep.jobs.record.phases import Phase

SCHEMA = 1

Status = Literal["ok", "failed", "cancelled", "not_run"]
"""Of a point. not_run: it has no record, so no record says this of itself."""

STATUSES: tuple[Status, ...] = get_args(Status)

RunName = Literal["timed", "traced", "control"]
RunStatus = Literal["ok", "failed", "skipped"]


class Run(Struct, frozen=True, kw_only=True):
    """One run of the ranks. All starts of the control are one entry."""

    status: RunStatus = "skipped"
    """`skipped`: it was not asked for, the run before it failed, or a script ended before its steps."""
    reason: Reason | None = None
    """Why it failed."""
    message: str | None = None
    """The failure in one line."""
    started_ns: int | None = None
    """UTC, ns."""
    ended_ns: int | None = None
    """UTC, ns."""
    wall_s: float | None = None
    """Seconds between the two."""
    same_start: bool = False
    """Whether it followed the timed run in the same start. The logs and samples of both are then in timed/."""
    forked: bool = False
    """Whether its ranks were forked from a process that had imported what they need; else each was a new Python."""


class Runs(Struct, frozen=True, kw_only=True):
    """The runs of a point."""

    timed: Run = field(default_factory=Run)
    """Without any profiler; the point's status is this run's."""
    traced: Run = field(default_factory=Run)
    """A short traced window: after the timed one in the same start, or in a second start."""
    control: Run = field(default_factory=Run)
    """The cost of measuring, where the point has `cost_pairs`."""

    def named(self) -> Iterator[tuple[RunName, Run]]:
        """Each with its name."""
        yield "timed", self.timed
        yield "traced", self.traced
        yield "control", self.control


class Tracebacks(Struct, frozen=True, kw_only=True):
    """Texts that ranks left, a traceback or else stacks; paths relative to the point's folder."""

    first_failed: str | None = None
    """Of the rank that failed first."""
    rank0: str | None = None
    """Of rank 0."""


class Failure(Struct, frozen=True, kw_only=True):
    """The rank that failed first, in the first run that failed. Only `look` is known where no rank is to blame."""

    run: RunName | None = field(name="look", default=None)
    """The run that failed."""
    rank: int | None = None
    """Global rank."""
    host: str | None = None
    """Host name of the rank."""
    exit_code: int | None = None
    """Exit code of the rank; null for a signal."""
    signal: int | None = None
    """The signal that the rank died of."""
    phase: str | None = None
    """Where the rank stood, by its last sign of life."""
    step: int | None = None
    """The step that the rank's exception names."""
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    """Texts that this rank and rank 0 left: a traceback, else stacks. Paths are relative to the point's folder."""


class RunEvent(Event, frozen=True, kw_only=True):
    """A line of events-H.jsonl, with the run that it was seen in."""

    run: RunName | None = field(name="look", default=None)
    """The run that it was seen in."""


class SearchResult(Struct, frozen=True, kw_only=True):
    """What `batch_search` found."""

    micro_batch: int | None = None
    """The largest that fits."""


class TracerUse(Struct, frozen=True, kw_only=True):
    """The tracer of the traced run."""

    used: Literal["nsys", "kineto"] | None = None
    """Null where there is no trace."""
    reason: str | None = None
    """Why this one, or why none."""


class NvmlUse(Struct, frozen=True, kw_only=True):
    """Whether GPUs could be sampled."""

    available: bool = False
    """Whether NVML answered on the first node, with a GPU of the job."""
    reason: str | None = None
    """Why not."""


class Record(Struct, frozen=True, kw_only=True):
    """record.json. Of a point whose launcher could not write one, what is not known is null or empty."""

    schema: int = SCHEMA
    """Version of this format."""
    point_id: str | None = None
    """The hash of the settings, which names the folder."""
    sweep: str | None = None
    """Name of the sweep that measured the point."""
    settings: dict[str, Value] = field(default_factory=dict)
    """All settings that the point's workload has (docs/settings.md)."""
    status: Status
    """How the point ended. A point that was not run has no record."""
    reason: Reason | None = None
    """Why it is not ok."""
    message: str | None = None
    """The failure in one line."""
    found: SearchResult | None = None
    """With `batch_search`."""
    attempt: int | None = None
    """Number of this start of the point, from 1."""
    command: str | None = None
    """The launcher's command, and what it started for the ranks."""
    started_at: str | None = None
    """Start of the launch, ISO 8601, UTC."""
    ended_at: str | None = None
    """End of the launch, ISO 8601, UTC."""
    wall_s: float | None = None
    """Seconds from start to end of the launch."""
    failure: Failure | None = None
    """Null where no run failed."""
    runs: Runs = field(name="looks", default_factory=Runs)
    """The runs of the ranks."""
    tracer: TracerUse = field(default_factory=TracerUse)
    """What the traced run used."""
    nvml: NvmlUse = field(default_factory=NvmlUse)
    """Whether GPUs were sampled."""
    events: list[RunEvent] = field(default_factory=list)
    """What the samplers saw happen to GPUs, in order of time; the first 200."""
    device: Literal["cpu", "cuda"] | None = None
    """What ranks computed on."""
    backend: Literal["gloo", "nccl"] | None = None
    """Communication library."""
    world_size: int | None = None
    """GPUs in all, or ranks on CPUs."""
    hosts: list[Host] = field(default_factory=list)
    """One a node, with the GPUs of the job."""
    software: Software = field(default_factory=Software)
    """Versions of what ran."""
    slurm: SlurmJob | None = None
    """Null outside of Slurm."""
    phases: list[Phase] = field(default_factory=list)
    """Where the time of the launch went, from when its GPUs were held (and before that, in Slurm's queue) to its end.
    Empty of a launch that gave no sign of life, and in records of earlier versions."""


def ending(record: Record | None) -> str:
    """How a point ended, for the screen: status and reason, and the message where there is one. None: no record."""
    if record is None:
        return "not_run: it has no record yet"
    why = ", ".join(text for text in (record.reason, record.message) if text)
    return harmless(f"{record.status}: {why}" if why else record.status)
