"""Figures of a sweep's tables: FAMILY.pdf, FAMILY.png and FAMILY.rst (the caption).

python -m analysis.figures iteration_time --tables results/demo/tables --out results/demo/figures
python -m analysis.figures paper --tables results/demo/tables --out results/demo/figures/paper
python -m analysis.figures all --tables results/demo/tables --out results/demo/figures
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from analysis.figures import (
    breakdown,
    captions,
    data,
    failures,
    iteration_time,
    loss,
    memory,
    paper,
    remedies,
    roofline,
    scaling,
    style,
    timeline,
)

FAMILIES: dict[str, Callable[[data.Tables], Figure]] = {
    "iteration_time": iteration_time.draw,
    "scaling": scaling.draw,
    "breakdown": breakdown.draw,
    "memory": memory.draw,
    "timeline": timeline.draw,
    "loss": loss.draw,
    "failures": failures.draw,
    "roofline": roofline.draw,
    "remedies": remedies.draw,
}


def shown(family: str, tables: data.Tables) -> data.Tables:
    """What a family is drawn of: the sweep's own points, but for the one on remedies."""
    return tables if family == "remedies" else tables.own()


def write(family: str, tables: data.Tables, out: Path) -> None:
    """Draw one family and write its three files."""
    own = shown(family, tables)
    style.save(FAMILIES[family](own), out / family)
    (out / f"{family}.rst").write_text(captions.caption(family, own) + "\n")


def write_paper(families: Iterable[str], tables: data.Tables, out: Path) -> None:
    """Draw families of the paper, each in two columns of a page and, as NAME-column, in one.

    One that the tables have no points for is left out, and said so on standard output.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in families:
        family = paper.FAMILIES[name]
        if family.shown(tables).is_empty():
            print(f"{name}: left out: {family.missing}")
            continue
        style.save(family.draw(tables), out / name)
        style.save(family.draw(tables, style.ONE_COLUMN_IN), out / f"{name}-column")
        (out / f"{name}.rst").write_text(captions.caption(name, tables) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m analysis.figures", description="Draw figures from tables.")
    parser.add_argument("family", choices=[*FAMILIES, *paper.FAMILIES, "paper", "all"])
    parser.add_argument("--tables", type=Path, required=True, help="folder of the sweep's tables (parquet)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    args = parser.parse_args(argv)
    tables = data.load(args.tables)
    for family in FAMILIES if args.family == "all" else FAMILIES.keys() & {args.family}:
        write(family, tables, args.out)
    write_paper(
        paper.FAMILIES if args.family == "paper" else paper.FAMILIES.keys() & {args.family}, tables.own(), args.out
    )


if __name__ == "__main__":
    main()
