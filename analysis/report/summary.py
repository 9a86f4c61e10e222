"""What a reader should know first: what was run, what failed, where the time went, what to beware of, and the best and
the worst of what can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl

from nightsweep.analysis.figures import style
from nightsweep.analysis.sweep import dataset, labels
from nightsweep.analysis.sweep import held_time as held
from nightsweep.jobs.record.record import Record

_Rows = list[dict[str, Any]]

WORK = ("workload", "model", "method", "data", "image_size", "seq_len", "sequences")
"""Settings that say what is trained: the times of other work are no better and no worse."""
MOST_WORKS = 8
MOST_REASONS, MOST_LINKS = 3, 3


def headline(points: pl.DataFrame) -> list[tuple[str, str]]:
    """The numbers at the top: (what, value)."""
    count = Counter(points["status"].to_list())
    ranks = points["world_size"].drop_nulls().unique().sort().to_list()
    models = points["accelerator"].drop_nulls().unique().sort().to_list()
    added = points["round"].drop_nulls().len()
    numbers = [("points", str(points.height))] + ([("added by remedies", str(added))] if added else [])
    states = [s for s in ("ok", "failed", "cancelled", "not_run") if count[s] or s == "ok"]
    numbers += [(s.replace("_", " "), str(count[s])) for s in states]
    numbers.append(("ranks", ", ".join(map(str, ranks)) or "none"))
    numbers.append(("hardware", ", ".join(models) or "not recorded"))
    return numbers


def held_time(tables: dataset.Tables) -> dict[str, Any] | None:
    """Where the time went in which GPUs were held; None where nothing of it is known.

    Returns:
        hours: all of it; `uses` and `kinds`: (what, hours, share of all, and of a use its colour), in their order;
        `unknown`: how many attempts have no known end, and count nowhere.
    """
    rows, phases = held.by_use(tables), tables["phases"]
    if rows.is_empty():
        return None
    whole = float(rows["gpu_s"].sum())
    kinds = held.by_kind(tables).group_by("kind", "points", maintain_order=True).agg(pl.col("gpu_s").sum())
    return {
        "hours": labels.hours(whole),
        "uses": [
            _part(row["use"], row["gpu_s"], whole) | {"colour": style.USE_COLOURS[row["use"]]}
            for row in rows.to_dicts()
        ],
        "kinds": [_part(row["kind"], row["gpu_s"], whole) | {"points": row["points"]} for row in kinds.to_dicts()],
        "unknown": phases["duration_ns"].null_count(),
    }


def _part(what: str, gpu_s: float, whole: float) -> dict[str, Any]:
    share = gpu_s / whole
    text = labels.percent(share) if share >= 0.0005 else "< 0.1 %"
    return {"what": what, "hours": labels.hours(gpu_s), "share": text, "width": share}


def failures(tables: dataset.Tables, *, waiting: bool = False) -> dict[str, Any]:
    """Why points failed, were cancelled or did not run, by reason, what cost most first. `waiting`: the sweep still
    runs, so that those that did not run may yet.

    Returns:
        rows: status, reason, points, ids (of the first MOST_LINKS of them), message (of the first) and hours (that they
        held, with lost attempts), of MOST_REASONS; left: further reasons, and left_points, theirs.
    """
    cost = held.held(tables).group_by("point_id").agg(pl.col("gpu_s").sum())
    good = ("ok", "not_run") if waiting else ("ok",)
    bad = tables["points"].filter(~pl.col("status").is_in(good)).select("point_id", "status", "reason", "message")
    rows = (
        bad.join(cost, on="point_id", how="left", maintain_order="left")
        .group_by("status", "reason", maintain_order=True)
        .agg(
            pl.len().alias("points"), pl.col("point_id").alias("ids"), pl.col("message").first(), pl.col("gpu_s").sum()
        )
        .sort("gpu_s", "points", "status", "reason", descending=[True, True, False, False], nulls_last=True)
        .to_dicts()
    )
    shown = [
        row | {"ids": row["ids"][:MOST_LINKS], "hours": labels.hours(row["gpu_s"]) if row["gpu_s"] else ""}
        for row in rows[:MOST_REASONS]
    ]
    left = rows[MOST_REASONS:]
    return {"rows": shown, "left": len(left), "left_points": sum(row["points"] for row in left)}


def warnings(tables: dataset.Tables, records: Sequence[Record]) -> list[tuple[str, str]]:
    """What weakens the numbers: (the part of the page that tells more, what)."""
    points, ok = tables["points"], tables["points"].filter(pl.col("status") == "ok")
    disturbed, unsteady = int(ok["disturbed"].sum()), int((~ok["steady"]).sum())
    untraced = ok.filter(pl.col("trace_status").ne_missing("ok")).height
    dirty = sum(record.software.git_dirty is True for record in records)
    kinds = Counter(tables["gpu_events"]["kind"].drop_nulls().to_list())
    once = dataset.with_config(points).filter(pl.col("status") == "ok").group_by("workload", "config_order").len()
    single = once.filter(pl.col("len") == 1).height
    found = [
        (untraced, "causes", f"{untraced} of {labels.plural(ok.height, 'ok point')} without a trace"),
        (disturbed, "trust", f"{labels.plural(disturbed, 'point')} disturbed, in no median or ratio"),
        (unsteady, "trust", f"{labels.plural(unsteady, 'point')} still warming up halfway through the timed steps"),
        (dirty, "provenance", f"{dirty} of {labels.plural(len(records), 'record')} from code with uncommitted changes"),
        (single, "trust", f"{single} of {labels.plural(once.height, 'configuration')} run only once"),
        (
            kinds.total(),
            "trust",
            "GPU events: " + ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in kinds.most_common()),
        ),
    ]
    return [(place, text) for count, place, text in found if count]


def troubles(tables: dataset.Tables) -> _Rows:
    """Points that failed or were cancelled, with label and tracebacks."""
    points = dataset.labelled(tables).select("point_id", "workload", "config", "config_order", "repeat")
    rows = tables["failures"].join(points, on="point_id", how="left", maintain_order="left")
    return rows.sort("workload", "config_order", "repeat", "point_id", nulls_last=True).to_dicts()


def extremes(tables: dataset.Tables) -> dict[str, Any]:
    """The best and the worst configuration of each work, by throughput over ranks (median of repeats). `left`: works
    that are not shown.

    Of the sweep's own points that are ok and that nothing disturbed. Each side names the settings in which the two
    differ, and its first repeat.
    """
    quiet = dataset.undisturbed(dataset.ok_points(tables.own))
    points = quiet.filter(pl.col("samples_per_s") > 0, pl.col("world_size") > 0)
    per_rank = pl.coalesce("tokens_per_s", "samples_per_s") / pl.col("world_size")
    groups = points.with_columns(value=per_rank).partition_by(WORK, maintain_order=True)
    compared = [group for group in groups if group["config_order"].n_unique() > 1]
    compared.sort(key=lambda group: -group.height)
    rows = [_pair(group) for group in compared[:MOST_WORKS]]
    return {"rows": rows, "left": len(compared[MOST_WORKS:])}


def _pair(group: pl.DataFrame) -> dict[str, Any]:
    first = pl.col("point_id", "config", *(name for name in dataset.SETTINGS if name != "workload")).first()
    by = ["workload", "config_order"]
    each = group.group_by(by, maintain_order=True).agg(first, pl.col("value").median(), n=pl.len())
    ordered = each.sort("value", "point_id", descending=[True, False])
    best, worst = ordered.row(0, named=True), ordered.row(-1, named=True)
    sides = {
        side: {
            "id": row["point_id"],
            "n": row["n"],
            "value": labels.short_number(row["value"]),
            "config": _sentence(row, other),
        }
        for side, row, other in (("best", best, worst), ("worst", worst, best))
    }
    what = "samples" if group["tokens_per_s"].null_count() else "tokens"
    alike = group.row(0, named=True)
    return {
        "work": labels.label(alike, [name for name in WORK[1:] if alike[name] is not None]),
        "measure": f"{what}/s per {'GPU' if set(group['device_used']) == {'cuda'} else 'rank'}",
        "configurations": each.height,
        **sides,
        "ratio": labels.short_number(best["value"] / worst["value"]),
    }


def _sentence(row: dict[str, Any], other: dict[str, Any]) -> str:
    """What sets a configuration apart from the other one."""
    names = [name for name in dataset.SETTINGS if name not in dataset.ASIDE and row[name] != other[name]]
    return labels.label(row, [name for name in names if row[name] is not None])
