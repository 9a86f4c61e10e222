"""Predicts a property of molecules from graphs of atoms and bonds, with torch_geometric: a virtual atom hears of all
others between GINE layers, and eigenvectors and random walks tell where in the graph an atom is."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_mean_pool
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, Compose
from torch_geometric.utils import segment

ATOMS, BONDS, WALK, EIGEN = 28, (5, 6, 2), 20, 8
"""Kinds of a bond: single to aromatic, stereo, conjugated or not."""


class Molecules(Dataset):
    """Trees of atoms with some rings. They are few, as chemistry is not what is tried here."""

    def __init__(self, opt):
        rng = torch.Generator().manual_seed(0)
        eigen = AddLaplacianEigenvectorPE(EIGEN, "eigen", is_undirected=True)
        self.encode = Compose([AddRandomWalkPE(WALK, "walk"), eigen])
        self.graphs = [self.draw(opt, rng) for _ in range(opt.pool)]
        self.when = opt.encode
        if self.when == "once":
            self.graphs = [self.encode(graph) for graph in self.graphs]

    @staticmethod
    def draw(opt, rng):
        count = int(torch.randint(opt.atoms * 3 // 4, opt.atoms * 5 // 4 + 1, (1,), generator=rng))
        child = torch.arange(1, count)
        parent = child - torch.minimum(torch.randint(1, 4, (count - 1,), generator=rng), child)
        rings = torch.randint(0, count, (2, max(1, count // 10)), generator=rng)
        pairs = torch.cat([torch.stack([child, parent]), rings], 1)
        pairs = pairs[:, pairs[0] != pairs[1]]
        # Most bonds are single, without stereo, and not conjugated.
        kinds = [(torch.rand(pairs.shape[1], generator=rng) ** 3 * n).long() for n in BONDS]
        return Data(
            x=(torch.rand(count, generator=rng) ** 3 * ATOMS).long(),
            edge_index=torch.cat([pairs, pairs.flip(0)], 1), edge_attr=torch.stack(kinds, 1).repeat(2, 1),
            y=torch.rand(1, generator=rng), num_nodes=count,
        )  # fmt: skip

    def __len__(self):
        return 4_000_000

    def __getitem__(self, place):
        graph = self.graphs[place % len(self.graphs)]
        return self.encode(graph.clone()) if self.when == "loading" else graph


class Bonds(nn.Module):
    """What kinds of bond mean, each as a row of a table."""

    def __init__(self, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(kinds, width) for kinds in BONDS)

    def forward(self, kinds):
        return sum(table(kinds[:, n]) for n, table in enumerate(self.tables))


def perceptron(width):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


class Net(nn.Module):
    def __init__(self, opt):
        super().__init__()
        width = opt.width
        self.pool_by = opt.pool_by
        self.atoms = nn.Embedding(ATOMS, width)
        self.places = nn.Linear(WALK + EIGEN, width) if opt.encode != "not" else None
        self.bonds = nn.ModuleList(Bonds(width) for _ in range(opt.layers))
        self.layers = nn.ModuleList(GINEConv(perceptron(width)) for _ in range(opt.layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(opt.layers))
        self.virtual = nn.ModuleList(perceptron(width) for _ in range(opt.layers))
        self.head = nn.Linear(width, 1)

    def pool(self, x, graphs):
        """The mean over a graph, whose atoms are next to each other: from where it begins, or from whose an atom is."""
        if self.pool_by == "begin":
            return segment(x, graphs.ptr, reduce="mean")
        return global_mean_pool(x, graphs.batch, graphs.num_graphs)

    def forward(self, graphs):
        x = self.atoms(graphs.x)
        if self.places:
            x = x + self.places(torch.cat([graphs.walk, graphs.eigen.abs()], 1))
        heard = x.new_zeros(graphs.num_graphs, x.shape[1])
        for layer, norm, bonds, virtual in zip(self.layers, self.norms, self.bonds, self.virtual, strict=True):
            x = x + heard.index_select(0, graphs.batch)
            x = x + F.relu(norm(layer(x, graphs.edge_index, bonds(graphs.edge_attr))))
            heard = heard + virtual(self.pool(x, graphs))
        return self.head(heard)[:, 0]


def main(opt):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.set_float32_matmul_precision("high")
    data = Molecules(opt)
    torch.manual_seed(220)
    model = Net(opt).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    loader = DataLoader(data, opt.batch, num_workers=opt.workers, pin_memory=cuda, persistent_workers=opt.workers > 0)
    for step, graphs in enumerate(loader, 1):
        graphs = graphs.to(device, non_blocking=True)
        loss = F.l1_loss(model(graphs), graphs.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=int, default=256, help="molecules")
    parser.add_argument("--atoms", type=int, default=24, help="of a molecule, on average")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1024, help="molecules")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--encode", choices=["once", "loading", "not"], default="once", help="places of atoms, when")
    parser.add_argument("--pool-by", choices=["atom", "begin"], default="atom", help="what tells graphs apart")
    main(parser.parse_args())
