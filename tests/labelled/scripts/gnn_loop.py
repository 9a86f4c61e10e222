"""Trains a graph network of PyTorch Geometric on one graph, all of it in each step."""

import argparse
import itertools

import torch
from torch_geometric.nn import GCNConv

parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int, default=4000)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--graph", action="store_true", help="capture forward and backward pass as a CUDA graph")
given = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)
edges = torch.randint(0, given.nodes, (2, given.nodes * 8), device=device)
features = torch.randn(given.nodes, given.width, device=device)
labels = torch.randint(0, 10, (given.nodes,), device=device)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [given.width] * given.layers + [10]
        self.layers = torch.nn.ModuleList(GCNConv(a, b, cached=True) for a, b in itertools.pairwise(sizes))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(size) for size in sizes[1:])

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x, edges)).relu()
        return x


model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def train():
    optimizer.zero_grad(set_to_none=False)
    loss = torch.nn.functional.cross_entropy(model(features), labels)
    loss.backward()
    return loss


if given.graph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = train()
while True:
    if given.graph:
        captured.replay()
    else:
        loss = train()
    optimizer.step()
