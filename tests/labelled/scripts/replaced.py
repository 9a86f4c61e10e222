"""Trains a text encoder to tell which words were replaced (as ELECTRA): a small generator fills gaps in a text by words
that fit, and the encoder says of each word whether it was there before. One GPU or DDP."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

GAP = 0


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, 64)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Encoder(nn.Module):
    def __init__(self, enter, width, layers):
        super().__init__()
        self.enter = nn.Linear(enter, width)
        self.layers, self.norm = nn.ModuleList(Layer(width) for _ in range(layers)), nn.LayerNorm(width)

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Electra(nn.Module):
    def __init__(self, args):
        super().__init__()
        small = max(64, args.width // 4)
        self.gaps = args.length * 15 // 100
        self.table = nn.Embedding(args.words, small)
        nn.init.normal_(self.table.weight, std=0.02)
        self.places = nn.Parameter(0.02 * torch.randn(args.length, small))
        self.generator = Encoder(small, small, args.layers)
        self.encoder = Encoder(small, args.width, args.layers)
        self.was_there = nn.Linear(args.width, 1)

    def forward(self, text, where, chance):
        """`where`: the gaps; `chance`: draws a word for each of them."""
        gapped = text.scatter(1, where, GAP)
        h = self.generator(self.table(gapped) + self.places)
        h = h.gather(1, where[..., None].expand(-1, -1, h.shape[-1]))
        scores = F.linear(h, self.table.weight).float()
        right = text.gather(1, where)
        filled = F.cross_entropy(scores.flatten(0, 1), right.flatten())
        with torch.no_grad():
            sums = scores.softmax(-1).cumsum(-1)
            drawn = torch.searchsorted(sums, chance[..., None]).squeeze(-1).clamp(max=scores.shape[-1] - 1)
        told = self.was_there(self.encoder(self.table(text.scatter(1, where, drawn)) + self.places)).squeeze(-1)
        other = torch.zeros_like(told).scatter(1, where, (drawn != right).to(told.dtype))
        return filled + 50 * F.binary_cross_entropy_with_logits(told.float(), other.float())


class HostStates:
    """Moments of Adam that are on the device only while it makes a step."""

    def __init__(self, optimizer):
        self.optimizer, self.kept = optimizer, {}

    def moments(self):
        for weight, state in self.optimizer.state.items():
            for name in ("exp_avg", "exp_avg_sq"):
                yield weight, state, name

    def fetch(self):
        for weight, state, name in self.moments():
            state[name] = self.kept[weight, name].to(weight.device, non_blocking=True)

    def put_away(self):
        for weight, state, name in self.moments():
            if (weight, name) not in self.kept:
                self.kept[weight, name] = torch.empty(weight.shape, pin_memory=weight.is_cuda)
            self.kept[weight, name].copy_(state[name], non_blocking=True)
            state[name] = self.kept[weight, name]


@torch.no_grad()
def keep_in_step(model, ranks):
    """Weights are to be the same everywhere, whatever rounding did."""
    vector = parameters_to_vector(model.parameters())
    dist.all_reduce(vector)
    vector_to_parameters(vector / ranks, model.parameters())


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(1891)
    with device:
        model = Electra(args)
    wrapped = model
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
        wrapped = DistributedDataParallel(model, device_ids=[local] if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    states = HostStates(optimizer) if args.states == "host" else None
    draw = torch.Generator(device).manual_seed(1892 + rank)
    texts = torch.randint(1, args.words, (4, args.batch, args.length), generator=draw, device=device)
    for step in range(1, 10_000_000):
        text = texts[step % len(texts)]
        where = torch.rand(text.shape, generator=draw, device=device).argsort(1)[:, : model.gaps]
        chance = torch.rand(where.shape, generator=draw, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = wrapped(text, where, chance)
        loss.backward()
        if states:
            states.fetch()
        optimizer.step()
        if states:
            states.put_away()
        optimizer.zero_grad(set_to_none=True)
        if args.in_step == "vector" and ranks > 1:
            keep_in_step(model, ranks)
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=32_768)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32, help="texts, of each rank")
    parser.add_argument("--width", type=int, default=1024, help="of the encoder")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument(
        "--states", choices=["host", "device"], default="device", help="where moments are between steps"
    )
    parser.add_argument("--in-step", choices=["vector", "none"], default="none", help="average weights after each step")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
