"""The steps of a script: where one ends and the next begins, and what is done at the ends of blocks of them.

A mark ends a step and begins the next one, so that times have no gaps. Marks come from several sources at once, and the
best one counts: the script's own calls, DeepSpeed's engine, and the optimizer of any script that trains with PyTorch.
Where none of these is, PyTorch's profiler and NVTX ranges named like steps do: scripts often profile a few steps only,
or one rank, or evaluation, too.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..host import clock
from ..record.folder import RunFolder
from ..record.heartbeat import Heartbeat
from . import probe
from .claim import Claim
from .forward import Calls
from .outcome import wait_for_outcomes, write_outcome
from .step import Step

SOURCES = ("call", "engine", "optimizer", "profiler", "range")
"""Where marks come from, the best first."""
LEAST_TIMED = 2
"""Steps without which a script that ended early has no times of steps."""
PROBED = 2
"""Steps left of the warm-up when one is looked at closely: another one comes before those that are measured."""


class Watch:
    """Counts this process's steps, runs the blocks of the order and writes what came of it."""

    def __init__(self, run_folder: RunFolder, order: dict[str, Any], rank: int) -> None:
        self.run_folder, self.order, self.rank = run_folder, order, rank
        self.settings = order["settings"]
        self.seed = self.settings["seed"] + self.settings["repeat"]
        self.pid = os.getpid()
        warmup = {"phase": "warmup", "steps": self.settings["warmup_steps"], "sampled": True, "captured": False}
        self.blocks: list[dict[str, Any]] = [warmup, *order["blocks"]]
        self.block = 0
        self.left = self.blocks[0]["steps"]
        self.steps: list[Step] = []
        self.written = 0
        self.current: Step | None = None
        self.source: str | None = None
        self.over = False
        self.second = False  # another process that is alive trains as this rank, and came first
        self.claim = Claim()
        self.late: str | None = None
        self.sees_ends = False
        self.in_backward: Callable[[], bool] = lambda: False
        self.capturing = False
        self.window: dict[str, int] | None = None
        self.notes: list[str] = []
        self.loader_workers: int | None = None
        self.places: dict[str, dict[str, int]] = {}
        self.trainable: dict[int, int] = {}
        self.weights_layout: str | None = None
        self.heart: Heartbeat | None = None
        self.synchronize: Callable[..., None] = lambda _: None
        self.rearm: Callable[[], None] = lambda: None
        self.begin_graphs: Callable[[], None] = lambda: None
        self.device: Any = None  # its GPU; None where it has not begun CUDA
        self.allocator: Any = None
        self.samplers: Any = None
        self.tracer: Any = None
        self.range: Any = None
        self.probing: Callable[[], None] | None = None
        self.calls = Calls(self)
        self.once_known: list[Callable[[], None]] = []  # after the first whole step
        atexit.register(self.at_exit)

    @property
    def number(self) -> int | None:
        """The step that the script is in; None before the first one that is known."""
        return self.current.number if self.current else None

    @property
    def bare(self) -> bool:
        """Whether nothing but the ends of steps is to be looked at: the control asks what the rest costs."""
        return bool(self.blocks[self.block]["phase"] == "none")

    @property
    def folder(self) -> RunFolder:
        """That of the run which is under way: traced steps that follow timed ones are a run with its own."""
        return self.run_folder.traced if self.blocks[self.block]["phase"] == "traced" else self.run_folder

    @property
    def is_last(self) -> bool:
        """Whether this block is the last one of its run."""
        return self.block > 0 and all(block["phase"] == "traced" for block in self.blocks[self.block + 1 :])

    def is_own(self) -> bool:
        """Whether this is the process that is watched, and not one that it forked."""
        return not self.over and self.pid == os.getpid()

    def beat(self, phase: str) -> None:
        """The script has come to this place."""
        if self.second and self.heart is not None:
            self.heart.pulse()  # nothing else, for it is the first process's
            return
        if not self.is_own() or self.current is not None:
            return
        if self.heart is None:
            self.heart = Heartbeat(self.run_folder.rank_file(self.rank, "heartbeat"))
        self.heart.beat(phase)
        self.rearm()

    def _enter(self, phase: str, place: str | None = None) -> None:
        """A phase begins, and where it is worth a sign of life, a place."""
        if self.heart is not None:
            self.heart.enter(phase)
            if place:
                self.heart.beat(place)

    def mark(self, source: str) -> None:
        """A step ends and the next one begins."""
        if source == self.source and not self.trainable:  # else the optimizers tell (jobs/hook/optimizers.py)
            self.begin_graphs()
        if not self.is_own():
            return
        # A step within a backward pass, as hooks of weights take them, ends with the pass: a profiler that begins in
        # one pass and stops in another crashes. A second one where no end was ever seen says that none will be.
        if self.in_backward():
            if self.late is None or self.sees_ends:
                self.late = source
                return
            self.in_backward = lambda: False
        self.late = None
        try:
            self._mark(source)
        except Exception as error:  # the script must go on
            self.over = True
            self._give_up(error)

    def backward_ended(self) -> None:
        """A backward pass is over, but for one within another."""
        self.sees_ends = True
        if self.late is not None and not self.in_backward():
            self.mark(self.late)

    def _give_up(self, error: Exception) -> None:
        """Say why there is no result, which the script itself is not to blame for."""
        why = f"steps are no longer watched: {type(error).__name__}: {error}"
        print(f"nightsweep: {why}", file=sys.stderr)
        self._leave_few(why)

    def _leave_few(self, why: str | None = None) -> None:
        """The steps so far, with the one that began with the last mark, are no result."""
        found = {"steps": len(self.steps) + 1, "source": self.source, "why": why}
        with contextlib.suppress(OSError):
            self.run_folder.rank_file(self.rank, "few.json").write_text(json.dumps(found))

    def _mark(self, source: str) -> None:
        if self.second:
            last = self.run_folder.traced if self.blocks[-1]["phase"] == "traced" else self.run_folder
            if last.rank_file(self.rank, "result.json").exists():
                self.finish()
            elif self.heart is not None:
                self.heart.pulse()
            return
        if self.source is None:
            self._begin()
        if source != self.source:
            known = self.source is not None
            if known and (SOURCES.index(source) > SOURCES.index(str(self.source)) or self.block > 0):
                return
            # A better one; its warm-up begins anew.
            self.source, self.current, self.steps = source, None, []
            self.left = self.blocks[0]["steps"]
        if self.current is not None:
            self._close(self.current)
            if self.once_known:
                for change in self.once_known:
                    change()
                self.once_known, self.left = [], max(1, self.left)  # what is compiled now is not timed
        if self.left == 0:
            if self.block == 0 and not self.claim.is_first(self.run_folder, self.rank):
                self.second, self.current = True, None
                return
            self._next_block()
            if self.over:
                return
        self._open()

    def _begin(self) -> None:
        """With the first mark. Torch, which takes seconds, is loaded for no script that has not loaded it itself."""
        from ..telemetry.sampler_hold import Samplers

        torch = sys.modules.get("torch")
        if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
            self.rank = torch.distributed.get_rank()
        if self.heart is None or self.heart.path != self.run_folder.rank_file(self.rank, "heartbeat"):
            self.heart = Heartbeat(self.run_folder.rank_file(self.rank, "heartbeat"))
        if torch and torch.cuda.is_available() and torch.cuda.is_initialized():
            from ..telemetry.allocator import Allocator

            self.device = torch.device("cuda", torch.cuda.current_device())
            self.allocator = Allocator(self.device, resets=False)
        self.heart.enter("warmup")
        self.samplers = Samplers(self.run_folder, int(os.environ.get("LOCAL_RANK", "0")))
        if any(block["captured"] for block in self.blocks):
            from ..telemetry.trace.tracers import make_tracer

            traced = self.order["tracer"] if self.rank in self.order["traced_ranks"] else "none"
            self.tracer = make_tracer(traced, self.run_folder, self.rank, deep=self.settings["trace_preset"] == "deep")

    def _open(self) -> None:
        number = len(self.steps)
        if self.heart is not None:
            beaten = self.heart.last
            self.heart.step(number, sum(block["steps"] for block in self.blocks))
            if self.heart.last != beaten:
                self.rearm()
        if self.capturing:
            self.range = self.tracer.open(f"step {number}")
        # A look at a step that was dropped goes on until the next one ends.
        if self.device and self.block == 0 and self.left == PROBED and self.probing is None:
            self.probing = probe.begin(self)
        phase = self.blocks[self.block]["phase"]
        self.current = Step(number, phase, self.block, clock.now_ns(), time.monotonic_ns())
        self._event(self.current)

    def drop_step(self, source: str, why: str) -> None:
        """What has passed since this source's last mark is no step. The first time, and up to the end of the first
        block, what was before is not counted either, and the warm-up begins anew: the script came to another phase."""
        if not self.is_own() or self.source != source:
            return
        if self.range is not None:
            self.range()
        self.current = self.range = None
        if why not in self.notes and self.block <= 1 and not self.capturing:
            self.block, self.steps, self.left = 0, [], self.blocks[0]["steps"]
        self.notes.append(why)

    def _close(self, step: Step) -> None:
        if self.probing is not None:
            self.probing()
            self.probing = None
        self._event(step)
        step.end_ns = clock.now_ns()
        if self.allocator and not self.bare:
            step.memory = self.allocator.step()
        if self.range is not None:
            self.range()
            self.range = None
        self.steps.append(step)
        self.left -= 1

    def _event(self, step: Step) -> None:
        if self.device:
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            step.events.append(event)

    def _synchronize(self) -> None:
        if self.device:
            self.synchronize(self.device)

    def _next_block(self) -> None:
        self._synchronize()
        if self.block > 0 and self.window is not None:
            self.window["end_ns"] = clock.now_ns()
        if self.capturing:
            self.capturing = False
            self._enter("tracing", "trace")
            self.tracer.stop()
            self.calls.unmark()
        if self.is_last:
            self._enter("results")
            write_outcome(self)
        if self.block + 1 == len(self.blocks):
            self.finish()
            return
        self.block += 1
        block = self.blocks[self.block]
        self.left = block["steps"]
        self.folder.path.mkdir(exist_ok=True)
        self.samplers.set(block["sampled"])
        if block["captured"]:
            self._enter("tracing", "trace")
            self.tracer.start()
            self.capturing = True
            self.calls.mark()
        self._enter(block["phase"])
        self.window = {"start_ns": clock.now_ns(), "end_ns": 0}

    def finish(self) -> None:
        """All blocks are done and written: end the script unless it is to run to its own end."""
        self.over = True
        if self.settings["run_to_end"]:
            self._enter("rest")
            return
        self._enter("teardown", "end")
        wait_for_outcomes(self.folder, self.run_folder)
        sys.stdout.flush()
        sys.stderr.flush()
        # No orderly end: a script's last lines would evaluate, save and talk to ranks that are gone.
        os._exit(0)

    def at_exit(self) -> None:
        """The script ended before all blocks were done: what there is of a run's last one counts if it is enough."""
        if not self.is_own() or self.source is None or self.second:
            return
        self.over = True
        try:
            if self.capturing:
                self._synchronize()
                self.tracer.stop()
            block = self.blocks[self.block]
            done = block["steps"] - self.left if self.block else 0
            if self.is_last and done >= LEAST_TIMED:
                self.notes.append(f"the script ended after {done} of {block['steps']} steps")
                if self.window is not None:
                    self.window["end_ns"] = self.steps[-1].end_ns
                write_outcome(self)
            else:
                self._leave_few()
        except Exception as error:
            self._give_up(error)

    def spanned(self, name: str) -> AbstractContextManager[Any]:
        """A range of the trace, while one is taken."""
        return self.tracer.range(name) if self.capturing else contextlib.nullcontext()  # type: ignore[no-any-return]

    def found_place(self, what: str) -> None:
        """Count the line of the script that does this now."""
        place = probe.script_line()
        if place:
            found = self.places.setdefault(what, {})
            found[place] = found.get(place, 0) + 1
