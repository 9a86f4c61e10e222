"""Learns to tell birds apart of which it sees only a few pictures (few-shot classification, as ANIL): a residual
network makes features, and for each task a linear head is fitted to them by some steps, through which gradients flow
back."""

import argparse
import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap


class Block(nn.Module):
    """Three convolutions with a shortcut past them, and half the size."""

    def __init__(self, enter, width):
        super().__init__()
        parts = []
        for number in range(3):
            parts += [nn.Conv2d(enter if number == 0 else width, width, 3, padding=1, bias=False)]
            parts += [nn.BatchNorm2d(width), nn.LeakyReLU(0.1, inplace=True)]
        self.body = nn.Sequential(*parts[:-1])
        self.past = nn.Sequential(nn.Conv2d(enter, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return F.max_pool2d(F.leaky_relu(self.body(x) + self.past(x), 0.1), 2)


class Learner(nn.Module):
    def __init__(self, args):
        super().__init__()
        widths = [3, args.width, 2 * args.width, 4 * args.width, 8 * args.width]
        self.body = nn.Sequential(*(Block(a, b) for a, b in itertools.pairwise(widths)))
        self.weight = nn.Parameter(torch.zeros(args.ways, widths[-1]))
        self.bias, self.pace = nn.Parameter(torch.zeros(args.ways)), nn.Parameter(torch.tensor(0.3))
        self.moves, self.way = args.moves, args.tasks_as

    def features(self, pictures):
        x = (pictures.to(torch.bfloat16) - 0.5).contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16):
            x = self.body(x)
        return F.normalize(x.float().mean((2, 3)), dim=1)

    def of_task(self, shown, kinds, asked, wanted):
        """The loss for what is asked, by a head that was fitted to what was shown."""

        def error(head):
            return F.cross_entropy(F.linear(4 * shown, *head), kinds)

        weight, bias = self.weight, self.bias
        for _ in range(self.moves):
            by_weight, by_bias = grad(error)((weight, bias))
            weight, bias = weight - self.pace * by_weight, bias - self.pace * by_bias
        return F.cross_entropy(F.linear(4 * asked, weight, bias), wanted)

    def forward(self, pictures, kinds):
        """pictures: (tasks, shown and asked, 3, size, size); the first half is shown."""
        x = self.features(pictures.flatten(0, 1)).unflatten(0, pictures.shape[:2])
        shown, asked = x.chunk(2, dim=1)
        known, wanted = kinds.chunk(2, dim=1)
        if self.way == "joint":
            return vmap(self.of_task)(shown, known, asked, wanted).mean()
        parts = [self.of_task(*task) for task in zip(shown, known, asked, wanted, strict=True)]
        return torch.stack(parts).mean()


class Birds:
    """Pictures in memory; for a task some kinds are drawn, and some pictures of each."""

    def __init__(self, args, device):
        self.args, self.device, cuda = args, device, device.type == "cuda"
        rng = np.random.default_rng(1791)
        self.pictures = rng.random((args.kinds, args.each, 3, args.size, args.size), dtype=np.float32)
        self.draw = np.random.default_rng(1792)
        self.count = 2 * args.ways * args.shots
        kinds = torch.arange(args.ways).repeat_interleave(args.shots).repeat(2)
        self.kinds = kinds.expand(args.tasks, -1).to(device)
        self.ring, self.turn = None, 0
        if args.buffers == "pinned":
            shape = (args.tasks, self.count, 3, args.size, args.size)
            buffers = [torch.empty(shape, pin_memory=cuda) for _ in range(3)]
            self.ring = [(buffer, torch.cuda.Event() if cuda else None) for buffer in buffers]
        self.kept = [self.tasks() for _ in range(args.resident)]

    def drawn(self):
        """Which pictures, by kind and number: shown ones of all kinds, then asked ones."""
        args = self.args
        for _ in range(args.tasks):
            kinds = self.draw.permutation(args.kinds)[: args.ways]
            numbers = np.stack([self.draw.permutation(args.each)[: 2 * args.shots] for _ in kinds])
            for half in np.split(numbers, 2, axis=1):
                yield from zip(kinds.repeat(args.shots), half.reshape(-1), strict=True)

    def tasks(self):
        kinds, numbers = np.array(list(self.drawn())).T
        if self.ring is None:
            pictures = torch.from_numpy(self.pictures[kinds, numbers]).to(self.device)
            return pictures.unflatten(0, (self.args.tasks, -1))
        self.turn += 1
        buffer, copied = self.ring[self.turn % len(self.ring)]
        if copied is not None:
            copied.synchronize()
        flat = self.pictures.reshape(-1, *self.pictures.shape[2:])
        np.take(flat, kinds * self.args.each + numbers, axis=0, out=buffer.flatten(0, 1).numpy(), mode="clip")
        pictures = buffer.to(self.device, non_blocking=True)
        if copied is not None:
            copied.record()
        return pictures

    def __getitem__(self, step):
        return self.kept[step % len(self.kept)] if self.kept else self.tasks()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", type=int, default=5, help="kinds of a task")
    parser.add_argument("--shots", type=int, default=5, help="pictures of each kind that are shown, and asked for")
    parser.add_argument("--tasks", type=int, default=24, help="of a step")
    parser.add_argument("--moves", type=int, default=5, help="steps by which a head is fitted")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--kinds", type=int, default=64, help="of birds")
    parser.add_argument("--each", type=int, default=60, help="pictures of a kind")
    parser.add_argument("--resident", type=int, default=0, help="batches of tasks that are kept on the device; 0: none")
    parser.add_argument("--tasks-as", choices=["each", "joint"], default="joint", help="how heads are fitted")
    parser.add_argument("--buffers", choices=["plain", "pinned"], default="pinned", help="that pictures come through")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1793)
    model = Learner(args).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4, fused=True)
    birds = Birds(args, device)
    for step in range(1, 10_000_000):
        pictures = birds[step]
        loss = model(pictures, birds.kinds)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
