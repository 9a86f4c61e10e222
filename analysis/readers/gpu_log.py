"""The samplers' logs as tables: GPU samples (Arrow streams) and events. What is broken off is read up to there."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from analysis.tables import column, points
from jobs.telemetry.gpu import log

LOOKS = ("timed", "traced")


def samples(point: Path, identity: str) -> pl.DataFrame:
    """GPU_SAMPLES of a point's looks; logs may also lie in the point's folder itself."""
    logs: list[tuple[str | None, Path]] = [
        (look, path) for look in LOOKS for path in sorted((point / look).glob("nvml-*.arrow"))
    ]
    frames = [
        one(path).with_columns(
            point_id=pl.lit(identity), look=pl.lit(look), host=pl.lit(path.stem.removeprefix("nvml-"))
        )
        for look, path in logs or [(None, path) for path in sorted(point.glob("nvml-*.arrow"))]
    ]
    made = [column.conform(frame, points.TABLES["gpu_samples"]) for frame in frames]
    return pl.concat(made).collect() if made else column.empty(points.TABLES["gpu_samples"])


def one(path: Path) -> pl.DataFrame:
    """The rows of one log, in order of time."""
    batches = [pl.DataFrame(pl.from_arrow(batch)) for batch in log.batches(path)]
    return pl.concat(batches).sort("mono_ns", maintain_order=True) if batches else pl.DataFrame({"t_ns": []})
