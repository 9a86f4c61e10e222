"""The captions of all figures, from the tables: what is shown, n, what the spread means, hardware, fixed settings."""

from __future__ import annotations

import polars as pl

from analysis.diagnosis.known import seen
from analysis.figures import energy, remedies, roofline, scaling, timeline
from analysis.paper.figures import families as figures
from analysis.sweep import blocks, dataset, nights

_SPREAD = "Dots are repeats, bars their medians, whiskers run from the least to the most repeat."
TEXTS = {
    "iteration_time": "Median time of an optimizer step in the timed look, which no profiler sees; a step is as slow "
    f"as its slowest rank. {_SPREAD}",
    "scaling": "Samples per second of a rank over those on the fewest ranks that were run. Weak scaling: micro_batch "
    "is per rank, so the work of a step grows with the ranks. Ratios of medians of repeats of the same night, over "
    "several nights their geometric mean; whiskers run from the least to the most that two repeats of a night give. "
    "Colours tell strategies or precisions apart. A strategy that did not run on one rank is compared with any that "
    "did and is alike in all else. Below, of traced points of one night: by how much each part of a step is longer "
    "than on the fewest ranks, mean over ranks.",
    "breakdown": "Mean time of each part of a step in the traced look, per rank, over traced steps and repeats; no "
    "spread is shown. The parts of a step add up to it. A profiler ran: lengths are not those of the timed look.",
    "causes": "What the diagnosis finds that a step could do without, by cause, mean over repeats; the word at a bar's "
    "end is the kind of the largest share. Of points with a trace, and of those with a loss that shows without one. A "
    "time that two causes share may count for both.",
    "memory": "Peak memory of the rank that needs most: CUDA allocator (allocated) on GPUs, resident memory of the "
    f"process on a CPU. {_SPREAD}",
    "timeline": "A few steps of one point in the traced look: of those on most ranks, the one with most to win back. "
    "Phases are those of the launching thread; events closer than a pixel are merged; arrows are the longest times in "
    "which nothing runs on a rank's device. Samples are on the host's clock; that of SMs is a mean "
    "over the time before it (docs/telemetry.md).",
    "failures": "Points that failed or were cancelled, each with its reason and message.",
    "roofline": "Model FLOP/s of a GPU in the timed look by arithmetic intensity, below the lesser of its memory's "
    "bandwidth and the peak of its precision, as the maker states them. Bytes are those that the memory interface "
    "moved, by the GPU's own counters (GPM).",
    "energy": "Energy of a sample (image) or token (llm) by the GPUs' own counters over the timed window, against the "
    "time that it takes of all GPUs together; a dot is a point. Dotted: a GPU's mean power.",
    "remedies": "The remedies that gave back most and least, of those that were tried: the first traced rank before "
    "and after, to the same scale; events closer than a pixel are merged. Times of a sample are of the timed look.",
    "loss": "Loss of each optimizer step, mean over ranks and repeats; bands run from the least to the most repeat.",
}
_OF_A_FEW = ("remedies", "timeline")
"""Figures of a few points, which their labels tell by id, or that have all of their settings in common."""


def _join(words: list[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)


def shown(family: str, tables: dataset.Tables) -> pl.DataFrame:
    """The points that a figure is made of."""
    if family in figures.FAMILIES:
        return figures.FAMILIES[family].shown(tables)
    points = tables["points"]
    ok = points.filter(pl.col("status") == "ok")
    if family == "failures":
        return points
    if family == "timeline":
        point = timeline.chosen(tables)
        return ok.filter(pl.col("point_id") == (point["point_id"] if point else ""))
    if family == "remedies":
        ids = [trial[name] for trial in remedies.chosen(tables) for name in ("point_id", "remedied_id")]
        return ok.filter(pl.col("point_id").is_in(ids))
    if family == "roofline":
        return ok.filter(pl.col("point_id").is_in([row["point_id"] for row in roofline.placed(tables)]))
    if family == "energy":
        return energy.placed(tables)
    if family == "causes":
        return ok.filter(pl.col("point_id").is_in(seen(tables)["point_id"].unique().implode()))
    if family == "scaling":
        return scaling.compared(tables).unique("point_id", maintain_order=True)
    if family in ("breakdown", "loss"):
        have = tables["breakdown" if family == "breakdown" else "steps"]["point_id"].unique().to_list()
        return ok.filter(pl.col("point_id").is_in(have))
    value = {"iteration_time": "step_ms_median", "memory": "peak_memory_bytes"}[family]
    return ok.filter(pl.col(value).is_not_null())


def counts(points: pl.DataFrame, aside: tuple[str, ...] = dataset.ASIDE) -> str:
    """How many points, configurations and repeats. `aside`: settings that make no other configuration."""
    per = points.group_by([s for s in dataset.SETTINGS if s not in aside]).len()["len"]
    least, most = min(per), max(per)
    repeats = f"n = {least}" if least == most else f"n = {least} to {most}"
    many = f"{points.height} point{'s' * (points.height != 1)}"
    return f"{many} of {per.len()} configuration{'s' * (per.len() != 1)}, {repeats} each."


def spread_in_time(points: pl.DataFrame, tables: dataset.Tables) -> str:
    """In how many nights the points were measured, where that is several."""
    known = nights.add_nights(points.select("point_id"), tables["points"])["night"].drop_nulls().n_unique()
    return f"Measured in {known} nights, between which the machine's load differs." if known > 1 else ""


def hardware(points: pl.DataFrame) -> str:
    """Models of accelerators, with ranks and hosts."""
    models = points["accelerator"].drop_nulls().unique().sort().to_list()
    ranks = points["world_size"].drop_nulls().unique().sort().to_list()
    hosts = points["hosts"].explode().drop_nulls().n_unique()
    if not models:
        return "Hardware not recorded."
    word = f", {_join([str(r) for r in ranks])} rank{'s' * (ranks != [1])}" if ranks else ""
    return f"Hardware: {_join(models)}{word}, {hosts} host{'s' * (hosts != 1)}."


def fixed(points: pl.DataFrame) -> str:
    """The settings that all points of a workload share, exactly."""
    told = []
    for workload, part in dataset.per_workload(points.sort("workload")):
        same = {k: v for k, v in dataset.fixed(part).items() if k not in ("workload", *dataset.ASIDE)}
        told.append(f"Fixed ({workload}): " + ", ".join(f"{k} {v}" for k, v in same.items()) + ".")
    return " ".join(told)


def usual(points: pl.DataFrame, drawn: pl.DataFrame) -> str:
    """The settings that labels leave unsaid, where they name differences from the most common ones of all points; of
    the models that are drawn."""
    told = []
    for workload, part in dataset.per_workload(points.sort("workload")):
        models = set(drawn.filter(pl.col("workload") == workload)["model"])
        for model, values in dataset.common(part).items():
            if model not in models:
                continue
            known = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
            told.append(f"Unless a label says otherwise ({workload}, {model}): {known}.")
    return " ".join(told)


def caption(family: str, tables: dataset.Tables) -> str:
    """The caption of a figure."""
    points = shown(family, tables)
    text = figures.FAMILIES[family].text if family in figures.FAMILIES else TEXTS[family]
    if points.is_empty():
        return text + " n = 0."
    parts = [text]
    if family == "scaling" and "ddp" in set(points["strategy"]):
        parts.append("Under ddp each rank walks the whole data set, so its samples are not distinct.")
    aside = blocks.NEUTRAL if family in figures.FAMILIES else dataset.ASIDE
    # Labels of the paper's figures are their factors' levels, and those of all others are made among all points.
    unsaid = "" if family in (*figures.FAMILIES, *_OF_A_FEW) else usual(tables["points"], points)
    told = [*parts, counts(points, aside), spread_in_time(points, tables), hardware(points), fixed(points), unsaid]
    return " ".join(text for text in told if text)
