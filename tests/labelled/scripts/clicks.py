"""Predicts clicks (DLRM): tables of embeddings are divided over the ranks, which exchange what they looked up; the
networks before and after them are on each rank."""

import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Batch:
    """Numbers of each click; for each table in turn, the rows that each click has of it; whether it was one."""

    numbers: torch.Tensor
    rows: torch.Tensor
    clicked: torch.Tensor

    def to(self, device):
        return Batch(*(part.to(device, non_blocking=True) for part in (self.numbers, self.rows, self.clicked)))


class PinnedBatch(Batch):
    """One that a DataLoader can pin."""

    def pin_memory(self):
        return PinnedBatch(self.numbers.pin_memory(), self.rows.pin_memory(), self.clicked.pin_memory())


class Exchange(torch.autograd.Function):
    """Clicks of all ranks by the tables of this one, into clicks of this rank by all tables; gradients go back."""

    @staticmethod
    def forward(ctx, found, how):
        ctx.how = how
        return swap(found, how)

    @staticmethod
    def backward(ctx, grad):
        return swap(grad.contiguous(), ctx.how), None


def swap(found, how):
    """[rank, table, click, width] -> the same, from each rank."""
    got = torch.empty_like(found)
    if how == "joint":
        dist.all_to_all_single(got, found)
    else:
        for table in range(found.shape[1]):
            part = torch.empty_like(found[:, table], memory_format=torch.contiguous_format)
            dist.all_to_all_single(part, found[:, table].contiguous())
            got[:, table] = part
    return got


class Tables(nn.Module):
    """This rank's tables as one, each with its rows behind those of the one before."""

    def __init__(self, mine, args):
        super().__init__()
        parts = []
        for table in mine:
            rng = torch.Generator().manual_seed(table)
            parts.append(torch.randn(args.rows, args.width, generator=rng) * args.width**-0.5)
        self.bag = nn.EmbeddingBag.from_pretrained(torch.cat(parts), freeze=False, mode="mean", sparse=True)

    def forward(self, rows, starts):
        return self.bag(rows, starts)


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        hidden, features = args.hidden, args.tables + 1
        self.below = nn.Sequential(
            nn.Linear(args.numbers, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, args.width),
        )  # fmt: skip
        self.register_buffer("pairs", torch.triu_indices(features, features, 1))
        self.above = nn.Sequential(
            nn.Linear(args.width + self.pairs.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, numbers, found):
        low = self.below(numbers)
        x = torch.cat([low[:, None], found.to(low.dtype)], 1)
        products = torch.bmm(x, x.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.above(torch.cat([low, products], 1))[:, 0]


class Clicks(Dataset):
    """Batches of the rank; clicks of all ranks for its tables."""

    def __init__(self, args, hots, mine, ranks, rank):
        self.kind = Batch if args.batches == "plain" else PinnedBatch
        self.made = []
        for number in range(2):
            rng = torch.Generator().manual_seed(1000 * number + rank)
            numbers, rows = torch.rand(args.batch, args.numbers, generator=rng), []
            for place, table in enumerate(mine):  # the same rows, whichever rank has the table
                own = torch.Generator().manual_seed(1000 * number + 500 + table)
                found = torch.randint(
                    0, args.rows, (ranks * args.batch * hots[table],), generator=own, dtype=torch.int32
                )
                rows.append(found + place * args.rows)
            clicked = (torch.rand(args.batch, generator=rng) < 0.1).float()
            self.made.append((numbers, torch.cat(rows), clicked))

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        return self.kind(*self.made[place % len(self.made)])


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    hots = [args.hots if table < args.tables // 2 else args.long_hots for table in range(args.tables)]
    tables = torch.arange(args.tables)
    mine = (tables.view(ranks, -1)[rank] if args.place == "in_order" else tables.view(-1, ranks)[:, rank]).tolist()
    data = Clicks(args, hots, mine, ranks, rank)
    loader = DataLoader(data, None, num_workers=args.workers, pin_memory=cuda, persistent_workers=args.workers > 0)
    torch.manual_seed(160)
    looked_up, net = Tables(mine, args).to(device), Net(args).to(device)
    optimizer = torch.optim.SGD([*looked_up.parameters(), *net.parameters()], lr=1e-4)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        net = nn.parallel.DistributedDataParallel(net, device_ids=[local] if cuda else None)
    lengths = torch.tensor([hots[table] for table in mine]).repeat_interleave(ranks * args.batch)
    starts = (lengths.cumsum(0) - lengths).to(device)
    for step, batch in enumerate(loader, 1):
        batch = batch.to(device)
        found = looked_up(batch.rows.long(), starts).view(len(mine), ranks, args.batch, args.width).transpose(0, 1)
        if ranks > 1:
            found = Exchange.apply(found.contiguous(), args.exchange)
            # (rank, place on it) -> table
            found = found.flatten(0, 1) if args.place == "in_order" else found.transpose(0, 1).flatten(0, 1)
        else:
            found = found[0]
        with torch.autocast(device.type, torch.bfloat16):
            scores = net(batch.numbers, found.transpose(0, 1))
        loss = F.binary_cross_entropy_with_logits(scores.float(), batch.clicked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 and rank == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=16)
    parser.add_argument("--rows", type=int, default=100_000, help="of a table")
    parser.add_argument("--width", type=int, default=128, help="of a row")
    parser.add_argument("--hots", type=int, default=2, help="rows of a click, in the first half of the tables")
    parser.add_argument("--long-hots", type=int, default=2, help="in the other half, such as histories")
    parser.add_argument("--numbers", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8192, help="of each rank")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batches", choices=["pinned", "plain"], default="pinned")
    parser.add_argument("--place", choices=["balanced", "in_order"], default="balanced", help="tables on ranks")
    parser.add_argument("--exchange", choices=["joint", "each"], default="joint", help="tables, or all in one")
    main(parser.parse_args())
