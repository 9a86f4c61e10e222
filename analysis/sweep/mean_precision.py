"""How precisely the mean step of each configuration is known."""

from __future__ import annotations

import math

import polars as pl

from nightsweep.analysis.sweep.starts import known_noise, noise_of_repeats

OWN = "its starts"
_SCHEMA = {"workload": pl.String, "config": pl.String, "starts": pl.Int64, "nights": pl.Int64, "hosts": pl.Int64}
_SCHEMA |= {"half_percent": pl.Float64, "source": pl.String}


def configurations(starts: pl.DataFrame) -> pl.DataFrame:
    """Each configuration's precision, the worst first.

    Args:
        starts: those of `variance.list_starts`.

    Returns:
        workload, config, starts, nights, hosts, half_percent, source. `half_percent`: how far above its mean step the
        95 % interval ends, % (Student's t over the logarithms of its starts). A single start has no spread: there it is
        from what starts on several hosts or days were seen to differ by (`TABLE` of analysis/sweep/starts.py), and
        `source` says so.
    """
    rows = [_row(own) for own in starts.sort("point_id").partition_by("workload", "settings", maintain_order=True)]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row").sort(
        "half_percent", "workload", "config", descending=[True, False, False]
    )


def _row(own: pl.DataFrame) -> tuple[str, str, int, int, int, float, str]:
    # One start tells nothing of other hosts and days.
    noise = noise_of_repeats([own["ms"].to_list()], 1, OWN) or known_noise(own["sm_active"][0], one_host=False)
    half = 100 * math.expm1(noise.half((own.height,)))
    counts = (own[name].drop_nulls().n_unique() for name in ("night", "host"))
    return (own["workload"][0], own["config"][0], own.height, *counts, half, noise.source)
