"""Tensor parallel (arXiv 1909.08053): each layer of a Llama is split over the ranks of a group, which see the same
samples. Heads and MLP columns are split first, rows after, so that a layer adds up twice forward and twice backward;
norms are whole on every rank. The vocabulary is split in the embedding and the last layer."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.strategies import precision
from nightsweep.jobs.strategies.averaging import average, gradients
from nightsweep.jobs.strategies.base import Trainer
from nightsweep.jobs.strategies.mesh import make_mesh
from nightsweep.jobs.workloads.base import Work


def split_layers(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Split transformers' LlamaForCausalLM in place over a mesh of one dimension."""
    # Entering as one DTensor, the input has its gradients added up once, and not for each product that reads it.
    whole = Replicate()
    enter_attention = PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": whole}, desired_input_kwarg_layouts={"hidden_states": whole}
    )
    plan: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole),
        "model.layers.*.self_attn": enter_attention,
        "model.layers.*.self_attn.q_proj": ColwiseParallel(),
        "model.layers.*.self_attn.k_proj": ColwiseParallel(),
        "model.layers.*.self_attn.v_proj": ColwiseParallel(),
        "model.layers.*.self_attn.o_proj": RowwiseParallel(),
        "model.layers.*.mlp": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,)),
        "model.layers.*.mlp.gate_proj": ColwiseParallel(),
        "model.layers.*.mlp.up_proj": ColwiseParallel(),
        "model.layers.*.mlp.down_proj": RowwiseParallel(),
        "lm_head": ColwiseParallel(output_layouts=whole),
    }
    parallelize_module(model, mesh, plan)


class TpTrainer(Trainer):
    """A split model, and `replicas` of it whose gradients are averaged after the step's last micro-batch."""

    def __init__(self, point: Point, work: Work, device: torch.device) -> None:
        ranks = torch.distributed.get_world_size() // point.replicas
        mesh = make_mesh(device.type, "tensor", replicas=point.replicas, tensor=ranks)
        model = precision.place(point, work.model, device)
        split_layers(model, mesh["tensor"])
        self.equip(point, work, device, model)
        self.replicas = mesh.get_group("replicas") if point.replicas > 1 else None

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        super().backward(loss, last=last)
        if last and self.replicas is not None:
            average(gradients(self.model), self.replicas)
