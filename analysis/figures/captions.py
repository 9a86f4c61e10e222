"""The captions of all figures, from the tables: what is shown, n, hardware; how to read it; and a table of settings."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import polars as pl

from nightsweep.analysis.figures.family import Family
from nightsweep.analysis.sweep import dataset, labels, nights, short_labels


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
    """How many of the points something outside of their jobs disturbed, where some were. Figures of medians and ratios
    have no such points."""
    count = int(points["disturbed"].fill_null(False).sum())
    were = f"{count} point{'s' * (count != 1)} {'was' if count == 1 else 'were'} disturbed"
    return f"{were}: they count here, crossed out where drawn singly." if count else ""


def hardware(points: pl.DataFrame) -> str:
    """Models of accelerators, with ranks and hosts."""
    models = points["accelerator"].drop_nulls().unique().sort().to_list()
    ranks = points["world_size"].drop_nulls().unique().sort().to_list()
    hosts = points["hosts"].explode().drop_nulls().n_unique()
    if not models:
        return "Hardware not recorded."
    word = f", {_join([str(r) for r in ranks])} rank{'s' * (ranks != [1])}" if ranks else ""
    return f"Hardware: {_join(models)}{word}, {hosts} host{'s' * (hosts != 1)}."


def settings(points: pl.DataFrame, labelled: pl.DataFrame | None = None, aside: Sequence[str] = ()) -> list[list[str]]:
    """A table of the settings that the points of a workload share, one column each, and, of `labelled`, the values that
    labels leave unsaid, one column a model. The first row has the headings; none where nothing is shared."""
    columns: dict[str, dict[str, Any]] = {}
    for workload, part in dataset.per_workload(points.sort("workload")):
        fixed = dataset.fixed_settings(part)
        columns[str(workload)] = {k: v for k, v in fixed.items() if k not in ("workload", *dataset.ASIDE)}
    for model, part in short_labels.per_model(labelled) if labelled is not None else []:
        usual = short_labels.usual_values(part, aside)
        if len(usual) > short_labels.FEW:
            columns[f"{model}, unless a label says otherwise"] = usual
    names = [name for name in dataset.SETTINGS if any(name in column for column in columns.values())]
    rows = [[n, *(labels.value_text(n, known[n]) if n in known else "" for known in columns.values())] for n in names]
    return [["setting", *columns], *rows] if names else []


def parts(family: Family, tables: dataset.Tables) -> tuple[str, str, list[list[str]]]:
    """The caption of a figure of these tables: what it shows, how to read it, and the table of settings behind it."""
    points = family.points(tables)
    if points.is_empty():
        return family.text + " n = 0.", "", []
    shown = [family.text, counts(points, family.aside), hardware(points)]
    reading = [family.reading, family.note(points, tables), disturbances(points), spread_in_time(points, tables)]
    labelled = family.labelled(tables) if family.labelled else None
    return _sentences(shown), _sentences(reading), settings(points, labelled, family.aside)


def _sentences(texts: Sequence[str]) -> str:
    return " ".join(text for text in texts if text)


def caption(family: Family, tables: dataset.Tables) -> str:
    """The whole caption of a figure of these tables, as reStructuredText: sentences, and a table of settings."""
    shown, reading, rows = parts(family, tables)
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    lines = [
        ".. csv-table:: Settings",
        "   :header-rows: 1",
        "",
        *(f"   {line}" for line in table.getvalue().splitlines()),
    ]
    return "\n\n".join(filter(None, [shown, reading, "\n".join(lines) if rows else ""]))
