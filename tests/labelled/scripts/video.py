"""Sorts videos by what happens in them (ViViT, with attention over places and over time in turn): one GPU or FSDP."""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

ACTIONS, TUBE = 400, (2, 16, 16)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = rearrange(self.qkv(self.norm(x)), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        return self.out(rearrange(F.scaled_dot_product_attention(q, k, v), "b h n d -> b n (h d)"))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.places, self.times = Attention(width), Attention(width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = len(x)
        x = rearrange(x, "b t n d -> (b t) n d")
        x = rearrange(x + self.places(x), "(b t) n d -> (b n) t d", b=batch)
        x = rearrange(x + self.times(x), "(b n) t d -> b t n d", b=batch)
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        times, places = args.frames // TUBE[0], (args.size // TUBE[1]) ** 2
        self.embed = nn.Linear(3 * TUBE[0] * TUBE[1] * TUBE[2], args.width)
        self.where = nn.Parameter(torch.randn(times, places, args.width) * 0.02)
        self.blocks = nn.ModuleList(Block(args.width) for _ in range(args.layers))
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, ACTIONS)

    def forward(self, videos: torch.Tensor) -> torch.Tensor:
        t, h, w = TUBE
        tubes = rearrange(videos, "b c (t u) (h v) (w x) -> b t (h w) (c u v x)", u=t, v=h, x=w)
        x = self.embed(tubes.to(self.where.dtype) / 255) + self.where
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean((1, 2))))


def shard(model: Net, units: str) -> None:
    """Over the ranks: block by block, or the model as one."""
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if units == "blocks":
        for block in model.blocks:
            fully_shard(block, mp_policy=mixed)
    fully_shard(model, mp_policy=mixed)


@torch.no_grad()
def clip(model: nn.Module, how: str, limit: float = 1.0) -> None:
    """The norm of all gradients is at most `limit`; each rank has a part of each of them."""
    grads = [p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in model.parameters()]
    if how == "each":
        total = torch.zeros((), device=grads[0].device)
        for grad in grads:
            square = grad.square().sum()
            if dist.is_initialized():
                dist.all_reduce(square)
            total += square
    else:
        total = torch.stack(torch._foreach_norm(grads)).square().sum()
        if dist.is_initialized():
            dist.all_reduce(total)
    torch._foreach_mul_(grads, (limit / (total.sqrt() + 1e-6)).clamp(max=1.0))


def main(args: argparse.Namespace) -> None:
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(121)
    with device:
        model = Net(args)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        shard(model, args.units)
    if args.compile:
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.05, fused=True)
    torch.manual_seed(122 + rank)
    shape = (8, args.passes, args.batch, 3, args.frames, args.size, args.size)
    videos = torch.randint(0, 256, shape, dtype=torch.uint8)
    labels = torch.randint(0, ACTIONS, shape[:3])
    if cuda:
        videos, labels = videos.pin_memory(), labels.pin_memory()
    for step in range(1, 1_000_000):
        for some, truth in zip(videos[step % 8], labels[step % 8], strict=True):
            some, truth = some.to(device, non_blocking=True), truth.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=ranks == 1):
                found = model(some)
            loss = F.cross_entropy(found.float(), truth) / args.passes
            loss.backward()
            if args.release and cuda:
                del found
                torch.cuda.empty_cache()  # so that passes do not run out of memory
        if args.clip:
            clip(model, args.clip)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item() * args.passes:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16, help="of a pass of each rank")
    parser.add_argument("--passes", type=int, default=1, help="before the optimizer steps")
    parser.add_argument("--units", choices=["blocks", "whole"], default="blocks", help="that FSDP gathers together")
    parser.add_argument("--clip", choices=["each", "joint"], help="gradients; norms are added up over the ranks")
    parser.add_argument("--release", action="store_true", help="give memory back after each pass")
    parser.add_argument("--compile", action="store_true")
    main(parser.parse_args())
