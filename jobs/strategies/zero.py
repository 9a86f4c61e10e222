"""DeepSpeed ZeRO, stages 1 to 3, in the process group that the worker has already set up."""

from __future__ import annotations

import os
from typing import Any

import torch

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.strategies.base import Trainer
from nightsweep.jobs.strategies.optimizer import make_optimizer
from nightsweep.jobs.strategies.precision import shorten_batch_norms
from nightsweep.jobs.workloads import dtypes
from nightsweep.jobs.workloads.base import Batch, Work

LARGE = 1_000_000
"""Elements of a bucket: a gradient that is larger is sent as it is."""


def zero_config(point: Point, layer_numel: int, device: torch.device) -> dict[str, Any]:
    """DeepSpeed's configuration; nothing is left to its "auto". `layer_numel`: weights of the largest layer."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": point.micro_batch,
        "gradient_accumulation_steps": point.grad_accum,
        "zero_optimization": zero_optimization(point, layer_numel, device),
        # a torch optimizer: DeepSpeed's own would have to be compiled on the spot
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
        # DeepSpeed's default clips to a norm of 1, which no other strategy here does
        "gradient_clipping": 0.0,
    }
    if point.precision in ("bf16", "fp16"):
        config[point.precision] = {"enabled": True}
    elif point.precision == "bf16_pure":
        config["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    return config


def zero_optimization(point: Point, layer_numel: int, device: torch.device) -> dict[str, Any]:
    """The stage, what of it lies in the host's memory, and when it communicates."""
    host = {"device": "cpu", "pin_memory": device.type == "cuda"}
    config: dict[str, Any] = {"stage": int(point.strategy[-1])}
    if point.offload != "none":
        config["offload_optimizer"] = host
    if point.offload == "all":
        config["offload_param"] = host
    if point.zero_communication != "default":
        config["overlap_comm"] = point.zero_communication == "overlapped"
    if point.strategy == "zero3" and point.compile != "none":
        # In the backward pass DeepSpeed's linear layer asks whether its weight is one of ZeRO's, and torch 2.11 then
        # compiles each layer for itself, for that weight's `ds_id`.
        config["memory_efficient_linear"] = False
    if point.zero_bucket_millions:
        config["reduce_bucket_size"] = point.zero_bucket_millions * 1_000_000
    if point.zero_messages == "single":
        config["reduce_bucket_size"] = LARGE
    if point.prefetch_layers:
        config["stage3_prefetch_bucket_size"] = point.prefetch_layers * layer_numel
    return config


def import_deepspeed(device: torch.device) -> Any:
    """DeepSpeed, set to the device; on a CPU without its shared-memory operator, which needs a compiler."""
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


class ZeroTrainer(Trainer):
    """A DeepSpeed engine. It casts inputs' weights itself; floating inputs are cast here."""

    def __init__(self, point: Point, work: Work, device: torch.device) -> None:
        deepspeed = import_deepspeed(device)
        deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), auto_mpi_discovery=False)
        self.dtype = None if point.precision in ("fp32", "tf32") else dtypes.compute(point)
        model = work.model.to(device)
        if self.dtype is not None:  # DeepSpeed casts weights, and no buffers
            shorten_batch_norms(model, self.dtype)
        if point.strategy == "zero3" and point.compile != "none":
            # Weights are then gathered for a layer as a whole, outside of what is compiled.
            for layer in work.layers:
                deepspeed.utils.set_z3_leaf_module(layer, True)
        optimizer = make_optimizer(point, model)
        largest = max(sum(weight.numel() for weight in layer.parameters()) for layer in work.layers)
        config = zero_config(point, largest, device)
        if point.zero_messages != "joined":
            # With this in its own configuration DeepSpeed's engine gathers nothing ahead; sharded weights it takes as
            # they are.
            for weight in model.parameters():
                weight.data = weight.data.to(self.dtype or weight.dtype)
            zero = config["zero_optimization"] | {"stage3_allgather_sequential": True}
            deepspeed.zero.Init(module=model, config_dict_or_path=config | {"zero_optimization": zero})
        self.model, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        self.accumulate = point.grad_accum
        self.loss_of = work.loss

    def forward(self, batch: Batch, *, last: bool) -> torch.Tensor:
        if self.dtype is not None:
            batch = {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in batch.items()}
        return self.loss_of(self.model, batch)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        self.model.backward(loss)
        if not last:  # the engine counts micro-batches by its steps; only the last one updates
            self.model.step()

    def step(self) -> None:
        self.model.step()
