"""Draws the figures of a folder of tables, several at a time: those to print, and in supplement/ the others.

    python -m nightsweep.analysis.tools.draw --tables results/demo/tables --out results/demo/figures
    python -m nightsweep.analysis.tools.draw scaling causes --tables results/demo/tables --out figures

Each is NAME.pdf, NAME.png and NAME.rst (the caption), two columns of a journal wide; one to print comes in the width of
one column, too, as NAME-column. A figure that has nothing to show is left out, with a line that says why, also in
left-out.txt; likewise one whose drawing fails, for the others and the report do not wait for it. The same tables give
the same bytes, however many processes draw.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import traceback
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from nightsweep.analysis.figures import captions, style
from nightsweep.analysis.figures.style import FAILED, LEFT_OUT
from nightsweep.analysis.metrics.ranks import pool
from nightsweep.analysis.paper import families
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import parquet
from nightsweep.jobs.host.cores import allowed_cores
from nightsweep.jobs.record.json_files import FormatError
from nightsweep.jobs.record.whole_file import write_text
from nightsweep.jobs.sweep.file import one_line

WIDTHS = {"": style.TWO_COLUMNS_IN, style.COLUMN: style.ONE_COLUMN_IN}
"""What is added to the name of a figure, and its width in inches; the second of figures to print alone."""

DRAWING = ["matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf", "matplotlib.figure"]
"""What the processes that draw import once for all, of what takes long."""


def draw(folder: Path, out: Path, names: Collection[str] = (), processes: int | None = None) -> list[str]:
    """Draw figures.

    Args:
        folder: tables of a sweep, NAME.parquet each.
        out: folder to write to.
        names: which figures; all where none is named.
        processes: how many draw, at most; by default one a core, and never more.

    Returns:
        A line for each figure that is left out.
    """
    _tables.cache_clear()  # the folder's may have changed since
    out.mkdir(parents=True, exist_ok=True)
    wanted = [
        (name, suffix)
        for name, family in families.FAMILIES.items()
        for suffix in (WIDTHS if family.place == "main" else [""])
        if name in names or not names
    ]
    cores = allowed_cores()
    lines = _draw_each(wanted, folder, out, min(processes or cores, cores, len(wanted)))
    left_out = list(dict.fromkeys(filter(None, lines)))
    if not names:
        left_out = [*dataset.absent(folder), *left_out]
        write_text(out / LEFT_OUT, "".join(f"{line}\n" for line in left_out))
    return left_out


def _draw_each(wanted: Sequence[tuple[str, str]], folder: Path, out: Path, processes: int) -> list[str | None]:
    """`draw_one` of each name and suffix."""
    if processes < 2:
        return [draw_one(name, suffix, folder, out) for name, suffix in wanted]
    # Forked from a process that has loaded Matplotlib, and not Polars, whose threads do not survive a fork.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(DRAWING)
    with ProcessPoolExecutor(processes, context, *pool.END_AT_CTRL_C) as drawers:
        drawn = [drawers.submit(draw_one, name, suffix, folder, out) for name, suffix in wanted]
        return [each.result() for each in drawn]


def draw_one(name: str, suffix: str, folder: Path, out: Path) -> str | None:
    """Draw a figure to its width; the reason where there is nothing to draw, or drawing failed: then its traceback is
    on stderr, and there is no half-written file."""
    stem = families.stem(name, out)
    try:
        return _write(name, suffix, folder, stem)
    except (OSError, FormatError):  # that the others would meet, too, such as a full disk
        raise
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        for end in ("pdf", "png"):
            stem.with_name(f"{name}{suffix}.{end}").unlink(missing_ok=True)
        return f"{name}: {FAILED}: {one_line(f'{type(error).__name__}: {error}')}"


_tables = cache(dataset.load)


def _write(name: str, suffix: str, folder: Path, stem: Path) -> str | None:
    family = families.FAMILIES[name]
    tables = family.scope(_tables(folder))
    made = family.draw(tables, WIDTHS[suffix])
    if made.get_label():
        return f"{name}: left out: {made.get_label()}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    style.save(made, stem.with_name(f"{name}{suffix}"))
    if not suffix:
        write_text(stem.with_name(f"{name}.rst"), captions.caption(family, tables) + "\n")
    return None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nightsweep.analysis.tools.draw", description="Draw figures from tables."
    )
    known = list(families.FAMILIES)
    parser.add_argument("family", nargs="*", help=f"all, or of {', '.join(known)}")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the sweep's tables (parquet)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--processes", type=int, help="that draw, at most (default: as many as there are cores)")
    parser.add_argument("--keep-going", action="store_true", help="end well where one fails (left-out.txt says why)")
    args = parser.parse_args(argv)
    for name in args.family:
        if name not in known:
            parser.error(f"{name}: no family of figures; expected {', '.join(known)}")
    try:
        parquet.require(args.tables / "points.parquet", "expected a sweep's tables")
        lines = draw(args.tables, args.out, args.family, args.processes)
    except parquet.FAULTS as error:
        parser.exit(1, f"{one_line(str(error))}\n")
    print("".join(f"{line}\n" for line in lines), end="")
    if not args.keep_going and any(FAILED in line for line in lines):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
