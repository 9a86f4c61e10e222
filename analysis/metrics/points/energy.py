"""Energy of the timed window, GPU by GPU: by the difference of the energy counter, and by integrating power.

The sensor's caveats. The counter and the instant power move every 100 ms, so a window of a second is good to about a
tenth. On A100 and H100 the sensor samples power during a quarter of the time only (arXiv 2312.02741): windows of many
seconds, in steady state, are what it is good for. So a point's own columns are null where `doubt` says why. Board power
covers the GPU and its memory, not the host.

    counter_j      e(end) - e(start), both interpolated between readings
    integrated_j   integral of the instant power over the window, trapezoids between readings
    above_idle_j   counter_j - idle_w * window_s
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.jobs.record.launch_files import RankResult

_Row = dict[str, Any]
_Series = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

TOUCHED_BYTES = 64 << 20
"""When the used memory rises by this, a rank has opened its context."""
FEWEST_IDLE = 5
"""Readings of an idle GPU that its idle power needs: the sensor moves only every 100 ms."""
IDLE_BYTES = 1 << 30
"""A GPU that holds more has somebody's context on it, and draws more than an idle one: an H200 120 to 160 W in place of
77 to 83, with 0.6 GB of the driver's own."""
LONG_S, SHORTEST_S, ALIKE = 5.0, 1.0, 0.03
"""A window so long is long enough; one between these is where both ways of counting differ by no more than ALIKE."""


def rows(samples: pl.DataFrame, results: Sequence[RankResult], timed: pl.DataFrame) -> list[_Row]:
    """One row a GPU of ENERGY, without the point's id. `samples`: gpu_samples; `results`: what ranks recorded at their
    end (the window is each rank's own, on the clock of its host); `timed`: the timed steps."""
    of_uuid = {result.uuid: (result.rank, result.window) for result in results if result.uuid and result.window}
    found = []
    for gpu in samples.filter(pl.col("look") == "timed").drop_nulls("uuid").partition_by("uuid", maintain_order=True):
        if gpu["uuid"][0] not in of_uuid:
            continue  # of the node, but no rank's
        rank, window = of_uuid[gpu["uuid"][0]]
        own = timed.filter(pl.col("rank") == rank)
        base = {"host": gpu["host"][0], "gpu": gpu["gpu"][0], "uuid": gpu["uuid"][0], "rank": rank}
        found.append(base | gpu_energy(gpu.sort("t_ns"), own, (window.start_ns, window.end_ns)))
    return found


def gpu_energy(gpu: pl.DataFrame, steps: pl.DataFrame, window: tuple[int, int]) -> _Row:
    """The measured columns of ENERGY of one GPU.

    Args:
        gpu: its samples, in order of time.
        steps: the timed steps of its rank.
        window: start and end of the timed window, ns.
    """
    length = (window[1] - window[0]) / 1e9
    energy, power = _series(gpu, "energy_j", window[0]), _series(gpu, "power_instant_w", window[0])
    counter, idle = _rise(energy, length), idle_w(gpu)
    tokens = None if steps.is_empty() or steps["tokens"].null_count() else int(steps["tokens"].sum())
    count = steps["step"].n_unique() if not steps.is_empty() else None
    return {
        "window_s": length,
        "steps": count,
        "counter_j": counter,
        "counter_readings": _count_inside(energy, length),
        "integrated_j": _integral(power, length),
        "power_readings": _count_inside(power, length),
        "idle_w": idle,
        "above_idle_j": None if counter is None or idle is None else counter - idle * length,
        "step_j": _ratio(counter, count),
        "sample_j": _ratio(counter, int(steps["samples"].sum())),
        "token_j": _ratio(counter, tokens),
    }


def doubt(energy: pl.DataFrame) -> str | None:
    """Why the energy of a point (its rows of ENERGY) is not to be trusted; None where it is."""
    if energy.is_empty():
        return "no samples of GPUs that are one rank's alone"
    if energy["counter_j"].null_count():
        return "the counter was not read before and after the window"
    window = float(energy["window_s"].min() or 0.0)  # type: ignore[arg-type]
    if window >= LONG_S:
        return None
    if window < SHORTEST_S:
        return f"the window is {window:.1f} s long, less than {SHORTEST_S:.0f}"
    short = f"the window is {window:.1f} s long, less than {LONG_S:.0f}, and"
    if energy["integrated_j"].null_count():
        return f"{short} power cannot be integrated"
    most = float((energy["integrated_j"] / energy["counter_j"] - 1).abs().max())  # type: ignore[arg-type]
    return f"{short} counter and power differ by {most:.0%}" if most > ALIKE else None


def _series(gpu: pl.DataFrame, name: str, zero: int) -> _Series:
    """Times, s from `zero` (a float cannot hold UTC ns), and readings."""
    there = gpu.drop_nulls(name)
    return (there["t_ns"] - zero).to_numpy() / 1e9, there[name].to_numpy()


def _covers(series: _Series, length: float) -> bool:
    return len(series[0]) > 1 and bool(series[0][0] <= 0 and series[0][-1] >= length)


def _rise(series: _Series, length: float) -> float | None:
    if not _covers(series, length):
        return None
    low, high = np.interp([0, length], *series)
    return float(high - low)


def _integral(series: _Series, length: float) -> float | None:
    if not _covers(series, length):
        return None
    at = series[0][(series[0] > 0) & (series[0] < length)]
    at = np.concatenate([[0.0], at, [length]])
    return float(np.trapezoid(np.interp(at, *series), at))


def _count_inside(series: _Series, length: float) -> int:
    return int(((series[0] >= 0) & (series[0] <= length)).sum())


def _ratio(joules: float | None, count: int | None) -> float | None:
    return joules / count if joules is not None and count else None


def idle_w(gpu: pl.DataFrame) -> float | None:
    """Power of a GPU before its rank used it, W: the 10th percentile of the readings before its memory fills.

    Not the mean, because the GPU may still cool down from the job before. None with fewer than FEWEST_IDLE readings,
    and of a GPU that others use (IDLE_BYTES).
    """
    used = gpu.drop_nulls(["memory_used_bytes", "power_instant_w"])
    if used.is_empty() or used["memory_used_bytes"][0] > IDLE_BYTES:
        return None
    touched = used["memory_used_bytes"] > used["memory_used_bytes"][0] + TOUCHED_BYTES
    first = touched.arg_max() if touched.any() else len(used)
    power = used["power_instant_w"][:first]
    return float(power.quantile(0.1) or 0.0) if len(power) >= FEWEST_IDLE else None
