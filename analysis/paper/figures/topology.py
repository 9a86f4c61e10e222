"""Links between the GPUs of a node, as a matrix."""

from __future__ import annotations

import re

import polars as pl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nightsweep.analysis.figures import style
from nightsweep.analysis.paper.figures.family import family
from nightsweep.analysis.sweep import dataset

# Nearest first. The words are those of nvidia-smi's legend.
_LINKS = (
    (re.compile(r"NV\d+"), "#00224E", "NVLink (NVn: n links)"),
    (re.compile(r"PIX|PXB"), "#666970", "PCIe switches"),
    (re.compile(r"PHB"), "#948E77", "PCIe host bridge"),
    (re.compile(r"NODE"), "#C8B866", "host bridges of a NUMA node"),
    (re.compile(r"SYS"), "#FEE838", "between NUMA nodes"),
)
_PALE_FROM = 2
"""Links from this one on are written on in black."""


def matrix(text: str) -> tuple[list[str], list[list[str]], list[str]]:
    """Names of the GPUs, the link of each to each (X: itself), and the CPUs near each; of nvidia-smi topo -m's text.

    Raises ValueError where the text is no such matrix.
    """
    head, *rows = [line.split("\t") for line in text.splitlines() if line.strip()]
    head = [cell.strip() for cell in head]
    head = head[1:] if head[0] == "" else head
    gpus = [cell for cell in head if re.fullmatch(r"GPU\d+", cell)]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    if not gpus or any(gpu not in cells or len(cells[gpu]) < len(gpus) for gpu in gpus):
        raise ValueError(f"topology: expected a matrix as nvidia-smi topo -m draws it, got {text[:60]!r}")
    near = head.index("CPU Affinity") if "CPU Affinity" in head else None
    cpus = [cells[gpu][near] if near is not None and near < len(cells[gpu]) else "" for gpu in gpus]
    return gpus, [cells[gpu][: len(gpus)] for gpu in gpus], cpus


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Ok points of the topology with most GPUs."""
    points = tables["points"].filter(pl.col("status") == "ok", pl.col("topology").is_not_null())
    sizes = points.with_columns(gpus=pl.col("topology").str.count_matches(r"(?m)^GPU\d+"))
    largest = sizes.filter(pl.col("gpus") > 1).sort("gpus", "topology", descending=[True, False]).head(1)
    return points.join(largest.select("topology"), on="topology", how="semi").sort("point_id")


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    gpus, links, cpus = matrix(points["topology"][0])
    side_in = min(width_in - 1.2, 0.42 * len(gpus) + 0.3)
    made = style.figure(width_in, side_in + 1.0)
    axes = made.subplots()
    used = {}
    for y, row in enumerate(links):
        for x, link in enumerate(row):
            place = next((i for i, (kind, _, _) in enumerate(_LINKS) if kind.fullmatch(link)), None)
            colour = style.PALE if place is None else _LINKS[place][1]
            box = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5)
            axes.add_patch(box)
            dark = place is not None and place < _PALE_FROM
            axes.text(x, y, "" if link == "X" else link, ha="center", va="center", color="white" if dark else "black")
            if place is not None:
                used[place] = Rectangle((0, 0), 1, 1, facecolor=colour, label=_LINKS[place][2])
    axes.set_xlim(-0.5, len(gpus) - 0.5)
    axes.set_ylim(len(gpus) - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.set_xticks(range(len(gpus)), gpus)
    names = [f"{gpu}, CPUs {own}" if own else gpu for gpu, own in zip(gpus, cpus, strict=True)]
    axes.set_yticks(range(len(gpus)), names)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    made.legend(handles=[used[place] for place in sorted(used)], loc="outside upper center", ncols=2)
    return made


def links(points: pl.DataFrame, _tables: dataset.Tables) -> pl.DataFrame:
    """The matrices that are shown."""
    return points.select("topology").unique()


FAMILY = family(
    "Topology of a node",
    "Links between the GPUs, and the CPUs near each, as nvidia-smi topo -m reports them.",
    "No point has a topology of several GPUs.",
    select_points,
    paint,
    links,
    place="supplement",
)
