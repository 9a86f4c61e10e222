"""The way of a batch from the loader to the device, between the ranges `data` (the wait for the loader) and `h2d` (the
copy, and what is prepared on the device)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from jobs.point import Point
from jobs.telemetry.trace import Tracer

Batch = dict[str, torch.Tensor]


class Feed:
    """Gives batches on the device. With `device_prefetch` the next one is copied on a stream of its own while this one
    is trained on."""

    def __init__(
        self, point: Point, batches: Iterator[Batch], prepare: Callable[[Batch], Batch], device: torch.device,
        tracer: Tracer,
    ) -> None:  # fmt: skip
        self.point, self.batches, self.prepare, self.device, self.tracer = point, batches, prepare, device, tracer
        self.side = torch.cuda.Stream(device) if point.device_prefetch and device.type == "cuda" else None
        self.ahead: Batch | None = None
        self.waited_ns = 0

    def next(self) -> Batch:
        """The next batch. Raises StopIteration at the end of the batches. `waited_ns`: how long the loader took."""
        self.waited_ns = 0
        if not self.point.device_prefetch:
            return self.moved(self.asked())
        if self.ahead is None:
            self.fetch()
        batch = self.ahead
        if batch is None:
            raise StopIteration
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
            batch = self.asked()
        except StopIteration:
            return
        with torch.cuda.stream(self.side):
            self.ahead = self.moved(batch)

    def asked(self) -> Batch:
        """A batch of the loader."""
        with self.tracer.range("data"):
            began = time.perf_counter_ns()
            try:
                return next(self.batches)
            finally:
                self.waited_ns += time.perf_counter_ns() - began

    def moved(self, batch: Batch) -> Batch:
        """The batch on the device, prepared."""
        with self.tracer.range("h2d"):
            batch = {k: v.to(self.device, non_blocking=self.point.non_blocking) for k, v in batch.items()}
            if self.point.precision == "fp64":
                batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
            return self.prepare(batch)
