"""Retrieval with two towers: users by their categories, items by features that other networks have made of them."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--batch-size", type=int, default=16384)
parser.add_argument("--tables", type=int, default=16, help="categories of a user")
parser.add_argument("--rows", type=int, default=2000, help="values of a category")
parser.add_argument("--lookup", choices=["each", "joint"], default="joint", help="a table for each category, or one")
parser.add_argument("--features", type=int, default=4096, help="numbers of an item")
parser.add_argument("--hidden", type=int, default=1024)
parser.add_argument("--prefetch", action="store_true", help="copy batches to the GPU ahead")
opt = parser.parse_args()

DIM, OUT = 32, 256
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)


class Categories(nn.Module):
    def __init__(self):
        super().__init__()
        weights = torch.randn(opt.tables, opt.rows, DIM) * 0.05
        if opt.lookup == "joint":
            self.table = nn.Embedding.from_pretrained(weights.flatten(0, 1), freeze=False)
            self.register_buffer("first", torch.arange(opt.tables) * opt.rows)
        else:
            self.tables = nn.ModuleList(nn.Embedding.from_pretrained(own.clone(), freeze=False) for own in weights)

    def forward(self, values):
        if opt.lookup == "joint":
            return self.table(values + self.first).flatten(1)
        return torch.cat([table(values[:, n]) for n, table in enumerate(self.tables)], 1)


def tower(inputs):
    return nn.Sequential(nn.Linear(inputs, opt.hidden), nn.ReLU(), nn.LayerNorm(opt.hidden), nn.Linear(opt.hidden, OUT))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Sequential(Categories(), tower(opt.tables * DIM))
        self.item = tower(opt.features)

    def forward(self, values, features):
        users, items = F.normalize(self.user(values), dim=1), F.normalize(self.item(features), dim=1)
        return users @ items.T / 0.07


def batches():
    """From memory, where all that was recorded lies."""
    made = []
    for _ in range(3):
        batch = (
            torch.randint(0, opt.rows, (opt.batch_size, opt.tables)), torch.rand(opt.batch_size, opt.features)
        )  # fmt: skip
        made.append([part.pin_memory() if device == "cuda" else part for part in batch])
    while True:
        for batch in made:
            yield [part.to(device, non_blocking=True) for part in batch]


def prefetched(source):
    """The next batch is under way while one is trained on."""
    copier = torch.cuda.Stream()
    with torch.cuda.stream(copier):
        ahead = next(source)
    while True:
        torch.cuda.current_stream().wait_stream(copier)
        batch = ahead
        for part in batch:
            part.record_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copier):
            ahead = next(source)
        yield batch


model = Towers().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
truth = torch.arange(opt.batch_size, device=device)
stream = batches()
if opt.prefetch and device == "cuda":
    stream = prefetched(stream)
for i, (values, features) in enumerate(stream):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = F.cross_entropy(model(values, features), truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 200 == 199:
        print(f"[{i + 1}] {loss.item():.4f}")
