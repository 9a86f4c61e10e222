"""The GPU computes, but not as it could: formats, layouts, kernels, and what is computed twice."""

from __future__ import annotations

import polars as pl

from analysis.diagnosis.cause import Cause, Fact, list_cause
from analysis.diagnosis.causes import insufficient_parallelism as parallelism
from analysis.diagnosis.causes.rule import Rule
from analysis.diagnosis.evidence import batch, kernel_savings
from analysis.diagnosis.evidence.evidence import Evidence
from analysis.diagnosis.evidence.lane import Lane
from analysis.diagnosis.remedies import proposals as remedies

CAUSE = "model_hyperparameters"
MEMORY_LEFT = 0.5


def tensor_cores_unused(e: Evidence) -> list[Cause]:
    """Matrix products, convolutions or attention in fp32 that tensor cores could do. Their time, times 1 - peak of fp32
    over peak of TF32 of the device (analysis/metrics/points/peaks.py; 1/8 where nothing is stated). Where the rest is
    in 16 bits, attention that is computed by plain products is what remains in fp32."""
    half: tuple[remedies.Change, ...] = ({"attention": "flash"}, {"precision": "bf16_pure"})
    whole: tuple[remedies.Change, ...] = ({"precision": "tf32"}, {"precision": "bf16"})
    in_half = e.setting("precision") in ("bf16", "fp16")
    return list_cause(
        CAUSE,
        "tensor_cores_unused",
        e.gain(e.faster("tensor_cores_unused")),
        "compute",
        method="time of matrix kernels without tensor cores x (1 - fp32 peak / TF32 peak)",
        advice="let all of it be 16 bits, attention too" if in_half else "allow TF32, or train in bf16",
        remedy=remedies.choose(e.point, *(half if in_half else whole)),
        evidence=_longest(e, pl.col("tensor_cores").not_() & (pl.col("precision").cast(pl.String) == "fp32")),
        change=e.faster("tensor_cores_unused"),
    )


def low_occupancy(e: Evidence) -> list[Cause]:
    """Kernels have fewer blocks than the GPU has SMs, though the batch is not small. As in `small_batch`."""
    if batch.is_small(e):
        return []
    return list_cause(
        CAUSE,
        "low_occupancy",
        e.gain(e.faster("underfilled")).times(0.5),
        "compute",
        method="sum over kernels of time x (1 - blocks / SMs)",
        advice="fuse these kernels, or give them more to do at once",
        remedy=remedies.choose(e.point, {"compile": "default"}) if e.point else {},
        evidence=[*parallelism.fill(e), *_longest(e, pl.col("est_sm_efficiency") < 0.5)],
        change=e.faster("underfilled"),
    )


def layout_transposes(e: Evidence) -> list[Cause]:
    """Kernels that only turn one memory layout into the other around convolutions: all of their time. With them, the
    SMs that batch norms in NCHW leave without a block (one block for each channel): their time x the share of these,
    and of PyTorch's own norms at least the share in the table; three quarters are the interval's lower end."""
    return list_cause(
        CAUSE,
        "layout_transposes",
        e.gain(e.faster("layout_transposes")).times(0.75),
        "compute",
        method="time of kernels that turn NCHW into NHWC or back, and what batch norms in NCHW lose",
        advice="keep images and weights in NHWC (channels_last)",
        remedy=remedies.choose(e.point, {"layout": "nhwc"}),
        evidence=_longest(
            e,
            pl.col("name")
            .cast(pl.String)
            .str.contains(f"{kernel_savings.TRANSPOSE}|{kernel_savings.NCHW_NORM_KERNELS}"),
        ),
        change=e.faster("layout_transposes"),
    )


def recompute_or_unfused(e: Evidence) -> list[Cause]:
    """Work that need not be done. Recomputation: activation checkpointing while memory is half empty, its share of the
    hardware FLOPs, of the compute time; of a script the time of forward kernels that a backward pass runs again
    (analysis/diagnosis/evidence/recomputation.py). Attention that is not fused: its softmax and what is elementwise
    next to it, and half of the products beside these. Kernels that a compiler would fuse: of neighbours all but the
    longest (analysis/diagnosis/evidence/kernel_savings.py), three quarters of that; a quarter is the lower end, for
    compilers may give little. Of both, what is fused away is not launched, either."""
    again = recomputed_share(e)
    if again is None and e.kernels["recomputed"].sum() and not memory_is_short(e):
        return [*_recomputed(e), *_unfused(e)]
    if again is not None:
        share = e.share(e.part("compute") * again)
        return list_cause(
            CAUSE,
            "recompute_or_unfused",
            share,
            "compute",
            method="compute time x recomputed share of hardware FLOPs",
            advice="memory has room: keep the activations, or checkpoint fewer layers",
            remedy=remedies.choose(e.point, {"activation_checkpointing": False}),
            evidence=[
                Fact("FLOPs that are recomputed", again, "share", "rankR.result.json"),
                Fact("peak of reserved memory", e.memory[0] / e.memory[1] if e.memory else 0.0, "share", "ranks"),
            ],
        )
    return _unfused(e)


def _recomputed(e: Evidence) -> list[Cause]:
    """What the trace tells of activation checkpointing."""
    return list_cause(
        CAUSE,
        "recompute_or_unfused",
        e.gain(e.faster("recomputed")),
        "compute",
        method="time of forward kernels that backward passes run again",
        advice="memory has room: keep the activations (no checkpointing), or checkpoint fewer layers",
        evidence=[Fact("kernels run again", float(e.kernels["recomputed"].mean()) / 1e6, "ms a step", "kernels")],
        change=e.faster("recomputed"),
    )


def memory_is_short(e: Evidence) -> bool:
    """Whether activations would not fit; not known to be so without the ranks' peaks."""
    return e.memory is not None and e.memory[0] > MEMORY_LEFT * e.memory[1]


def _unfused(e: Evidence) -> list[Cause]:
    return [*_scores(e), *([] if e.compiled else _chains(e))]


def _scores(e: Evidence) -> list[Cause]:
    """Attention that writes its scores."""
    return list_cause(
        CAUSE,
        "recompute_or_unfused",
        e.gain(e.faster("scores")),
        "compute",
        method="time of attention's softmax and of the elementwise kernels next to it, and half of the products beside",
        advice="use fused attention",
        remedy=remedies.choose(e.point, {"attention": "auto"}),
        evidence=_longest(e, pl.col("category").cast(pl.String) == "softmax_loss"),
        change=e.faster("scores"),
    )


def _chains(e: Evidence) -> list[Cause]:
    """Kernels that a compiler would fuse."""
    return list_cause(
        CAUSE,
        "recompute_or_unfused",
        e.gain(e.faster("unfused")).times(0.25, value=0.75),
        "compute",
        method="of neighbouring elementwise kernels, norms and reductions all but the longest",
        advice="compile the model, or use fused kernels",
        remedy=remedies.choose(e.point, {"compile": "default"}),
        evidence=_longest(e, pl.col("category").cast(pl.String).is_in(kernel_savings.FUSIBLE)),
        change=e.faster("unfused"),
    )


def recomputed_share(e: Evidence) -> float | None:
    """Share of the hardware FLOPs that activation checkpointing adds; None without it, or where memory needs it."""
    counts = [(r.flops.step or 0, r.flops.hardware_step) for r in e.results if r.flops and r.flops.hardware_step]
    if not e.setting("activation_checkpointing") or not counts or e.memory is None:
        return None
    if memory_is_short(e):
        return None
    return 1 - sum(model for model, _ in counts) / sum(hardware for _, hardware in counts)


def _longest(e: Evidence, which: pl.Expr) -> list[Fact]:
    """The three names with most time among these kernels, ms a step."""
    own = [_totals(lane, which) for lane in e.lanes]
    if not own:
        return []
    steps = sum(lane.steps.height for lane in e.lanes)
    total = pl.concat(own).group_by("name").agg(pl.col("ns").sum()).sort("ns", "name", descending=[True, False])
    return [Fact(name, ns / 1e6 / steps, "ms a step", "kernels") for name, ns in total.head(3).iter_rows()]


def _totals(lane: Lane, which: pl.Expr) -> pl.DataFrame:
    begin, end = lane.steps["start_ns"].min(), lane.steps["end_ns"].max()
    inside = pl.col("start_ns").is_between(begin, end, closed="left")
    took = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    communication = pl.col("category").cast(pl.String) == "communication"
    return lane.own["kernels"].filter(which, inside, ~communication).group_by(_short()).agg(took)


def _short() -> pl.Expr:
    """The kernel's own name, without its types."""
    bare = (
        pl.col("name")
        .cast(pl.String)
        .str.replace(r"^void ", "")
        .str.replace_all(r"\(anonymous namespace\)|<unnamed>", "_")
    )
    return bare.str.extract(r"^([^<(]*)").str.extract(r"([^:]*)$").alias("name")


RULES = (
    Rule(CAUSE, tensor_cores_unused),
    Rule(CAUSE, low_occupancy),
    Rule(CAUSE, layout_transposes),
    Rule(CAUSE, recompute_or_unfused),
)
