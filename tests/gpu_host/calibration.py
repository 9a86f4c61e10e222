"""How far a machine's telemetry can be trusted: its samples against known loads (tests/gpu_host/known_loads.py).

    python -m tests.gpu_host.calibration FOLDER      # anywhere, from what the loads left

Peaks follow from the clocks that were sampled: tensor cores do a fixed number of operations per SM and clock (CUDA
programming guide, arithmetic throughput), memory two transfers per clock and bit of the bus.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.points import energy
from nightsweep.analysis.metrics.ranks import clock
from nightsweep.analysis.metrics.steps import selection
from nightsweep.analysis.readers import gpu_log
from nightsweep.analysis.readers.nsys import reader as nsys
from nightsweep.jobs.record.json_files import read_lines

_Row = dict[str, Any]

BF16_FLOP_PER_SM_CLOCK = {(8, 0): 2048, (9, 0): 4096}
"""Dense bf16 operations per SM and clock, by compute capability."""
SETTLE_NS = 400_000_000
"""Left out at the start of a load: its counters are still the former's."""
STEP_NS, FURTHEST_NS = 500_000, 300_000_000


def read(folder: Path) -> _Row:
    """Everything that the folder tells. ValueError where it is no calibration."""
    steady = folder / "steady"
    if not (steady / "loads.jsonl").is_file():
        raise ValueError(f"{folder}: no calibration in it; a folder with steady/loads.jsonl was expected")
    facts = json.loads((steady / "device.json").read_text())
    found = {"device": facts, "sampler": sampler(steady), "loads": loads(steady, facts)}
    if (folder / "bursts/trace-r0.sqlite").is_file():
        found["clock"] = bursts(folder / "bursts", facts["uuid"])
    return found


def log_of(folder: Path, uuid: str | None = None) -> pl.DataFrame:
    """The samples of a look, of one GPU where it is named."""
    frame = gpu_log.read_log(next(folder.glob("nvml-*.arrow")))
    return frame if uuid is None else frame.filter(pl.col("uuid") == uuid)


def sampler(folder: Path) -> _Row:
    """Rate, jitter (distance from the period, ms), and share of one core."""
    live = json.loads(next(folder.glob("live-*.json")).read_text())
    frame = log_of(folder).drop_nulls("utilization_percent")
    frame = frame.filter(pl.col("uuid") == frame["uuid"][0])
    gaps = np.diff(frame["mono_ns"].to_numpy()) / 1e6
    away = np.abs(gaps - 1e3 / live["hz"])
    return {
        "gpus": len(live["gpus"]),
        "asked_hz": live["hz"],
        "reached_hz": 1e3 * len(gaps) / float(gaps.sum()),
        "jitter_ms_median": float(np.median(away)),
        "jitter_ms_p99": float(np.percentile(away, 99)),
        "missed": live["sampler"]["missed"],
        "cpu_percent": 100 * live["sampler"]["cpu_s"] / live["sampler"]["wall_s"],
    }


def loads(folder: Path, facts: Mapping[str, Any]) -> list[_Row]:
    """Each load: what it did, what that should show, and what was shown."""
    samples = log_of(folder, facts["uuid"])
    return [_load(samples, facts, line) for line in read_lines(folder / "loads.jsonl", dict)]


def _load(samples: pl.DataFrame, facts: Mapping[str, Any], load: Mapping[str, Any]) -> _Row:
    window = load["start_ns"], load["end_ns"]
    seconds = (window[1] - window[0]) / 1e9
    inside = samples.filter(pl.col("t_ns").is_between(window[0] + SETTLE_NS, window[1]))
    per_clock = BF16_FLOP_PER_SM_CLOCK.get(tuple(facts["capability"]))
    sm_mhz, memory_mhz = _mean(inside, "sm_clock_mhz"), _mean(inside, "memory_clock_mhz")
    peak_flops = per_clock * facts["sm_count"] * sm_mhz * 1e6 if per_clock and sm_mhz else None
    peak_bytes = 2 * memory_mhz * 1e6 * facts["memory_bus_bits"] / 8 if memory_mhz else None
    one = energy.gpu_energy(samples, samples.clear().with_columns(step=0, samples=0, tokens=0), window)
    return {
        "load": load["load"],
        "seconds": seconds,
        "sm_clock_mhz": sm_mhz,
        "expected_tensor_percent": _percent(load["flop"] / seconds, peak_flops),
        "tensor_percent": _weighted(inside, "tensor_active_percent"),
        "expected_dram_percent": _percent(load["bytes"] / seconds, peak_bytes),
        "dram_percent": _weighted(inside, "dram_active_percent"),
        "counter_j": one["counter_j"],
        "integrated_j": one["integrated_j"],
    }


def _percent(rate: float, peak: float | None) -> float | None:
    return 100 * rate / peak if rate and peak else None


def _mean(frame: pl.DataFrame, name: str) -> float | None:
    column = frame[name].drop_nulls().cast(pl.Float64)
    return float(column.to_numpy().mean()) if len(column) else None


def _weighted(frame: pl.DataFrame, name: str) -> float | None:
    """Mean of a GPM value over time."""
    there = frame.drop_nulls([name, "gpm_span_ns"])
    return float(np.average(there[name].to_numpy(), weights=there["gpm_span_ns"].to_numpy())) if len(there) else None


def bursts(folder: Path, uuid: str) -> _Row:
    """The trace's clock against the host's, and the age of the counters against the trace's kernels."""
    events = nsys.read(folder / "trace-r0.sqlite").events
    marks = events["nvtx"].filter(pl.col("name").cat.starts_with("burst ")).sort("start_ns")
    ends = np.array([line["end_ns"] for line in read_lines(folder / "loads.jsonl", dict)])
    ranges = clock.compare(marks["end_ns"].to_numpy() - ends[: len(marks)])
    busy = selection.covered_time(events["kernels"])
    samples = log_of(folder, uuid).drop_nulls(["gpm_span_ns", "sm_active_percent"])
    age, rms = age_of_counters(busy, samples)
    return {
        "bursts": len(marks),
        "range_minus_host_us": ranges["offset_us"],
        "range_residual_us": ranges["residual_us"],
        "counters_age_ms": age,
        "counters_rms_percent": rms,
    }


def age_of_counters(busy: intervals.Intervals, samples: pl.DataFrame) -> tuple[float, float]:
    """The shift (ms) at which SM activity fits best to what the trace says was busy, and the distance left then (root
    mean square, per cent of the highest activity)."""
    end = samples["t_ns"].to_numpy()
    start = end - samples["gpm_span_ns"].to_numpy()
    inside = (start > busy[0, 0] - FURTHEST_NS) & (end < busy[-1, 1] + FURTHEST_NS)
    end, start, active = end[inside], start[inside], samples["sm_active_percent"].to_numpy()[inside]
    share = active / np.percentile(active, 95)

    def distance(age: float) -> float:
        told = (intervals.length_before(busy, end - age) - intervals.length_before(busy, start - age)) / (end - start)
        return float(np.sqrt(np.mean((told - share) ** 2)))

    best = min(range(-FURTHEST_NS, FURTHEST_NS, STEP_NS), key=distance)
    return best / 1e6, 100 * distance(best)


def text(found: Mapping[str, Any]) -> str:
    """The calibration in lines of 80 columns."""
    device, own = found["device"], found["sampler"]
    lines = [
        f"{device['name']}: {own['gpus']} GPUs sampled, {own['asked_hz']} Hz asked for",
        f"  reached {own['reached_hz']:.2f} Hz, off by {own['jitter_ms_median']:.2f} ms (median), "
        f"{own['jitter_ms_p99']:.2f} ms (p99)",
        f"  {own['missed']} ticks missed, {own['cpu_percent']:.1f} % of one core",
        "",
        f"{'load':<14}{'SM MHz':>7} {'tensor %':>17} {'DRAM %':>17} {'energy J':>20}",
        f"{'':<14}{'':>7} {'expected  shown':>17} {'expected  shown':>17} {'counter  integral':>20}",
    ]
    for row in found["loads"]:
        cells = [_pair(row, "expected_tensor_percent", "tensor_percent", 17)]
        cells.append(_pair(row, "expected_dram_percent", "dram_percent", 17))
        cells.append(_pair(row, "counter_j", "integrated_j", 20))
        lines.append(f"{row['load']:<14}{row['sm_clock_mhz'] or 0:>7.0f} " + " ".join(cells))
    if "clock" in found:
        told = found["clock"]
        lines += [
            "",
            f"nsys ranges against the host's clock: {told['range_minus_host_us']:.1f} us, "
            f"{told['range_residual_us']:.1f} us left",
            f"GPM values are {told['counters_age_ms']:.1f} ms old here; {told['counters_rms_percent']:.1f} % off "
            "the trace then",
        ]
    return "\n".join(lines)


def _pair(row: Mapping[str, Any], expected: str, shown: str, width: int) -> str:
    if row[expected] is None or row[shown] is None:
        return " " * width
    return f"{row[expected]:.1f}  {row[shown]:.1f}".rjust(width)


def main() -> int:
    try:
        print(text(read(Path(sys.argv[1]))))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
