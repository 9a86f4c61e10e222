"""The GPU computes, but not as it could: formats, layouts, kernels, and what is computed twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis.cause import Cause, Fact
from nightsweep.analysis.diagnosis.causes.rule import DEVICE, Rule
from nightsweep.analysis.diagnosis.evidence import batch
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.evidence.kernel_savings import STRIDED_COPY, TRANSPOSE, in_halves
from nightsweep.analysis.diagnosis.remedies import proposals as remedies

MEMORY_LEFT = 0.5
OF_CUDNN = 0.1
"""Where weights are in NHWC, cuDNN's copies from one layout to another take less than this share of the time of
PyTorch's; in three labelled scripts whose weights are, 0 to 4 %, in 32 others with this cause 16 % or more, with which
in sight this was written."""
LAID_OUT = {
    "nchw": "keep images, weights and what is between them in NHWC (channels_last)",
    "nhwc": "weights are in NHWC (channels_last) already: find what turns tensors back to NCHW between convolutions, "
    "such as .contiguous(), .reshape() or a view of a permuted tensor",
    "none": "PyTorch has no NHWC for convolutions over one dimension: write them over two, in channels_last",
}
"""What to do, by how the weights of convolutions lie."""
BESIDE = "it is outside of the model, which is all that a setting compiles: compile the functions that do it"


def tensor_cores_unused(e: Evidence) -> Iterator[Cause]:
    """Matrix products, convolutions or attention in fp32 that tensor cores could do. Their time, times 1 - peak of fp32
    over peak of TF32 of the device (analysis/metrics/points/peaks.py; 1/8 where nothing is stated). Where the rest is
    in 16 bits, attention is what remains in fp32: computed by plain products, or by fused kernels that put each product
    together from three in TF32, which take six times as long as in bf16."""
    half: tuple[remedies.Change, ...] = ({"attention": "flash"}, {"precision": "bf16_pure"})
    whole: tuple[remedies.Change, ...] = ({"precision": "tf32"}, {"precision": "bf16"})
    in_half = e.setting("precision") in ("bf16", "fp16") or any(in_halves(lane.own["kernels"]) for lane in e.lanes)
    yield _faster(
        e,
        "tensor_cores_unused",
        method="time of matrix kernels without tensor cores x (1 - fp32 peak / TF32 peak)"
        + (", and of fused fp32 attention x 5/6" if in_half else ""),
        advice="let all of it be 16 bits, also what attention is given" if in_half else "allow TF32, or train in bf16",
        remedy=remedies.choose(e.point, *(half if in_half else whole)),
    )


def low_occupancy(e: Evidence) -> Iterator[Cause]:
    """Kernels have fewer blocks than the GPU has SMs, though the batch is not small: reckoned as in `small_batch`;
    apart, as in `recompute_or_unfused`, those outside of a script's model. Kernels that add up the gradients of a small
    table's rows one after another have blocks enough, and most of these have nothing to do: nearly all of their time,
    where it is ten times what reading takes."""
    yield _faster(
        e,
        "repeated_rows",
        0.75,
        method="time of kernels that add up gradients of equal indices one after another",
        advice="look up a small table by a product with one-hot rows, or try torch.nn.functional.embedding, in place "
        "of indexing",
    )
    if batch.is_small(e):
        return
    more = "give these kernels more to do at once"
    for place, advice in (
        ("within", f"{more}, or have others do the same in more blocks, such as a compiler's"),
        ("beside", f"{BESIDE}, or {more}"),
    ):
        yield _faster(
            e,
            "underfilled",
            0.5,
            place=place,
            method="sum over kernels of time x (1 - blocks / SMs)",
            advice=advice,
            remedy=_compiled(e, place) if e.point else {},
        )


def layout_transposes(e: Evidence) -> Iterator[Cause]:
    """Kernels that only turn one memory layout into the other around convolutions: all of their time. With them, the
    SMs that batch norms in NCHW leave without a block (one block for each channel): their time x the share of these,
    and of PyTorch's own norms at least the share in the table; three quarters are the interval's lower end. Where
    weights are in NHWC already, no setting helps: what turns tensors back between convolutions is to be found. The
    ranks or the point say how weights lie; else they are in NHWC where of the time of such copies hardly any is
    cuDNN's, which turns what it is given in NCHW."""
    layout = _weights_layout(e)
    yield _faster(
        e,
        "layout_transposes",
        0.75,
        method="time of kernels that turn NCHW into NHWC or back, and what batch norms in NCHW lose",
        advice=LAID_OUT[layout],
        remedy=remedies.choose(e.point, {"layout": "nhwc"}) if layout == "nchw" else {},
    )


def _weights_layout(e: Evidence) -> str:
    """nchw, nhwc, or none: no convolutions of pictures or volumes."""
    for known in (*(rank.weights_layout for rank in e.results), e.setting("layout")):
        if known:
            return str(known)
    turning = pl.concat(e.savings).filter(pl.col("layout_transposes") > 0)
    name, took = pl.col("name").cast(pl.String), pl.col("took").sum()
    cudnn, torch = (turning.filter(name.str.contains(of)).select(took).item() for of in (TRANSPOSE, STRIDED_COPY))
    return "nhwc" if cudnn < OF_CUDNN * torch else "nchw"


def recompute_or_unfused(e: Evidence) -> Iterator[Cause]:
    """Work that need not be done. Recomputation while memory is half empty: of a point its share of the hardware FLOPs,
    of all kernels; of a script the time of forward kernels that a backward pass runs again
    (analysis/diagnosis/evidence/recomputation.py). Attention that is not fused: its softmax and what is elementwise
    next to it, and half of the products beside these; where these products alone are in fp32, what tensor cores would
    save of them, too. Kernels that a compiler would fuse: of neighbours all but the longest
    (analysis/diagnosis/evidence/kernel_savings.py), three quarters of that; a quarter is the lower end, for compilers
    may give little. Of both, what is fused away is not launched, either. What a script does outside of its model is a
    cause apart, for no setting compiles it: ranges of the trace tell which kernels the model's forward passes launch,
    and backward passes are taken to have as much of it."""
    if e.memory is None or e.memory[0] <= MEMORY_LEFT * e.memory[1]:
        yield _faster(
            e,
            "recomputed",
            method="time of kernels that backward passes run again",
            advice="memory has room: keep the activations (no checkpointing), or checkpoint fewer layers",
            remedy=remedies.choose(e.point, {"activation_checkpointing": False}),
        )
    yield _faster(
        e,
        "scores",
        method="time of attention's softmax and of the elementwise kernels next to it, and half of the products beside",
        advice="use fused attention: pass no mask where none is needed, and compile layer by layer, since a model that "
        "is compiled as a whole may be given one",
        remedy=remedies.choose(e.point, {"attention": "auto"}),
    )
    for place, advice in (
        ("within", "compile the model, or use fused kernels"),
        ("beside", f"{BESIDE}, or use fused kernels"),
    ):
        yield _faster(
            e,
            "unfused",
            0.25,
            0.75,
            place=place,
            method="of neighbouring elementwise kernels, norms and reductions all but the longest",
            advice=advice,
            remedy=_compiled(e, place),
        )


def _compiled(e: Evidence, place: str) -> dict[str, Any]:
    """A setting compiles the model, and nothing beside it."""
    return remedies.choose(e.point, {"compile": "default"}) if place == "within" else {}


def _faster(
    e: Evidence,
    saving: str,
    least: float = 1.0,
    value: float | None = None,
    *,
    method: str,
    place: str = "",
    **more: Any,
) -> Cause:
    """What kernels could save (analysis/diagnosis/evidence/kernel_savings.py), with the three names of these that take
    most time. `place`: of that, what is within a script's model, or beside it."""
    part = f"{saving}_{place}" if place else saving
    change, steps = e.faster(part), sum(lane.steps.height for lane in e.lanes)
    time = (pl.col("took") * pl.col(part) / pl.col(saving)).sum().alias("took")
    took = pl.concat(e.savings).filter(pl.col(part) > 0).group_by(_short()).agg(time)
    longest = took.sort("took", "name", descending=[True, False]).head(3)
    facts = [Fact(name, ns / 1e6 / steps, "ms a step", "kernels") for name, ns in longest.iter_rows()]
    method += ", of what the script does outside of its model" * (place == "beside")
    return Cause(gain=e.gain(change).times(least, value=value), method=method, evidence=facts, change=change, **more)


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
    Rule(tensor_cores_unused, DEVICE),
    Rule(low_occupancy, DEVICE),
    Rule(layout_transposes, DEVICE, below=0.5, above=0.8),
    Rule(recompute_or_unfused, DEVICE, above=0.85),
)
