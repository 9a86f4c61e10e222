"""Forecasts the weather with a Fourier neural operator: from fields on a grid to those of six hours later."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from einops.layers.torch import Rearrange
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Spectral(nn.Module):
    """A convolution over the whole globe: its lowest waves, each times a matrix."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        # Real and imaginary part, as the optimizer and the ranks want it.
        self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves, modes = torch.fft.rfft2(x, norm="ortho"), self.modes
        north, south = torch.view_as_complex(self.weight)
        made = torch.zeros_like(waves)
        made[..., :modes, :modes] = torch.einsum("bixy,ioxy->boxy", waves[..., :modes, :modes], north)
        made[..., -modes:, :modes] = torch.einsum("bixy,ioxy->boxy", waves[..., -modes:, :modes], south)
        return torch.fft.irfft2(made, s=x.shape[-2:], norm="ortho")


class Block(nn.Module):
    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.spectral, self.own = Spectral(width, modes), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.spectral(x) + self.own(x))


class Operator(nn.Module):
    def __init__(self, opt: argparse.Namespace) -> None:
        super().__init__()
        self.enter = nn.Conv2d(opt.variables, opt.width, 1)
        self.blocks = nn.Sequential(*(Block(opt.width, opt.modes) for _ in range(opt.blocks)))
        self.leave = nn.Sequential(
            Rearrange("b c h w -> b h w c"), nn.Linear(opt.width, opt.variables), Rearrange("b h w c -> b c h w")
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.leave(self.blocks(self.enter(x)))


def as_it_comes(batches: torch.Tensor, device: torch.device) -> Iterator[Batch]:
    """Each batch, copied when it is its turn."""
    while True:
        for before, after in batches:
            yield before.to(device, non_blocking=True), after.to(device, non_blocking=True)


def ahead(batches: torch.Tensor, device: torch.device) -> Iterator[Batch]:
    """Each batch, copied on another stream while the one before is trained on."""
    side, coming = torch.cuda.Stream(), None
    while True:
        for batch in batches:
            with torch.cuda.stream(side):
                following = batch.to(device, non_blocking=True)
            if coming is not None:
                yield coming[0], coming[1]
            torch.cuda.current_stream().wait_stream(side)
            following.record_stream(torch.cuda.current_stream())
            coming = following


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variables", type=int, default=20, help="temperature, wind, ... at some heights")
    parser.add_argument("--grid", type=int, nargs=2, default=[180, 360], help="latitudes and longitudes")
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--modes", type=int, default=24, help="waves that are kept, in each direction")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--no-pin", action="store_true", help="batches lie in ordinary memory")
    parser.add_argument("--ahead", action="store_true", help="copy the next batch while this one is trained on")
    parser.add_argument("--save-every", type=int, default=0, help="steps between checkpoints")
    parser.add_argument("--out", type=Path, default=Path(), help="where checkpoints go")
    opt = parser.parse_args()
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(91)
    with device:
        model = operator = Operator(opt)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = nn.parallel.DistributedDataParallel(
            operator, device_ids=[local] if cuda else None, gradient_as_bucket_view=True
        )
    optimizer = torch.optim.AdamW(operator.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(92 + rank)
    batches = torch.randn(4, 2, opt.batch, opt.variables, *opt.grid)
    if cuda and not opt.no_pin:
        batches = batches.pin_memory()
    # Rows count less the closer they are to a pole.
    latitudes = torch.linspace(-90, 90, opt.grid[0] + 2, device=device)[1:-1].deg2rad().cos()
    weights = (latitudes / latitudes.mean())[:, None]
    feed = ahead if opt.ahead and cuda else as_it_comes
    for step, (before, after) in enumerate(feed(batches, device), 1):
        loss = ((model(before) - after).square() * weights).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if opt.save_every and rank == 0 and step % opt.save_every == 0:
            state = {"step": step, "model": operator.state_dict(), "optimizer": optimizer.state_dict()}
            opt.out.mkdir(parents=True, exist_ok=True)
            torch.save(state, opt.out / "last.pt")
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
