"""The tables that come from telemetry: samples of hosts and GPUs, energy, clocks, the cost of measuring, events."""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.tables.column import ID, RANK, SAMPLE, Column
from nightsweep.jobs.telemetry.gpu.fields import TYPES

HOST_SAMPLES: dict[str, Column] = {
    **SAMPLE,
    "cpu_percent": Column(pl.Float64, "CPU time of the job's processes; 100 is one core.", "host-H.jsonl"),
    "rss_bytes": Column(pl.Int64, "Their resident memory.", "host-H.jsonl"),
    "host_memory_used_bytes": Column(pl.Int64, "Memory in use on the whole host.", "host-H.jsonl"),
    "read_bytes": Column(pl.Int64, "Bytes read from storage by these processes so far.", "host-H.jsonl"),
    "write_bytes": Column(pl.Int64, "Bytes written to storage by these processes so far.", "host-H.jsonl"),
    "num_processes": Column(pl.Int64, "Number of these processes.", "host-H.jsonl"),
    "other_cpu_percent": Column(
        pl.Float64, "CPU time of all other processes of the host, % of all its cores.", "host-H.jsonl"
    ),
    "steal_percent": Column(
        pl.Float64, "Time that the hypervisor gave away, % of that in which cores had work.", "host-H.jsonl"
    ),
    "runnable": Column(pl.Int64, "Tasks of the host that run or wait for a core.", "host-H.jsonl"),
    "psi_cpu_percent": Column(
        pl.Float64, "Share of time in which some task of the host waited for a core (PSI), %.", "host-H.jsonl"
    ),
    "psi_io_percent": Column(pl.Float64, "Likewise, for storage, %.", "host-H.jsonl"),
    "psi_memory_percent": Column(pl.Float64, "Likewise, for memory, %.", "host-H.jsonl"),
}

_GPM = "GPM, mean over gpm_span_ns before t_ns (less its age, see clocks): "
_TEXTS = {
    "sm_clock_mhz": "SM clock, MHz.",
    "memory_clock_mhz": "Memory clock, MHz.",
    "utilization_percent": "Share of the driver's sample period in which any kernel ran, however few SMs it used.",
    "memory_utilization_percent": "Share of that period in which device memory was read or written.",
    "memory_used_bytes": "Device memory in use, of all processes.",
    "power_instant_w": "Instant board power (field 186), updated every 100 ms, W.",
    "power_average_w": "Board power, mean of the last second (field 185; power draw of nvidia-smi), W.",
    "temperature_c": "GPU temperature, degrees Celsius.",
    "memory_temperature_c": "Memory temperature, degrees Celsius.",
    "throttle_reasons": "Why clocks are throttled: NVML's bits (1 idle, 4 power cap, 32, 64 thermal, 128 brake).",
    "power_limit_w": "Power limit that holds, W; null in rows between two of its readings.",
    "energy_j": "Energy counter since the driver was loaded, J; null in rows between two of its readings.",
    "ecc_corrected": "Corrected memory errors since the driver was loaded.",
    "ecc_uncorrected": "Uncorrected memory errors since then.",
    "processes": "Processes with a compute context on the GPU.",
    "foreign_processes": "Those of them that no rank started; null where process ids cannot be matched.",
    "gpm_span_ns": "Time before t_ns of which this row's GPM values are means, ns; null in rows without them.",
    "sm_active_percent": _GPM + "cycles in which an SM has at least one warp, mean over SMs.",
    "sm_occupancy_percent": _GPM + "resident warps over their limit.",
    "tensor_active_percent": _GPM + "cycles in which the tensor pipe of an SM is active, of any type.",
    "tensor_hmma_percent": _GPM + "likewise, on fp16, bf16, tf32 or fp8.",
    "tensor_imma_percent": _GPM + "likewise, on integers.",
    "tensor_dfma_percent": _GPM + "likewise, on fp64.",
    "dram_active_percent": _GPM + "cycles in which the memory interface moves data.",
    "fp64_active_percent": _GPM + "cycles in which the fp64 pipe is active.",
    "fp32_active_percent": _GPM + "cycles in which the fp32 pipe is active.",
    "fp16_active_percent": _GPM + "cycles in which the fp16 pipe (not tensor) is active.",
    "pcie_tx_bytes_per_s": _GPM + "bytes a second sent over PCIe.",
    "pcie_rx_bytes_per_s": _GPM + "bytes a second received over PCIe.",
    "nvlink_tx_bytes_per_s": _GPM + "bytes a second sent over all NVLinks.",
    "nvlink_rx_bytes_per_s": _GPM + "bytes a second received over all NVLinks.",
}
_DTYPES = {int: pl.Int64, float: pl.Float64}

GPU_SAMPLES: dict[str, Column] = {
    **SAMPLE,
    "gpu": Column(pl.Int64, "NVML index.", "nvml-H.arrow"),
    "uuid": Column(pl.String, "GPU's or MIG device's UUID.", "nvml-H.arrow"),
    **{name: Column(_DTYPES[kind], _TEXTS[name], "nvml-H.arrow") for name, kind in TYPES.items()},
}

ENERGY: dict[str, Column] = {
    **ID,
    "host": Column(pl.String, "Host name.", "nvml-H.arrow"),
    "gpu": Column(pl.Int64, "NVML index.", "nvml-H.arrow"),
    "uuid": Column(pl.String, "GPU's UUID.", "nvml-H.arrow"),
    "rank": Column(pl.Int64, "Rank that computed on it; null where that is not known.", "rankR.result.json"),
    "window_s": Column(pl.Float64, "Length of the timed window, s.", "rankR.result.json"),
    "steps": Column(pl.Int64, "Steps in the window.", "steps"),
    "counter_j": Column(pl.Float64, "Rise of the energy counter in the window, J.", "gpu_samples"),
    "counter_readings": Column(pl.Int64, "Readings of the counter in the window.", "gpu_samples"),
    "integrated_j": Column(pl.Float64, "Instant power integrated over the window (trapezoids), J.", "gpu_samples"),
    "power_readings": Column(pl.Int64, "Readings of the power in the window.", "gpu_samples"),
    "idle_w": Column(pl.Float64, "Power before the rank touched the GPU (10th percentile), W.", "gpu_samples"),
    "above_idle_j": Column(pl.Float64, "counter_j less idle_w times window_s, J.", "derived"),
    "step_j": Column(pl.Float64, "counter_j over steps, J.", "derived"),
    "sample_j": Column(pl.Float64, "counter_j over the samples of its rank, J.", "derived"),
    "token_j": Column(pl.Float64, "counter_j over the tokens of its rank, J; null for images.", "derived"),
}

CLOCKS: dict[str, Column] = {
    **RANK,
    "look": Column(pl.String, "Run of the point: timed or traced."),
    "host": Column(pl.String, "Host name.", "rankR.result.json"),
    "between": Column(
        pl.String,
        "trace-steps: the trace's ranges against the times that the step loop recorded. ranks: ends of common "
        "collectives against rank 0's, after the former was subtracted. counters: age of the GPM values, from the end "
        "of the timed window, where the GPU rests after it. utc-monotonic, of launches whose times were read from the "
        "wall clock: its drift.",
        "derived",
    ),
    "events": Column(pl.Int64, "Events compared.", "derived"),
    "offset_us": Column(
        pl.Float64,
        "Median difference, us. It is subtracted from the trace's times, also on other hosts than rank 0's; not from "
        "samples.",
        "derived",
    ),
    "residual_us": Column(pl.Float64, "Median distance from offset_us, us: the remaining error.", "derived"),
    "residual_max_us": Column(pl.Float64, "Largest distance from offset_us, us.", "derived"),
}

COST: dict[str, Column] = {
    **ID,
    "condition": Column(
        pl.String,
        "sampler: samplers on; idle: tracer attached, not capturing; capturing: tracer captures.",
        "cost-*/steps-rR.jsonl",
    ),
    "tool": Column(pl.String, "Rate of the sampler, or name of the tracer.", "record.json"),
    "pair": Column(pl.Int64, "Number of the pair, from 0.", "cost-*"),
    "steps": Column(pl.Int64, "Steps of the condition, without the first of each block.", "cost-*/steps-rR.jsonl"),
    "step_ms": Column(pl.Float64, "Mean step of the slowest rank under the condition, ms.", "cost-*/steps-rR.jsonl"),
    "plain_ms": Column(pl.Float64, "Mean step without sampler and tracer, ms.", "cost-*/steps-rR.jsonl"),
    "ratio": Column(pl.Float64, "step_ms over plain_ms.", "derived"),
}

GPU_EVENTS: dict[str, Column] = {
    **SAMPLE,
    "gpu": Column(pl.Int64, "NVML index; null where the event does not concern a single GPU.", "events-H.jsonl"),
    "uuid": Column(pl.String, "Its UUID.", "events-H.jsonl"),
    "kind": Column(
        pl.String, "xid, ecc, foreign_process, low_gpu, gpu_lost, field_missing or sampler_lost.",
        "events-H.jsonl",
    ),
    "message": Column(pl.String, "The event in one line.", "events-H.jsonl"),
}  # fmt: skip
