"""Figures of a sweep's tables: all of them, or those that are named.

python -m analysis.figures --tables results/demo/tables --out results/demo/figures
python -m analysis.figures breakdown pinned --tables results/demo/tables --out figures
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.figures import families, style
from analysis.paper.figures import families as figures
from analysis.tools import draw


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m analysis.figures", description="Draw figures from tables.")
    known = [*families.FAMILIES, *figures.FAMILIES]
    parser.add_argument("family", nargs="*", help=f"all, or of {', '.join(known)}")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the sweep's tables (parquet)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--processes", type=int, help="that draw (default: as many as there are cores)")
    parser.add_argument("--keep-going", action="store_true", help="end well where one fails (left-out.txt says why)")
    args = parser.parse_args(argv)
    for name in args.family:
        if name not in known:
            parser.error(f"{name}: no family of figures; expected {', '.join(known)}")
    if not (args.tables / "points.parquet").is_file():
        parser.error(f"{args.tables / 'points.parquet'}: no such file; expected a sweep's tables")
    lines = draw.draw(args.tables, args.out, args.family, args.processes)
    print("".join(f"{line}\n" for line in lines), end="")
    if not args.keep_going and any(style.FAILED in line for line in lines):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
