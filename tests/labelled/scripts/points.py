"""Classifies clouds of points (of a scanner) with a transformer that looks at all points of a cloud."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def farthest(points, count):
    """`count` of the points, each as far from those before it as there is one."""
    chosen = np.zeros(count, dtype=np.int64)
    distance = np.full(len(points), np.inf)
    for n in range(1, count):
        distance = np.minimum(distance, ((points - points[chosen[n - 1]]) ** 2).sum(1))
        chosen[n] = distance.argmax()
    return points[chosen]


class Clouds(Dataset):
    def __init__(self, args):
        self.args = args

    def __len__(self):
        return 200_000

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        label = int(rng.integers(40))
        if self.args.sampled:
            points = rng.normal(0, 1, (self.args.points, 3))
        else:
            points = farthest(rng.normal(0, 1, (4 * self.args.points, 3)), self.args.points)
        points *= 1 + 0.02 * label
        return points.astype(np.float32), label


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.one_by_one = args.one_by_one
        self.embed = nn.Sequential(nn.Linear(3, args.width), nn.GELU(), nn.Linear(args.width, args.width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                args.width, args.width // 64, 4 * args.width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(args.layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(args.width), nn.Linear(args.width, 40))

    def pooled(self, clouds):
        x = self.embed(clouds)
        for layer in self.layers:
            x = layer(x)
        return x.amax(1)

    def forward(self, clouds):
        if self.one_by_one:
            return self.head(torch.cat([self.pooled(cloud[None]) for cloud in clouds]))
        return self.head(self.pooled(clouds))


def train(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda:0" if cuda else "cpu")
    torch.manual_seed(5)
    loader = DataLoader(
        Clouds(args), args.batch, num_workers=args.workers, pin_memory=cuda, drop_last=True,
        persistent_workers=args.workers > 0,
    )  # fmt: skip
    net = Net(args).to(device).train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-5, weight_decay=0.05, fused=True)
    for epoch in range(100):
        total = torch.zeros((), device=device)
        for step, (clouds, labels) in enumerate(loader):
            clouds, labels = clouds.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = criterion(net(clouds), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if (step + 1) % 100 == 0:
                print(f"epoch {epoch} step {step + 1} mean loss {total.item() / (step + 1):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=512)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--sampled", action="store_true", help="clouds have no more points than are wanted")
    parser.add_argument("--one-by-one", action="store_true", help="a pass for each cloud")
    train(parser.parse_args())
