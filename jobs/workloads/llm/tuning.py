"""The point's model: Llama, changed as its method asks, on torch's default device."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import torch

from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.point.settings.llm import ADAPTERS, PREFERENCES
from nightsweep.jobs.workloads import dtypes
from nightsweep.jobs.workloads.llm import weights
from nightsweep.jobs.workloads.llm.configuration import configuration
from nightsweep.jobs.workloads.llm.nf4 import Nf4Linear

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LORA_TARGETS = {
    "all": [*ATTENTION, "gate_proj", "up_proj", "down_proj"],
    "attention": ATTENTION,
    "qv": ["q_proj", "v_proj"],
}
QAT_GROUP = 256
"""Weights that share a scale, as in torchtune's recipe; fewer in layers too small."""
INT4: Any = torch.int4  # type: ignore[attr-defined]  # not in torch's stubs


def build_model(
    point: Point, layers_of_model: int | None = None
) -> tuple[torch.nn.Module, tuple[torch.nn.Module, ...]]:
    """The model and its decoder layers; a frozen reference model's come after the model's own. `layers_of_model`: fewer
    than it has."""
    from nightsweep.jobs.workloads.llm.model import Llama

    device = torch.get_default_device()
    method, chunks = str(point.method), point.loss_chunks or 0
    assert point.dpo_beta is not None
    config = configuration(point, layers_of_model)
    with torch.device("meta"):
        if method in PREFERENCES:
            from nightsweep.jobs.workloads.llm.preference import PreferenceLlama

            llama: Llama = PreferenceLlama(config, chunks, point.dpo_beta, copied=method == "dpo")
        else:
            llama = Llama(config, chunks, fuse=point.compile != "none")
        layers = [layer for part in (llama, getattr(llama, "reference", None)) if part for layer in part.model.layers]
        set_checkpointing(point, layers[: config.num_hidden_layers])
        if point.float8 != "none":
            if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
                raise Unsupported("float8 needs a GPU of compute capability 8.9 or later")
            to_float8(llama.model.layers, str(point.float8))
        if method == "qat":
            fake_quantise(llama.model.layers)
        if method.endswith("qlora"):
            for layer in layers:
                quantise_linears(layer, dtypes.compute(point))
        model = add_adapters(point, llama) if method in ADAPTERS else llama
    set_dtypes(point, model)
    if device.type != "meta":
        fill = weights.random_fill(point.seed + point.repeat, config.initializer_range)
        if point.weights not in ("random", None):
            fill = weights.checkpoint_fill(Path(point.weights), fill)
        weights.materialise(model, device, fill)
    return model, tuple(layers)


def set_checkpointing(point: Point, layers: list[Any]) -> None:
    """Let every n-th layer recompute its activations."""
    if not point.activation_checkpointing:
        return
    recompute = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
    for layer in layers[:: point.checkpoint_every]:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = recompute


def set_dtypes(point: Point, model: torch.nn.Module) -> None:
    """Hold trained weights in their format and frozen ones as the forward pass uses them. The model has no values."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            dtype = dtypes.weight_dtype(point) if parameter.requires_grad else dtypes.compute(point)
            parameter.data = parameter.data.to(dtype)


def add_adapters(point: Point, llama: Any) -> Any:
    """The model with LoRA adapters (arXiv 2106.09685) in peft's hands, all else frozen."""
    import peft

    rank = point.lora_rank
    assert rank is not None
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=point.lora_alpha or 2 * rank,
        lora_dropout=point.lora_dropout,
        target_modules=LORA_TARGETS[str(point.lora_targets)],
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(llama, config, autocast_adapter_dtype=False)
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.cast_input_dtype_enabled = False  # autocast casts; peft would first make a copy in fp32
    return model


def quantise_linears(layer: torch.nn.Module, dtype: torch.dtype) -> None:
    """Put NF4 layers in the place of a decoder layer's linear ones."""
    for parent in list(layer.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(parent, name, Nf4Linear(child, dtype))


@functools.cache
def trace_checks() -> None:
    """Have the compiler trace a check that torchao's rounding of activations calls. PyTorch 2.11 will not by itself,
    and then each layer falls into small compiled pieces with Python between them."""
    from torch.ao.quantization.fx import _decomposed

    check = _decomposed._per_token_quant_qparam_dim_check
    _decomposed._per_token_quant_qparam_dim_check = torch._dynamo.dont_skip_tracing(check)


def fake_quantise(layers: torch.nn.ModuleList) -> None:
    """Round as QAT does: int8 activations with a scale for each token, int4 weights with one for each group."""
    import torchao.quantization.qat as qat
    from torchao.quantization import quantize_

    trace_checks()
    # torchao notes the last scales, which nothing reads; recomputed layers would not compile for that
    torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    activations = qat.IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    for size in {linear.in_features for linear in layers.modules() if isinstance(linear, torch.nn.Linear)}:
        groups = qat.IntxFakeQuantizeConfig(INT4, group_size=math.gcd(QAT_GROUP, size), is_symmetric=True)
        quantize_(
            layers,
            qat.QATConfig(activation_config=activations, weight_config=groups, step="prepare"),
            filter_fn=lambda module, _, size=size: isinstance(module, torch.nn.Linear) and module.in_features == size,
        )


def to_float8(layers: torch.nn.ModuleList, recipe: str, emulate: bool = False) -> None:
    """Let the linear layers multiply in float8, scaled by tensor or by row; or emulate that, on any device."""
    import dataclasses

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate)
    convert_to_float8_training(layers, config=config)
