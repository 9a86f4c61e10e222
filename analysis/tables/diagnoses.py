"""The tables of why points are slow, and of what remedies gave back (docs/diagnosis.md)."""

from __future__ import annotations

import polars as pl

from analysis.tables.column import ID, Column

_CAUSE = {
    "cause": Column(pl.String, "One of the seven causes.", "diagnoses/ID.json"),
    "kind": Column(pl.String, "Its kind.", "diagnoses/ID.json"),
}
_GPU_S = "GPU time of the point's timed steps (those of its slowest rank x world_size), s; of ranks on CPUs, theirs."

DIAGNOSES: dict[str, Column] = {
    **ID,
    "place": Column(pl.Int64, "From 1, the largest share first.", "diagnoses/ID.json"),
    **_CAUSE,
    "share": Column(
        pl.Float64,
        "Of the time of a step (of a sample, where the remedy changes the batch), what the remedy could give back; "
        "0 is a remark.",
        "diagnoses/ID.json",
    ),
    "share_low": Column(
        pl.Float64, "Lower end of its interval; null where one step alone tells nothing of it.", "likewise"
    ),
    "share_high": Column(pl.Float64, "Upper end.", "likewise"),
    "rank": Column(pl.Int64, "The rank at fault where it is one.", "diagnoses/ID.json"),
    "advice": Column(pl.String, "What to do, in words.", "diagnoses/ID.json"),
    "remedy": Column(pl.String, "Settings to change, as JSON; {} where no setting does it.", "diagnoses/ID.json"),
    "method": Column(pl.String, "How the share was computed.", "diagnoses/ID.json"),
    "gpu_s": Column(pl.Float64, _GPU_S + " Times share, it is what the cause took.", "steps"),
}
"""Of points that are ok; one row a cause."""

REMEDIES: dict[str, Column] = {
    **ID,
    "remedied_id": Column(pl.String, "Id of the point with the remedy.", "remedies/roundN.json"),
    "round": Column(pl.Int64, "Round in which it was tried, from 1.", "remedies/roundN.json"),
    **_CAUSE,
    "remedy": Column(pl.String, "Settings that were changed, as JSON.", "remedies/roundN.json"),
    "predicted": Column(pl.Float64, "Share of the cause before: the gain that was foretold.", "remedies/roundN.json"),
    "predicted_low": Column(pl.Float64, "Lower end of its interval; may be null.", "remedies/roundN.json"),
    "predicted_high": Column(pl.Float64, "Upper end.", "remedies/roundN.json"),
    "before_ms": Column(pl.Float64, "Mean time a sample of all ranks, timed look, ms.", "steps"),
    "after_ms": Column(pl.Float64, "The same of the remedied point; null where it is not ok.", "steps"),
    "gain": Column(pl.Float64, "1 - after_ms / before_ms.", "derived"),
    "gain_low": Column(
        pl.Float64, "Lower end of its 95 % interval (Welch's t over steps); null of one step.", "derived"
    ),
    "gain_high": Column(pl.Float64, "Upper end.", "derived"),
    "verdict": Column(
        pl.String,
        "helped, within_noise, did_not_help (slower), failed (the remedied point is not ok), cannot_tell (one step), "
        "not_run.",
        "derived",
    ),
    "gpu_s": Column(pl.Float64, _GPU_S + " Before the remedy.", "steps"),
}
"""One row a remedy that was tried on a point (target remedies)."""
