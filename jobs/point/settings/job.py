"""What is trained, on how much hardware, with what arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nightsweep.jobs.point.reason import Reason
from nightsweep.jobs.point.settings.field import MOST_STEPS, except_for, only, setting
from nightsweep.jobs.point.strategies import DDP
from nightsweep.jobs.point.workloads import MODELS, WORKLOADS

if TYPE_CHECKING:
    from nightsweep.jobs.point.point import Point

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "bf16_pure"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Settings of the training job itself."""

    workload: str = setting(
        "What is trained: a built-in workload, or command: a script of your own.", enum=[*WORKLOADS, "command"]
    )
    model: str = setting("The network; see docs/workloads.md for sizes.", enum=list(MODELS))
    repeat: int = setting("Number of this repetition, from 0. Moves the seed.", 0, minimum=0, maximum=99_999)

    nodes: int = setting("Nodes of the job. More than one needs Slurm.", 1, minimum=1, maximum=10_000)
    ranks_per_node: int = setting(
        "Ranks on each node: one GPU each, or one CPU process each. Of strategy dp, GPUs of its one rank.",
        1,
        minimum=1,
        maximum=1024,
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "Where ranks compute. auto: GPUs where there are any; a point fails where Slurm gave its job some that torch "
        "does not see.",
        "auto",
    )

    precision: Precision = setting(
        "Arithmetic of the step. fp64, fp32 and tf32 are whole-model; bf16 and fp16 are mixed: trained weights and "
        "optimizer state stay fp32; bf16_pure holds weights, gradients and optimizer state in bf16 too. fp32 turns "
        "TF32 off for convolutions too.",
        "fp32",
    )
    micro_batch: int = setting(
        "Samples of one forward pass of one rank; of strategy dp, of one GPU.", 32, minimum=1, maximum=1_000_000
    )
    grad_accum: int = setting(
        "Forward and backward passes before each optimizer step.", 1, minimum=1, maximum=1_000_000
    )
    optimizer: Literal["adamw", "sgd"] = setting("Optimizer.", "adamw")
    learning_rate: float = setting("Constant learning rate.", 1e-3, exclusiveMinimum=0, maximum=1e6)
    weight_decay: float | None = setting(
        "Weight decay; where none is given, torch's own: 0.01 of adamw, 0 of sgd.", None, minimum=0, maximum=1e6
    )
    checkpoint_steps: int = setting(
        "Steps between two checkpoints of weights and optimizer (torch.distributed.checkpoint), each in place of the "
        "one before, all deleted at the end; 0: none.",
        0,
        minimum=0,
        maximum=MOST_STEPS,
        needs=[only("strategy", *DDP, "fsdp2"), only("cuda_graph", False)],
    )
    checkpoint_async: bool = setting(
        "Write a checkpoint beside the next steps, from a copy.", False, needs=[except_for("checkpoint_steps", 0)]
    )
    seed: int = setting("Seed of weights and data order; the repeat is added to it.", 0, minimum=0, maximum=2**31 - 1)


def conflicts(p: Point) -> Iterator[Reason]:
    models = WORKLOADS[p.workload].models
    if p.model not in models:
        yield Reason(("model", "workload"), f"{p.model!r} is no {p.workload} model (there are {', '.join(models)})")
    if p.numa != "none" and p.device == "cpu":
        yield Reason(("numa", "device"), f"numa {p.numa} on device cpu: there is no GPU to be near to")
    if p.precision == "tf32" and p.device == "cpu":
        yield Reason(("precision", "device"), "tf32 is arithmetic of GPUs; device is cpu")
    steps = p.warmup_steps + p.timed_steps + p.traced_steps
    if p.checkpoint_steps > steps:
        text = f"checkpoint_steps {p.checkpoint_steps} has no effect: the job has {steps} steps"
        yield Reason(("checkpoint_steps", "timed_steps"), text)


CHECKS = (conflicts,)
