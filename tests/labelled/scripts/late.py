"""Trains an encoder for retrieval by late interaction: each word of a query looks for the word of a passage that is
most like it, and these likenesses are added up. Other passages, and similar ones of a bank, must score lower."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS, HEAD = 30_000, 64


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Interaction(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, args.width), nn.Embedding(512, args.width)
        self.layers = nn.Sequential(*(Layer(args.width) for _ in range(args.layers)))
        self.norm, self.out = nn.LayerNorm(args.width), nn.Linear(args.width, args.size)

    def encode(self, words):
        x = self.embed(words) + self.places.weight[: words.shape[1]]
        return F.normalize(self.out(self.norm(self.layers(x))), dim=-1)

    def forward(self, queries, passages):
        """Scores of all queries (rows) for all passages, which are grouped by length; and queries as one vector."""
        queries, scores = self.encode(queries), []
        for group in passages:
            like = queries.flatten(0, 1) @ self.encode(group).flatten(0, 1).T
            like = like.view(*queries.shape[:2], *group.shape)
            scores.append(like.amax(3).float().sum(1))
        return torch.cat(scores, 1), F.normalize(queries.float().mean(1), dim=-1)


class Bank:
    """Vectors of passages; the nearest to a query are hard for it."""

    def __init__(self, args, device):
        self.nearest, self.vectors = args.nearest, torch.randn(args.bank, args.size, device=device)
        self.vectors = F.normalize(self.vectors, dim=-1)
        self.table = self.vectors.cpu().numpy() if args.mine == "numpy" else None

    def hard(self, queries):
        if self.table is None:
            places = (queries @ self.vectors.T).topk(self.nearest, sorted=False).indices
        else:
            scores = queries.cpu().numpy() @ self.table.T
            places = np.argpartition(-scores, self.nearest, axis=1)[:, : self.nearest]
            places = torch.from_numpy(places).to(self.vectors.device)
        return self.vectors[places]


class Meter:
    """How queries fare: the mean place of their own passage, its score, and its lead."""

    def __init__(self, how):
        self.how, self.sums, self.count = how, [0.0] * 3, 0

    def add(self, scores):
        own = scores.diagonal()
        numbers = ((scores > own[:, None]).sum(1), own, own - scores.mean(1))
        if self.how == "each":
            for which, many in enumerate(numbers):
                for one in many:
                    self.sums[which] += one.item()
        else:
            self.sums = [before + many.sum() for before, many in zip(self.sums, numbers, strict=False)]
        self.count += len(own)


def average(parameters, ranks, how):
    gradients = [parameter.grad for parameter in parameters]
    if how == "each":
        for gradient in gradients:
            dist.all_reduce(gradient)
    else:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        sums = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [one.view_as(gradient) for one, gradient in zip(sums, gradients, strict=False)])
    torch._foreach_div_(gradients, ranks)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(430)
    with device:
        model = Interaction(args).to(torch.bfloat16)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    if ranks > 1 and args.average == "ddp":
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    bank = Bank(args, device) if args.mine != "none" else None
    meter = Meter(args.meter) if args.meter != "none" else None
    torch.manual_seed(431 + rank)
    # the groups of all ranks, from short to long, and those of this rank
    lengths = torch.linspace(*args.lengths, ranks * args.groups).tolist()
    own = slice(rank * args.groups, (rank + 1) * args.groups) if args.deal == "blocks" else slice(rank, None, ranks)
    batches = [
        (
            torch.randint(0, WORDS, (args.batch, args.query), device=device),
            [torch.randint(0, WORDS, (args.batch // args.groups, int(n)), device=device) for n in lengths[own]],
        )
        for _ in range(4)
    ]
    for step in range(1, 1_000_000):
        scores, queries = model(*batches[step % 4])
        loss = F.cross_entropy(scores, torch.arange(args.batch, device=device))
        if bank:
            hard = bank.hard(queries.detach())
            loss = loss + ((queries[:, None] * hard).sum(-1) * 10).logsumexp(1).mean()
        if meter:
            meter.add(scores.detach())
        loss.backward()
        if ranks > 1 and args.average != "ddp":
            average(parameters, ranks, args.average)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 and rank == 0:
            more = ", ".join(f"{float(one) / meter.count:.3f}" for one in meter.sums) if meter else ""
            print(f"step {step}: loss {loss.item():.4f} {more}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--size", type=int, default=128, help="of a word's vector")
    parser.add_argument("--batch", type=int, default=128, help="queries and passages, of each rank")
    parser.add_argument("--query", type=int, default=32, help="words of a query")
    parser.add_argument("--lengths", type=int, nargs=2, default=[256, 256], help="words of passages, from and to")
    parser.add_argument("--groups", type=int, default=1, help="of passages of one length, of each rank")
    parser.add_argument("--deal", choices=["blocks", "turns"], default="turns", help="how ranks get their groups")
    parser.add_argument("--mine", choices=["none", "numpy", "device"], default="none", help="how the bank is searched")
    parser.add_argument("--bank", type=int, default=32768)
    parser.add_argument("--nearest", type=int, default=64)
    parser.add_argument("--average", choices=["ddp", "each", "flat"], default="ddp", help="of gradients")
    parser.add_argument("--meter", choices=["none", "each", "sums"], default="none")
    main(parser.parse_args())
