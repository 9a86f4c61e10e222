"""The tables of diagnoses, and of the remedies that were tried (docs/diagnosis.md)."""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.tables.column import ID, Column

_CAUSE = {
    "cause": Column(pl.String, "One of the seven causes.", "derived"),
    "kind": Column(pl.String, "Its kind.", "derived"),
}
_GPU_S = (
    "GPU time of the point's steady timed steps (those of its slowest rank x world_size), s; CPU ranks count likewise. "
    "The phase timed of phases also has those that were still warm-up."
)

DIAGNOSES: dict[str, Column] = {
    **ID,
    "place": Column(pl.Int64, "Place among the point's causes, from 1; what gives most at least first.", "derived"),
    **_CAUSE,
    "share": Column(
        pl.Float64,
        "Share of a step's time (of a sample's, where the remedy changes the batch) that the remedy could save; 0 is a "
        "remark.",
        "derived",
    ),
    "share_low": Column(
        pl.Float64, "Lower end of its interval; null of one step alone in tables of older versions.", "likewise"
    ),
    "share_high": Column(pl.Float64, "Upper end.", "likewise"),
    "rank": Column(pl.Int64, "The rank at fault, where it is a single one.", "derived"),
    "advice": Column(pl.String, "What to do, in words.", "derived"),
    "remedy": Column(pl.String, "Settings to change, as JSON; {} where no setting helps.", "derived"),
    "method": Column(pl.String, "How the share was computed.", "derived"),
    "gpu_s": Column(pl.Float64, _GPU_S + " Multiplied by share, the time that the cause took.", "steps"),
}
"""One row a cause, of points that are ok."""

REMEDIES: dict[str, Column] = {
    **ID,
    "remedied_id": Column(pl.String, "Id of the point with the remedy.", "remedies/roundN.json"),
    "round": Column(pl.Int64, "Round in which it was tried, from 1.", "remedies/roundN.json"),
    **_CAUSE,
    "remedy": Column(pl.String, "Settings that were changed, as JSON.", "remedies/roundN.json"),
    "predicted": Column(
        pl.Float64, "Predicted gain: the share of the cause before the remedy.", "remedies/roundN.json"
    ),
    "predicted_low": Column(pl.Float64, "Lower end of its interval; may be null.", "remedies/roundN.json"),
    "predicted_high": Column(pl.Float64, "Upper end.", "remedies/roundN.json"),
    "before_ms": Column(pl.Float64, "Mean time of a sample over all ranks in the timed run, ms.", "steps"),
    "after_ms": Column(pl.Float64, "The same with the remedy; null where that point is not ok.", "steps"),
    "gain": Column(pl.Float64, "Measured gain: 1 - after_ms / before_ms.", "derived"),
    "gain_low": Column(
        pl.Float64, "Lower end of its 95 % interval, by what starts differ (analysis/sweep/starts.py).", "derived"
    ),
    "gain_high": Column(pl.Float64, "Upper end.", "derived"),
    "verdict": Column(
        pl.String,
        "helped, within_noise, did_not_help (slower), no_effect (nothing in a script answered to the switches), "
        "losses_changed (a switch made a script compute something else), failed (the remedied point is not ok), "
        "not_run. Something else may have disturbed a run of the two, which counts all the same: the points' column "
        "disturbed says so.",
        "derived",
    ),
    "gpu_s": Column(pl.Float64, _GPU_S + " Before the remedy.", "steps"),
}
"""One row a remedy that was tried on a point (target remedies)."""
