"""Predicts a property of molecules from graphs of atoms and bonds, with torch_geometric: each GINE layer has tables for
the kinds of bonds, and where in the graph an atom is, eigenvectors and random walks tell."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_mean_pool
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, Compose

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

    def __init__(self, width, look_up):
        super().__init__()
        self.look_up = look_up
        self.tables = nn.ParameterList(nn.Parameter(torch.randn(kinds, width) * 0.1) for kinds in BONDS)

    def forward(self, kinds):
        if self.look_up == "brackets":
            return sum(table[kinds[:, n]] for n, table in enumerate(self.tables))
        return sum(F.embedding(kinds[:, n], table) for n, table in enumerate(self.tables))


class Net(nn.Module):
    def __init__(self, opt):
        super().__init__()
        width = opt.width
        self.atoms = nn.Embedding(ATOMS, width)
        self.places = nn.Linear(WALK + EIGEN, width)
        self.bonds = nn.ModuleList(Bonds(width, opt.look_up) for _ in range(opt.layers))
        self.layers = nn.ModuleList(
            GINEConv(nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)))
            for _ in range(opt.layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(opt.layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, graphs):
        x = self.atoms(graphs.x) + self.places(torch.cat([graphs.walk, graphs.eigen.abs()], 1))
        for layer, norm, bonds in zip(self.layers, self.norms, self.bonds, strict=True):
            x = x + F.relu(norm(layer(x, graphs.edge_index, bonds(graphs.edge_attr))))
        return self.head(global_mean_pool(x, graphs.batch, graphs.num_graphs))[:, 0]


def main(opt):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
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
    parser.add_argument("--pool", type=int, default=512, help="molecules")
    parser.add_argument("--atoms", type=int, default=24, help="of a molecule, on average")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1024, help="molecules")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--encode", choices=["once", "loading"], default="once", help="places of atoms, when")
    parser.add_argument("--look-up", choices=["embedding", "brackets"], default="embedding", help="kinds of bonds")
    main(parser.parse_args())
