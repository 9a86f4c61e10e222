"""Trains a wide residual network with Lightning Fabric on pictures in memory, of which it mixes pairs (mixup)."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn

CLASSES, MEAN, SPREAD = 200, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(nn.Module):
    def __init__(self, inputs, inner, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.aside = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.aside = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.body(x) + self.aside(x))


class Wide(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for stage, number in enumerate(blocks):
            inner = width * 2**stage
            for place in range(number):
                layers.append(Block(inputs, inner, 2 * inner, 2 if stage and not place else 1))
                inputs = 2 * inner
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inputs, CLASSES)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


class Mixup:
    """Normalised pictures, and labels as shares of classes: each a mean of two, with weights that are drawn."""

    def __init__(self, device):
        self.mean, self.spread = (torch.tensor(v, device=device).view(3, 1, 1) for v in (MEAN, SPREAD))

    def __call__(self, images, labels, share, order):
        images = (images.float() / 255 - self.mean) / self.spread
        shares = F.one_hot(labels, CLASSES).float()
        images = share.view(-1, 1, 1, 1) * images + (1 - share).view(-1, 1, 1, 1) * images[order]
        return images, share[:, None] * shares + (1 - share)[:, None] * shares[order]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256, help="of the first stage's blocks")
    parser.add_argument("--blocks", type=int, nargs="+", default=[3, 4, 6, 3], help="of each stage")
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--mix-on", choices=["device", "host"], default="device")
    args = parser.parse_args()
    fabric = Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
    fabric.launch()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(131)
    with fabric.init_module():
        net = Wide(args.width, args.blocks)
    form = torch.channels_last if args.channels_last else torch.contiguous_format
    net = net.to(memory_format=form)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4, fused=True)
    net, optimizer = fabric.setup(net, optimizer)
    where = fabric.device if args.mix_on == "device" else torch.device("cpu")
    mixup, shares = Mixup(where), torch.distributions.Beta(0.2, 0.2)
    pool = torch.randint(0, 256, (12, args.batch, 3, args.size, args.size), dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (12, args.batch))
    if fabric.device.type == "cuda":
        pool, labels = pool.pin_memory(), labels.pin_memory()
    for step in itertools.count(1):
        place = step % len(pool)
        batch = pool[place], labels[place], shares.sample((args.batch,)), torch.randperm(args.batch)
        mixed, truth = mixup(*(value.to(where, non_blocking=True) for value in batch))
        if args.mix_on == "host" and fabric.device.type == "cuda":
            mixed, truth = mixed.pin_memory(), truth.pin_memory()
        mixed, truth = mixed.to(fabric.device, non_blocking=True), truth.to(fabric.device, non_blocking=True)
        loss = F.cross_entropy(net(mixed.contiguous(memory_format=form)), truth)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
