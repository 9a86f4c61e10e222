"""Claims about image jobs: C1 to C5, C11 and C12, on the paper's network."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import polars as pl

from nightsweep.analysis.paper.claims.claim import Part
from nightsweep.analysis.paper.figures import accuracy
from nightsweep.analysis.paper.figures.family import measured_points
from nightsweep.analysis.sweep import dataset, effect

MODEL = "mobilenet_v2"
STEP = "step_ms_mean"
SMALL_PX, LARGE_PX = 100, 500
EQUAL = 0.01
"""Accuracies closer than this are equal."""
EPOCHS = 20


def points_of(tables: dataset.Tables) -> pl.DataFrame:
    """Measured points of the paper's network, with `night`."""
    return measured_points(tables, "image").filter(pl.col("model") == MODEL)


def numbers_of_ranks(points: pl.DataFrame) -> list[int]:
    """On how many ranks these points ran on one node, ascending."""
    return points.filter(pl.col("nodes") == 1)["ranks_per_node"].unique().sort().to_list() or [1]


def largest_compared(
    numbers: Iterable[int], compare: Callable[[int], effect.Effect | None]
) -> tuple[int, effect.Effect | None]:
    """The largest of some numbers of ranks on which there are repeats enough of what is compared, and the effect there;
    where there is none, the largest of those that have any effect, or of all."""
    found = [(number, compare(number)) for number in sorted(numbers, reverse=True)]
    enough = [one for one in found if one[1] and one[1].n >= effect.FEWEST]
    return (enough or [one for one in found if one[1]] or found)[0]


def layout(tables: dataset.Tables) -> list[Part]:
    """C1."""
    return [Part("time nchw / nhwc", effect.ratio(points_of(tables), "layout", "nchw", "nhwc", STEP), above=1)]


def pinned(tables: dataset.Tables) -> list[Part]:
    """C2."""
    points, switch = points_of(tables), ("pin_memory", False, True)
    parts = [Part("time pageable / pinned", effect.ratio(points, *switch, STEP), above=1)]
    fewest, *more = numbers_of_ranks(points)
    if not more:
        return [*parts, Part(f"that ratio on {fewest} GPU / on more", None, above=1)]

    def shrinks(most: int) -> effect.Effect | None:
        return effect.interaction(points, switch, ("ranks_per_node", fewest, most), STEP)

    most, shrink = largest_compared(more, shrinks)
    parts.append(Part(f"that ratio on {fewest} GPU / on {most}", shrink, above=1))
    own = {ranks: points.filter(pl.col("ranks_per_node") == ranks) for ranks in (fewest, most)}
    return [
        *parts,
        *(Part(f"that ratio on {n} GPU{'s' * (n > 1)}", effect.ratio(p, *switch, STEP)) for n, p in own.items()),
    ]


def precision(tables: dataset.Tables) -> list[Part]:
    """C3. FP16 beside FP32 by size of image, for the effect turns with it."""
    points = points_of(tables)
    last = final(tables)
    contrasts = effect.pairs(last, "precision", "fp32", "fp16", "final", log=False)
    sizes = {px: points.filter(pl.col("image_size") == px) for px in points["image_size"].unique().sort().to_list()}
    by_size = {px: effect.ratio(own, "precision", "fp32", "fp16", STEP) for px, own in sizes.items()}
    halves = [Part(f"time fp32 / fp16 at {px} px", one, above=1) for px, one in by_size.items() if one]
    return [
        Part("time fp64 / fp32", effect.ratio(points, "precision", "fp64", "fp32", STEP), above=1),
        *(halves or [Part("time fp32 / fp16", None, above=1)]),
        Part("accuracy fp32 - fp16", effect.mean(contrasts), above=-EQUAL, below=EQUAL, percent=True),
        Part("time fp64 / fp16 (reported: 2.1 or 3.1)", effect.ratio(points, "precision", "fp64", "fp16", STEP)),
    ]


def size_scaling(tables: dataset.Tables) -> list[Part]:
    """C4. Weak scaling: the ratio of rates over GPUs is the efficiency times the number of GPUs, which cancels. By
    precision, for the effect turns with it."""
    points = points_of(tables)
    found = [(name, points.filter(precision=name)) for name in points["precision"].unique().sort().to_list()]
    parts = [part for name, own in found for part in _size_scaling(own, name)]
    return parts or [Part(f"efficiency at {LARGE_PX} px / at {SMALL_PX} px", None, above=1)]


def _size_scaling(points: pl.DataFrame, precision: str) -> list[Part]:
    """Of one precision; nothing where it was not measured on several GPUs with images of both sizes."""
    fewest, *more = numbers_of_ranks(points)
    sizes = ("image_size", LARGE_PX, SMALL_PX)

    def differ(most: int) -> effect.Effect | None:
        return effect.interaction(points, ("ranks_per_node", most, fewest), sizes, "samples_per_s")

    most, found = largest_compared(more, differ) if more else (fewest, None)
    if found is None:
        return []
    own = {px: points.filter(pl.col("image_size") == px) for px in (SMALL_PX, LARGE_PX)}
    by_size = [
        Part(f"efficiency at {px} px on {most} GPUs, {precision}", effect.efficiency(p, most, fewest))
        for px, p in own.items()
    ]
    return [Part(f"efficiency at {LARGE_PX} px / at {SMALL_PX} px, {precision}", found, above=1), *by_size]


def loader(tables: dataset.Tables) -> list[Part]:
    """C5."""
    points, switch = points_of(tables), ("loader", "torch", "dali")
    return [
        Part("time DataLoader / DALI", effect.ratio(points, *switch, STEP), above=1),
        Part("that ratio, CPUs far / near", effect.interaction(points, switch, ("numa", "far", "near"), STEP), above=1),
    ]


def final(tables: dataset.Tables) -> pl.DataFrame:
    """Points of the paper's network that trained for EPOCHS epochs, with `final`, their best accuracy within these."""
    within = tables["accuracy"].filter(pl.col("epoch") <= EPOCHS)
    best = within.group_by("point_id").agg(final=pl.col("accuracy").max())
    return points_of(tables).filter(pl.col("epochs") >= EPOCHS).join(best, on="point_id")


def goal(tables: dataset.Tables) -> list[Part]:
    """C11. The paper's digits are MNIST's, which a folder holds; others decide nothing."""
    points, what, goal = final(tables), f"best accuracy within {EPOCHS} epochs", accuracy.GOAL[0] / 100
    own = pl.col("data") == "builtin"
    mnist, other = (effect.level(points.filter(chosen), "final") for chosen in (~own, own))
    parts = [Part(f"{what}, MNIST", mnist, above=goal, percent=True)]
    return [*parts, *([Part(f"{what}, scikit-learn's digits", other, percent=True)] if other else [])]


def strategy(tables: dataset.Tables) -> list[Part]:
    """C12. An epoch is the measure: under ddp every rank walks all of the data, so that it has as many times the steps
    as there are ranks; the time of a step is shown beside it."""
    points = points_of(tables).filter(pl.col("world_size") > 1)
    others = [name for name in points["strategy"].unique().sort().to_list() if name != "ddp_ds"]
    found = {name: effect.ratio(points, "strategy", name, "ddp_ds", "epoch_s") for name in others}
    parts = [Part(f"epoch {name} / ddp_ds", one, above=1) for name, one in found.items() if one]
    steps = effect.ratio(points, "strategy", "ddp", "ddp_ds", STEP)
    parts += [Part("step ddp / ddp_ds", steps)] if steps else []
    return parts or [Part("epoch of another strategy / ddp_ds", None, above=1)]
