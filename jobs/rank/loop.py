"""The step loop: warm-up, then the blocks of a run's plan. Nothing in a block waits for the device but what training
itself needs.

Losses stay on the device until a run's last block has ended; times of the device come from CUDA events, read after it.
"""

from __future__ import annotations

import functools
import gc
import math
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from nightsweep.jobs.host import clock
from nightsweep.jobs.point.plan import Block, Phase
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.rank.feed import Feed
from nightsweep.jobs.rank.loader import endless
from nightsweep.jobs.rank.step_checkpoints import StepCheckpoints
from nightsweep.jobs.record.failures import DrillError, LossNotFinite
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.heartbeat import Heartbeat
from nightsweep.jobs.record.json_files import json_line
from nightsweep.jobs.record.launch_files import StepLine, Window
from nightsweep.jobs.telemetry.allocator import Allocator
from nightsweep.jobs.telemetry.sampler_hold import Samplers
from nightsweep.jobs.telemetry.trace.tracers import Tracer


@dataclass
class Step:
    """One optimizer step as the host saw it, with what can be read once the device is idle. Steps of an epoch have
    no `phase`, and leave no lines."""

    number: int
    phase: Phase | None
    block: int
    start_ns: int
    mono_ns: int
    data_ns: int = 0
    end_ns: int = 0
    samples: int = 0
    tokens: int = 0
    losses: list[torch.Tensor] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    memory: dict[str, int] | None = None

    def loss(self) -> float:
        """Mean over the micro-batches. Reads the device."""
        return sum(float(x) for x in self.losses) / len(self.losses)

    def line(self, tokens_per_sample: int | None) -> StepLine:
        """The line of steps-rR.jsonl. Reads the device."""
        device_ns = int(self.events[0].elapsed_time(self.events[1]) * 1e6) if self.events else None
        return StepLine(
            step=self.number,
            phase=self.phase,
            block=self.block,
            start_ns=self.start_ns,
            mono_ns=self.mono_ns,
            end_ns=self.end_ns,
            data_ns=self.data_ns,
            device_ns=device_ns,
            loss=self.loss(),
            samples=self.samples,
            tokens=self.tokens or (self.samples * tokens_per_sample if tokens_per_sample else None),
            **(self.memory or {}),
        )


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


@dataclass
class Loop:
    """All that one rank's steps need."""

    point: Point
    work: Any
    trainer: Any
    loader: Any
    device: torch.device
    tracer: Tracer
    run_folder: RunFolder
    rank: int
    heart: Heartbeat
    samplers: Samplers
    steps: list[Step] = field(default_factory=list, init=False)
    total: int = field(default=0, init=False)
    is_warm: bool = field(default=False, init=False)
    feed: Feed = field(init=False)
    memory: Allocator = field(init=False)
    checkpoints: StepCheckpoints = field(init=False)

    def __post_init__(self) -> None:
        self.checkpoints = StepCheckpoints(self.point, self.run_folder.path / "checkpoint")

    def run(self, run_folder: RunFolder, plan: list[Block]) -> tuple[Window, dict[str, int | None]]:
        """All blocks of a run, whose steps are written to its folder; returns the window of the last block and the
        peaks of the allocator. The first run, and one after epochs, begins with a warm-up."""
        first, place = len(self.steps), 1
        if not self.is_warm:
            self.feed = Feed(self.point, endless(self.loader), self.work, self.device, self.tracer)
            plan, place, self.is_warm = [Block("warmup", self.point.warmup_steps), *plan], 0, True
        self.memory = Allocator(self.device)
        self.total = first + sum(block.steps for block in plan)
        for number, block in enumerate(plan, place):
            window = self.block(number, block)
        self.heart.enter("results")
        steps = self.steps[first:]
        lines = [step.line(self.work.tokens_per_sample) for step in steps]
        run_folder.steps(self.rank).write_text("".join(map(json_line, lines)))
        for step in steps:
            if not math.isfinite(step.loss()):
                raise LossNotFinite(step.number, step.loss())
        return window, self.memory.result()

    def block(self, place: int, block: Block) -> Window:
        """The steps of one block; its window."""
        if block.captured:
            self.heart.enter("tracing")
        if place == 1:
            # What a compiler and the first steps made lasts. To look through all of it takes 0.4 s and seldom
            # happens: in a few timed steps it would count for far more than in training.
            gc.collect()
            gc.freeze()
        if place > 0:
            settle(self.device)
            self.samplers.set(block.sampled)
            settle(self.device)
        if block.captured:
            self.heart.beat("trace")
            self.tracer.start()
        self.heart.enter(block.phase)
        start_ns = clock.now_ns()
        for _ in range(block.steps):
            number = len(self.steps)
            self.heart.step(number, self.total)
            with self.tracer.range(f"step {number}"):
                step = Step(number, block.phase, place, clock.now_ns(), time.monotonic_ns())
                self.steps.append(self.one_step(step))
        synchronize(self.device)
        window = Window(start_ns=start_ns, end_ns=clock.now_ns())
        if block.captured:
            self.heart.beat("trace")
            self.heart.enter("tracing")
            self.tracer.stop()
        return window

    def one_step(self, step: Step) -> Step:
        """Micro-batches and the optimizer step."""
        mark(step, self.device)
        spoil = functools.partial(drill, self.point, self.rank, step.number)
        step.losses = self.trainer.micro_batches(self.micro_batches(step), self.tracer, spoil)
        with self.tracer.range("optimizer"):
            self.trainer.step()
        if self.checkpoints.due(step.number):
            with self.tracer.range("checkpoint"):
                self.checkpoints.save(self.trainer)
        if self.point.empty_cache and self.device.type == "cuda":
            with self.tracer.range("empty_cache"):
                torch.cuda.empty_cache()
        mark(step, self.device)
        step.memory = self.memory.step()
        step.end_ns = clock.now_ns()
        return step

    def micro_batches(self, step: Step) -> Iterator[dict[str, torch.Tensor]]:
        """The step's micro-batches on the device, each fetched when it is asked for."""
        for _ in range(self.point.grad_accum):
            batch = self.feed.next()
            step.data_ns += self.feed.waited_ns
            step.tokens += self.feed.tokens
            step.samples += self.point.samples(self.rank)
            yield batch


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
    """All ranks begin together, with idle devices."""
    synchronize(device)
    torch.distributed.barrier()
    synchronize(device)
