"""Write a sweep's report: see the package."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from nightsweep.analysis.report import beside, records
from nightsweep.analysis.report import sweep_page as report
from nightsweep.analysis.report.traces import find_traces
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import parquet
from nightsweep.jobs.record.whole_file import write_text
from nightsweep.jobs.sweep.file import one_line


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m nightsweep.analysis.report", description="Write a sweep's report.")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the sweep's tables (parquet)")
    parser.add_argument("--figures", type=Path, required=True, help="folder of its figures (PNG)")
    parser.add_argument("--records", type=Path, help="folder of its points, for provenance and logs")
    parser.add_argument("--out", type=Path, required=True, help="HTML file to write")
    args = parser.parse_args(argv)
    try:
        write(args.tables, args.figures, args.records, args.out)
    except parquet.FAULTS as error:
        parser.exit(1, f"{one_line(str(error))}\n")


def write(folder: Path, figures: Path, points: Path | None, out: Path) -> None:
    """Write the page, from a folder of tables. Raises FormatError and OSError."""
    parquet.require(folder / "points.parquet", "expected a sweep's tables")
    tables, found = dataset.load(folder), records.read(points)
    out.parent.mkdir(parents=True, exist_ok=True)
    files = beside.folder_of(out)
    page = report.render(
        tables, figures, found, records.logs(points, found), files, found_traces=find_traces(points, out)
    )
    write_text(out, page)
    if tables["points"].height <= beside.MOST:
        shutil.rmtree(files, ignore_errors=True)  # of a page that was larger


if __name__ == "__main__":
    main()
