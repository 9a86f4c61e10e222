"""Sorts papers into subjects by whom they cite (GraphSAGE of PyTorch Geometric), on neighbours that are drawn anew."""

import argparse
import gc
import itertools
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch_geometric.nn import SAGEConv

SUBJECTS, CITED = 40, 14
FIRST_YEAR, YEARS = 1970, 55


class Citations:
    """Some papers are cited often and most hardly ever. Sorted by the paper that cites."""

    def __init__(self, papers):
        rng = np.random.default_rng(3)
        self.counts = rng.poisson(CITED, papers) + 1
        self.starts = np.concatenate(([0], np.cumsum(self.counts)))
        self.cited = (papers * rng.random(self.starts[-1]) ** 2).astype(np.int64)

    def draw(self, papers, number, rng):
        """`number` of those that each paper cites, and who cites them."""
        places = (rng.random((len(papers), number)) * self.counts[papers][:, None]).astype(np.int64)
        return self.cited[(self.starts[papers][:, None] + places).ravel()], np.repeat(papers, number)


class Neighbourhoods(Dataset):
    """A batch of papers each, with what they cite, what that cites, and so on."""

    def __init__(self, citations, args):
        self.citations, self.args = citations, args

    def __len__(self):
        return 100_000

    def __getitem__(self, number):
        rng, papers = np.random.default_rng(number), len(self.citations.counts)
        seeds = rng.choice(papers, self.args.batch, replace=False)
        front, sources, targets = seeds, [], []
        for fan in self.args.fans:
            source, target = self.citations.draw(front, fan, rng)
            sources.append(source)
            targets.append(target)
            front = np.unique(source)
        sources, targets = np.concatenate(sources), np.concatenate(targets)
        nodes, places = np.unique(np.concatenate((seeds, sources, targets)), return_inverse=True)
        seeds, edges = places[: len(seeds)], places[len(seeds) :].reshape(2, -1)
        return torch.from_numpy(nodes), torch.from_numpy(edges), torch.from_numpy(seeds)


class Net(nn.Module):
    def __init__(self, inputs, width, layers):
        super().__init__()
        sizes = [inputs] + [width] * layers
        self.convolutions = nn.ModuleList(SAGEConv(a, b) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, SUBJECTS)

    def forward(self, x, edges, seeds):
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x, edges)))
        return self.head(x[seeds])


def catalogue(papers):
    """Year, journal and authors of each paper, for the list of those that are sorted wrong."""
    draw = random.Random(4)
    return [
        [FIRST_YEAR + draw.randrange(YEARS), draw.randrange(900), [draw.randrange(papers) for _ in range(3)]]
        for _ in range(papers)
    ]


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(101)
    data = Neighbourhoods(Citations(args.papers), args)
    known = catalogue(args.papers)
    # What describes the papers fits into the device's memory.
    features = torch.randn(args.papers, args.inputs, device=device)
    subjects = torch.randint(0, SUBJECTS, (args.papers,), device=device)
    net = Net(args.inputs, args.width, args.layers).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    loader = DataLoader(
        data, batch_size=None, num_workers=args.workers, pin_memory=cuda, persistent_workers=args.workers > 0
    )
    for epoch in range(100):
        for step, batch in enumerate(loader):
            nodes, edges, seeds = (part.to(device, non_blocking=True) for part in batch)
            found = net(features[nodes], edges, seeds)
            losses = F.cross_entropy(found, subjects[nodes[seeds]], reduction="none")
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            worst = nodes[seeds[losses.argmax()]]
            if args.collect_every and step % args.collect_every == 0:
                gc.collect()  # so that batches do not pile up
            if step % 100 == 99:
                year, journal, authors = known[worst.item()]
                print(f"epoch {epoch} step {step + 1} loss {losses.mean().item():.4f}", end=" ")
                print(f"worst: {year}, journal {journal}, by {authors}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--papers", type=int, default=400_000)
    parser.add_argument("--inputs", type=int, default=128, help="features of a paper")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--fans", type=int, nargs="+", default=[12, 8, 4], help="papers that are drawn, by distance")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--collect-every", type=int, default=0, help="steps between collections of garbage")
    main(parser.parse_args())
