"""Claims about tuning of language models: C6 to C10, on the paper's model."""

from __future__ import annotations

import statistics
from dataclasses import replace

import polars as pl

from nightsweep.analysis.paper.claims import image
from nightsweep.analysis.paper.claims.claim import Part
from nightsweep.analysis.paper.figures import calls
from nightsweep.analysis.paper.figures.family import measured_points
from nightsweep.analysis.sweep import dataset, effect

MODEL = "llama-8b"
STEP, MEMORY = "step_ms_mean", "peak_memory_bytes"
HIGH = 0.5
"""Share of API time from which on launches and synchronisation are most of it."""


def points_of(tables: dataset.Tables) -> pl.DataFrame:
    """Measured points of the paper's model, with `night`."""
    return measured_points(tables, "llm").filter(pl.col("model") == MODEL)


def _methods(tables: dataset.Tables, a: str, b: str, value: str, *, decides: bool = True) -> Part:
    what = {STEP: "time", MEMORY: "memory"}[value]
    found = effect.ratio(points_of(tables), "method", a, b, value)
    return Part(f"{what} {a} / {b}", found, above=1 if decides else None)


def lora_and_dpo(tables: dataset.Tables) -> list[Part]:
    """C6. DPO on adapters is torchtune's recipe for one node; DPO on all weights is shown beside it."""
    parts = [_methods(tables, "dpo_lora", "lora", value) for value in (STEP, MEMORY)]
    return parts + [_methods(tables, "dpo", "lora", value, decides=False) for value in (STEP, MEMORY)]


def qat(tables: dataset.Tables) -> list[Part]:
    """C7. Time of a token beside DPO's, whose samples are two texts."""
    values, others = (STEP, MEMORY), ("lora", "qlora", "dpo_lora")
    parts = [_methods(tables, "qat", other, value) for other in others for value in values]
    tokens = effect.ratio(points_of(tables), "method", "dpo_lora", "qat", "tokens_per_s")
    parts.append(Part("time a token qat / dpo_lora", tokens))
    return parts + [_methods(tables, "qat", other, v, decides=False) for other in ("dpo", "full") for v in values]


def qlora(tables: dataset.Tables) -> list[Part]:
    """C8."""
    return [_methods(tables, "lora", "qlora", MEMORY), _methods(tables, "qlora", "lora", STEP)]


def launches(tables: dataset.Tables) -> list[Part]:
    """C9."""
    points = calls.traced_points(tables, "llm").filter(pl.col("model") == MODEL)
    frame = calls.per_step(tables, points, calls.CALLS)
    own = ("launches", "synchronisation", "copies")
    sums = [pl.col("ms").filter(pl.col("kind") == kind).sum().alias(kind) for kind in own]
    shares = frame.group_by("point_id").agg(*sums, total=pl.col("ms").sum()).filter(pl.col("total") > 0)
    shares = shares.select(
        "point_id",
        busy=(pl.col("launches") + pl.col("synchronisation")) / pl.col("total"),
        copying=pl.col("copies") / pl.col("total"),
    )
    rows = points.join(shares, on="point_id")
    return [
        Part("launches and synchronisation, of API time", effect.level(rows, "busy"), above=HIGH, percent=True),
        Part("copies, of API time", effect.level(rows, "copying"), below=HIGH, percent=True),
    ]


def scaling(tables: dataset.Tables) -> list[Part]:
    """C10. Efficiency on the most GPUs on which both can be compared, over the fewest: the mean of all settings of
    each, by nights that have both."""
    llm, images = points_of(tables), image.points_of(tables)
    fewest, *more = sorted(set(image.numbers_of_ranks(llm)) & set(image.numbers_of_ranks(images))) or [1]
    what = "efficiency of image jobs / of language models"
    if not more:
        return [Part(what, None, above=1)]

    def differ(most: int) -> effect.Effect | None:
        return _over_nights(images, llm, ("ranks_per_node", most, fewest, "samples_per_s"))

    most, found = image.largest_compared(more, differ)
    own = {"image jobs": images, "language models": llm}
    by_method = [
        Part(f"efficiency of {name} on {most} GPUs", effect.efficiency(p, most, fewest)) for name, p in own.items()
    ]
    return [Part(what, found, above=1), *by_method]


def _over_nights(images: pl.DataFrame, llm: pl.DataFrame, compared: tuple[str, int, int, str]) -> effect.Effect | None:
    """In each night the mean of the contrasts of the first less that of the second, of those with repeats enough; then
    the mean over nights, back from logarithms. Where no night has both with repeats enough, all count."""
    by_night = [
        [effect.pairs(points.filter(pl.col("night").eq_missing(night)), *compared) for points in (images, llm)]
        for night in images["night"].unique(maintain_order=True)
    ]
    enough = [[[c for c in contrasts if c.n >= effect.FEWEST] for contrasts in both] for both in by_night]
    used = [both for both in enough if all(both)] or [both for both in by_night if all(both)]
    made = effect.mean([_between(*both) for both in used])
    if made is None:
        return None
    each = tuple(c.value - statistics.fmean(d.value for d in others) for own, others in used for c in own)
    return replace(made, each=each, settings=len(each)).exp()


def _between(first: list[effect.Contrast], second: list[effect.Contrast]) -> effect.Contrast:
    """The mean of some contrasts less that of others: one contrast of weighted sides, so that both groups count the
    same."""
    sides = [
        replace(s, mean=group * sign * s.mean / len(contrasts), variance=s.variance / len(contrasts) ** 2)
        for group, contrasts in ((1, first), (-1, second))
        for c in contrasts
        for sign, s in c.sides
    ]
    return effect.Contrast(tuple((1, side) for side in sides))
