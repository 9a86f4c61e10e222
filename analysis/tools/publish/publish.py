"""A copy of a sweep's results for the web: who measured it and where is in none of its files.

    nightsweep publish results/demo --out demo-public
    nightsweep publish results/demo --out demo-public --traces

DIR gets the tables, sweep.json and the points' records with nothing but what analysis/tools/publish/allowed.py lists,
figures and the report drawn from these, and manifest.json: every file with its SHA-256, and how much was replaced. With
--traces also Nsight Systems exports and Kineto's traces; never .nsys-rep files, which hold the environment, and never
logs.

At the end every file is read again and searched for the names of the sweep's hosts, GPUs, user and folders, in case a
copy went wrong. Only then DIR appears; until then the copy is the folder .DIR.unpublished beside it.

Exit status: 0 done, 1 a name was left and nothing is published, 2 nothing to publish, or DIR is not empty.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import sqlite3
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.figures import style
from nightsweep.analysis.report.__main__ import write as write_report
from nightsweep.analysis.tables import parquet
from nightsweep.analysis.tables.points import TABLES
from nightsweep.analysis.tools import draw as every
from nightsweep.analysis.tools.orphans import POINT_ID
from nightsweep.analysis.tools.publish import allowed
from nightsweep.analysis.tools.publish.anonymizer import Anonymizer
from nightsweep.analysis.tools.publish.identity import Identity
from nightsweep.analysis.tools.publish.trace_copies import copy_kineto, copy_nsys
from nightsweep.jobs.host.facts import ROOT, output_of
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.point_folder import by_rank

LEFT = 1


def require(sweep: Path) -> None:
    """Raise InputError unless there are tables."""
    points = sweep / "tables/points.parquet"
    parquet.require(points, "expected the results of a sweep, with its tables")
    for path in sorted(points.parent.glob("*.parquet")):
        parquet.require(path, "expected Parquet, as `snakemake tables` writes it")


def copy_tables(sweep: Path, out: Path, anonymizer: Anonymizer) -> None:
    """The tables that Nightsweep knows, of each the columns that it knows: the name of another one may tell something,
    too, and what lies in a column of another type is not looked at."""
    (out / "tables").mkdir()
    for path in sorted((sweep / "tables").glob("*.parquet")):
        if path.stem not in TABLES:
            print(f"{path}: left out: none of Nightsweep's tables", file=sys.stderr)
            continue
        frame, columns = pl.read_parquet(path), TABLES[path.stem]
        known = frame.select(pl.col(name).cast(columns[name].dtype) for name in frame.columns if name in columns)
        parquet.write(anonymizer.table(known), out / "tables" / path.name)


OF_SWEEP = ("sweep.json", "points/*/record.json")
"""sweep.json, and the records of all points, which have their settings, too."""


def is_of_point(folder: Path) -> bool:
    """Whether the folder is a point's, whose name is a hash. That of another one may tell something."""
    return POINT_ID.fullmatch(folder.name) is not None


def copy_json(sweep: Path, out: Path, anonymizer: Anonymizer, names: Sequence[str] = OF_SWEEP) -> None:
    """The files of these names."""
    for path in sorted(path for name in names for path in sweep.glob(name)):
        content = read_json(path, dict[str, Any])
        if content is None:
            print(f"{path}: left out: not a JSON object, or cut", file=sys.stderr)
            continue
        if path.name != "sweep.json" and not is_of_point(path.parent):
            print(f"{path}: left out: its folder is not a point's", file=sys.stderr)
            continue
        target = out / path.relative_to(sweep)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "sweep.json":
            content, kinds = {key: content[key] for key in ("name", "points") if key in content}, allowed.SWEEP
        else:
            kinds = allowed.RECORD
        target.write_text(json.dumps(anonymizer.tree(content, kinds), indent=1) + "\n")


def copy_traces(sweep: Path, out: Path, anonymizer: Anonymizer) -> None:
    """The traces that can be read."""
    for end, copy in ((r"\.sqlite", copy_nsys), (r"\.json\.gz", copy_kineto)):
        folders = [point / "traced" for point in sorted(sweep.glob("points/*")) if is_of_point(point)]
        for path in [path for folder in folders for _, path in by_rank(folder, rf"trace-r(\d+){end}")]:
            target = out / path.relative_to(sweep)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                copy(path, target, anonymizer)
            except (sqlite3.DatabaseError, ValueError, OSError, EOFError, zlib.error) as error:
                target.unlink(missing_ok=True)
                print(f"{path}: left out: {error}", file=sys.stderr)
    reports = len(list(sweep.glob("points/*/traced*/*.nsys-rep")))
    if reports:
        print(f"{reports} .nsys-rep files are left out: they hold the environment, and cannot be rid of it")


def draw_again(folder: Path, figures: Path, page: Path) -> None:
    """Figures and the report, from what is published alone."""
    lines = every.draw(folder / "tables", figures)
    print("".join(f"{line}\n" for line in lines), end="")
    write_report(folder / "tables", figures, folder / "points", page)
    if failed := [line for line in lines if style.FAILED in line]:
        raise InputError("; ".join(failed))


def write_manifest(out: Path, facts: dict[str, Any]) -> None:
    """What is published, by which program, and further facts."""
    files = [
        {"file": str(path.relative_to(out)), "bytes": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(path for path in out.rglob("*") if path.is_file() and path != out / "manifest.json")
    ]
    commit = output_of("git", "rev-parse", "HEAD", cwd=ROOT)
    program = {"version": importlib.metadata.version("nightsweep"), "commit": commit}
    content = {"nightsweep": program, **facts, "files": files}
    (out / "manifest.json").write_text(json.dumps(content, indent=1) + "\n")


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_clean(folder: Path, out: Path, identity: Identity) -> bool:
    """Whether no name is left in a folder that is to become `out`; each file that holds one gets a line."""
    left = identity.search(folder)
    for file, kind in left:
        print(f"{out / file}: it still holds a name ({kind}); nothing is published", file=sys.stderr)
    return not left


def fill(sweep: Path, out: Path, anonymizer: Anonymizer, traces: bool) -> None:
    copy_tables(sweep, out, anonymizer)
    copy_json(sweep, out, anonymizer)
    if traces:
        copy_traces(sweep, out, anonymizer)
    draw_again(out, out / "figures", out / "report.html")
    write_manifest(out, {"replaced": dict(sorted(anonymizer.replaced.items()))})


@parquet.faults_as_input_errors()
def publish(sweep: Path, out: Path, traces: bool) -> int:
    """`nightsweep publish`; its exit status. Raises InputError."""
    scratch = out.absolute().with_name(f".{out.name}.unpublished")
    try:
        require(sweep)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out}: there is something already; expected a new or an empty folder")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        identity = Identity.of_sweep(sweep)
        fill(sweep, scratch, Anonymizer(identity.hosts, identity.uuids), traces)
        clean = is_clean(scratch, out, identity)
        if clean:
            scratch.rename(out)
            files = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
            print(f"{out}: {len(files)} files, {sum(files) / 1e6:.1f} MB")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0 if clean else LEFT
