"""What kernels could save: of each kernel of a lane, by kind. A kernel's time counts once: what a former rule has
taken a later one does not see.

- layout_transposes: kernels that only turn NCHW into NHWC or back, all of their time, and copies from one layout to
  another where the model itself changes it: where convolutions take much of the time, beside such kernels or where
  such copies do as well. Where there are such, batch norms in NCHW too, which take one block for each channel: their
  time x the share of SMs without a block, and of PyTorch's own at least what they were seen to lose (threshold
  nchw_norm). In NHWC blocks share the rows of a channel, and fill the GPU (PyTorch,
  aten/src/ATen/native/cuda/Normalization.cuh).
- tensor_cores_unused: matrix kernels in fp32 or fp64 without tensor cores, 1 - peak of these / peak of TF32 on the same
  device (fp64: of fp64). Attention in fp32 beside products in 16 bits, which PyTorch's kernels put together from three
  products in TF32 each (CUTLASS, OpMultiplyAddFastF32): 1 - a third of the peak of TF32 / peak of bf16.
- recomputed: forward kernels that are run again in the backward pass (recomputation.py); where the ranks counted FLOPs,
  what they say of all kernels.
- scores: softmax of attention that is not fused, and elementwise kernels, copies and casts next to it on its stream,
  all of their time: fused attention writes no scores. The matrix products next to these, half of their time: they write
  and read the scores, too, but fused attention still multiplies. One on each side, of a backward pass two. Where
  the other products are mostly in 16 bits and these in fp32, as PyTorch computes attention that has no fused kernel
  (aten/src/ATen/native/transformers/attention.cpp), they have tensor cores, too, once it is fused.
- unfused: other neighbours that are elementwise, copies, casts, normalisations or reductions. Fused into one kernel
  they would read and write once, which the longest of them does already: the others' time. Sums along rows, which
  PyTorch reads slowly, are not the longest.
- repeated_rows: the gradient of `table[indices]`, in which PyTorch adds what belongs to one row of the table one after
  another: nearly all of its time.
- underfilled: what is left of a kernel with fewer blocks than SMs, times the share of SMs without one.

Of unfused and underfilled, `_within` and `_beside` are what of it the script's model does, and what is outside of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.diagnosis.evidence.recomputation import recomputed_share
from nightsweep.analysis.diagnosis.thresholds import ATTENTION_SOFTMAX, NCHW_NORM
from nightsweep.analysis.metrics.kernels import kernel_class
from nightsweep.analysis.metrics.points import peaks

Floats = npt.NDArray[np.float64]

TRANSPOSE = r"(?i)nchwtonhwc|nhwctonchw|tensortransformgeneric|converttensor_kernel|batched_transpose"
_TORCH_NORM = (
    r"batch_norm_(collect_statistics|transform_input|backward|backward_reduce|backward_elemt)_kernel|"
    r"batch_norm_elementwise_backward"
)
NCHW_NORM_KERNELS = rf"{_TORCH_NORM}|\bbn_(fw|bw)_\w*1C11"
"""PyTorch's and cuDNN's (1C11: one mean a channel) batch norms in NCHW."""
LEAST_OF_CONVOLUTIONS = 0.1
"""Of the time of kernels: transformers of pictures cut them up by one convolution, which takes 1 to 5 %."""
MANY_COPIES = 0.15
"""Of the time of kernels: copies of slices of channels take up to 8 % (U-Nets)."""
STRIDED_COPY = r"[^_]elementwise_kernel<.*nocast<.*direct_copy_kernel"
"""PyTorch's copies of tensors from one layout to another, in the same format."""
NOT_ELIGIBLE = (
    r"(?i)splitk_?reduce|gemv|gemmk1|depthwise|im2col|col2im|reduce|dot_do|dot_kernel|convert|preprocess|postprocess|"
    r"combine|grouped_direct|cudnn::fusion"
)
"""Matrix kernels that no tensor core could run, whatever their format."""
EMULATED = 5 / 6
"""Saved of attention in fp32: the peak of TF32 is half that of bf16 (analysis/metrics/points/peaks.py)."""
FUSIBLE = ("elementwise", "memory", "normalisation", "reduction", "softmax_loss")
NOT_BESIDE = r"multi_tensor_apply|nchwtonhwc|nhwctonchw|chunk_cat|split_with_sizes|adam|sgd"
"""Of these categories, what belongs to the optimizer, to sharding or to a change of layout."""
COMPILED = "triton"
"""Fused already."""
SCAN = "tensor_kernel_scan_innermost_dim"
"""PyTorch's sums along rows: where these have 48 numbers, 6.1 ms for what an addition goes over in 0.14
(tests/labelled/scripts.yaml, blend_gaussians, in whose sight this was written). Fused, they take no longer than others;
assumed."""
LOSS = r"(?i)nll|log_?softmax|cross_?entropy|softmax_warp_(for|back)ward<.*, \d+, true"
"""Of what is softmax or loss, a loss. The first flag of the warp kernel says that it takes the logarithm."""
PRODUCTS_SAVED = 0.5
"""Of products that write or read attention's scores; assumed: with heads of 64 moving the scores takes as long as the
products. Three fixes that were measured gave 60 to 62 % where it predicts 51 to 61 % (tests/labelled/scripts.yaml)."""
REPEATED_ROWS = r"indexing_backward_kernel<"
"""PyTorch's, for rows of several numbers (aten/src/ATen/native/cuda/Indexing.cu); that of `embedding` is another."""
ROWS_SAVED = 0.9
"""Assumed: of a table with few rows it takes 31 ms, and reading 0.09 (tests/labelled/scripts.yaml, roles_packed, whose
fix, a product, takes some, too)."""
SERIAL, SERIAL_NS = 0.9, 100_000
"""Share of SMs without a block, and time, from which on a kernel computes one thing after another; assumed: a tenth of
the SMs may be a small tensor's share, and of what takes less than 20 launches (5 us each) fusing saves the launches."""
NOT_LINES = r"/(backward|optimizer|data)/|/Optimizer\."
"""Ranges in which a script's thread runs none of its lines; the last is PyTorch's, in any trace of its profiler."""


def lane_savings(
    lane: Lane, device: str | None, passes: int, *, compiled: bool, recomputed: float | None
) -> pl.DataFrame:
    """What each kernel of the steps could save, ns, a column a kind, beside its name, device, stream, start_ns, the
    time that it `took`, whether it has `few` blocks, and whether a script launches it `beside` its model (1; null where
    that is not known).

    `device`: its name; `passes`: forward passes of a step; `compiled`: kernels are fused already; `recomputed`: the
    share of them that is, where it is known.
    """
    begins, ends = int(lane.steps["start_ns"].min()), int(lane.steps["end_ns"].max())  # type: ignore[arg-type]
    kernels = lane.own["kernels"].filter(
        pl.col("category").cast(pl.String) != "communication",
        pl.col("start_ns").is_between(begins, ends, closed="left"),
    )
    took = (kernels["end_ns"] - kernels["start_ns"]).clip(1).to_numpy().astype(np.float64)
    left = took
    layout, (scores, fused) = _layout_savings(kernels), fused_shares(kernels, passes * lane.steps.height)
    plain = _without_tensor_cores(kernels, device)
    late = (scores == PRODUCTS_SAVED) & (plain > 0)
    if late.any() and in_halves(kernels.filter(~late)):
        plain, scores = np.where(late, 0.0, plain), np.where(late, 1 - (1 - plain) * (1 - scores), scores)
    unfilled = _unfilled_share(kernels)
    shares = {  # in this order
        "layout_transposes": layout,
        "tensor_cores_unused": plain,
        "recomputed": recomputed_share(kernels) if recomputed is None else np.full(len(took), recomputed),
        "scores": scores,
        "unfused": np.zeros(len(took)) if compiled else fused,
        "repeated_rows": ROWS_SAVED * _is(kernels, REPEATED_ROWS),
        "underfilled": np.where(layout > 0, 0.0, unfilled),
    }
    found = kernels.select(
        "name", "device", "stream", "start_ns", took=took, few=pl.Series(unfilled > 0),
        beside=_beside_model(kernels),
    )  # fmt: skip
    for kind, share in shares.items():
        found = found.with_columns(pl.Series(kind, left * share))
        left = left - left * share
    for kind in ("unfused", "underfilled"):
        beside = _with_backward(found["beside"], found[kind])
        found = found.with_columns(
            (pl.col(kind) * (1 - beside)).alias(f"{kind}_within"), (pl.col(kind) * beside).alias(f"{kind}_beside")
        )
    return found


def _beside_model(kernels: pl.DataFrame) -> pl.Series:
    """Whether each kernel is work of the script's outside of its model, 0 or 1: ranges around the model's forward
    passes tell of what they and the script's own lines launch. Null of what others launch, as backward passes, and of
    all where there are no such ranges."""
    path = pl.concat_str(pl.lit("/"), pl.col("nvtx_path").cast(pl.String).fill_null(""), pl.lit("/"))
    inside, thread = path.str.contains("/forward/", literal=True), pl.col("thread")
    own = thread.is_in(thread.filter(inside).unique().implode()) & ~path.str.contains(NOT_LINES)
    return kernels.select(pl.when(inside | own).then(1.0 - inside.cast(pl.Float64))).to_series()


def _with_backward(beside: pl.Series, saved: pl.Series) -> pl.Series:
    """Of backward passes as much is taken to be outside of the model as of what is known, by what is `saved`."""
    of_known = saved.filter(beside.is_not_null()).to_numpy()
    mean = float(np.average(beside.drop_nulls().to_numpy(), weights=of_known)) if of_known.sum() else 0.0
    return beside.fill_null(mean)


def _layout_savings(kernels: pl.DataFrame) -> Floats:
    turned = _is(kernels, TRANSPOSE)
    took = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()
    convolutions = took @ (kernels["category"] == "convolution").fill_null(False).to_numpy()
    enough = convolutions >= LEAST_OF_CONVOLUTIONS * took.sum()
    strided = _is(kernels, STRIDED_COPY)
    if enough and (turned.any() or took @ strided >= MANY_COPIES * took.sum()):  # the layout changes in the model
        turned = np.maximum(turned, strided)
    if not turned.any():
        return turned
    norms = np.maximum(
        _is(kernels, NCHW_NORM_KERNELS) * _unfilled_share(kernels), _is(kernels, _TORCH_NORM) * NCHW_NORM.value
    )
    return np.maximum(turned, norms)


def _unfilled_share(kernels: pl.DataFrame) -> Floats:
    return (1 - kernels["est_sm_efficiency"].fill_null(1.0)).to_numpy()


def _serial(kernels: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Long kernels that leave nearly all SMs idle: what they lack is not to be fused."""
    took = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()
    return (_unfilled_share(kernels) > SERIAL) & (took > SERIAL_NS)


def _is(kernels: pl.DataFrame, pattern: str) -> Floats:
    names = kernels["name"].unique().cast(pl.String)
    wanted = names.filter(names.str.contains(pattern))
    return kernels["name"].cast(pl.String).is_in(wanted.implode()).to_numpy().astype(np.float64)


def _without_tensor_cores(kernels: pl.DataFrame, device: str | None) -> Floats:
    peak = peaks.peak_of(device)
    text = kernels.select(pl.col("category", "precision").cast(pl.String), "tensor_cores")
    matrix = text["category"].is_in(sorted(kernel_class.MATRIX)).to_numpy()
    plain = (~text["tensor_cores"].fill_null(True)).to_numpy() & matrix & (_is(kernels, NOT_ELIGIBLE) == 0)
    stated = peak.flops_per_s if peak else {"fp32": 1.0, "tf32": 8.0}  # 7.4 to 16 on all that is stated
    gain = 1 - stated["fp32"] / stated["tf32"] if {"fp32", "tf32"} <= stated.keys() else 0.0
    single = (text["precision"] == "fp32").fill_null(False).to_numpy()
    emulated = (text["category"] == "attention").to_numpy() & single & text["tensor_cores"].fill_null(False).to_numpy()
    return np.where(emulated & in_halves(kernels), EMULATED, np.where(plain & single, gain, 0.0))


def in_halves(kernels: pl.DataFrame) -> bool:
    """Whether products, without attention, are mostly in 16 bits, by their time."""
    took = (pl.col("end_ns") - pl.col("start_ns")).sum()
    products = kernels.filter(pl.col("category").cast(pl.String).is_in(sorted(kernel_class.MATRIX - {"attention"})))
    halves = products.filter(pl.col("precision").cast(pl.String).is_in(["bf16", "fp16"]))
    return bool(2 * (halves.select(took).item() or 0) > (products.select(took).item() or 0))


def fused_shares(kernels: pl.DataFrame, passes: int) -> tuple[Floats, Floats]:
    """The shares that fusing kernels which follow each other on a stream would save, in the kernels' order: of those
    that write or read attention's scores, and of other chains all but the longest kernel."""
    category, path = kernels["category"].cast(pl.String), kernels["nvtx_path"].cast(pl.String).fill_null("")
    excluded = (_is(kernels, NOT_BESIDE) > 0) | path.str.contains(r"(?i)optimizer").to_numpy()
    softmax = (category == "softmax_loss").to_numpy() & (_is(kernels, LOSS) == 0) & ~excluded
    moving = category.is_in(FUSIBLE).to_numpy() & ~excluded & ~_serial(kernels)
    frame = pl.DataFrame(
        {
            "stream": kernels["stream"].fill_null(-1),
            "start": kernels["start_ns"],
            "took": kernels["end_ns"] - kernels["start_ns"],
            "moving": moving,
            "own": moving & (_is(kernels, COMPILED) == 0),
            "scan": _is(kernels, SCAN) > 0,
            "softmax": softmax & (softmax.sum() / max(passes, 1) >= ATTENTION_SOFTMAX.value),
            "product": category.is_in(sorted(kernel_class.MATRIX)),
            "backward": _is(kernels, r"(?i)backward") > 0,
        }
    ).with_row_index("place")

    def beside(chosen: pl.Expr) -> pl.Expr:
        """Products right before or after chosen kernels of their stream."""
        return pl.col("product") & pl.any_horizontal(
            chosen.shift(by, fill_value=False).over("stream") for by in (1, -1)
        )

    found = frame.sort("stream", "start", maintain_order=True)
    found = found.with_columns(
        between=pl.struct("stream", "moving").rle_id(), chain=pl.struct("stream", "own").rle_id()
    )
    found = found.with_columns(within=pl.col("moving") & pl.col("softmax").any().over("between"))
    found = found.with_columns(deep=pl.col("within") & pl.col("backward").any().over("between"))
    found = found.with_columns(next=beside(pl.col("within")), deep=beside(pl.col("deep")))
    found = found.with_columns(next=pl.col("next") | beside(pl.col("deep")))
    lasting = pl.when("scan").then(0).otherwise("took")
    longest = pl.int_range(pl.len()).over("chain") == lasting.arg_max().over("chain")
    found = found.sort("place").select(
        scores=pl.when("within").then(1.0).when("next").then(PRODUCTS_SAVED).otherwise(0.0),
        fused=(pl.col("own") & ~longest).cast(pl.Float64),
    )
    return found["scores"].to_numpy(), found["fused"].to_numpy()
