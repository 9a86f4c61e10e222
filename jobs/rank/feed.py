"""The way of a batch from the loader to the device, between the ranges `data` (the wait for the loader) and `h2d` (the
copy, and what is prepared on the device)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.telemetry.trace.tracers import Tracer
from nightsweep.jobs.workloads.base import Work

Batch = dict[str, torch.Tensor]


class Feed:
    """Gives batches on the device. With `device_prefetch` the next one is copied on a stream of its own while this one
    is trained on."""

    def __init__(
        self, point: Point, batches: Iterator[Batch], work: Work, device: torch.device, tracer: Tracer
    ) -> None:
        self.point, self.batches, self.work, self.device, self.tracer = point, batches, work, device, tracer
        self.whole = {"fp64": torch.float64, "bf16_pure": torch.bfloat16}.get(point.precision)
        self.side = torch.cuda.Stream(device) if point.device_prefetch and device.type == "cuda" else None
        self.ahead: tuple[Batch, int] | None = None
        self.waited_ns = 0
        self.tokens = 0

    def next(self) -> Batch:
        """The next batch. Raises StopIteration at the end of the batches. `waited_ns`: how long the loader took;
        `tokens`: those of the batch that are not padding, where the work counts them."""
        self.waited_ns = 0
        if not self.point.device_prefetch:
            batch, self.tokens = self.move(self.next_batch())
            return batch
        if self.ahead is None:
            self.fetch()
        if self.ahead is None:
            raise StopIteration
        batch, self.tokens = self.ahead
        if self.side is not None:
            main = torch.cuda.current_stream(self.device)
            main.wait_stream(self.side)
            for value in batch.values():
                value.record_stream(main)  # made on the side stream: its memory must outlive its use on this one
        self.ahead = None
        self.fetch()
        return batch

    def fetch(self) -> None:
        """Begin the copy of the next batch; none at the end."""
        try:
            batch = self.next_batch()
        except StopIteration:
            return
        with torch.cuda.stream(self.side):
            self.ahead = self.move(batch)

    def next_batch(self) -> Batch:
        """A batch of the loader."""
        with self.tracer.range("data"):
            began = time.perf_counter_ns()
            try:
                return next(self.batches)
            finally:
                self.waited_ns += time.perf_counter_ns() - began

    def move(self, batch: Batch) -> tuple[Batch, int]:
        """The batch on the device, prepared, and its tokens."""
        tokens = self.work.tokens(batch) if self.work.tokens else 0
        with self.tracer.range("h2d"):
            batch = {k: v.to(self.device, non_blocking=self.point.non_blocking) for k, v in batch.items()}
            # Before, so that what is prepared is computed in it; after, for what came as bytes.
            return self.cast(self.work.prepare(self.cast(batch))), tokens

    def cast(self, batch: Batch) -> Batch:
        """The batch in the format of a model that has no other."""
        if self.whole is None:
            return batch
        return {k: v.to(self.whole) if v.is_floating_point() else v for k, v in batch.items()}
