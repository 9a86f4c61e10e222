"""The samplers' logs of GPUs (Arrow streams) as tables; a log that breaks off is read up to there."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from nightsweep.analysis.tables import column, points
from nightsweep.jobs.telemetry.gpu import log

RUNS = ("timed", "traced")


def samples(point: Path, identity: str) -> pl.DataFrame:
    """The table GPU_SAMPLES of a point's runs; logs may also lie in the point's folder itself. `identity`: its id."""
    logs: list[tuple[str | None, Path]] = [
        (run, path) for run in RUNS for path in sorted((point / run).glob("nvml-*.arrow")) if path.is_file()
    ]
    frames = [
        read_log(path).with_columns(
            point_id=pl.lit(identity), look=pl.lit(run), host=pl.lit(path.stem.removeprefix("nvml-"))
        )
        for run, path in logs or [(None, path) for path in sorted(point.glob("nvml-*.arrow"))]
    ]
    made = [column.conform(frame, points.TABLES["gpu_samples"]) for frame in frames]
    return pl.concat(made).collect() if made else column.empty(points.TABLES["gpu_samples"])


def read_log(path: Path) -> pl.DataFrame:
    """The rows of one log, in order of time."""
    batches = [pl.DataFrame(pl.from_arrow(batch)) for batch in log.batches(path)]
    return pl.concat(batches).sort("mono_ns", maintain_order=True) if batches else pl.DataFrame({"t_ns": []})
