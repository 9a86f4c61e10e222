"""The report of a sweep: one HTML file that holds all it shows and opens without a network.

python -m analysis.report --tables results/demo/tables --figures results/demo/figures --records results/demo/points \
    --out results/demo/report.html
"""

from __future__ import annotations

import argparse
import base64
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import polars as pl

from analysis import trust, why
from analysis.claims import CLAIMS
from analysis.claims.effect import FEWEST
from analysis.figures import captions, data, paper
from analysis.figures.__main__ import FAMILIES, shown

TITLES = {
    "iteration_time": "Step time",
    "scaling": "Scaling over ranks",
    "breakdown": "Where the time goes",
    "memory": "Peak memory",
    "timeline": "Timeline",
    "loss": "Loss",
    "failures": "Failures",
    "roofline": "Roofline",
    "remedies": "Before and after remedies",
}
# Result columns of the table of points: heading, column, what it is divided by, decimals.
RESULTS = (
    ("ranks", "world_size", 1, 0),
    ("step (ms)", "step_ms_median", 1, 2),
    ("step p95 (ms)", "step_ms_p95", 1, 2),
    ("wait for data (ms)", "data_ms_median", 1, 2),
    ("samples/s", "samples_per_s", 1, 1),
    ("tokens/s", "tokens_per_s", 1, 0),
    ("MFU (%)", "mfu_percent", 1, 1),
    ("memory (GiB)", "peak_memory_bytes", 2**30, 2),
    ("energy (J)", "energy_j", 1, 1),
    ("J/step", "step_j", 1, 2),
    ("J/sample", "sample_j", 1, 3),
    ("last loss", "loss_last", 1, 4),
    ("wall (s)", "wall_s", 1, 1),
)


def headline(points: pl.DataFrame) -> list[tuple[str, str]]:
    """The numbers at the top: (what, value)."""
    count = Counter(points["status"].to_list())
    ranks = points["world_size"].drop_nulls().unique().sort().to_list()
    models = points["accelerator"].drop_nulls().unique().sort().to_list()
    added = points["round"].drop_nulls().len()
    numbers = [("points", str(points.height))] + ([("of these by remedies", str(added))] if added else [])
    numbers += [(s.replace("_", " "), str(count[s])) for s in ("ok", "failed", "cancelled", "not_run")]
    numbers.append(("ranks", ", ".join(map(str, ranks)) or "none"))
    numbers.append(("hardware", ", ".join(models) or "not recorded"))
    return numbers


def figures(tables: data.Tables, folder: Path) -> list[dict[str, str]]:
    """Every figure that was drawn, with its bytes inside; those of the paper (in a folder of that name) last."""
    titles = {family: TITLES[family] for family in FAMILIES}
    titles |= {f"paper/{name}": family.title for name, family in paper.FAMILIES.items()}
    drawn = []
    for name, title in titles.items():
        file, family = folder / f"{name}.png", name.removeprefix("paper/")
        if file.exists():
            picture = base64.b64encode(file.read_bytes()).decode()
            text = captions.caption(family, shown(family, tables))
            drawn.append({"id": family, "title": title, "png": picture, "caption": text})
    return drawn


def _number(value: float | int | None, scale: float, decimals: int) -> dict[str, str]:
    if value is None:
        return {"text": "", "sort": ""}
    return {"text": f"{value / scale:.{decimals}f}", "sort": repr(float(value))}


def _text(value: Any) -> dict[str, str]:
    text = "" if value is None else str(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"text": text, "sort": repr(float(value)) if is_number else text}


def point_table(points: pl.DataFrame) -> dict[str, Any]:
    """Head and rows: id, status, round of remedies where there was one, the settings that vary within a workload, and
    the results that some point has."""
    ordered = data.configured(points)
    vary = {name for _, part in data.per_workload(ordered) for name in data.varying(part, but=())}
    vary |= {"workload"} if ordered["workload"].n_unique() > 1 else set()
    names = [name for name in data.SETTINGS if name in vary]
    aside = ["round"] if ordered["round"].null_count() < ordered.height else []
    results = [r for r in RESULTS if ordered[r[1]].null_count() < ordered.height]
    rows = []
    for row in ordered.to_dicts():
        cells = [_text(row[name]) for name in ("point_id", "status", *aside, *names)]
        cells += [_number(row[column], scale, decimals) for _, column, scale, decimals in results]
        rows.append({"status": row["status"] or "", "cells": cells})
    head = ["point", "status", *aside, *names, *(r[0] for r in results)]
    return {"head": head, "text": 2 + len(aside) + len(names), "rows": rows}


def troubles(tables: data.Tables) -> list[dict[str, Any]]:
    """Points that failed or were cancelled, with label and tracebacks."""
    points = data.configured(tables["points"]).select("point_id", "workload", "config", "config_order", "repeat")
    rows = tables["failures"].join(points, on="point_id", how="left", maintain_order="left")
    return rows.sort("workload", "config_order", "repeat", "point_id", nulls_last=True).to_dicts()


def read_records(folder: Path | None) -> list[dict[str, Any]]:
    """record.json of every point that has one that can be read."""
    records = []
    for file in sorted(folder.glob("*/record.json")) if folder else []:
        try:
            record = json.loads(file.read_text())
        except (OSError, ValueError):  # a record cut by a full disk; the table of points says not_run for it
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _host(host: dict[str, Any]) -> str:
    gpus = Counter(gpu.get("name") for gpu in host.get("gpus") or [])
    words = [
        f"{host.get('cpu_model') or 'CPU not recorded'}, {host.get('cpu_cores')} cores",
        f"{(host.get('memory_bytes') or 0) / 2**30:.0f} GiB" if host.get("memory_bytes") else "",
        *(f"{count} x {name}" for name, count in sorted(gpus.items(), key=str)),
        f"driver {host['driver']}" if host.get("driver") else "",
        f"kernel {host['kernel']}" if host.get("kernel") else "",
    ]
    return f"{host.get('hostname')}: " + "; ".join(word for word in words if word)


def _software(software: dict[str, Any]) -> list[tuple[str, str]]:
    dirty = {True: "with uncommitted changes", False: "clean", None: "state not recorded"}[software.get("git_dirty")]
    told = [("git commit", f"{software.get('git_commit') or 'not recorded'} ({dirty})")]
    told += [(name, str(software[name])) for name in ("python", "cuda", "nccl", "nsys") if software.get(name)]
    packages = software.get("packages") or {}
    return [*told, *((f"package {name}", str(version)) for name, version in sorted(packages.items()))]


def provenance(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What it ran on and with: each fact with every value that it had, and on how many points."""
    facts: dict[str, Counter[str]] = {}
    for record in records:
        told = _software(record.get("software") or {})
        told += [("host", _host(host)) for host in record.get("hosts") or []]
        for name, value in told:
            facts.setdefault(name, Counter())[value] += 1
    shown = [{"name": n, "values": sorted(v.items())} for n, v in facts.items()]
    starts = sorted(r["started_at"] for r in records if r.get("started_at"))
    ends = sorted(r["ended_at"] for r in records if r.get("ended_at"))
    if starts and ends:
        shown.append({"name": "dates", "values": [(f"{starts[0]} to {ends[-1]}", len(records))]})
    return shown


def render(tables: data.Tables, figure_folder: Path, records: list[dict[str, Any]]) -> str:
    """The page."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    env = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    points = tables["points"]
    verdicts = [claim.verdict(tables) for claim in CLAIMS]
    sweeps = points["sweep"].drop_nulls().unique().sort().to_list()
    return env.get_template("report.html.j2").render(
        title=", ".join(sweeps) or "no points",
        headline=headline(points),
        figures=figures(tables, figure_folder),
        claims=verdicts if any(verdict.points for verdict in verdicts) else [],
        fewest=FEWEST,
        points=point_table(points),
        fixed=captions.fixed(points) if points.height else "",
        troubles=troubles(tables),
        why={"lines": why.lines(tables), "lost": why.lost(tables), "changes": why.changes(tables)}
        | {"trials": why.trials(tables)},
        costs=trust.costs(tables),
        clocks=trust.clocks(tables),
        events=trust.events(tables),
        energy=points["energy_j"].drop_nulls().len(),
        mfu=points["mfu_percent"].drop_nulls().len(),
        provenance=provenance(records),
        records=len(records),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Write a sweep's report.")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the sweep's tables (parquet)")
    parser.add_argument("--figures", type=Path, required=True, help="folder of its figures (PNG)")
    parser.add_argument("--records", type=Path, help="folder of its points, for provenance")
    parser.add_argument("--out", type=Path, required=True, help="HTML file to write")
    args = parser.parse_args(argv)
    page = render(data.load(args.tables), args.figures, read_records(args.records))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page)


if __name__ == "__main__":
    main()
