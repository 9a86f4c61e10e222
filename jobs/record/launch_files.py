"""The other JSON files of a launch, a type for each: what its processes leave for one another and for the analysis.

The tables of fields in docs/formats.md are written from here.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from nightsweep.jobs.point.plan import Phase
from nightsweep.jobs.point.point import Point, Value, complete
from nightsweep.jobs.record.failures import Reason

WHOLE_RUN = "whole run"
"""The step_source of a script in which no steps were found, or too few."""
TOO_FEW = "steps were too few"
"""In the notes of a rank whose script ended before its steps were enough."""

EventKind = Literal["xid", "ecc", "foreign_process", "low_gpu", "gpu_lost", "field_missing", "sampler_lost"]


class Job(Struct, frozen=True, kw_only=True):
    """point.json: the point."""

    sweep: str | None = None
    """Name of the sweep."""
    point_id: str
    """The hash of the settings, which names the folder."""
    settings: dict[str, Value]
    """All settings that the point's workload has (docs/settings.md)."""

    def point(self) -> Point:
        """The point that these settings make."""
        return complete(self.settings)


class Start(Struct, frozen=True, kw_only=True):
    """A line of attempts.jsonl: one start of the point."""

    attempt: int
    """From 1."""
    started_at: str
    """ISO 8601, UTC."""
    host: str
    """Host name of the launcher."""
    pid: int
    """Process id of the launcher."""
    slurm_id: str | None = None
    """Slurm job of the launcher, ARRAY_PLACE of one in an array; null outside of Slurm."""
    earlier_sign_ns: int | None = None
    """Last sign of life of the attempts before this one, UTC, ns; null where they left none."""


class RankProcess(Struct, frozen=True, kw_only=True):
    """rankR.pid.json: the process of a rank."""

    rank: int
    """Global rank."""
    host: str
    """Host name."""
    pid: int
    """Process id on that host."""


class RankExit(Struct, frozen=True, kw_only=True):
    """rankR.exit.json: how a rank ended, written by its supervisor."""

    rank: int
    """Global rank."""
    host: str | None = None
    """Host name."""
    exit_code: int | None = None
    """Null for a signal."""
    signal: int | None = None
    """The signal that it died of."""
    out_of_memory: bool = False
    """Whether the kernel killed it for memory."""
    stopped: bool = False
    """Whether its supervisor was asked to stop, and passed that on: somebody ended the job, not the rank itself."""
    ended_ns: int = 0
    """UTC, ns."""


class RankError(Struct, frozen=True, kw_only=True):
    """rankR.error.json: what a rank raised, written by itself."""

    reason: Reason
    """One of the record's reasons."""
    message: str = ""
    """In one line."""
    phase: str | None = None
    """Where the rank stood."""
    step: int | None = None
    """The step that the exception names."""


class Window(Struct, frozen=True, kw_only=True):
    """A stretch of time at whose ends the device was idle."""

    start_ns: int
    """UTC, ns."""
    end_ns: int
    """UTC, ns."""


class Flops(Struct, frozen=True, kw_only=True):
    """Floating-point operations of one optimizer step of a rank (jobs/rank/flops.py says what is counted)."""

    forward: int | None = None
    """Of the forward passes."""
    backward: int | None = None
    """Of the backward passes."""
    step: int | None = None
    """Both: model FLOPs."""
    hardware_step: int | None = None
    """With what is computed again to save memory."""
    reason: str | None = None
    """Why they could not be counted."""


class RankResult(Struct, frozen=True, kw_only=True):
    """rankR.result.json: what is known of a rank at a good end, written by itself."""

    rank: int = -1
    """Global rank."""
    host: str | None = None
    """Host name."""
    device: Literal["cpu", "cuda"] | None = None
    """What it computed on."""
    device_name: str | None = None
    """Model of the GPU; null on a CPU."""
    uuid: str | None = None
    """Of its GPU. Null on a CPU, with `tenants`, and for strategy dp, whose one rank has several GPUs: their energy is
    then not one rank's, and there is none in the tables."""
    cpus: list[int] = field(default_factory=list)
    """CPUs that it may use. Empty of a script, which keeps those that it is given."""
    peak_rss_bytes: int | None = None
    """Peak resident memory of the process."""
    parameters: int | None = None
    """Parameters of the model."""
    trainable_parameters: int | None = None
    """Those with a gradient."""
    weights_layout: Literal["nchw", "nhwc", "none"] | None = None
    """Of a script: how most weights of its convolutions of pictures and volumes lie; none: it has no such."""
    steps_per_epoch: int | None = None
    """Optimizer steps in which the rank walks its share of the data."""
    window: Window | None = None
    """The last block of steps; in the timed run, the timed ones."""
    peak_allocated_bytes: int | None = None
    """Peak of the CUDA allocator, allocated; null on a CPU."""
    peak_reserved_bytes: int | None = None
    """Peak of the CUDA allocator, reserved; null on a CPU."""
    reward_margin: float | None = None
    """With DPO: margin between the rewards of the last micro-batch."""
    reward_accuracy: float | None = None
    """With DPO: share of its pairs that are ranked rightly."""
    step_source: str | None = None
    """Of a script: where its steps come from: call (its own), profiler, range, engine, optimizer, or whole run."""
    ended_early: bool = False
    """Of a script: whether it ended before the last step that was asked for."""
    notes: list[str] = field(default_factory=list)
    """Of a script: what is unusual about its steps, in lines."""
    loader_workers: int | None = None
    """Of a script: most workers of a DataLoader of it."""
    passes: int | None = None
    """Of a script: backward passes of a step."""
    places: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of a script: its lines that do what may cost time, by what they do, and how often they did."""
    compile_cache_hits: int | None = None
    """Graphs of torch.compile that were read from its cache; null where nothing was compiled."""
    compile_cache_misses: int | None = None
    """Those that were compiled, as they were not there or cannot be kept; null likewise."""
    flops: Flops | None = None
    """In the timed run alone. Those of a model that is split are divided by its ranks. They are counted on a model of
    shapes alone after the last step, when the rank's times and peaks have been read; once a configuration, and then
    kept in the cache folder."""


class StepLine(Struct, frozen=True, kw_only=True):
    """A line of steps-rR.jsonl: one optimizer step of a rank. Nothing here makes the host wait for the device inside a
    block: losses and the times of CUDA events are read after the last one."""

    step: int | None = None
    """From 0, warm-up included."""
    phase: Phase | None = None
    """The last four are conditions of the control (jobs/point/plan.py)."""
    block: int | None = None
    """Number of the block of steps; 0 is the warm-up."""
    start_ns: int | None = None
    """Host clock at the start, UTC, ns."""
    mono_ns: int | None = None
    """The same moment on the monotonic clock, ns."""
    end_ns: int | None = None
    """Host clock at the end, UTC, ns. The GPU may still be at work then."""
    data_ns: int | None = None
    """Host time in the loader, ns."""
    device_ns: int | None = None
    """Between CUDA events at the ends of the step, ns; null on a CPU."""
    loss: float | None = None
    """Mean over the rank's micro-batches."""
    samples: int | None = None
    """Of this rank. Ranks that share samples (strategies tp and pp, `tensor_parallel`) have them counted once, as the
    first one's. Strategy dp has one rank, which counts those of all its GPUs."""
    tokens: int | None = None
    """Of this rank, counted like `samples`; null for images."""
    peak_allocated_bytes: int | None = None
    """Peak of the step, CUDA allocator, allocated. This and what follows is null on a CPU."""
    peak_reserved_bytes: int | None = None
    """Peak of the step, CUDA allocator, reserved."""
    reserved_bytes: int | None = None
    """Memory that the CUDA allocator holds at the end of the step."""
    inactive_bytes: int | None = None
    """The part of it in split blocks that are free."""
    alloc_retries: int | None = None
    """Failed cudaMallocs so far that freed the cache."""
    device_allocs: int | None = None
    """Segments taken from the device so far."""
    device_frees: int | None = None
    """Segments given back so far."""


class EpochLine(Struct, frozen=True, kw_only=True):
    """A line of accuracy.jsonl: one epoch over all ranks, written by rank 0; all attempts together."""

    epoch: int
    """After the timed window, from 1."""
    train_loss: float | None = None
    """Mean over steps and ranks."""
    accuracy: float
    """Share of the held-back images that are named rightly after it."""
    held_back: int | None = None
    """How many images those are."""
    seconds: float | None = None
    """Time of its training, without evaluation."""
    samples: int | None = None
    """Samples that it trained on, all ranks."""


class HostSample(Struct, frozen=True, kw_only=True):
    """A line of host-H.jsonl: the CPU side of a node, twice a second; of the ranks and all that they started, and from
    `other_cpu_percent` on of the whole host, null where the kernel does not count it."""

    t_ns: int | None = None
    """UTC, ns."""
    mono_ns: int | None = None
    """Monotonic, ns."""
    host: str | None = None
    """Host name."""
    cpu_percent: float | None = None
    """CPU time since the last sample; 100 is one core."""
    rss_bytes: int | None = None
    """Resident memory."""
    host_memory_used_bytes: int | None = None
    """Memory in use on the whole host."""
    read_bytes: int | None = None
    """Bytes read from storage since the processes started."""
    write_bytes: int | None = None
    """Bytes written to storage since they started."""
    num_processes: int | None = None
    """Processes that this is the sum of."""
    other_cpu_percent: float | None = None
    """CPU time of all other processes since the last sample, share of all cores of the host."""
    steal_percent: float | None = None
    """Time that the hypervisor gave to other machines, share of the time in which the cores had work."""
    runnable: int | None = None
    """Tasks that run or wait for a core."""
    psi_cpu_percent: float | None = None
    """Share of the time since the last sample in which some task waited for a core (PSI, `some`)."""
    psi_io_percent: float | None = None
    """Likewise, for storage."""
    psi_memory_percent: float | None = None
    """Likewise, for memory."""


class Event(Struct, frozen=True, kw_only=True):
    """A line of events-H.jsonl: something that happened to a GPU of a node."""

    t_ns: int
    """UTC, ns."""
    mono_ns: int | None = None
    """Monotonic, ns."""
    host: str | None = None
    """Host name."""
    gpu: int | None = None
    """NVML index; null where it is no single GPU."""
    uuid: str | None = None
    """As NVML writes it."""
    kind: EventKind | None = None
    """What happened."""
    message: str | None = None
    """In one line."""


class SamplerProcesses(Struct, frozen=True, kw_only=True):
    """samplers-H.json: the samplers of a node."""

    pids: list[int] = field(default_factory=list)
    """Process ids."""
