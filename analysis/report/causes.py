"""The part of the report that says why points are slow, what the remedies gained, and what that is worth.

GPU-hours are of the steady timed steps (gpu_s of the tables): what a point's longer run would lose is in proportion.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis.remedies.trials import is_foreseen, is_test
from nightsweep.analysis.diagnosis.thresholds import NOISE
from nightsweep.analysis.figures.causes import known_points
from nightsweep.analysis.figures.remedies import change
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.labels import hours, percent

_Rows = list[dict[str, Any]]

VERDICTS = {
    "helped": "helped",
    "within_noise": "within noise",
    "did_not_help": "did not help: slower",
    "no_effect": "had no effect: nothing in the script answered to it",
    "losses_changed": "rejected: it changed the training losses",
    "failed": "did not help: it failed",
    "not_run": "not run",
}
MOST_CHANGES = 10


def labels(tables: dataset.Tables) -> dict[str, str]:
    """What each point is called: its configuration; a remedied one, that of the point it comes from and the change."""
    own = dataset.labelled(tables.own)
    named = {r["point_id"]: f"{r['workload']}: {r['config']}" for r in own.to_dicts()}
    for row in tables["remedies"].sort("round", maintain_order=True).to_dicts():
        base = named.get(row["point_id"], row["point_id"])
        named.setdefault(row["remedied_id"], f"{base}, then {change(row['remedy'])}")
    return named


def interval(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return ""
    return percent(value) + ("" if low is None or high is None else f" ({100 * low:.1f} to {100 * high:.1f})")


def outcomes(tables: dataset.Tables) -> _Rows:
    """The rows of `remedies`, each with what came of it in words (`said`), and whether something else `disturbed` a run
    of the two, which counts all the same."""
    points, rows = tables["points"], []
    disturbed = {*points["point_id"]} - {*dataset.undisturbed(points)["point_id"]}
    for row in tables["remedies"].to_dicts():
        in_doubt = row["gain"] is not None and not disturbed.isdisjoint((row["point_id"], row["remedied_id"]))
        said = VERDICTS[row["verdict"]] + (" (something else disturbed a run)" if in_doubt else "")
        rows.append(row | {"said": said, "disturbed": in_doubt})
    return rows


def lines(tables: dataset.Tables) -> tuple[_Rows, _Rows]:
    """One row a point that is ok: its first cause with share, remedy and, where that was tried, the gain. First those
    of which something is known, what was tried and the largest shares before others; then those of which nothing is."""
    named, found = labels(tables), tables["diagnoses"].partition_by("point_id", as_dict=True)
    tried = {(r["point_id"], r["kind"]): r for r in outcomes(tables)}
    known: list[tuple[dict[str, str], _Rows]] = []
    blind: list[dict[str, str]] = []
    for i, text in named.items():
        causes = found[(i,)].sort("place").to_dicts() if (i,) in found else []
        lossy = [cause for cause in causes if cause["share"] >= NOISE.value]
        own = {"point_id": i, "config": text}
        if not lossy and any(cause["kind"] == "missing_trace" for cause in causes):
            blind.append(own)
        elif causes:
            known.append((own, lossy))
    known.sort(key=lambda row: _weight(row[1], tried), reverse=True)
    return [own | _line(lossy, tried) for own, lossy in known], blind


def _weight(lossy: _Rows, tried: dict[tuple[str, str], dict[str, Any]]) -> tuple[bool, float]:
    if not lossy:
        return False, 0.0
    trial = tried.get((lossy[0]["point_id"], lossy[0]["kind"]))
    return trial is not None, (trial["gain"] or 0.0) if trial else lossy[0]["share"]


def _line(lossy: _Rows, tried: dict[tuple[str, str], dict[str, Any]]) -> dict[str, str]:
    """The first cause of a point, whose causes above the noise these are."""
    if not lossy:
        return {"cause": "healthy: nothing above noise", "share": "", "remedy": "", "gain": "", "verdict": ""}
    cause = lossy[0]
    trial = tried.get((cause["point_id"], cause["kind"]))
    rank = "" if cause["rank"] is None else f", rank {cause['rank']}"
    return {
        "cause": f"{cause['kind']} ({cause['cause']}{rank})",
        "share": interval(cause["share"], cause["share_low"], cause["share_high"]),
        "remedy": f"{cause['advice']}: {change(cause['remedy'])}" if cause["remedy"] != "{}" else cause["advice"],
        "gain": interval(trial["gain"], trial["gain_low"], trial["gain_high"]) if trial else "",
        "verdict": trial["said"] if trial else "not tried" if cause["remedy"] != "{}" else "",
    }


def lost_hours(tables: dataset.Tables) -> _Rows:
    """GPU-hours of the timed steps that each kind of cause took, over the sweep's own points; share of those of the
    points of which something is known."""
    known = known_points(tables)
    own = known.filter(pl.col("share") >= NOISE.value)
    whole = known.unique("point_id")["gpu_s"].sum()
    rows = (
        own.group_by("cause", "kind")
        .agg(points=pl.col("point_id").n_unique(), gpu_s=(pl.col("share") * pl.col("gpu_s")).sum())
        .sort("gpu_s", "kind", descending=[True, False])
    )
    return [
        row | {"hours": hours(row["gpu_s"]), "share": percent(row["gpu_s"] / whole) if whole else ""}
        for row in rows.to_dicts()
    ]


def changes(tables: dataset.Tables) -> _Rows:
    """The changes of settings that are worth most, first those that are `sure` to give more than noise: by GPU-hours of
    the timed steps that they gained where they were tried (nothing where that failed, had no effect, changed the
    losses or gave no more than noise), and elsewhere give at least by the diagnosis; then the others by what they may
    give."""
    own = tables.own["diagnoses"].filter(pl.col("remedy") != "{}", pl.col("share") >= NOISE.value)
    tried = tables["remedies"].select("point_id", "kind", "remedy", "gain", "verdict")
    tried = tried.with_columns(disturbed=pl.Series([row["disturbed"] for row in outcomes(tables)], dtype=pl.Boolean))
    joined = own.join(tried, on=["point_id", "kind", "remedy"], how="left", maintain_order="left")
    in_vain = pl.col("verdict").is_in(["failed", "no_effect", "losses_changed"])
    joined = joined.with_columns(gain=pl.when(in_vain).then(0.0).otherwise("gain"))
    measured, in_noise = pl.col("gain").is_not_null(), pl.col("verdict") == "within_noise"
    least = pl.when(in_noise).then(0.0).otherwise(pl.coalesce("gain", "share_low", 0.0))
    sure = (pl.col("least_s") > 0) & (pl.col("least_s") >= NOISE.value * pl.col("gpu_s"))
    rows = joined.group_by("kind", "remedy").agg(
        points=pl.len(),
        gpu_s=pl.col("gpu_s").sum(),
        predicted_s=(pl.col("share") * pl.col("gpu_s")).sum(),
        tried=measured.sum(),
        predicted_least_s=(pl.col("share_low").fill_null(0.0) * pl.col("gpu_s")).sum(),
        predicted_tried_s=(pl.col("share") * pl.col("gpu_s")).filter(measured).sum(),
        gained_s=(pl.col("gain") * pl.col("gpu_s")).sum(),
        helped=(pl.col("verdict") == "helped").sum(),
        ran=(pl.col("verdict") != "not_run").sum(),
        least_s=(least * pl.col("gpu_s")).sum(),
        disturbed=pl.col("disturbed").sum(),
        worth_s=(pl.coalesce("gain", "share") * pl.col("gpu_s")).sum(),
        # Of 100 GPU-hours of the points that it is for, or where it was tried.
        predicted_percent=100 * (pl.col("share") * pl.col("gpu_s")).sum() / pl.col("gpu_s").sum(),
        gained_percent=100 * (pl.col("gain") * pl.col("gpu_s")).sum() / pl.col("gpu_s").filter(measured).sum(),
        first=pl.col("point_id").first(),
    )
    known = rows.with_columns(sure=sure, known_s=pl.when(sure).then("least_s").otherwise(0.0))
    in_order = known.sort("sure", "known_s", "worth_s", "kind", "remedy", descending=[True, True, True, False, False])
    return [
        row
        | {
            "change": change(row["remedy"]),
            "predicted": hours(row["predicted_s"]),
            "predicted_least": hours(row["predicted_least_s"]) if row["predicted_least_s"] else "0",
            "predicted_tried": hours(row["predicted_tried_s"]) if row["tried"] else "",
            "gained": hours(row["gained_s"]) if row["tried"] else "",
            "outcome": (
                f"{row['helped']} of {row['ran']} helped" + f", {row['disturbed']} disturbed" * (row["disturbed"] > 0)
                if row["ran"]
                else "not tried"
            ),
        }
        for row in in_order.head(MOST_CHANGES).to_dicts()
    ]


def trials(tables: dataset.Tables) -> _Rows:
    """Every remedy that was tried: what was predicted and what was measured, round by round."""
    named = labels(tables)
    return [
        row
        | {
            "config": named.get(row["point_id"], ""),
            "change": change(row["remedy"]),
            "predicted": interval(row["predicted"], row["predicted_low"], row["predicted_high"]),
            "measured": interval(row["gain"], row["gain_low"], row["gain_high"]),
        }
        for row in outcomes(tables)
    ]


def predictions(tables: dataset.Tables) -> tuple[int, int, int]:
    """How many gains that were measured are as predicted, of how many whose prediction can be wrong, and how many more
    were measured. What had no effect says nothing of its prediction."""
    measured = tables["remedies"].filter(pl.col("gain").is_not_null(), pl.col("verdict") != "no_effect")
    rows = list(measured.select("predicted", "predicted_low", "predicted_high", "gain").iter_rows())
    tested = [row for row in rows if is_test(*row[1:3])]
    return sum(is_foreseen(*row) for row in tested), len(tested), len(rows) - len(tested)
