"""The tables of points: name, type, unit, meaning and source of every column.

`docs/tables.md` is generated from here by analysis/tools/docs.py.
"""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.tables import diagnoses as remedies
from nightsweep.analysis.tables import telemetry
from nightsweep.analysis.tables.column import ID, RANK, Column
from nightsweep.analysis.tables.failures import FAILURES, REASONS
from nightsweep.analysis.tables.pairs import PAIRS
from nightsweep.analysis.tables.part_names import GROUPS
from nightsweep.analysis.tables.phases import PHASES
from nightsweep.jobs.point import point as points
from nightsweep.jobs.record.record import STATUSES as STATUSES


def _settings_columns() -> dict[str, Column]:
    types = {"integer": pl.Int64, "number": pl.Float64, "boolean": pl.Boolean, "string": pl.String}
    columns = {}
    for name, field in points.FIELDS.items():
        kind = points.setting_schema(name).get("type", "string")
        columns[name] = Column(types[kind], field.metadata["text"], "point.json")
    return columns


POINTS: dict[str, Column] = {
    **ID,
    "sweep": Column(pl.String, "Name of the sweep.", "sweep"),
    "round": Column(
        pl.Int64,
        "Round of remedies that added the point (target remedies), from 1; null for points of the sweep file.",
        "remedies/roundN.json",
    ),
    **_settings_columns(),
    "variables": Column(
        pl.String,
        "With workload command: the axes that the sweep's user named, and their values, as JSON.",
        "point.json",
    ),
    "step_source": Column(
        pl.String,
        "With workload command: where steps come from: call, profiler, range, engine, optimizer; or whole run.",
        "rankR.result.json",
    ),
    "notes": Column(
        pl.String,
        "With workload command: what is unusual about the steps. With any: files that are missing, how many lines "
        "could not be read, or why the point could not be analysed.",
        "rankR.result.json",
    ),
    "status": Column(pl.String, "One of " + ", ".join(STATUSES) + ".", "record.json"),
    "reason": Column(pl.String, "Why it is not ok: one of " + ", ".join(REASONS) + ".", "record.json"),
    "message": Column(pl.String, "The failure in one line.", "record.json"),
    "attempt": Column(pl.Int64, "Number of this attempt at the point, from 1.", "record.json"),
    "device_used": Column(pl.String, "cpu or cuda.", "record.json"),
    "backend": Column(pl.String, "Communication library: gloo or nccl.", "record.json"),
    "world_size": Column(pl.Int64, "Number of GPUs in all, or of ranks on CPUs.", "record.json"),
    "micro_batch_found": Column(pl.Int64, "The micro_batch that batch_search found; null without one.", "record.json"),
    "accelerator": Column(pl.String, "Model of the GPU, or of the CPU where ranks compute on it.", "record.json"),
    "hosts": Column(pl.List(pl.String), "Host names of the nodes.", "record.json"),
    "topology": Column(
        pl.String, "Links between the GPUs of the first host, as nvidia-smi topo -m prints them.", "record.json"
    ),
    "started_at": Column(pl.String, "Start of the launch, UTC, ISO 8601.", "record.json"),
    "wall_s": Column(pl.Float64, "Time from start to end of the launch, timed and traced run, s.", "record.json"),
    "tracer_used": Column(pl.String, "nsys, kineto, or null where there is no trace.", "record.json"),
    "tracer_reason": Column(pl.String, "Why this tracer, or why there is no trace.", "record.json"),
    "trace_status": Column(pl.String, "ok, failed or skipped: status of the traced run alone.", "record.json"),
    "nvml_reason": Column(pl.String, "Why there is no NVML log; null where there is one.", "record.json"),
    "warm_from": Column(
        pl.Int64,
        "First timed steps that were still warm-up, by a change point within the first half of the window "
        "(docs/protocol.md): they have the phase settling, and no column counts them but those of energy. Null with "
        "fewer than 16 timed steps.",
        "steps",
    ),
    "steady": Column(
        pl.Boolean, "False where step times change in the second half of the window too: still warming up.", "steps"
    ),
    "step_ms_median": Column(
        pl.Float64, "Median over the steady timed steps of the slowest rank's step time, ms.", "steps"
    ),
    "step_ms_mean": Column(pl.Float64, "Mean of the same, ms.", "steps"),
    "step_ms_p95": Column(pl.Float64, "95th percentile of the same, ms.", "steps"),
    "step_ms_std": Column(pl.Float64, "Standard deviation of the same (n - 1), ms.", "steps"),
    "data_ms_median": Column(
        pl.Float64, "Median time waiting for the loader, over timed steps and ranks, ms.", "steps"
    ),
    "samples_per_s": Column(pl.Float64, "Samples a second of all ranks in the steady timed steps.", "steps"),
    "tokens_per_s": Column(pl.Float64, "Tokens a second likewise; null for images.", "steps"),
    "samples_per_step": Column(pl.Int64, "Samples of one optimizer step over all ranks.", "steps"),
    "steps_per_epoch": Column(pl.Int64, "Optimizer steps of a rank for its share of the data.", "result.json"),
    "epoch_s": Column(pl.Float64, "steps_per_epoch times step_ms_mean, s.", "steps"),
    "loss_first": Column(pl.Float64, "Mean loss over ranks of the first step.", "steps"),
    "loss_last": Column(pl.Float64, "Mean loss over ranks of the last timed step.", "steps"),
    "parameters": Column(pl.Int64, "Parameters of the model.", "result.json"),
    "trainable_parameters": Column(pl.Int64, "Parameters with a gradient.", "result.json"),
    "flops_per_step": Column(
        pl.Int64,
        "Model FLOPs of an optimizer step over all ranks: matrix products and convolutions forward and backward, two "
        "a multiply-add, counted by torch's FlopCounterMode (jobs/rank/flops.py); recomputation left out, causal "
        "attention not halved.",
        "result.json",
    ),
    "peak_flops_per_s": Column(
        pl.Float64,
        "Dense peak of one device in the point's precision as its maker states it (metrics/points/peaks.py), FLOP/s.",
        "result.json",
    ),
    "mfu_percent": Column(
        pl.Float64,
        "Model FLOP/s utilisation: flops_per_step over world_size, peak_flops_per_s and step_ms_mean, %.",
        "derived",
    ),
    "hfu_percent": Column(
        pl.Float64,
        "Hardware FLOP/s utilisation: likewise, with what activation checkpointing recomputes, %.",
        "derived",
    ),
    "mfu_reason": Column(
        pl.String,
        "Why a measured point has no MFU: not counted, a CPU, no stated peak, or above 100 %, which is refused.",
        "derived",
    ),
    "peak_memory_bytes": Column(
        pl.Int64,
        "Largest over ranks: peak of the CUDA allocator (allocated), or of the process (RSS) on a CPU.",
        "ranks",
    ),
    "energy_j": Column(
        pl.Float64, "Energy of all GPUs over the timed window by their counters, J; null where in doubt.", "energy"
    ),
    "energy_reason": Column(
        pl.String,
        "Why a measured point has no energy: no samples of GPUs that are one rank's alone, a counter that was not "
        "read, a window under 1 s, or one under 5 s in which counter and integrated power differ by more than 3 %.",
        "energy",
    ),
    "energy_integrated_j": Column(pl.Float64, "The same by integrating power, J.", "energy"),
    "energy_above_idle_j": Column(pl.Float64, "energy_j less what the idle GPUs would have used, J.", "energy"),
    "step_j": Column(pl.Float64, "energy_j over the steps of the window, J.", "energy"),
    "sample_j": Column(pl.Float64, "energy_j over the samples of all ranks, J.", "energy"),
    "token_j": Column(pl.Float64, "energy_j over the tokens of all ranks, J; null for images.", "energy"),
    "sm_clock_mhz": Column(
        pl.Float64, "Mean SM clock of the ranks' GPUs in the steady timed steps, MHz.", "gpu_samples"
    ),
    "sm_active_percent": Column(
        pl.Float64, "Mean share of cycles in which their SMs were active in these steps, %.", "gpu_samples"
    ),
    "dram_active_percent": Column(
        pl.Float64, "Mean share of cycles in which their memory moved data in these steps, %.", "gpu_samples"
    ),
    "power_limit_w": Column(pl.Float64, "Their power limit, the lowest of them, W.", "gpu_samples"),
    "power_capped_percent": Column(
        pl.Float64, "Share of readings in these steps in which the power limit held the clocks down, %.", "gpu_samples"
    ),
    "throttled_percent": Column(pl.Float64, "Likewise, heat or a brake did, %.", "gpu_samples"),
    "foreign_processes": Column(
        pl.Int64,
        "Most processes of others that one of these GPUs had, up to a second before and after; null where process ids "
        "cannot be matched.",
        "gpu_samples",
    ),
    "other_cpu_percent": Column(
        pl.Float64,
        "CPU time of other processes in these steps, % of all cores; this and what follows of the host where it is "
        "largest.",
        "host_samples",
    ),
    "steal_percent": Column(
        pl.Float64, "Time that the hypervisor gave away, % of that in which cores had work.", "host_samples"
    ),
    "psi_cpu_percent": Column(pl.Float64, "Share of time in which some task waited for a core, %.", "host_samples"),
    "runnable": Column(pl.Float64, "Tasks that ran or waited for a core, mean.", "host_samples"),
    "disturbed": Column(
        pl.Boolean,
        "Whether something outside of the job disturbed these steps, by the rule in docs/protocol.md; null where a "
        "condition is not known and no other one says so.",
        "derived",
    ),
    "disturbed_reason": Column(pl.String, "What it was.", "derived"),
}

STEPS: dict[str, Column] = {
    **RANK,
    "step": Column(pl.Int64, "Number of the optimizer step, from 0 (warm-up included).", "steps-rR.jsonl"),
    "phase": Column(
        pl.String, "warmup, settling (timed, but still warm-up: warm_from in points) or timed.", "steps-rR.jsonl"
    ),
    "start_ns": Column(pl.Int64, "Host clock at the start of the step, UTC ns.", "steps-rR.jsonl"),
    "end_ns": Column(pl.Int64, "Host clock at its end, UTC ns. The GPU may still be working.", "steps-rR.jsonl"),
    "data_ms": Column(pl.Float64, "Host time in the loader, ms.", "steps-rR.jsonl"),
    "step_ms": Column(
        pl.Float64,
        "Time between CUDA events at the ends of the step, ms; on a CPU end_ns - start_ns.",
        "steps-rR.jsonl",
    ),
    "loss": Column(pl.Float64, "This rank's loss, mean over its micro-batches.", "steps-rR.jsonl"),
    "samples": Column(pl.Int64, "Samples of this rank.", "steps-rR.jsonl"),
    "tokens": Column(pl.Int64, "Tokens of this rank; null for images.", "steps-rR.jsonl"),
    "peak_allocated_bytes": Column(pl.Int64, "Peak of the step, CUDA allocator, allocated.", "steps-rR.jsonl"),
    "peak_reserved_bytes": Column(pl.Int64, "Peak of the step, CUDA allocator, reserved.", "steps-rR.jsonl"),
    "fragmentation": Column(
        pl.Float64, "Share of the reserved memory that is free in split blocks at the end of the step.", "derived"
    ),
    "alloc_retries": Column(pl.Int64, "Failed cudaMallocs so far that freed the cache.", "steps-rR.jsonl"),
    "device_allocs": Column(pl.Int64, "Segments allocated on the device so far.", "steps-rR.jsonl"),
}

ACCURACY: dict[str, Column] = {
    **ID,
    "epoch": Column(pl.Int64, "Epoch after the timed window, from 1.", "accuracy.jsonl"),
    "train_loss": Column(pl.Float64, "Loss, mean over the epoch's steps and ranks.", "accuracy.jsonl"),
    "accuracy": Column(
        pl.Float64, "Share of the held-out images that are classified correctly after it.", "accuracy.jsonl"
    ),
    "held_back": Column(pl.Int64, "Number of images held out from training.", "accuracy.jsonl"),
    "samples": Column(pl.Int64, "Samples that the epoch trained on, all ranks.", "accuracy.jsonl"),
    "seconds": Column(pl.Float64, "Training time, without evaluation, s.", "accuracy.jsonl"),
    "total_s": Column(pl.Float64, "The same from the first epoch to this one, s.", "derived"),
}

RANKS: dict[str, Column] = {
    **RANK,
    "host": Column(pl.String, "Host name.", "rankR.result.json"),
    "uuid": Column(
        pl.String,
        "UUID of its GPU; null on a CPU, and where it has no GPU for itself (dp, tenants).",
        "rankR.result.json",
    ),
    "peak_allocated_bytes": Column(
        pl.Int64, "Peak of the CUDA allocator, allocated; null on a CPU.", "rankR.result.json"
    ),
    "peak_reserved_bytes": Column(
        pl.Int64, "Peak of the CUDA allocator, reserved; null on a CPU.", "rankR.result.json"
    ),
    "peak_rss_bytes": Column(pl.Int64, "Peak resident memory of the rank's process.", "rankR.result.json"),
    "cpus": Column(pl.List(pl.Int64), "Numbers of the CPUs that it may use; empty of a script.", "rankR.result.json"),
    "compile_cache_hits": Column(
        pl.Int64, "Graphs of torch.compile read from its cache; null where nothing was compiled.", "rankR.result.json"
    ),
    "compile_cache_misses": Column(pl.Int64, "Graphs that were compiled; null likewise.", "rankR.result.json"),
}

BREAKDOWN: dict[str, Column] = {
    **RANK,
    "step": Column(pl.Int64, "Step of the traced run; of several the first does not count.", "trace"),
    "part": Column(
        pl.String, "One of " + ", ".join(GROUPS) + ": groups of the parts of a step (docs/traces.md).", "trace"
    ),
    "duration_ns": Column(pl.Int64, "Time of the part in the step, ns; the parts of a step add up to it.", "trace"),
}

ACTIVITIES: dict[str, Column] = {
    **RANK,
    "category": Column(pl.String, "compute, communication, copy, memset, runtime or sync.", "trace"),
    "name": Column(pl.String, "Kernel, operator, copy direction or API call.", "trace"),
    "count": Column(pl.Int64, "Number in the counted steps of the traced run.", "trace"),
    "total_ns": Column(pl.Int64, "Sum of durations, ns; overlaps count twice.", "trace"),
    "bytes": Column(pl.Int64, "Bytes copied or set; null for what moves none.", "trace"),
}

TIMELINE: dict[str, Column] = {
    **RANK,
    "lane": Column(
        pl.String,
        "range (host phases), call (CUDA API calls of the threads that launch), compute, communication or copy.",
        "trace",
    ),
    "name": Column(pl.String, "Range, call, kernel or operator; of several merged into a bar, the longest.", "trace"),
    "start_ns": Column(pl.Int64, "Start, from the start of the first counted step on the earliest rank, ns.", "trace"),
    "end_ns": Column(pl.Int64, "End, likewise.", "trace"),
    "step": Column(pl.Int64, "Step.", "trace"),
    "zero_ns": Column(pl.Int64, "Time 0 of this table, UTC ns on rank 0's host.", "trace"),
    "trace_zero_ns": Column(pl.Int64, "The same moment on the clock of the rank's trace, ns.", "trace"),
    "on_path": Column(
        pl.Boolean,
        "Whether it is on the path that decides how long the steps take; null for phases, and where it is not known.",
        "replay",
    ),
}

TABLES: dict[str, dict[str, Column]] = {
    "points": POINTS,
    "steps": STEPS,
    "accuracy": ACCURACY,
    "ranks": RANKS,
    "breakdown": BREAKDOWN,
    "activities": ACTIVITIES,
    "timeline": TIMELINE,
    "host_samples": telemetry.HOST_SAMPLES,
    "gpu_samples": telemetry.GPU_SAMPLES,
    "gpu_events": telemetry.GPU_EVENTS,
    "energy": telemetry.ENERGY,
    "clocks": telemetry.CLOCKS,
    "cost": telemetry.COST,
    "phases": PHASES,
    "failures": FAILURES,
    "diagnoses": remedies.DIAGNOSES,
    "remedies": remedies.REMEDIES,
    "pairs": PAIRS,
}
SWEEP_TABLES = ("diagnoses", "remedies", "pairs")
"""Tables of a sweep as a whole, which are not made point by point."""
