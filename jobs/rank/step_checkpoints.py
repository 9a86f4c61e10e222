"""Periodic checkpoints, as a job that may be interrupted writes them: to measure what they cost."""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch.distributed as dist

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.strategies.base import Trainer


class StepCheckpoints:
    """Weights and optimizer state in `folder`, each checkpoint in place of the one before. All ranks call at once."""

    def __init__(self, point: Point, folder: Path) -> None:
        self.every, self.beside, self.folder = point.checkpoint_steps, point.checkpoint_async, folder
        self.under_way: Any = None
        if self.every:
            # On the CPU and apart: what a thread asks of ranks must not come between the collectives of steps.
            self.group = dist.new_group(backend="gloo")

    def due(self, step: int) -> bool:
        return self.every > 0 and (step + 1) % self.every == 0

    def save(self, trainer: Trainer) -> None:
        """Write the state, or have a thread write a copy of it once the one before is written."""
        from torch.distributed.checkpoint.state_dict import get_state_dict
        from torch.distributed.checkpoint.state_dict_saver import async_save, save

        self.wait()
        state = dict(zip(("model", "optimizer"), get_state_dict(trainer.model, trainer.optimizer), strict=True))
        found = (async_save if self.beside else save)(state, checkpoint_id=self.folder, process_group=self.group)
        self.under_way = found if isinstance(found, Future) else None

    def wait(self) -> None:
        """Until the last checkpoint is written. Raises what its writing did."""
        if self.under_way is not None:
            self.under_way.result()

    def close(self) -> None:
        """Delete the checkpoint, from which nothing goes on."""
        self.wait()
        if self.every:
            dist.barrier()
            if dist.get_rank() == 0:
                shutil.rmtree(self.folder, ignore_errors=True)
