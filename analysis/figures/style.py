"""One style for all figures: sizes of journal columns, colours that hold for every figure, and files that repeat.

Colours are Okabe and Ito's. Each also has a marker or a hatch of its own, so that a print in grey can be read.
A figure is drawn inside `context`; `save` writes the same bytes for the same figure.
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from nightsweep.jobs.record.whole_file import write_bytes

LEFT_OUT = "left-out.txt"
FAILED = "could not be drawn"
"""What the line of a figure whose drawing failed says."""

ONE_COLUMN_IN, TWO_COLUMNS_IN, PAGE_IN = 85 / 25.4, 178 / 25.4, 235 / 25.4
DPI = 200
SMALLEST_PT = 6.0
"""Of text. No line is thinner than half a point."""
COLUMN = "-column"
"""Is added to the name of a figure in the width of one column."""

BLACK, GREY, PALE = "#000000", "#999999", "#EEEEEE"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
BROWN = "#8C564B"  # an eleventh, where eight and greys are not enough

PART_COLOURS = {"compute": BLUE, "communication": ORANGE, "copies": PURPLE, "data_wait": GREEN, "idle": PALE}
PART_HATCHES = {"compute": "", "communication": "////", "copies": "xxxx", "data_wait": "\\\\\\\\", "idle": "...."}
LANE_COLOURS = {
    "compute": PART_COLOURS["compute"],
    "communication": PART_COLOURS["communication"],
    "copy": PART_COLOURS["copies"],
}
RANGE_COLOURS = {
    "data": PART_COLOURS["data_wait"],
    "h2d": PART_COLOURS["copies"],
    "forward": "#DDDDDD",
    "backward": "#AAAAAA",
    "optimizer": "#666666",
}
USE_COLOURS = {
    "timed": BLUE,
    "traced": SKY,
    "epochs": "#003F66",
    "warm-up": GREEN,
    "start": ORANGE,
    "compile": PURPLE,
    "tracing": YELLOW,
    "control": BROWN,
    "search": "#C5B0D5",
    "end": "#BBBBBB",
    "idle": PALE,
    "failed": VERMILION,
    "lost": BLACK,
    "unknown": "#FFFFFF",
}
USE_HATCHES = dict.fromkeys(USE_COLOURS, "") | {
    "traced": "////",
    "warm-up": "\\\\\\\\",
    "compile": "xxxx",
    "tracing": "////",
    "end": "----",
    "idle": "....",
    "failed": "xxxx",
}
STRATEGY_COLOURS = {
    "ddp": GREY,
    "ddp_ds": BLUE,
    "fsdp2": VERMILION,
    "zero1": GREEN,
    "zero2": PURPLE,
    "zero3": ORANGE,
    "dp": BLACK,
    "local_sgd": SKY,
    "tp": YELLOW,
    "pp": BROWN,
}
PRECISION_COLOURS = {
    "fp64": BLACK,
    "fp32": BLUE,
    "tf32": SKY,
    "bf16": ORANGE,
    "fp16": VERMILION,
    "bf16_pure": GREEN,
    "fp8": PURPLE,
}
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")

_RC = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": SMALLEST_PT,
    "ytick.labelsize": SMALLEST_PT,
    "legend.fontsize": SMALLEST_PT,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.5,
    "lines.markeredgewidth": 0.5,
    "patch.linewidth": 0.5,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "axes.labelpad": 2,
    "axes.titlepad": 3,
    "pdf.fonttype": 42,
    "svg.hashsalt": "nightsweep",
    "savefig.dpi": DPI,
    "text.usetex": False,
    "text.parse_math": False,
}


def context() -> AbstractContextManager[None]:
    """The style, on top of matplotlib's own defaults and not of the user's file."""
    settings: dict[Any, Any] = {**matplotlib.rcParamsDefault, "backend": matplotlib.get_backend(), **_RC}
    return matplotlib.rc_context(settings)


def figure(width_in: float = TWO_COLUMNS_IN, height_in: float = 2.6) -> Figure:
    """An empty figure, no higher than a page. Not pyplot's: nothing keeps it once it is saved."""
    # Laid out at the resolution of its picture, for the widths of letters differ with it.
    return Figure(figsize=(width_in, min(height_in, PAGE_IN)), dpi=DPI, layout="constrained")


def says(sentence: str) -> Figure:
    """A figure that says why there is nothing to show; its label is the sentence, and that of any other is empty."""
    made = figure(TWO_COLUMNS_IN, 1.2)
    made.set_label(sentence)
    made.text(0.5, 0.5, sentence, ha="center", va="center", wrap=True, color="#444444")
    return made


def line(index: int, colour: str | None = None) -> dict[str, Any]:
    """Colour, marker and dashes of the line of this number.

    A colour that stands for a thing is given; lines that share it then differ in their dashes, or in their markers.
    """
    dashes = index // len(CYCLE) if colour is None else index + index // len(MARKERS)
    return {
        "color": colour or CYCLE[index % len(CYCLE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[dashes % len(DASHES)],
    }


def settle(made: Figure) -> None:
    """Lay the figure out once, for all its files. The solver's last digits differ from run to run, so places are kept
    to a millionth of the figure's width and height."""
    made.draw_without_rendering()
    made.set_layout_engine("none")
    for axes in made.axes:
        x, y, width, height = (round(float(edge), 6) for edge in axes.get_position(original=True).bounds)
        axes.set_position((x, y, width, height))
    for text in made.texts:
        text.set_position((round(float(text.get_position()[0]), 6), round(float(text.get_position()[1]), 6)))


def _drawn(made: Figure, **how: Any) -> bytes:
    # In memory, for matplotlib hides why a file could not be written.
    drawn = io.BytesIO()
    made.savefig(drawn, **how)
    return drawn.getvalue()


def save(made: Figure, stem: Path) -> tuple[Path, Path]:
    """Write stem.pdf and stem.png, without dates or versions, so that a repeat gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    pdf, png = stem.with_name(stem.name + ".pdf"), stem.with_name(stem.name + ".png")
    with context():
        settle(made)
        about: dict[str, Any] = {"CreationDate": None, "Creator": "Nightsweep", "Producer": "Nightsweep"}
        write_bytes(pdf, _drawn(made, format="pdf", metadata=about))
        write_bytes(png, _drawn(made, format="png", dpi=DPI, metadata={"Software": None}))
    return pdf, png
