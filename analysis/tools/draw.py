"""The figures of a folder of tables, by several processes: those of the sweep, and in paper/ those of the paper.

Each is NAME.pdf, NAME.png and NAME.rst (the caption); one of the paper also comes as wide as a journal's column. What
there is nothing to show of is left out, with a line that says why, also in left-out.txt; likewise one whose drawing
fails, for the others and the report do not wait for it. The same tables give the same bytes, however many processes
draw.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from matplotlib.figure import Figure

from analysis.figures import captions, families, style
from analysis.figures.style import FAILED, LEFT_OUT
from analysis.paper.figures import families as figures
from analysis.sweep import dataset
from jobs.sweep.file import one_line

WIDTHS = {"": style.TWO_COLUMNS_IN, "-column": style.ONE_COLUMN_IN}
"""What is added to the name of a figure of the paper, and its width in inches."""


@cache
def _tables(folder: Path) -> dataset.Tables:
    return dataset.load(folder)


def _write(name: str, suffix: str, made: Figure, shown: dataset.Tables, out: Path) -> str | None:
    """Write a figure and its caption, or return why there is nothing to show."""
    if made.get_label():
        return f"{name}: left out: {made.get_label()}"
    out.mkdir(parents=True, exist_ok=True)
    style.save(made, out / f"{name}{suffix}")
    (out / f"{name}.rst").write_text(captions.caption(name, shown) + "\n")
    return None


def _tried(name: str, suffix: str, out: Path, draw: Callable[[], str | None]) -> str | None:
    """What `draw` returns; where it fails a line with the error, its traceback to stderr, and no half-written file."""
    try:
        return draw()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        for end in ("pdf", "png"):
            (out / f"{name}{suffix}.{end}").unlink(missing_ok=True)
        return f"{name}: {FAILED}: {one_line(f'{type(error).__name__}: {error}')}"


def draw_sweep(name: str, folder: Path, out: Path) -> str | None:
    """Draw a family of the sweep; the reason where there is nothing to draw, or it failed."""

    def draw() -> str | None:
        shown = families.shown(name, _tables(folder))
        return _write(name, "", families.FAMILIES[name](shown), shown, out)

    return _tried(name, "", out, draw)


def draw_paper(name: str, suffix: str, folder: Path, out: Path) -> str | None:
    """Draw a family of the paper in one of WIDTHS; likewise."""

    def draw() -> str | None:
        shown = _tables(folder).own()
        return _write(name, suffix, figures.FAMILIES[name].draw(shown, WIDTHS[suffix]), shown, out / "paper")

    return _tried(name, suffix, out / "paper", draw)


def draw(folder: Path, out: Path, names: Collection[str] = (), processes: int | None = None) -> list[str]:
    """Draw these families, or all; returns a line for each that is left out. `processes`: by default one a core."""
    processes = processes or len(os.sched_getaffinity(0))
    out.mkdir(parents=True, exist_ok=True)
    # Started afresh: Polars' threads do not survive a fork.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        drawn = [pool.submit(draw_sweep, n, folder, out) for n in families.FAMILIES if n in names or not names]
        drawn += [
            pool.submit(draw_paper, n, suffix, folder, out)
            for n in figures.FAMILIES
            if n in names or not names
            for suffix in WIDTHS
        ]
        left_out = list(dict.fromkeys(line for each in drawn if (line := each.result())))
    if not names:
        (out / LEFT_OUT).write_text("".join(f"{line}\n" for line in left_out))
    return left_out
