"""Simulates flows on meshes (MeshGraphNets): features of nodes and of edges update each other in several rounds, and
tell how velocities at the nodes change. Meshes of a step are dealt to the ranks. One GPU or DDP."""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Perceptron(nn.Module):
    def __init__(self, enter, width, leave=None):
        super().__init__()
        self.first, self.second = nn.Linear(enter, width), nn.Linear(width, leave or width)
        self.norm = nn.Identity() if leave else nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(self.second(F.silu(self.first(x)))).float()


class Round(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.edges, self.nodes = Perceptron(3 * width, width), Perceptron(2 * width, width)

    def forward(self, nodes, edges, begins, ends):
        ways = torch.cat([edges, nodes.index_select(0, begins), nodes.index_select(0, ends)], 1)
        edges = edges + self.edges(ways)
        sums = torch.zeros_like(nodes).index_add_(0, ends, edges)
        return nodes + self.nodes(torch.cat([nodes, sums], 1)), edges


class Simulator(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.of_nodes, self.of_edges = Perceptron(2, args.width), Perceptron(3, args.width)
        self.rounds = nn.ModuleList(Round(args.width) for _ in range(args.rounds))
        self.tell = Perceptron(args.width, args.width, 2)

    def forward(self, velocities, ways, begins, ends):
        nodes, edges = self.of_nodes(velocities), self.of_edges(ways)
        for each in self.rounds:
            nodes, edges = each(nodes, edges, begins, ends)
        return self.tell(nodes)


def mesh(side, generator):
    """Triangles of a grid, whose nodes are moved a little: places, and edges both ways."""
    numbers = torch.arange(side * side).view(side, side)
    pairs = [
        (numbers[:-1], numbers[1:]),
        (numbers[:, :-1], numbers[:, 1:]),
        (numbers[:-1, :-1], numbers[1:, 1:]),
    ]
    one, two = (torch.cat([pair[way].flatten() for pair in pairs]) for way in range(2))
    places = torch.stack([numbers // side, numbers % side], -1).view(-1, 2) / side
    places = places + torch.rand(places.shape, generator=generator) * 0.3 / side
    return places, torch.cat([one, two]), torch.cat([two, one])


def dealt(sides, ranks, deal):
    """Numbers of the meshes of each rank: as many meshes each, or about as many nodes."""
    shares, count = [[] for _ in range(ranks)], len(sides) // ranks
    if deal == "meshes":
        return [list(range(rank * count, (rank + 1) * count)) for rank in range(ranks)]
    for number in sorted(range(len(sides)), key=lambda each: -sides[each]):
        min(shares, key=lambda share: sum(sides[each] ** 2 for each in share)).append(number)
    return shares


def batch_of(args, share, seed, device):
    """Meshes of a rank, side by side."""
    places, begins, ends, wanted, velocities, before = [], [], [], [], [], 0
    for number in share:
        generator = torch.Generator().manual_seed(seed * 1000 + number)
        own, one, two = mesh(args.sides[number], generator)
        places.append(own)
        begins.append(one + before)
        ends.append(two + before)
        velocities.append(torch.randn(len(own), 2, generator=generator))
        wanted.append(torch.randn(len(own), 2, generator=generator))
        before += len(own)
    places, begins, ends = torch.cat(places), torch.cat(begins), torch.cat(ends)
    order = ends.argsort(stable=True)
    begins, ends = begins[order], ends[order]
    ways = places[begins] - places[ends]
    ways = torch.cat([ways, ways.norm(dim=1, keepdim=True)], 1) * max(args.sides)
    return [part.to(device) for part in (torch.cat(velocities), ways, begins, ends, torch.cat(wanted), places)]


def export(path, places, velocities):
    """As programs that show flows read it (legacy VTK)."""
    with path.open("w") as file:
        file.write(f"# vtk DataFile Version 3.0\nflow\nASCII\nDATASET POLYDATA\nPOINTS {len(places)} float\n")
        np.savetxt(file, np.pad(places, ((0, 0), (0, 1))), "%.6f")
        file.write(f"POINT_DATA {len(places)}\nVECTORS velocity float\n")
        np.savetxt(file, np.pad(velocities, ((0, 0), (0, 1))), "%.6f")


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(780)
    with device:
        model = Simulator(args)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=True)
    share = dealt(args.sides, ranks, args.deal)[rank]
    numbers = 2 * sum(side**2 for side in args.sides)
    batches, most = [batch_of(args, share, seed, device) for seed in range(3)], 0
    for step in range(1, 1_000_000):
        velocities, ways, begins, ends, wanted, places = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            found = model(velocities, ways, begins, ends)
        loss = (found.float() - wanted).square().sum() * ranks / numbers
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if args.memory_every and rank == 0 and step % args.memory_every == 0 and cuda:
            most = torch.cuda.max_memory_reserved() / 2**30
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        if args.export_every and rank == 0 and step % args.export_every == 0:
            first = slice(args.sides[share[0]] ** 2)
            now = (velocities + found.detach().float())[first]
            export(Path(args.out) / "flow.vtk", places[first].cpu().numpy(), now.cpu().numpy())
        if step % args.print_every == 0:
            mean = loss.detach()
            if ranks > 1:
                dist.all_reduce(mean)
            if rank == 0:
                told = f", {most:.1f} GiB" if most else ""
                print(f"step {step}: loss {mean.item() / ranks:.4f}{told}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[128] * 8, help="nodes along each side of the meshes")
    parser.add_argument("--deal", choices=["meshes", "nodes"], default="nodes", help="what ranks have as many of")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--export-every", type=int, default=0, help="steps between files of a flow")
    parser.add_argument("--memory-every", type=int, default=0, help="steps between looks at the memory in use")
    parser.add_argument("--out", default=".", help="folder of these files")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
