"""Claims about tuning of language models: C6 to C10, on the paper's model."""

from __future__ import annotations

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
    each, in the nights that have both."""
    llm, images = points_of(tables), image.points_of(tables)
    fewest, *more = sorted(set(image.numbers_of_ranks(llm)) & set(image.numbers_of_ranks(images))) or [1]
    what = "efficiency of image jobs / of language models"
    if not more:
        return [Part(what, None, above=1)]

    def differ(most: int) -> effect.Effect | None:
        compared = ("ranks_per_node", most, fewest, "samples_per_s")
        nights = [effect.nights(p, *compared).select("night").unique() for p in (images, llm)]
        shared = nights[0].join(nights[1], on="night", nulls_equal=True)
        both = (p.join(shared, on="night", how="semi", nulls_equal=True) for p in (images, llm))
        return _between(*(effect.pairs(p, *compared) for p in both))

    most, found = image.largest_compared(more, differ)
    own = {"image jobs": images, "language models": llm}
    by_method = [
        Part(f"efficiency of {name} on {most} GPUs", effect.efficiency(p, most, fewest)) for name, p in own.items()
    ]
    return [Part(what, found, above=1), *by_method]


def _between(first: list[effect.Contrast], second: list[effect.Contrast]) -> effect.Effect | None:
    """The mean of some contrasts less that of others, back from logarithms; of each, those with repeats enough."""
    kept = []
    for contrasts in (first, second):
        enough = [c for c in contrasts if c.n >= effect.FEWEST]
        kept.append(enough or contrasts)
    if not all(kept):
        return None
    # Each contrast is weighed so that both groups count the same: one contrast of weighted sides.
    sides = [
        (sign, replace(s, mean=sign * w * s.mean, variance=w * w * s.variance))
        for group, contrasts in zip((1, -1), kept, strict=True)
        for w in (1 / len(contrasts),)
        for c in contrasts
        for sign, s in ((group * sign, s) for sign, s in c.sides)
    ]
    both = effect.Contrast(tuple((1, side) for _, side in sides))
    made = effect.mean([both])
    return made.exp() if made else None
