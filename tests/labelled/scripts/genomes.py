"""Models genomes by hiding some of their bases: a transformer reads long stretches of DNA, one letter a token, and
names what is hidden. One GPU, DDP (each rank may update a part of the weights for all), or FSDP2."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

LETTERS, HIDDEN, HEAD = 8, 7, 128


class Turns:
    """Queries and keys are turned by angles that grow with the place (rotary embeddings)."""

    def __init__(self, args, device):
        angles = torch.arange(args.length, device=device)[:, None] * 10_000.0 ** -torch.linspace(
            0, 1, HEAD // 2, device=device
        )
        kind = torch.float32 if args.tables == "fp32" else torch.bfloat16
        self.cos, self.sin = (part.repeat(1, 2).to(kind) for part in (angles.cos(), angles.sin()))

    def __call__(self, x):
        one, two = x.chunk(2, -1)
        return x * self.cos + torch.cat([-two, one], -1) * self.sin


class Layer(nn.Module):
    def __init__(self, width, turns):
        super().__init__()
        self.heads, self.turns = max(1, width // HEAD), turns
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, -1)
        )
        if self.turns:
            query, key = self.turns(query), self.turns(key)
        found = F.scaled_dot_product_attention(query, key, value.to(query.dtype)).to(x.dtype)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Reader(nn.Module):
    def __init__(self, args, turns):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, args.width)
        self.places = None if turns else nn.Parameter(torch.randn(args.length, args.width) * 0.02)
        self.layers = nn.ModuleList(Layer(args.width, turns) for _ in range(args.layers))
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, LETTERS)

    def forward(self, letters):
        kinds = letters[..., None] == torch.arange(LETTERS, device=letters.device)
        x = kinds.to(self.embed.weight.dtype) @ self.embed.weight
        if self.places is not None:
            x = x + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def stretches(args, device):
    """Bases of one strand or, read the other way round, of the other one; and those of them that are hidden."""
    bases = torch.randint(0, 4, (args.batch, args.length), device=device)
    other = torch.rand(args.batch, 1, device=device) < 0.5
    bases = torch.where(other, 3 - bases.flip(1), bases)
    return bases, torch.rand(bases.shape, device=device) < args.hide


class Owners:
    """Each tensor is updated by one rank, which then hands it to the others."""

    def __init__(self, parameters, rank, ranks, hand):
        self.hand = hand
        self.shares = [parameters[owner::ranks] for owner in range(ranks)]
        self.own = self.shares[rank]

    @torch.no_grad()
    def spread(self):
        for owner, share in enumerate(self.shares):
            if self.hand == "each":
                for tensor in share:
                    dist.broadcast(tensor, owner)
                continue
            flat = torch.cat([tensor.flatten() for tensor in share])
            dist.broadcast(flat, owner)
            parts = flat.split([tensor.numel() for tensor in share])
            torch._foreach_copy_(share, [part.view_as(tensor) for part, tensor in zip(parts, share, strict=True)])


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(510)
    with device:
        model = Reader(args, Turns(args, device) if args.places == "turned" else None).to(torch.bfloat16)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    shard = ranks > 1 and args.parallel == "fsdp"
    if shard:
        mesh = init_device_mesh(device.type, (ranks,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=args.weights == "anew")
        fully_shard(model, mesh=mesh, reshard_after_forward=args.weights == "anew")
    parameters = list(model.parameters())
    owners = Owners(parameters, rank, ranks, args.hand) if ranks > 1 and args.hand != "not" else None
    optimizer = torch.optim.AdamW(owners.own if owners else parameters, lr=1e-4, fused=True)
    running = model
    if ranks > 1 and not shard:
        running = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    torch.manual_seed(511 + rank)
    batches = [stretches(args, device) for _ in range(4 * args.micro)]
    for step in range(1, 1_000_000):
        for part in range(args.micro):
            bases, hide = batches[(step * args.micro + part) % len(batches)]
            if shard:
                last = part == args.micro - 1
                model.set_requires_gradient_sync(last)
                model.set_reshard_after_backward(last or args.weights == "anew")
            logits = running(bases.masked_fill(hide, HIDDEN)).float().transpose(1, 2)
            losses = F.cross_entropy(logits, bases, reduction="none")
            loss = (losses * hide).sum() / hide.sum().clamp(min=1)
            (loss / args.micro).backward()
        optimizer.step()
        if owners:
            owners.spread()
        model.zero_grad(set_to_none=True)
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096, help="of a stretch, in bases")
    parser.add_argument("--batch", type=int, default=8, help="stretches, of each rank and pass")
    parser.add_argument("--micro", type=int, default=1, help="passes of a step")
    parser.add_argument("--hide", type=float, default=0.15, help="share of the bases")
    parser.add_argument("--places", choices=["learned", "turned"], default="learned")
    parser.add_argument("--tables", choices=["fp32", "bf16"], default="bf16", help="of the turns")
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--weights", choices=["anew", "kept"], default="kept", help="gathered for each pass, or one")
    parser.add_argument(
        "--hand", choices=["not", "each", "flat"], default="not", help="weights of a rank to the others"
    )
    main(parser.parse_args())
