"""A contact sheet of the figures to print: each in both widths, in colour and in grey, on one picture.

python -m nightsweep.analysis.tools.contact_sheet figures/h200-2026-11-21 --out contact-sheet.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from nightsweep.analysis.paper.families import FAMILIES, stem
from nightsweep.analysis.tools.draw import WIDTHS

SHRINK = 2
"""Pixels of a figure's picture for one of the sheet."""
GAP = 20


def rows_of(folder: Path) -> list[list[Image.Image]]:
    """Of each figure to print that the folder has, its pictures: both widths in colour, then in grey."""
    rows = []
    for name in (name for name, family in FAMILIES.items() if family.place == "main"):
        base = stem(name, folder)
        files = [base.with_name(f"{base.name}{suffix}.png") for suffix in WIDTHS]
        if all(file.exists() for file in files):
            shown = [Image.open(file).convert("RGB").reduce(SHRINK) for file in files]
            rows.append([*shown, *(picture.convert("L").convert("RGB") for picture in shown)])
    return rows


def sheet(rows: Sequence[Sequence[Image.Image]]) -> Image.Image:
    """All pictures, a figure a row."""
    width = max(sum(picture.width + GAP for picture in row) for row in rows) + GAP
    height = sum(max(picture.height for picture in row) + GAP for row in rows) + GAP
    made, y = Image.new("RGB", (width, height), "#999999"), GAP
    for row in rows:
        x = GAP
        for picture in row:
            made.paste(picture, (x, y))
            x += picture.width + GAP
        y += max(picture.height for picture in row) + GAP
    return made


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nightsweep.analysis.tools.contact_sheet", description="Make a contact sheet."
    )
    parser.add_argument("figures", type=Path, help="folder of drawn figures")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    args = parser.parse_args(argv)
    rows = rows_of(args.figures)
    if not rows:
        parser.exit(1, f"{args.figures}: no figure to print; expected a folder that `nightsweep figures` wrote\n")
    sheet(rows).save(args.out)


if __name__ == "__main__":
    main()
