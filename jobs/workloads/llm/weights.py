"""First values of the weights, on the device itself, each from its name: no strategy, method or sharding changes them.

Random values come of a generator seeded by the point's seed and the parameter's name. A GPU's generator gives other
numbers than the CPU's, so a seed's weights are the same on all GPUs and on all CPUs, and not on both.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nightsweep.jobs.workloads.llm.nf4 import Nf4Linear

Fill = Callable[[str, torch.Tensor], None]
"""Writes the values of the parameter of this name (as LlamaForCausalLM has it) into a tensor of its shape."""


def name_in_llama(name: str) -> str:
    """A parameter's name in the plain model, from its name under adapters or in a reference model."""
    for word in ("base_model.model.", "reference.", "base_layer."):
        name = name.replace(word, "")
    return name


def random_fill(seed: int, deviation: float) -> Fill:
    """Normal values of this standard deviation and norms of 1; of adapters A is He-uniform and B zero, as peft's."""

    def fill(name: str, out: torch.Tensor) -> None:
        if out.dim() == 1:
            out.fill_(1)
        elif "lora_B" in name:
            out.zero_()
        else:
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            generator = torch.Generator(out.device).manual_seed(int.from_bytes(digest[:7], "big"))
            if "lora_A" in name:
                torch.nn.init.kaiming_uniform_(out, a=math.sqrt(5), generator=generator)
            else:
                out.normal_(0, deviation, generator=generator)

    return fill


def checkpoint_fill(folder: Path, otherwise: Fill) -> Fill:
    """Values of a checkpoint's safetensors files; adapters, which it has not, from `otherwise`.

    Raises FileNotFoundError and KeyError where files or parameters are missing."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = json.loads(index.read_text())["weight_map"]
    elif (folder / "model.safetensors").is_file():
        with safe_open(folder / "model.safetensors", "pt") as opened:
            files = dict.fromkeys(opened.keys(), "model.safetensors")
    else:
        raise FileNotFoundError(f"{folder}: no model.safetensors of a checkpoint in this folder")

    def fill(name: str, out: torch.Tensor) -> None:
        if "lora_" in name:
            otherwise(name, out)
            return
        if name == "lm_head.weight" and name not in files:  # tied
            name = "model.embed_tokens.weight"
        if name not in files:
            raise KeyError(f"{folder}: the checkpoint has no {name}")
        with safe_open(folder / files[name], "pt") as opened:
            out.copy_(opened.get_tensor(name))

    return fill


@torch.no_grad()
def materialise(model: Any, device: torch.device, fill: Fill) -> None:
    """Move a model from the meta device to this one and write its weights there, one layer's at a time."""
    model.to_empty(device=device)
    for name, module in model.named_modules():
        if hasattr(module, "inv_freq"):  # RoPE's frequencies are buffers that no name tells
            with torch.device("cpu"):
                made = type(module)(module.config)
            module.inv_freq, module.original_inv_freq = made.inv_freq.to(device), made.original_inv_freq.to(device)
        if isinstance(module, Nf4Linear):
            whole = torch.empty(module.out_features, module.in_features, dtype=module.dtype, device=device)
            fill(name_in_llama(f"{name}.weight"), whole)
            module.quantise(whole)
            continue
        for own, parameter in module.named_parameters(recurse=False):
            fill(name_in_llama(f"{name}.{own}"), parameter)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what quantising needed is not the training's
