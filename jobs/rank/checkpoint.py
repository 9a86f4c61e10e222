"""What training needs to go on where it stood: weights, buffers, optimizer, loss scaler and random numbers.

    POINT/checkpoint/epoch-K/rankR.pt, rows.json

Each rank keeps what it holds, so a sharded model is kept in shards. A folder gets its name when all ranks have written;
the one before it is deleted then. Restoring is in place: the tensors that compiled code or a CUDA graph knows stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nightsweep.jobs.record.json_files import load_json, write_json
from nightsweep.jobs.record.launch_files import EpochLine


def local(value: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor; it shares the memory."""
    to_local: Any = getattr(value, "to_local", None)  # of a DTensor, slow to import to ask
    return to_local() if to_local else value


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def state_of(trainer: Any, device: torch.device) -> dict[str, Any]:
    """All that `restore` takes, on the CPU."""

    def kept(value: Any) -> Any:
        return local(value.detach()).cpu().clone() if isinstance(value, torch.Tensor) else value

    return {
        "model": {name: kept(value) for name, value in trainer.model.state_dict().items()},
        "optimizer": [
            {name: kept(value) for name, value in trainer.optimizer.state[p].items()}
            for p in parameters(trainer.optimizer)
        ],
        "scaler": trainer.scaler.state_dict(),
        "random": torch.get_rng_state(),
        "random_device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


@torch.no_grad()
def restore(trainer: Any, device: torch.device, state: dict[str, Any]) -> None:
    """Put a state back. Raises KeyError or RuntimeError where it is of another model."""
    live = trainer.model.state_dict()
    for name, value in state["model"].items():
        local(live[name]).copy_(value)
    for parameter, kept in zip(parameters(trainer.optimizer), state["optimizer"], strict=True):
        own = trainer.optimizer.state[parameter]
        for name, value in kept.items():
            if isinstance(own.get(name), torch.Tensor):
                local(own[name]).copy_(value)
            else:
                own[name] = value
    trainer.scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(state["random"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["random_device"], device)


class Checkpoints:
    """The checkpoints of a point; all ranks `load` and `save` at once. `attempt`: a name that no other attempt has."""

    def __init__(self, folder: Path, attempt: str, rank: int) -> None:
        self.folder, self.attempt, self.rank = folder, attempt, rank

    def load(self, trainer: Any, device: torch.device) -> list[EpochLine]:
        """Restore the last one; its epochs, or none where there is no checkpoint."""
        last: list[Any] = [self.last() if self.rank == 0 else None]
        dist.broadcast_object_list(last, src=0, device=device)
        if last[0] is None:
            return []
        path = self.folder / last[0]
        restore(trainer, device, torch.load(path / f"rank{self.rank}.pt", map_location="cpu", weights_only=True))
        return load_json(path / "rows.json", list[EpochLine])

    def last(self) -> str | None:
        """Name of the last whole checkpoint."""
        found = [path.name for path in self.folder.glob("epoch-*")]
        return max(found, key=lambda name: int(name.partition("-")[2]), default=None)

    def save(self, rows: list[EpochLine], trainer: Any, device: torch.device) -> None:
        """Keep the state after the epoch of the last row."""
        scratch = self.folder / f".{self.attempt}"
        scratch.mkdir(parents=True, exist_ok=True)
        torch.save(state_of(trainer, device), scratch / f"rank{self.rank}.pt")
        dist.barrier()
        if self.rank == 0:
            write_json(scratch / "rows.json", rows)
            final = self.folder / f"epoch-{rows[-1].epoch}"
            # ranks of a lost node may still be at it, and have come as far
            shutil.rmtree(final, ignore_errors=True)
            scratch.rename(final)
            for old in self.folder.glob("epoch-*"):
                if old != final:
                    shutil.rmtree(old)
        dist.barrier()
