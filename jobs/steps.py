"""The step loop: warm-up, then the window. Nothing in the window waits for the device but what training itself needs.

Losses stay on the device until the window has ended; times of the device come from CUDA events, read afterwards.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from jobs.data import endless
from jobs.failures import DrillError, LossNotFinite
from jobs.heartbeat import Heartbeat
from jobs.look import Look
from jobs.point import Point
from jobs.telemetry.trace import Tracer


@dataclass
class Step:
    """One optimizer step as the host saw it, with what can be read once the device is idle."""

    number: int
    phase: str
    start_ns: int
    data_ns: int = 0
    end_ns: int = 0
    samples: int = 0
    losses: list[torch.Tensor] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    def row(self, tokens_per_sample: int | None) -> dict[str, Any]:
        """The line of steps-rR.jsonl. Reads the device."""
        device_ns = int(self.events[0].elapsed_time(self.events[1]) * 1e6) if self.events else None
        return {
            "step": self.number,
            "phase": self.phase,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "data_ns": self.data_ns,
            "device_ns": device_ns,
            "loss": sum(float(x) for x in self.losses) / len(self.losses),
            "samples": self.samples,
            "tokens": self.samples * tokens_per_sample if tokens_per_sample else None,
        }


def drill(point: Point, rank: int, step: int, loss: torch.Tensor) -> torch.Tensor:
    """The point's fault, when its rank and step have come."""
    if point.fault is None or point.fault.split("@")[1] != f"rank{rank}:step{step}":
        return loss
    kind = point.fault.split("@")[0]
    if kind == "exception":
        raise DrillError(f"asked for by fault {point.fault}")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while kind == "hang":
        time.sleep(1)
    return loss * float("nan")


def run(
    point: Point,
    work: Any,
    trainer: Any,
    loader: Any,
    device: torch.device,
    tracer: Tracer,
    look: Look,
    rank: int,
    heart: Heartbeat,
) -> dict[str, int]:
    """All steps of the look; returns the window's start and end (UTC ns), the device idle at both."""
    batches = endless(loader)
    traced = look.kind == "traced"
    total = point.warmup_steps + (point.traced_steps if traced else point.timed_steps)
    steps: list[Step] = []
    window_start = 0
    for number in range(total):
        if number == point.warmup_steps:
            settle(device)
            tracer.start()
            window_start = time.time_ns()
        heart.beat(f"step {number}")
        phase = "warmup" if number < point.warmup_steps else "timed"
        with tracer.range(f"step {number}"):
            steps.append(
                one_step(point, work, trainer, batches, device, tracer, rank, Step(number, phase, time.time_ns()))
            )
    synchronize(device)
    window = {"start_ns": window_start, "end_ns": time.time_ns()}
    heart.beat("trace", force=True)
    tracer.stop()
    rows = [step.row(work.tokens_per_sample) for step in steps]
    if not traced:
        look.steps(rank).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        if not math.isfinite(row["loss"]):
            raise LossNotFinite(row["step"], row["loss"])
    return window


def one_step(
    point: Point, work: Any, trainer: Any, batches: Any, device: torch.device, tracer: Tracer, rank: int, step: Step
) -> Step:
    """Micro-batches and the optimizer step."""
    mark(step, device)
    for micro in range(point.grad_accum):
        with tracer.range("data"):
            asked = time.perf_counter_ns()
            batch = next(batches)
            step.data_ns += time.perf_counter_ns() - asked
        with tracer.range("h2d"):
            batch = {k: v.to(device, non_blocking=point.non_blocking) for k, v in batch.items()}
            if point.precision == "fp64":
                batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
            batch = work.prepare(batch)
        with tracer.range("forward"):
            loss = drill(point, rank, step.number, trainer.forward(batch))
        with tracer.range("backward"):
            trainer.backward(loss, last=micro == point.grad_accum - 1)
        step.losses.append(loss.detach())
        step.samples += point.micro_batch
    with tracer.range("optimizer"):
        trainer.step()
    mark(step, device)
    step.end_ns = time.time_ns()
    return step


def mark(step: Step, device: torch.device) -> None:
    """A point in time on the device's stream."""
    if device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        step.events.append(event)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def settle(device: torch.device) -> None:
    """All ranks begin the window together, with idle devices."""
    synchronize(device)
    torch.distributed.barrier()
    synchronize(device)
