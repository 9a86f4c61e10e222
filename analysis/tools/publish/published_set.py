"""A data set for the web that grows: points of one sweep after another, without who ran them and where.

    nightsweep publish results/paper-image --into data/h200-2026-11-21

DIR gets tables/, points/<id>/ (records), README.md and manifest.json. A point that is there already stays as it is, for
its id stands for its settings: it is never there twice. Points without a record are not taken. Readings of GPUs have
four digits. A person's files are

    left-out.csv   point_id,reason: points that were measured, and are not in the set; what is listed later is taken out
    LICENSE        the licence of the data

and so is README.md above the line that says where the generated part begins. Pseudonyms go on from those of earlier
sweeps, so one of a host never stands for two; a machine that measured twice may have two. Nothing changes in DIR until
all of the new set has been searched for names (analysis/tools/publish/identity.py).

    python -m nightsweep.analysis.tools.publish.published_set data/h200-2026-11-21  # README.md and manifest.json again
"""

from __future__ import annotations

import argparse
import csv
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from nightsweep.analysis.ingest.point_tables import as_table
from nightsweep.analysis.sweep.labels import plural
from nightsweep.analysis.tables import column, parquet
from nightsweep.analysis.tables import points as tables
from nightsweep.analysis.tools import docs
from nightsweep.analysis.tools.publish import publish
from nightsweep.analysis.tools.publish.anonymizer import Anonymizer
from nightsweep.analysis.tools.publish.identity import Identity
from nightsweep.jobs.host.facts import Host
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.record import Record

MARK = "<!-- Generated from here on by `nightsweep publish --into`; what is above is kept. -->"
LEFT_OUT = "left-out.csv"
READINGS = cs.float() - cs.by_name("energy_j")
"""Of samples: power, rates and percentages, whose last digits are noise and a third of the bytes; not the counter, of
which differences are taken."""
DIGITS = 4


def left_out(folder: Path) -> dict[str, str]:
    """Reason by point of what the set must not hold."""
    path = folder / LEFT_OUT
    if not path.is_file():
        return {}
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        if set(row) != {"point_id", "reason"} or not all(row.values()):
            raise InputError(f"{path}: expected the columns point_id and reason, and both in every line")
    return {row["point_id"]: row["reason"] for row in rows}


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a set; of a new one, an empty one."""
    path = folder / "manifest.json"
    if path.is_file():
        manifest = read_json(path, dict[str, Any])
        if manifest is not None and isinstance(manifest.get("pseudonyms"), dict):
            return manifest
    elif not (folder / "tables").exists():
        return {}
    raise InputError(f"{folder}: no data set; expected one that `nightsweep publish --into` made, or a new folder")


def rows_of(path: Path, name: str) -> pl.DataFrame:
    """A table as the schema has it now; empty where there is no such file."""
    if not path.is_file():
        return column.empty(tables.TABLES[name])
    return column.conform(pl.scan_parquet(path), tables.TABLES[name]).collect()


def merge(sweep: Path, out: Path, anonymizer: Anonymizer) -> tuple[int, int]:
    """Add the sweep's new points to the set's tables and records; returns how many are new, and how many there are.
    Raises InputError where nobody could run one again as it was."""
    omitted = left_out(out).keys()
    have = set(rows_of(out / "tables/points.parquet", "points")["point_id"])
    measured = pl.read_parquet(sweep / "tables/points.parquet").filter(pl.col("status") != "not_run")
    new = set(measured["point_id"]) - have - omitted
    if changed := [point for point in sorted(new) if is_of_no_commit(sweep / "points" / point)]:
        raise InputError(
            f"{plural(len(changed), 'point')} measured with changes that no commit has, such as {changed[0]}: measure "
            f"them again from a commit, or name them in {out.name}/{LEFT_OUT}"
        )
    kept = have - omitted
    (out / "tables").mkdir(exist_ok=True)
    for name in tables.TABLES:
        old, more = (rows_of(folder / f"tables/{name}.parquet", name) for folder in (out, sweep))
        frames = [select_points(old, kept), anonymizer.table(select_points(more, new, kept | new))]
        write_table(name, pl.concat(frames), out)
    publish.copy_json(sweep, out, anonymizer, [f"points/{point}/record.json" for point in sorted(new)])
    for point in have & omitted:
        shutil.rmtree(out / "points" / point, ignore_errors=True)
    return len(new), len(kept | new)


def write_table(name: str, rows: pl.DataFrame, out: Path) -> None:
    """A table of the set, small: what a checkout has to hold."""
    # Pages follow chunks, whose number changes from run to run: the same rows are to be the same bytes.
    table = as_table(name, rows).rechunk()
    if name == "gpu_samples":
        table = table.with_columns(rounded(READINGS))
    path = out / f"tables/{name}.parquet"
    parquet.write(table, path, compression="zstd", compression_level=19, statistics=False)


def rounded(values: pl.Expr) -> pl.Expr:
    """The nearest numbers of DIGITS decimal digits; what is one already stays, to the last bit."""
    place = values.abs().log10().floor() - (DIGITS - 1)
    scale = pl.lit(10.0).pow(place.abs())
    whole, fraction = (values / scale).round() * scale, (values * scale).round() / scale
    return (
        pl.when((values.abs() < 1e-300) | values.is_infinite())
        .then(values)
        .when(place >= 0)
        .then(whole)
        .otherwise(fraction)
    )


def is_of_no_commit(point: Path) -> bool:
    """Whether the point was measured by a Nightsweep with changes that are in no commit."""
    record = read_json(point / "record.json", Record)
    return record is not None and bool(record.software.git_dirty)


def select_points(frame: pl.DataFrame, points: Iterable[str], partners: Iterable[str] | None = None) -> pl.DataFrame:
    """The rows of these points; a trial of a remedy (its row has two points) is the remedied one's, and needs both."""
    ids, others = list(points), list(points if partners is None else partners)
    if "remedied_id" in frame.columns:
        return frame.filter(pl.col("remedied_id").is_in(ids), pl.col("point_id").is_in(others))
    return frame.filter(pl.col("point_id").is_in(ids))


def readme(folder: Path) -> str:
    """README.md: a person's part, then what the set holds and the schema of its tables."""
    path = folder / "README.md"
    own = path.read_text().partition(MARK)[0] if path.is_file() else f"# {folder.name}\n\n"
    frames = {name: rows_of(folder / f"tables/{name}.parquet", name) for name in tables.TABLES}
    files = sorted(folder.glob("points/*/record.json"))
    records = [record for file in files if (record := read_json(file, Record))]
    lines = [MARK, "", "## Points", "", *points_lines(frames["points"]), "", *facts(records), ""]
    omitted = left_out(folder)
    if omitted:
        lines += [f"{plural(len(omitted), 'point')} measured and left out (`{LEFT_OUT}` lists them):", ""]
        lines += [f"- {number}: {reason}" for reason, number in sorted(Counter(omitted.values()).items())] + [""]
    licence = folder / "LICENSE"
    if licence.is_file():
        title = next(line.strip() for line in licence.read_text().splitlines() if line.strip())
        lines += ["## Licence", "", f"The data are under the licence in `LICENSE`: {title}.", ""]
    lines += [
        "## Tables",
        "",
        "Parquet, in `tables/`; `point_id` joins them, and names the folder of a point's record.",
        f"Power, rates and percentages of `gpu_samples` have {DIGITS} digits.",
    ]
    for name, frame in frames.items():
        there = pl.read_parquet_schema(folder / f"tables/{name}.parquet")  # older sets lack columns
        known = {own: column for own, column in tables.TABLES[name].items() if own in there}
        lines += ["", f"### {name} ({plural(frame.height, 'row')})", "", *docs.columns(known)]
    return own + "\n".join(lines) + "\n"


def points_lines(points: pl.DataFrame) -> list[str]:
    """How many points there are of what, as a table."""
    by = ["workload", "model", "accelerator", "world_size"]
    frame = points.group_by(by).agg(n=pl.len(), ok=(pl.col("status") == "ok").sum()).sort(by, nulls_last=True)
    rows = ["| workload | model | accelerator | ranks | points | of these ok |", "|---|---|---|---|---|---|"]
    return rows + ["| " + " | ".join("" if v is None else str(v) for v in row) + " |" for row in frame.iter_rows()]


def facts(records: list[Record]) -> list[str]:
    """When and with what the points were measured, each value with the number of points that have it."""
    days = sorted(record.started_at[:10] for record in records if record.started_at)
    versions: dict[str, Counter[str]] = {}
    for record in records:
        software, packages = record.software, record.software.packages
        host = record.hosts[0] if record.hosts else Host()
        named = {"Python": software.python, "PyTorch": packages.get("torch"), "CUDA": software.cuda}
        named |= {"NCCL": software.nccl, "driver": host.driver, "CPU": host.cpu_model}
        changed = " with uncommitted changes" if software.git_dirty else ""
        named |= {"Nightsweep at commit": software.git_commit and software.git_commit[:12] + changed}
        for name, value in named.items():
            if value:
                versions.setdefault(name, Counter())[value] += 1
    lines = [f"Measured {days[0]} to {days[-1]}."] if days else []
    for name, values in versions.items():
        some = ", ".join(f"{v} ({n})" if len(values) > 1 else v for v, n in sorted(values.items()))
        lines.append(f"{name}: {some}.")
    return ["  \n".join(lines)]


def finish(folder: Path, facts: dict[str, Any]) -> None:
    (folder / "README.md").write_text(readme(folder))
    publish.write_manifest(folder, facts)


@parquet.faults_as_input_errors()
def grow(sweep: Path, out: Path) -> int:
    """`nightsweep publish --into`; its exit status. Raises InputError."""
    scratch, before = (out.absolute().with_name(f".{out.name}.{word}") for word in ("unpublished", "before"))
    try:
        if before.exists() and not out.exists():  # killed between the two names
            before.rename(out)
        publish.require(sweep)
        known = manifest_of(out)
        left_out(out)
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(out, scratch / out.name) if out.exists() else (scratch / out.name).mkdir(parents=True)
        identity = Identity.of_sweep(sweep)
        anonymizer = Anonymizer(identity.hosts, identity.uuids, known.get("pseudonyms"))
        new, total = merge(sweep, scratch / out.name, anonymizer)
        replaced = Counter(known.get("replaced")) + anonymizer.replaced
        used = anonymizer.used if new else known.get("pseudonyms", {})
        finish(scratch / out.name, {"pseudonyms": used, "replaced": dict(sorted(replaced.items()))})
        clean = publish.is_clean(scratch / out.name, out, identity)
        if clean:
            if out.exists():
                out.rename(before)
            (scratch / out.name).rename(out)
            shutil.rmtree(before, ignore_errors=True)
            print(f"{out}: {plural(new, 'new point')}, {plural(total, 'point')} in all")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0 if clean else publish.LEFT


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nightsweep.analysis.tools.publish.published_set",
        description="Write README.md and manifest.json of a data set again, after a change by hand.",
    )
    parser.add_argument("folder", type=Path, help="the data set")
    folder = parser.parse_args(argv).folder
    try:
        publish.require(folder)
        known = manifest_of(folder)
    except InputError as error:
        parser.error(str(error))
    finish(folder, {"pseudonyms": known["pseudonyms"], "replaced": known.get("replaced", {})})


if __name__ == "__main__":
    main()
