"""Forecasts the weather of the globe with a transformer whose tokens attend within windows that are shifted in every
second layer; fields of many variables on a grid go in, and what they change by in six hours comes out."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, args, shift):
        super().__init__()
        self.heads, self.window = max(1, args.width // 128), args.window
        self.shift = [side // 2 for side in args.window] if shift else None
        self.first, self.second = nn.LayerNorm(args.width), nn.LayerNorm(args.width)
        self.mix, self.out = nn.Linear(args.width, 3 * args.width), nn.Linear(args.width, args.width)
        self.up, self.down = nn.Linear(args.width, 4 * args.width), nn.Linear(4 * args.width, args.width)

    def attend(self, x):
        (batch, high, wide, width), (tall, broad) = x.shape, self.window
        if self.shift:
            x = x.roll([-side for side in self.shift], (1, 2))
        x = x.view(batch, high // tall, tall, wide // broad, broad, width).transpose(2, 3)
        shape = x.shape
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.mix(x.reshape(-1, tall * broad, width)).chunk(3, -1)
        )
        x = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = self.out(x).view(shape).transpose(2, 3).reshape(batch, high, wide, width)
        return x.roll(self.shift, (1, 2)) if self.shift else x

    def forward(self, x):
        x = x + self.attend(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Forecaster(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.patch, self.variables, self.on_host = args.patch, args.variables, args.on_host
        inner = args.variables * args.patch**2
        self.enter, self.leave = nn.Linear(inner, args.width), nn.Linear(args.width, inner)
        self.places = nn.Parameter(torch.zeros(args.height // args.patch, args.wide // args.patch, args.width))
        self.blocks = nn.ModuleList(Block(args, place % 2 == 1) for place in range(args.layers))
        self.norm = nn.LayerNorm(args.width)

    def forward(self, fields):
        kind = self.enter.weight.dtype
        x = fields.to(kind).unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        x = self.enter(x.permute(0, 2, 4, 1, 3, 5).flatten(3)) + self.places
        for place, block in enumerate(self.blocks):
            if place < self.on_host:
                with torch.autograd.graph.save_on_cpu(pin_memory=x.is_cuda):
                    x = block(x)
            else:
                x = block(x)
        x = self.leave(self.norm(x)).unflatten(3, (self.variables, self.patch, self.patch))
        return x.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


class Ahead:
    """Batches in turn; where they are copied ahead, that is while the one before is worked on."""

    def __init__(self, batches, device, ahead):
        self.batches, self.device = batches, device
        self.stream = torch.cuda.Stream() if ahead and device.type == "cuda" else None

    def copied(self, place):
        return [part.to(self.device, non_blocking=True) for part in self.batches[place % len(self.batches)]]

    def __iter__(self):
        if not self.stream:
            for place in range(1_000_000):
                yield self.copied(place)
        coming = None
        for place in range(1_000_000):
            now = coming
            with torch.cuda.stream(self.stream):
                coming = self.copied(place)
            if now:
                yield now
            torch.cuda.current_stream().wait_stream(self.stream)
            for part in coming:
                part.record_stream(torch.cuda.current_stream())


def skill(found, right):
    """Of one forecast, for each variable: the error, and the correlation of what is unusual."""
    found, right = (part[0, :, ::4, ::2].float().cpu().numpy() for part in (found, right))
    error = np.sqrt(((found - right) ** 2).mean((1, 2)))
    found, right = (part - part.mean((1, 2), keepdims=True) for part in (found, right))
    return error, (found * right).mean((1, 2)) / (found.std((1, 2)) * right.std((1, 2)))


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(410)
    with device:
        model = Forecaster(args).to(torch.bfloat16)
        weights = torch.linspace(-1.5, 1.5, args.height).cos()[:, None]
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    torch.manual_seed(411 + rank)
    shape = (args.batch, args.variables, args.height, args.wide)
    batches = [[torch.randn(shape, device=device).cpu() for _ in range(2)] for _ in range(2)]
    if cuda and args.fields == "pinned":
        batches = [[part.pin_memory() for part in batch] for batch in batches]
    for step, (now, then) in enumerate(Ahead(batches, device, args.ahead), 1):
        found = model(now)
        loss = (weights * (now + found - then).square()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.skill_every and rank == 0 and step % args.skill_every == 0:
            _error, _likeness = skill(now + found.detach(), then)
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variables", type=int, default=80)
    parser.add_argument("--height", type=int, default=360, help="points from pole to pole")
    parser.add_argument("--wide", type=int, default=720, help="points around the globe")
    parser.add_argument("--patch", type=int, default=8)
    parser.add_argument("--window", type=int, nargs=2, default=[9, 15], help="in patches")
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4, help="of each rank")
    parser.add_argument("--fields", choices=["plain", "pinned"], default="pinned", help="memory they lie in")
    parser.add_argument("--ahead", action="store_true", help="copy a batch while the one before is worked on")
    parser.add_argument("--on-host", type=int, default=0, help="blocks whose activations wait there")
    parser.add_argument("--skill-every", type=int, default=0)
    main(parser.parse_args())
