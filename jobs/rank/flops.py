"""Floating-point operations of one optimizer step of a rank, counted and not guessed.

torch's FlopCounterMode sees every operator of a forward and a backward pass and counts those of matrix products and
convolutions, two a multiply-add. The passes are of a second model, built and run on torch's meta device, which has
shapes alone: no memory, device time or random numbers are used, and nothing of the trained model is touched.

What is counted, and what is not (as for MFU in arXiv 2204.02311, appendix B):

- A product whose result nobody needs is not there: weights that LoRA freezes have no gradient of their own.
- Attention is two products forward and four backward, 12 L d s^2 a sequence together, a causal mask halving nothing.
- Biases, norms, activations, losses and the optimizer are left out.
- DPO's reference model is counted, as part of the forward pass; a mask between packed documents halves nothing either.
- Model FLOPs leave out what is computed again to save memory (activation checkpointing, DPO's loss in parts), hardware
  FLOPs do not. Neither counts the scores that a fused attention kernel computes again in its backward pass.

Strategies that split a model over ranks have the whole count of a micro-batch divided by them: it is a rank's share on
average. What tensor parallelism does twice is left out.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from msgspec import Struct
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from nightsweep.jobs.point.llama import SHAPES
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.launch_files import Flops
from nightsweep.jobs.workloads import make as workloads


class MicroBatch(Struct, frozen=True, kw_only=True):
    """FLOPs of one micro-batch of a whole model."""

    forward: dict[str, int]
    """Of the forward pass, by torch's operator."""
    backward: dict[str, int]
    """Of the backward pass, likewise."""
    hardware: int
    """Of both passes, with what is computed again to save memory."""


def count_micro_batch(point: Point) -> MicroBatch:
    """FLOPs of one micro-batch, counted here and now. Raises what torch or the model raise."""
    plain = disable_recomputing(point)
    forward, backward = passes(plain)
    hardware = forward + backward if plain == point else sum(passes(point), Counter())
    return MicroBatch(forward=dict(forward), backward=dict(backward), hardware=hardware.total())


def count(point: Point, micro_batch: Callable[[Point], MicroBatch] = count_micro_batch) -> Flops:
    """FLOPs of one optimizer step of one rank, the same for every rank; a `reason` alone where they cannot be counted.

    Args:
        point: whose step.
        micro_batch: gives those of one micro-batch of a point as `by_its_products` makes it.
    """
    try:
        found = micro_batch(by_its_products(point))
    except Exception as error:  # the count hangs on internals of torch and the models; a run must not fail of it
        return Flops(reason=f"{type(error).__name__}: {error}".splitlines()[0])
    times, shared = point.grad_accum * point.samples(0) // point.micro_batch, point.ranks_per_batch
    forward, backward = sum(found.forward.values()), sum(found.backward.values())
    return Flops(
        forward=forward * times // shared,
        backward=backward * times // shared,
        step=(forward + backward) * times // shared,
        hardware_step=found.hardware * times // shared,
    )


def by_its_products(point: Point) -> Point:
    """A point of the same products in number and size: compilers, rounding, NF4, float8 and the shape of a sum add
    none."""
    same: dict[str | None, Any] = {"qlora": "lora", "dpo_qlora": "dpo_lora", "qat": "full"}
    if point.workload == "image":  # the zeros that space to depth adds to a kernel are no work of the model
        return replace(point, space_to_depth=False, compile="none", precision="fp32")
    if point.workload != "llm":
        return point
    method = same.get(point.method, point.method)
    return replace(point, method=method, float8="none", compile="none", precision="fp32")


def disable_recomputing(point: Point) -> Point:
    """The point that keeps all its backward pass needs. DPO's loss in parts takes the last layer's product again."""
    if point.workload != "llm":
        return point
    return replace(point, activation_checkpointing=False, checkpoint_every=1, loss_chunks=0)


def passes(point: Point) -> tuple[Counter[str], Counter[str]]:
    """FLOPs by operator of the forward and of the backward pass of one micro-batch, as this point runs them. Layers of
    a Llama are alike, but for the first, whose input may need no gradient: two are counted, not 32, which takes
    seconds. Where only every n-th recomputes, n and twice as many."""
    if point.workload != "llm":
        return passes_of(point)
    layers, alike = SHAPES[point.model].num_hidden_layers, point.checkpoint_every or 1
    if layers % alike or layers <= 2 * alike:
        return passes_of(point, layers)
    few, more = passes_of(point, alike), passes_of(point, 2 * alike)
    found = [_extended(one, two, layers // alike - 1) for one, two in zip(few, more, strict=True)]
    return found[0], found[1]


def _extended(few: Counter[str], more: Counter[str], times: int) -> Counter[str]:
    return Counter({name: few[name] + times * (more[name] - few[name]) for name in more})


def passes_of(point: Point, *layers: int) -> tuple[Counter[str], Counter[str]]:
    """The same of a model built and run. `layers`: of a Llama, how many of them."""
    work = workloads.module(point)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model, batch = work.build_model(point, *layers)[0], work.blank(point)
        return count_passes(lambda: work.loss(model, batch))


def count_passes(loss: Callable[[], torch.Tensor]) -> tuple[Counter[str], Counter[str]]:
    """FLOPs by operator of `loss` and of its backward pass."""
    counters = [FlopCounterMode(display=False, custom_mapping=FORMULAS) for _ in range(2)]
    # Fused attention is another operator on each device, some of them without a formula; its products have one.
    with sdpa_kernel(SDPBackend.MATH):
        with counters[0]:
            end = loss()
        with counters[1]:
            end.backward()
    forward, backward = (
        Counter({str(name): flops for name, flops in counter.get_flop_counts().get("Global", {}).items()})
        for counter in counters
    )
    return forward, backward


def _convolution_backward(
    grad: Any, x: Any, weight: Any, _bias: Any, _stride: Any, _padding: Any, _dilation: Any, transposed: bool,
    _output_padding: Any, _groups: int, mask: list[bool], *, out_shape: Any = None,
) -> int:  # fmt: skip
    """Shapes in, FLOPs out: the gradients of input and weight each take as many products as the forward pass.

    torch's own formula counts the weight's gradient as if every input channel met every output channel: too many by
    the number of groups, which is 960 in a depthwise layer of MobileNet v2."""
    return conv_flop_count(x, weight, grad, transposed=transposed) * sum(mask[:2])


FORMULAS = {torch.ops.aten.convolution_backward: _convolution_backward}
