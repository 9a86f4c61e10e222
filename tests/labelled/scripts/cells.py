"""Learns what cells do from which genes they use (as in Geneformer): a cell is a list of genes, those first that it
uses more than other cells; a transformer names genes that are hidden. One GPU or DDP."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

HIDDEN = 0


def ranked(genes, counts, medians, length):
    """The genes that a cell uses most, against how much cells use them."""
    return genes[np.argsort(-counts / medians[genes], kind="stable")[:length]]


class Cells(Dataset):
    """Genes that were found in each cell, with their counts."""

    def __init__(self, args):
        self.args = args
        rng = np.random.default_rng(941)
        self.medians = rng.uniform(0.5, 20, args.genes).astype(np.float32)
        self.genes, self.counts = [], []
        for _ in range(args.cells):
            found = np.sort(rng.choice(args.genes - 1, args.found, replace=False) + 1)
            self.genes.append(found.astype(np.int32))
            self.counts.append((rng.pareto(1.5, args.found) * 4 + 1).astype(np.int32).astype(np.float32))

    def __len__(self):
        return 1 << 20

    def __getitem__(self, n):
        genes, counts = self.genes[n % len(self.genes)], self.counts[n % len(self.genes)]
        if self.args.rank_in == "device":
            return genes, counts
        return (ranked(genes, counts, self.medians, self.args.length).astype(np.int64),)


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.table = nn.Embedding(args.genes, args.width)
        self.places = nn.Parameter(0.02 * torch.randn(args.length, args.width))
        layer = nn.TransformerEncoderLayer(
            args.width, args.width // 64, 4 * args.width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.body = nn.TransformerEncoder(layer, args.layers, norm=nn.LayerNorm(args.width), enable_nested_tensor=False)
        self.head = nn.Linear(args.width, args.genes)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, genes, hidden):
        """`hidden`: places, which are as many in each cell."""
        x = self.body(self.table(genes.scatter(1, hidden, HIDDEN)) + self.places)
        x = x.gather(1, hidden[..., None].expand(-1, -1, x.shape[-1]))
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), genes.gather(1, hidden).flatten())


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(942)
    model = Net(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-3, fused=True)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    data = Cells(args)
    medians = torch.from_numpy(data.medians).to(device)
    sampler = DistributedSampler(data, ranks, rank, seed=943)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=args.workers, pin_memory=cuda, drop_last=True)
    draw = torch.Generator(device).manual_seed(944 + rank)
    for step, batch in enumerate(loader, 1):
        batch = [part.to(device, non_blocking=True) for part in batch]
        if args.rank_in == "device":
            found, counts = batch
            first = torch.argsort(-(counts / medians[found.long()]), dim=1, stable=True)[:, : args.length]
            genes = found.gather(1, first).long()
        else:
            genes = batch[0]
        hidden = torch.rand(genes.shape, device=device, generator=draw).argsort(dim=1)[:, : args.length * 15 // 100]
        with torch.autocast(device.type, torch.bfloat16, enabled=args.amp):
            loss = model(genes, hidden)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--genes", type=int, default=25_600)
    parser.add_argument("--cells", type=int, default=768, help="that are stored")
    parser.add_argument("--found", type=int, default=8192, help="genes that are found in a cell")
    parser.add_argument("--length", type=int, default=512, help="genes of a cell that are looked at")
    parser.add_argument("--batch", type=int, default=128, help="cells, of each rank")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--amp", action="store_true", help="work in bf16")
    parser.add_argument("--rank-in", choices=["loader", "device"], default="device", help="where genes are sorted")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
