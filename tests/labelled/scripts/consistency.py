"""Trains a consistency model of music: a student takes noise out of latents in one go, and must agree with its teacher,
an average of the student's weights (EMA), which sees a little less noise."""

import argparse
import copy
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HEAD, LATENT = 128, 64


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.adapt = nn.Linear(width, 6 * width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, noise):
        scale, move, gate, scale2, move2, gate2 = self.adapt(F.silu(noise))[:, None].chunk(6, -1)
        own = torch.addcmul(move, self.norms[0](x), 1 + scale)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(own).chunk(3, -1))
        found = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = torch.addcmul(x, gate, self.out(found))
        own = torch.addcmul(move2, self.norms[1](x), 1 + scale2)
        return torch.addcmul(x, gate2, self.down(F.gelu(self.up(own))))


class Student(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter, self.leave = nn.Linear(LATENT, args.width), nn.Linear(args.width, LATENT)
        self.places = nn.Parameter(torch.randn(args.length, args.width) * 0.02)
        self.noise = nn.Sequential(nn.Linear(256, args.width), nn.SiLU(), nn.Linear(args.width, args.width))
        self.blocks = nn.ModuleList(Block(args.width) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.register_buffer("paces", torch.logspace(0, 3, 128))

    def forward(self, x, sigma):
        """Latents without noise; those with little noise hardly change."""
        kind = self.places.dtype
        waves = sigma.log()[:, None] * self.paces.float()
        noise = self.noise(torch.cat([waves.cos(), waves.sin()], 1).to(kind))
        sigma = sigma[:, None, None]
        hidden = self.enter((x / (sigma**2 + 0.25).sqrt()).to(kind)) + self.places
        for block in self.blocks:
            hidden = block(hidden, noise)
        found = self.leave(self.norm(hidden)).float()
        return 0.25 / (sigma**2 + 0.25) * x + 0.5 * sigma / (sigma**2 + 0.25).sqrt() * found


class Teacher:
    def __init__(self, args, model):
        self.args, self.model = args, copy.deepcopy(model).requires_grad_(False)
        self.weights, self.own = list(self.model.parameters()), list(model.parameters())

    @torch.no_grad()
    def __call__(self, x, sigma):
        return self.model(x, sigma)

    @torch.no_grad()
    def follow(self, ranks, rank):
        if self.args.teacher == "own" or rank == 0 or ranks == 1:
            torch._foreach_lerp_(self.weights, self.own, 0.01)
        if self.args.teacher == "shared" and ranks > 1:
            for weight in self.weights:
                dist.broadcast(weight, 0)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(490)
    with device:
        model = Student(args).to(torch.bfloat16)
    teacher = Teacher(args, model)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(
            model, device_ids=[local] if cuda else None, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    torch.manual_seed(491 + rank)
    music = torch.randn(4, args.batch, args.length, LATENT, device=device) * 0.5
    for step in range(1, 1_000_000):
        clean = music[step % 4]
        noise = torch.randn_like(clean)
        more = torch.rand(args.batch, device=device) * 8 + 0.1
        less = more * 0.9
        right = teacher(clean + less[:, None, None] * noise, less)
        if args.tidy:
            torch.cuda.empty_cache()
        found = model(clean + more[:, None, None] * noise, more)
        loss = (F.huber_loss(found, right, reduction="none").mean((1, 2)) / (more - less)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        teacher.follow(ranks, rank)
        if args.tidy:
            torch.cuda.empty_cache()
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024, help="of a piece of music, in latents")
    parser.add_argument("--batch", type=int, default=8, help="of each rank")
    parser.add_argument("--teacher", choices=["own", "shared"], default="own", help="which ranks have")
    parser.add_argument("--tidy", action="store_true")
    main(parser.parse_args())
