"""Micro-batches as CUDA graphs: the forward and the backward pass are recorded once each, and replayed.

Rules of torch's documents for whole-network capture are followed: one side stream for construction, warm-up and
recording; inputs, gradients and outputs that stay where they are; 11 passes before DDP is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.strategies.base import Spoil, Trainer
from nightsweep.jobs.telemetry.trace.tracers import Tracer
from nightsweep.jobs.workloads.base import Batch

WARM_UP = 11


class Pass:
    """One micro-batch's two graphs, which share their memory."""

    def __init__(self, trainer: Trainer, batch: Batch, stream: torch.cuda.Stream, pool: object, *, last: bool) -> None:
        self.batch = batch
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                trainer.backward(trainer.forward(batch, last=last), last=last)
        self.graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # NCCL's watchdog is another thread, and asks for events while this one records.
        options: dict[str, Any] = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(self.graphs[0], **options):
            self.loss = trainer.forward(batch, last=last)
        with torch.cuda.graph(self.graphs[1], **options):
            trainer.backward(self.loss, last=last)

    def forward(self, batch: Batch) -> torch.Tensor:
        for name, tensor in batch.items():
            self.batch[name].copy_(tensor)
        self.graphs[0].replay()
        return self.loss.detach().clone()

    def backward(self) -> None:
        self.graphs[1].replay()


class GraphTrainer(Trainer):
    """Another strategy's trainer, recorded with the first micro-batch. Raises Unsupported without a GPU."""

    def __init__(self, make: Callable[[], Trainer], device: torch.device) -> None:
        if device.type != "cuda":
            raise Unsupported("cuda_graph needs a GPU; this rank has a CPU")
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.inner = make()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.inner.keep_gradients = True
        self.model, self.accumulate = self.inner.model, self.inner.accumulate
        self.optimizer, self.scaler = self.inner.optimizer, self.inner.scaler
        self.passes: dict[bool, Pass] = {}

    def record(self, batch: Batch) -> None:
        """Both kinds of pass, the step's last and the ones before; what the warm-up did to buffers is undone."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        fixed, pool = {name: tensor.clone() for name, tensor in batch.items()}, torch.cuda.graph_pool_handle()
        self.stream.wait_stream(torch.cuda.current_stream())
        for last in (True, False)[: 2 if self.accumulate > 1 else 1]:
            self.passes[last] = Pass(self.inner, fixed, self.stream, pool, last=last)
        torch.cuda.current_stream().wait_stream(self.stream)
        for buffer, before in buffers:
            buffer.copy_(before)
        self.inner.optimizer.zero_grad(set_to_none=False)

    def micro_batches(self, batches: Iterable[Batch], tracer: Tracer, spoil: Spoil) -> list[torch.Tensor]:
        losses = []
        for micro, batch in enumerate(batches):
            if not self.passes:
                self.record(batch)
            recorded = self.passes[micro == self.accumulate - 1]
            with tracer.range("forward"):
                loss = spoil(recorded.forward(batch))
            with tracer.range("backward"):
                recorded.backward()
            losses.append(loss)
        return losses

    def step(self) -> None:
        self.inner.step()

    def close(self) -> None:
        """NCCL waits for recorded collectives when it ends."""
        torch.cuda.synchronize()
        for recorded in self.passes.values():
            for graph in recorded.graphs:
                graph.reset()
        self.passes.clear()
