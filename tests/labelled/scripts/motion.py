"""Forecasts where cars and people on the road will go: what they did and the lines of the map are tokens, which attend
to each other; for each of a few, some ways to go on are predicted. An average of the weights (EMA) is kept and
watched on scenes that are held out. One GPU or DDP."""

import argparse
import copy
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SEEN, FEATURES, POINTS, AHEAD = 16, 8, 16, 80  # moments and numbers of an agent, points of a line, moments to tell


class Layer(nn.Module):
    def __init__(self, width, need_weights):
        super().__init__()
        self.need_weights = need_weights
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, width // 32, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, others=None):
        h = self.first(x)
        others = h if others is None else others
        x = x + self.attend(h, others, others, need_weights=self.need_weights)[0]
        return x + self.down(F.gelu(self.up(self.second(x))))


class Forecaster(nn.Module):
    def __init__(self, args):
        super().__init__()
        width, self.predicted = args.width, args.predicted
        self.agents = nn.Sequential(nn.Linear(SEEN * FEATURES, width), nn.GELU(), nn.Linear(width, width))
        self.points = nn.Sequential(nn.Linear(4, width // 4), nn.GELU(), nn.Linear(width // 4, width))
        self.layers = nn.ModuleList(Layer(width, args.need_weights) for _ in range(args.layers))
        self.norm = nn.LayerNorm(width)
        self.ways = nn.Parameter(0.02 * torch.randn(args.ways, width))
        self.decode = nn.ModuleList(Layer(width, False) for _ in range(3))
        self.path, self.likely = nn.Linear(width, AHEAD * 2), nn.Linear(width, 1)

    def forward(self, agents, lines):
        x = torch.cat([self.agents(agents.flatten(2)), self.points(lines).amax(2)], dim=1)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        asked = (x[:, : self.predicted, None] + self.ways).flatten(1, 2)
        for layer in self.decode:
            asked = layer(asked, x)
        asked = asked.unflatten(1, (self.predicted, -1))
        return self.path(asked).unflatten(-1, (AHEAD, 2)), self.likely(asked).squeeze(-1)


def loss_of(told, wanted):
    """The nearest way is to be nearer, and to be known as the likeliest."""
    paths, likely = (part.float() for part in told)
    far = (paths - wanted[:, :, None]).square().sum(-1).mean(-1)
    nearest = far.detach().argmin(-1)
    return far.gather(2, nearest[..., None]).mean() + F.cross_entropy(likely.flatten(0, 1), nearest.flatten())


def finite(weights, how):
    if how == "each":
        return all(bool(weight.grad.isfinite().all()) for weight in weights)
    return bool(torch.stack(torch._foreach_norm([weight.grad for weight in weights])).isfinite().all())


class Average:
    """Of the weights: each rank works it out, or has it from the first."""

    def __init__(self, model, args, ranks):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.broadcast = args.average == "broadcast" and ranks > 1
        self.own, self.weights = list(self.model.parameters()), list(model.parameters())

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.own, self.weights, 0.001)
        if self.broadcast:
            for weight in self.own:
                dist.broadcast(weight, 0)


def scenes(args, device, count, seed):
    draw = torch.Generator(device).manual_seed(seed)

    def some(*size):
        return torch.randn(args.batch, *size, generator=draw, device=device)

    return [
        (some(args.agents, SEEN, FEATURES), some(args.lines, POINTS, 4), some(args.predicted, AHEAD, 2))
        for _ in range(count)
    ]


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(1881)
    model = Forecaster(args).to(device)
    average, wrapped = Average(model, args, ranks), model
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
        wrapped = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, args.lr, fused=True)
    batches, held_out = scenes(args, device, 3, 1882 + rank), scenes(args, device, args.held_out, 1890)
    if args.watch == "shared":
        held_out = held_out[rank::ranks]
    elif rank:
        held_out = []
    seen = torch.zeros((), device=device)
    for step in range(1, 10_000_000):
        agents, lines, wanted = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            told = wrapped(agents, lines)
        loss = loss_of(told, wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if args.finite == "none" or finite(weights, args.finite):
            optimizer.step()
        average.update()
        for agents, lines, wanted in held_out:
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
                seen.lerp_(loss_of(average.model(agents, lines), wanted), 0.01)
        if step % args.print_every == 0:
            if args.watch == "shared" and ranks > 1:
                dist.all_reduce(seen)
                seen /= ranks
            if rank == 0:
                print(f"step {step}: loss {loss.item():.5f}, held out {seen.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=64, help="of a scene")
    parser.add_argument("--lines", type=int, default=960, help="of the map of a scene")
    parser.add_argument("--predicted", type=int, default=8, help="agents whose ways are predicted")
    parser.add_argument("--ways", type=int, default=6, help="of each of them")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32, help="scenes, of each rank")
    parser.add_argument("--need-weights", action="store_true", help="have attention give its weights")
    parser.add_argument("--finite", choices=["none", "each", "joint"], default="none", help="how gradients are checked")
    parser.add_argument("--average", choices=["local", "broadcast"], default="local", help="where its weights are from")
    parser.add_argument("--held-out", type=int, default=0, help="batches that are watched after each step")
    parser.add_argument("--watch", choices=["first", "shared"], default="first", help="by the first rank, or by all")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
