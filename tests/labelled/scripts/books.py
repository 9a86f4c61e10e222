"""Trains a language model on whole books: ranks share the words of a book (context parallelism). Each rank attends with
its own words to all that come before them, whose keys and values it gathers from the other ranks."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.parallel import DistributedDataParallel

HEAD = 128


class Gather(torch.autograd.Function):
    """Of all ranks, one after the other; gradients are summed, and each rank keeps those of what it gave."""

    @staticmethod
    def forward(ctx, own):
        found = own.new_empty(dist.get_world_size() * len(own), *own.shape[1:])
        dist.all_gather_into_tensor(found, own.contiguous())
        return found

    @staticmethod
    def backward(ctx, grads):
        own = grads.new_empty(len(grads) // dist.get_world_size(), *grads.shape[1:])
        dist.reduce_scatter_tensor(own, grads.contiguous())
        return own


class Shares:
    """Which two of the chunks of a book are whose."""

    def __init__(self, args, rank, ranks):
        self.chunk = args.length // (2 * ranks)
        if args.share == "folded":
            every = [(other, 2 * ranks - 1 - other) for other in range(ranks)]
        else:
            every = [(2 * other, 2 * other + 1) for other in range(ranks)]
        self.own = every[rank]
        places = [chunk for both in every for chunk in both]
        self.order = [places.index(chunk) for chunk in range(2 * ranks)]

    def cut(self, words):
        return torch.cat([words[part * self.chunk : (part + 1) * self.chunk] for part in self.own])

    def whole(self, x):
        """All words of the book in order, from those of this rank."""
        parts = Gather.apply(x).split(self.chunk)
        return torch.cat([parts[place] for place in self.order])


class Turns:
    def __init__(self, args, shares, device):
        places = shares.cut(torch.arange(args.length, device=device))
        angles = places[:, None] * 500_000.0 ** -torch.linspace(0, 1, HEAD // 2, device=device)
        self.cos, self.sin = (part.repeat(1, 2)[:, None].bfloat16() for part in (angles.cos(), angles.sin()))

    def __call__(self, x):
        one, two = x.chunk(2, -1)
        return x * self.cos + torch.cat([-two, one], -1) * self.sin


class Layer(nn.Module):
    def __init__(self, width, shares, turns):
        super().__init__()
        self.shares, self.turns = shares, turns
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def attend(self, x):
        query, key, value = (part.unflatten(1, (-1, HEAD)) for part in self.mix(x).chunk(3, -1))
        both = self.shares.whole(torch.cat([self.turns(key), value], 1))
        key, value = (part.transpose(0, 1)[None] for part in both.chunk(2, 1))
        query = self.turns(query).transpose(0, 1)[None]
        found, size = [], self.shares.chunk
        for part, place in zip(query.split(size, 2), self.shares.own, strict=True):
            end = (place + 1) * size
            mask = causal_lower_right(size, end)
            found.append(F.scaled_dot_product_attention(part, key[:, :, :end], value[:, :, :end], mask))
        return self.out(torch.cat(found, 2)[0].transpose(0, 1).flatten(1))

    def forward(self, x):
        x = x + self.attend(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Reader(nn.Module):
    def __init__(self, args, shares, turns):
        super().__init__()
        self.embed = nn.Embedding(args.words, args.width)
        self.layers = nn.ModuleList(Layer(args.width, shares, turns) for _ in range(args.layers))
        self.norm, self.head = nn.RMSNorm(args.width), nn.Linear(args.width, args.words, bias=False)

    def forward(self, words, coming):
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).float(), coming)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(700)
    shares = Shares(args, rank, ranks)
    with device:
        model = Reader(args, shares, Turns(args, shares, device)).to(torch.bfloat16)
    model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    books = torch.randint(0, args.words, (4, args.length + 1), generator=torch.Generator().manual_seed(701)).to(device)
    books = [(shares.cut(book[:-1]), shares.cut(book[1:])) for book in books]
    for step in range(1, 1_000_000):
        loss = model(*books[step % len(books)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            mean = loss.detach()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step}: loss {mean.item() / ranks:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=32_768, help="of a book, in words")
    parser.add_argument("--words", type=int, default=16_000)
    parser.add_argument("--share", choices=["halves", "folded"], default="folded", help="which words are whose")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
