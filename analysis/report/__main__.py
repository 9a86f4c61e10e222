"""Write a sweep's report: see the package."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from analysis.report import beside, records
from analysis.report import sweep_page as report
from analysis.sweep import dataset


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Write a sweep's report.")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the sweep's tables (parquet)")
    parser.add_argument("--figures", type=Path, required=True, help="folder of its figures (PNG)")
    parser.add_argument("--records", type=Path, help="folder of its points, for provenance and logs")
    parser.add_argument("--out", type=Path, required=True, help="HTML file to write")
    args = parser.parse_args(argv)
    if not (args.tables / "points.parquet").is_file():
        parser.error(f"{args.tables / 'points.parquet'}: no such file; expected a sweep's tables")
    found = records.read(args.records)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    folder, logs = beside.folder_of(args.out), records.logs(args.records, found)
    shutil.rmtree(folder, ignore_errors=True)  # of a page that was larger
    page = report.render(dataset.load(args.tables), args.figures, found, logs, folder)
    args.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
