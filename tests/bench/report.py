"""How long figures and report of a large sweep take, and how large the report is.

    python -m tests.bench.report results/demo/tables --points 1000
    python -m tests.bench.report TABLES ... --records results/demo/points --out FOLDER

There is no sweep of so many points at hand, so the points of the given ones are repeated, each time under other ids and
as a further repeat of their configuration: real rows, but only so many distinct ones. Records and logs likewise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

import polars as pl

from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import points as schemas
from tests.bench.speed import measured

IDS = ("point_id", "remedied_id")


def renamed(point: str, copy: int) -> str:
    """Another point's id, as long."""
    return hashlib.sha256(f"{point} {copy}".encode()).hexdigest()[: len(point)] if copy else point


def replicated(tables: dataset.Tables, points: int) -> dataset.Tables:
    """So many points: these, again and again."""
    ids = tables["points"]["point_id"].to_list()
    repeats = int(tables["points"]["repeat"].max() or 0) + 1  # type: ignore[arg-type]
    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in schemas.TABLES}
    for copy in range(-(-points // len(ids))):
        kept = ids[: points - copy * len(ids)]
        names = {point: renamed(point, copy) for point in ids}
        for name, frames in parts.items():
            frame = tables[name].filter(pl.col("point_id").is_in(kept))
            frame = frame.with_columns(pl.col(c).replace(names) for c in IDS if c in frame.columns)
            if name == "points":
                frame = frame.with_columns(pl.col("repeat") + copy * repeats)
            frames.append(frame)
    return dataset.Tables({name: pl.concat(frames) for name, frames in parts.items()})


def copy_records(folder: Path, ids: set[str], out: Path) -> None:
    """Records and logs of these points, under their ids."""
    for file in sorted(folder.glob("*/record.json")):
        record, point = json.loads(file.read_text()), file.parent.name
        for copy in range(len(ids)):
            target = out / renamed(point, copy)
            if target.name not in ids:
                break
            for log in sorted((folder / point).glob("t*/*.log")):
                (target / log.parent.name).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log, target / log.parent.name / log.name)
            target.mkdir(parents=True, exist_ok=True)
            (target / "record.json").write_text(json.dumps(record | {"point_id": target.name}))


def joined(folders: list[Path]) -> dataset.Tables:
    """The tables of several sweeps as one."""
    loaded = [dataset.load(folder) for folder in folders]
    return dataset.Tables({name: pl.concat(tables[name] for tables in loaded) for name in schemas.TABLES})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.report", description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path, help="folders of tables (parquet)")
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--records", type=Path, help="folder of points whose records and logs go into the report")
    parser.add_argument("--out", type=Path, help="folder to keep the report in")
    args = parser.parse_args()
    if absent := [str(folder) for folder in args.tables if not (folder / "points.parquet").is_file()]:
        parser.error(f"{absent[0]}: no points.parquet there; expected a sweep's tables")
    own = joined(args.tables)
    with tempfile.TemporaryDirectory(prefix="ns-report-") as scratch:
        made, out = Path(scratch), args.out or Path(scratch)
        tables = replicated(own, args.points)
        (made / "tables").mkdir()
        for name in schemas.TABLES:
            tables[name].write_parquet(made / f"tables/{name}.parquet")
        (made / "points").mkdir()
        if args.records:
            copy_records(args.records, set(tables["points"]["point_id"]), made / "points")
        module = [sys.executable, "-m"]
        figures, given = str(made / "figures"), ["--tables", str(made / "tables")]
        draw = [[*module, "nightsweep.analysis.tools.draw", *given, "--out", figures]]
        page = out / "report.html"
        also = ["--figures", figures, "--records", str(made / "points"), "--out", str(page)]
        print(f"{tables['points'].height} points, {own['points'].height} distinct ones repeated")
        for what, commands in (("figures", draw), ("report", [[*module, "nightsweep.analysis.report", *given, *also]])):
            seconds, peak = measured(commands) or (0.0, 0.0)
            print(f"{what}: {seconds:.1f} s, {peak:.0f} MB")
        print(f"report.html: {page.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
