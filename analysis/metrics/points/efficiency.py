"""Share of the devices' stated peaks that was reached: FLOP/s of steps, bytes/s of copies.

    MFU = model FLOPs of a step / (ranks * stated dense peak of one device * time of a step)
    HFU = the same of hardware FLOPs, which include what activation checkpointing recomputes

(Chowdhery et al., arXiv 2204.02311, section 4.1 and appendix B.) A share above 100 % is impossible: one of
its terms is wrong. It is refused, and the reason stands in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.points import peaks
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.traces import BANDWIDTH
from nightsweep.jobs.record.launch_files import RankResult

_Json = dict[str, Any]


def utilisation(results: Sequence[RankResult], settings: Mapping[str, Any], world: int, step_ms: float) -> _Json:
    """The columns of POINTS on efficiency, from what the ranks of `world` devices recorded at their end and their mean
    step time."""
    # Of a job with DataParallel one rank counts for all devices.
    flops, uncounted = _flops(results, 1 if settings.get("strategy") == "dp" else world)
    peak, unknown = _peak(results, peaks.format_of(settings))
    row: _Json = {"flops_per_step": flops and flops[0], "peak_flops_per_s": peak}
    if flops is None or peak is None or step_ms <= 0:
        return row | {"mfu_reason": uncounted or unknown or "no step time"}
    model, hardware = (100 * n / (world * peak * step_ms / 1e3) for n in flops)
    if max(model, hardware) > 100:
        return row | {"mfu_reason": f"refused: {max(model, hardware):.1f} % of the stated peak"}
    return row | {"mfu_percent": model, "hfu_percent": hardware}


def _flops(results: Sequence[RankResult], ranks: int) -> tuple[tuple[int, int] | None, str | None]:
    """Model and hardware FLOPs of a step over all ranks, or why there are none."""
    counts = [result.flops for result in results if result.flops]
    known = [(count.step, count.hardware_step or 0) for count in counts if count.step]
    if len(known) < max(ranks, len(results)):
        reasons = [count.reason for count in counts if count.reason]
        return None, ": ".join(["not counted", *reasons[:1]])
    return (sum(model for model, _ in known), sum(hardware for _, hardware in known)), None


def _peak(results: Sequence[RankResult], precision: str | None) -> tuple[float | None, str | None]:
    """The one peak of all ranks' devices, FLOP/s, or why there is none."""
    if any(result.device == "cpu" for result in results):
        return None, "a CPU has no stated peak"
    names = sorted({str(result.device_name) for result in results})
    if len(names) != 1:
        return None, f"ranks on devices of several models: {', '.join(names)}"
    device = peaks.peak_of(names[0])
    # bf16_pure differs from bf16 in what is kept, not in what is multiplied.
    peak = device.flops_per_s.get((precision or "").removesuffix("_pure")) if device else None
    return peak, None if peak else f"no stated peak of {names[0]} in {precision}"


def bandwidth(copies: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """The table BANDWIDTH: a trace's copies between device and host, and within a device.

    `copies` and `devices` are as in analysis/tables/events.py. The peak is that of the trace, else the one that the
    device's maker states.
    """
    host = {"HtoD": "source", "DtoH": "target"}
    kind = pl.coalesce(pl.when(pl.col("direction") == d).then(pl.col(end)) for d, end in host.items())
    known = _memory_peaks(devices)
    rows = []
    grouped = copies.filter(pl.col("direction").is_in([*host, "DtoD"])).with_columns(memory=kind)
    for keys, group in grouped.group_by("rank", "device", "direction", "memory"):
        row = dict(zip(("rank", "device", "direction", "memory"), keys, strict=True))
        rows.append(row | _rate(group, row["direction"] == "DtoD", known.get((row["rank"], row["device"]))))
    return pl.DataFrame(rows, column.schema(BANDWIDTH)).sort("rank", "device", "direction", "memory")


def _memory_peaks(devices: pl.DataFrame) -> dict[tuple[Any, ...], float | None]:
    found = {}
    for rank, device, name, recorded in devices.select("rank", "device", "name", "memory_bytes_per_s").iter_rows():
        stated = peaks.peak_of(name)
        found[rank, device] = recorded or (stated.memory_bytes_per_s if stated else None)
    return found


def _rate(group: pl.DataFrame, within: bool, peak: float | None) -> _Json:
    """The measured columns of one row of BANDWIDTH."""
    moved = int(group["bytes"].sum()) * (2 if within else 1)
    busy = intervals.total(intervals.union(group.select("start_ns", "end_ns").to_numpy()))
    rate = moved / busy * 1e9 if busy else None
    row: _Json = {"bytes": moved, "busy_ns": busy, "bytes_per_s": rate}
    if not within:
        return row | {"reason": "the link to the host has no stated peak"}
    if peak is None or rate is None:
        return row | {"reason": "no time" if peak else "the device's memory has no stated bandwidth"}
    percent = 100 * rate / peak
    if percent > 100:  # small copies can stay in the cache
        return row | {"reason": f"refused: {percent:.1f} % of the memory's bandwidth"}
    return row | {"percent": percent}
