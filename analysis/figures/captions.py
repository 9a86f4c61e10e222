"""The captions of all figures, from the tables: what is shown, n, what the spread means, hardware, fixed settings."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from analysis.figures.family import Family
from analysis.sweep import dataset, labels, nights


def _join(words: list[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)


def counts(points: pl.DataFrame, aside: Sequence[str]) -> str:
    """How many points, configurations and repeats. `aside`: settings that make no other configuration."""
    per = points.group_by([s for s in dataset.SETTINGS if s not in aside]).len()["len"]
    least, most = min(per), max(per)
    repeats = f"n = {least}" if least == most else f"n = {least} to {most}"
    many = f"{points.height} point{'s' * (points.height != 1)}"
    return f"{many} of {per.len()} configuration{'s' * (per.len() != 1)}, {repeats} each."


def spread_in_time(points: pl.DataFrame, tables: dataset.Tables) -> str:
    """In how many nights the points were measured, where that is several."""
    known = nights.add_nights(points.select("point_id"), tables["points"])["night"].drop_nulls().n_unique()
    return f"Measured in {known} nights; the machine's load differs between nights." if known > 1 else ""


def disturbances(points: pl.DataFrame) -> str:
    """How many of the points something outside of their jobs disturbed, where some were."""
    count = int(points["disturbed"].fill_null(False).sum())
    was = "was" if count == 1 else "were"
    return (
        f"{count} point{'s' * (count != 1)} {was} disturbed: crossed out where drawn singly, left out of medians."
        if count
        else ""
    )


def hardware(points: pl.DataFrame) -> str:
    """Models of accelerators, with ranks and hosts."""
    models = points["accelerator"].drop_nulls().unique().sort().to_list()
    ranks = points["world_size"].drop_nulls().unique().sort().to_list()
    hosts = points["hosts"].explode().drop_nulls().n_unique()
    if not models:
        return "Hardware not recorded."
    word = f", {_join([str(r) for r in ranks])} rank{'s' * (ranks != [1])}" if ranks else ""
    return f"Hardware: {_join(models)}{word}, {hosts} host{'s' * (hosts != 1)}."


def shared_settings(points: pl.DataFrame) -> str:
    """The settings that all points of a workload share, exactly."""
    sentences = []
    for workload, part in dataset.per_workload(points.sort("workload")):
        same = {k: v for k, v in dataset.fixed_settings(part).items() if k not in ("workload", *dataset.ASIDE)}
        sentences.append(
            f"Fixed ({workload}): "
            + ", ".join(labels.word(k, v) if k == dataset.VARIABLES else f"{k} {v}" for k, v in same.items())
            + "."
        )
    return " ".join(sentences)


def usual_settings(points: pl.DataFrame, drawn: pl.DataFrame) -> str:
    """The settings that labels leave unsaid, where they name differences from the most common ones of all points; of
    the models that are drawn."""
    sentences = []
    for workload, part in dataset.per_workload(points.sort("workload")):
        models = set(drawn.filter(pl.col("workload") == workload)["model"])
        for model, values in dataset.common(part).items():
            if model not in models:
                continue
            known = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
            sentences.append(f"Unless a label says otherwise ({workload}, {model}): {known}.")
    return " ".join(sentences)


def parts(family: Family, tables: dataset.Tables) -> tuple[str, str, str]:
    """The caption of a figure of these tables: what it shows, how to read it, and the settings behind it."""
    points = family.points(tables)
    if points.is_empty():
        return family.text + " n = 0.", "", ""
    shown = [family.text, counts(points, family.aside), hardware(points)]
    reading = [family.reading, family.note(points), disturbances(points), spread_in_time(points, tables)]
    # Labels that leave settings unsaid are made among all points.
    fixed = [shared_settings(points), usual_settings(tables["points"], points) if family.usual else ""]
    return _sentences(shown), _sentences(reading), _sentences(fixed)


def _sentences(texts: Sequence[str]) -> str:
    return " ".join(text for text in texts if text)


def caption(family: Family, tables: dataset.Tables) -> str:
    """The whole caption of a figure of these tables."""
    return _sentences(parts(family, tables))
