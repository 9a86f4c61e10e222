"""Pipeline parallel: each rank of a group holds some of the layers, and micro-batches go from one to the next.

Schedules are those of torch.distributed.pipelining: GPipe (arXiv 1811.06965) and 1F1B (arXiv 2006.09503)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.strategies import precision
from nightsweep.jobs.strategies.averaging import average, gradients
from nightsweep.jobs.strategies.base import Spoil, Trainer
from nightsweep.jobs.strategies.mesh import make_mesh
from nightsweep.jobs.strategies.optimizer import make_optimizer
from nightsweep.jobs.telemetry.trace.tracers import Tracer
from nightsweep.jobs.workloads.base import Batch, Work

INPUTS = {"llm": ("tokens", "tokens"), "image": ("image", "label")}
"""By workload, what the first stage reads and what the last one's loss is of."""


def share(layers: int, stage: int, stages: int) -> slice:
    """The layers of a stage: as many in each, or one more in some."""
    return slice(layers * stage // stages, layers * (stage + 1) // stages)


class LlamaStage(torch.nn.Module):
    """Consecutive layers of transformers' LlamaForCausalLM. Token ids (B, S) in the first stage, hidden states
    (B, S, H) between stages, logits (B, S, V) out of the last."""

    def __init__(self, work: Work, stage: int, stages: int, autocast: torch.autocast) -> None:
        super().__init__()
        model: Any = work.model
        self.takes = "input_ids" if stage == 0 else "inputs_embeds"
        self.autocast = autocast
        self.decoder = model.model
        self.decoder.layers = torch.nn.ModuleList(work.layers[share(len(work.layers), stage, stages)])
        if stage > 0:
            self.decoder.embed_tokens = None
        if stage < stages - 1:
            self.decoder.norm = torch.nn.Identity()
        self.head = model.lm_head if stage == stages - 1 else torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.autocast:
            out: torch.Tensor = self.head(self.decoder(**{self.takes: x}).last_hidden_state)
        return out


class VitStage(torch.nn.Module):
    """Consecutive layers of transformers' ViTForImageClassification. Images (B, 3, H, W) in the first stage, patches
    (B, P, H) between stages, logits (B, classes) out of the last."""

    def __init__(self, work: Work, stage: int, stages: int, autocast: torch.autocast) -> None:
        super().__init__()
        model: Any = work.model
        self.autocast = autocast
        self.embeddings = model.vit.embeddings if stage == 0 else torch.nn.Identity()
        self.layers = torch.nn.ModuleList(work.layers[share(len(work.layers), stage, stages)])
        self.head = torch.nn.ModuleList([model.vit.layernorm, model.classifier] if stage == stages - 1 else [])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.autocast:
            x = self.embeddings(x)
            for layer in self.layers:
                x = layer(x)
            if self.head:
                norm, classifier = self.head
                x = classifier(norm(x)[:, 0])
        return x


def llm_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next token, as transformers' models compute it from logits (B, S, V) and ids (B, S)."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    loss: torch.Tensor = ForCausalLMLoss(logits, tokens, vocab_size=logits.shape[-1])
    return loss


def image_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels)


class PpTrainer(Trainer):
    """One stage of the model, and `replicas` of it whose gradients are averaged after the step's last micro-batch."""

    def __init__(self, point: Point, work: Work, device: torch.device) -> None:
        stages = dist.get_world_size() // point.replicas
        mesh = make_mesh(device.type, "stages", replicas=point.replicas, stages=stages)
        index = mesh.get_local_rank("stages")
        kind = LlamaStage if point.workload == "llm" else VitStage
        self.model = precision.place(point, kind(work, index, stages, precision.autocast(point, device)), device)
        self.group = mesh.get_group("stages")
        self.replicas = mesh.get_group("replicas") if point.replicas > 1 else None
        self.first, self.last = index == 0, index == stages - 1
        self.last_rank = dist.get_global_rank(self.group, stages - 1)
        stage = PipelineStage(self.model, index, stages, device, group=self.group)
        schedule = ScheduleGPipe if point.pipeline_schedule == "gpipe" else Schedule1F1B
        loss = llm_loss if point.workload == "llm" else image_loss
        self.schedule = schedule(stage, n_microbatches=point.grad_accum, loss_fn=loss)
        self.optimizer = make_optimizer(point, self.model)
        self.scaler = precision.scaler(point, device)
        self.device, self.accumulate = device, point.grad_accum
        self.inputs = INPUTS[point.workload]

    def micro_batches(self, batches: Iterable[Batch], tracer: Tracer, spoil: Spoil) -> list[torch.Tensor]:
        """All micro-batches in the order of the schedule, which cuts the whole batch into them again."""
        fetched = list(batches)
        given, wanted = (torch.cat([batch[name] for batch in fetched]) for name in self.inputs)
        losses: list[torch.Tensor] = []
        with tracer.range("pipeline"):
            self.schedule.step(
                *((given,) if self.first else ()),
                target=wanted if self.last else None,
                losses=losses if self.last else None,
            )
            if self.replicas is not None:
                average(gradients(self.model), self.replicas)
        with tracer.range("loss"):
            # The last stage alone knows them; every rank records them in its rows.
            known = torch.empty(self.accumulate, device=self.device)
            if self.last:
                known = torch.stack([loss.detach().float() for loss in losses])
            dist.broadcast(known, self.last_rank, group=self.group)
        return [spoil(loss) for loss in known]
