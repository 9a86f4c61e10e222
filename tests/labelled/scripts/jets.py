"""Tells from what jets of particles come (as Particle Transformer): attention between particles is biased by what pairs
of them have in common. Trained with LAMB, whose work is divided over the ranks, or by steps that look around (SAM)."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def in_common(particles):
    """Of each pair of particles (transverse momentum, rapidity, angle, energy): distance, momenta, mass."""
    pt, y, phi, energy = particles.unbind(-1)
    turn = torch.remainder(phi[:, :, None] - phi[:, None] + torch.pi, 2 * torch.pi) - torch.pi
    far = ((y[:, :, None] - y[:, None]).square() + turn.square()).sqrt()
    less = torch.minimum(pt[:, :, None], pt[:, None])
    mass = energy[:, :, None] * energy[:, None] * (1 - torch.cos(far.clamp(max=1)))
    features = [far, less * far, less / (pt[:, :, None] + pt[:, None]), mass]
    return torch.stack([(feature + 1e-6).log() for feature in features], dim=-1)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, bias):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, 64)).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Jets(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(4, args.width), nn.GELU(), nn.Linear(args.width, args.width))
        self.pair = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, args.width // 64))
        self.layers = nn.ModuleList(Layer(args.width) for _ in range(args.layers))
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, 10)

    def forward(self, particles, pairs):
        bias = self.pair(pairs).permute(0, 3, 1, 2).contiguous()
        x = self.enter(particles)
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(self.norm(x).mean(1))


class Lamb(torch.optim.Optimizer):
    """Each rank works on its part of every weight; parts are gathered afterwards."""

    def __init__(self, weights, lr, ranks, rank, norms, betas=(0.9, 0.999), weight_decay=0.01):
        super().__init__(list(weights), {"lr": lr})
        self.ranks, self.norms, self.betas, self.weight_decay = ranks, norms, betas, weight_decay
        self.weights, self.count = self.param_groups[0]["params"], 0
        sizes = [weight.numel() // ranks for weight in self.weights]
        self.all = torch.empty(ranks, sum(sizes), device=self.weights[0].device)
        self.own, self.rank = list(self.all[rank].split(sizes)), rank
        self.parts = [part for row in self.all for part in row.split(sizes)]
        torch._foreach_copy_(self.own, self.parts_of(self.weights)[rank])
        self.first, self.second = ([torch.zeros_like(part) for part in self.own] for _ in range(2))

    def parts_of(self, whole):
        """For each rank, its part of each; all can be divided by the number of ranks."""
        rows = [x.detach().view(self.ranks, -1).unbind() for x in whole]
        return list(zip(*rows, strict=True))

    def norm(self, parts):
        """Of whole weights, from the parts of them."""
        if self.norms == "each":
            found = []
            for part in parts:
                square = part.square().sum()
                if self.ranks > 1:
                    dist.all_reduce(square)
                found.append(square.sqrt())
            return torch.stack(found)
        squares = torch.stack(torch._foreach_norm(parts)).square()
        if self.ranks > 1:
            dist.all_reduce(squares)
        return squares.sqrt()

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        a, b = self.betas
        grads = self.parts_of([weight.grad for weight in self.weights])[self.rank]
        torch._foreach_lerp_(self.first, grads, 1 - a)
        torch._foreach_mul_(self.second, b)
        torch._foreach_addcmul_(self.second, grads, grads, 1 - b)
        below = torch._foreach_sqrt(torch._foreach_div(self.second, 1 - b**self.count))
        torch._foreach_add_(below, 1e-6)
        update = torch._foreach_div(torch._foreach_div(self.first, 1 - a**self.count), below)
        torch._foreach_add_(update, self.own, alpha=self.weight_decay)
        weight, change = self.norm(self.own), self.norm(update)
        trust = torch.where((weight > 0) & (change > 0), weight / change, 1.0).clamp(max=10)
        torch._foreach_mul_(update, list(trust.unbind()))
        torch._foreach_add_(self.own, update, alpha=-self.param_groups[0]["lr"])
        if self.ranks > 1:
            dist.all_gather_into_tensor(self.all.view(-1), self.all[self.rank].clone())
        torch._foreach_copy_([part for own in self.parts_of(self.weights) for part in own], self.parts)


class Around:
    """Sharpness-aware minimization: gradients are those of where the loss is worst nearby; weights are kept."""

    def __init__(self, weights, place, rho=0.05):
        self.weights, self.rho = list(weights), rho
        host = place == "host" and self.weights[0].is_cuda
        self.kept = [
            torch.empty(weight.shape, pin_memory=True) if host else torch.empty_like(weight) for weight in self.weights
        ]

    @torch.no_grad()
    def away(self):
        for kept, weight in zip(self.kept, self.weights, strict=True):
            kept.copy_(weight, non_blocking=True)
        grads = [weight.grad for weight in self.weights]
        scale = self.rho / (torch.stack(torch._foreach_norm(grads)).norm() + 1e-12)
        torch._foreach_add_(self.weights, torch._foreach_mul(grads, scale))

    @torch.no_grad()
    def back(self):
        for kept, weight in zip(self.kept, self.weights, strict=True):
            weight.copy_(kept, non_blocking=True)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(991)
    with device:
        model = Jets(args)
    wrapped = model
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
        wrapped = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    if args.optimizer == "lamb":
        optimizer = Lamb(model.parameters(), 1e-3, ranks, rank, args.norms)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    around = Around(model.parameters(), args.keep) if args.sam else None

    torch.manual_seed(992 + rank)
    batches = []
    for _ in range(2):
        particles = torch.rand(args.batch, args.particles, 4) + 0.1
        kind = torch.randint(10, (args.batch,))
        pairs = in_common(particles) if args.pairs == "stored" else None
        parts = [part for part in (particles, kind, pairs) if part is not None]
        batches.append([part.pin_memory() if cuda else part for part in parts])
    for step in range(1, 10_000_000):
        particles, kind, *pairs = (part.to(device, non_blocking=True) for part in batches[step % len(batches)])
        pairs = pairs[0] if pairs else in_common(particles)
        for turn in range(2 if around else 1):
            with torch.autocast(device.type, torch.bfloat16):
                told = wrapped(particles, pairs)
            loss = F.cross_entropy(told.float(), kind)
            loss.backward()
            if around and turn == 0:
                around.away()
                optimizer.zero_grad(set_to_none=True)
        if around:
            around.back()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--particles", type=int, default=128, help="of a jet")
    parser.add_argument("--batch", type=int, default=512, help="jets, of each rank")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--pairs", choices=["stored", "made"], default="made", help="what pairs have in common")
    parser.add_argument("--optimizer", choices=["adamw", "lamb"], default="adamw")
    parser.add_argument("--norms", choices=["each", "joint"], default="joint", help="of weights, over the ranks")
    parser.add_argument("--sam", action="store_true", help="look around before each step")
    parser.add_argument("--keep", choices=["host", "device"], default="device", help="weights, meanwhile")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
