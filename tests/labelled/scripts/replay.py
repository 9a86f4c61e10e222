"""Learns to play from what was played before (quantile regression DQN): moments from which there is most to learn are
drawn most often (prioritised replay), and a residual network tells how much reward each move may still bring."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SIZE, STACK, MOVES, DISCOUNT = 84, 4, 18, 0.99


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x):
        return x + self.second(F.relu(self.first(F.relu(x))))


class Player(nn.Module):
    """The tower of IMPALA, and quantiles of what is still to come after each move."""

    def __init__(self, args):
        super().__init__()
        widths, parts, enter = [16 * args.wide, 32 * args.wide, 32 * args.wide], [], STACK
        for width in widths:
            parts += [nn.Conv2d(enter, width, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(width), Residual(width)]
            enter = width
        self.tower = nn.Sequential(*parts, nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(121 * enter, 512), nn.ReLU(), nn.Linear(512, MOVES * args.quantiles))
        self.quantiles = args.quantiles

    def forward(self, frames):
        x = (frames.to(torch.bfloat16) / 255).contiguous(memory_format=torch.channels_last)
        return self.head(self.tower(x)).float().unflatten(1, (MOVES, self.quantiles))


class HostTree:
    """A binary tree whose nodes are the sum of the two below them; leaves are priorities."""

    def __init__(self, count, device):
        self.count, self.device = count, device
        self.sums = [0.0] * count + [1.0] * count
        for node in range(count - 1, 0, -1):
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]

    def find(self, mass):
        node = 1
        while node < self.count:
            node *= 2
            if mass >= self.sums[node]:
                mass -= self.sums[node]
                node += 1
        return min(node, 2 * self.count - 1) - self.count

    def draw(self, shares):
        total = self.sums[1]
        places = [self.find(share * total) for share in shares.tolist()]
        chance = torch.tensor([self.sums[self.count + place] / total for place in places], dtype=torch.float32)
        return torch.tensor(places).to(self.device), chance.to(self.device)

    def update(self, places, priorities):
        for place, priority in zip(places.tolist(), priorities.tolist(), strict=True):
            node = self.count + place
            change = priority - self.sums[node]
            while node:
                self.sums[node] += change
                node //= 2


class DeviceTree:
    """The same by sums over all priorities, on the device."""

    def __init__(self, count, device):
        self.priorities = torch.ones(count, dtype=torch.float64, device=device)

    def draw(self, shares):
        sums = self.priorities.cumsum(0)
        places = torch.searchsorted(sums, shares.to(sums.device, non_blocking=True) * sums[-1], right=True)
        places = places.clamp(max=len(sums) - 1)
        return places, (self.priorities[places] / sums[-1]).float()

    def update(self, places, priorities):
        self.priorities[places] = priorities.double()


class Memory:
    """Frames one after the other, with moves and rewards."""

    def __init__(self, args, device):
        self.args, self.device, self.count, cuda = args, device, args.moments, device.type == "cuda"
        draw = torch.Generator(device).manual_seed(1721)
        frames = torch.randint(256, (self.count + STACK, SIZE * SIZE), dtype=torch.uint8, generator=draw, device=device)
        self.frames = frames if args.frames == "device" else frames.cpu()
        self.moves = torch.randint(MOVES, (self.count,), generator=draw, device=device)
        self.rewards = torch.randn(self.count, generator=draw, device=device)
        self.around = torch.arange(STACK + 1, device=self.frames.device)
        self.draw = torch.Generator().manual_seed(1722)
        self.numbers = np.random.default_rng(1723)
        self.tree = None
        if args.tree != "none":
            self.tree = (HostTree if args.tree == "host" else DeviceTree)(self.count, device)
        self.ring, self.turn = None, 0
        if args.buffers == "pinned":
            shape = (args.batch * (STACK + 1), SIZE * SIZE)
            buffers = [torch.empty(shape, dtype=torch.uint8, pin_memory=cuda) for _ in range(3)]
            self.ring = [(buffer, torch.cuda.Event() if cuda else None) for buffer in buffers]

    def gather(self, rows):
        if self.args.frames == "device":
            return self.frames.index_select(0, rows)
        if self.ring is None:
            return self.frames.index_select(0, rows).to(self.device)
        self.turn += 1
        buffer, copied = self.ring[self.turn % len(self.ring)]
        if copied is not None:
            copied.synchronize()
        torch.index_select(self.frames, 0, rows, out=buffer)
        found = buffer.to(self.device, non_blocking=True)
        if copied is not None:
            copied.record()
        return found

    def sample(self):
        """Places, frames with those that came next, moves, rewards, and how often each would be drawn."""
        if self.tree:
            places, chance = self.tree.draw(torch.rand(self.args.batch, dtype=torch.float64, generator=self.draw))
            rows = (places.to(self.around.device)[:, None] + self.around).flatten()
            weights = (self.count * chance).pow(-0.5)
            weights = weights / weights.max()
        else:
            drawn = torch.from_numpy(self.numbers.integers(0, self.count, self.args.batch))
            rows = (drawn.to(self.around.device)[:, None] + self.around).flatten()
            places, weights = drawn.to(self.device, non_blocking=True), 1.0
        frames = self.gather(rows).view(-1, STACK + 1, SIZE, SIZE)
        return places, frames, self.moves[places], self.rewards[places], weights


def quantile_loss(told, wanted):
    """Huber loss of all pairs of quantiles, for each sample."""
    count = told.shape[1]
    share = (torch.arange(count, device=told.device) + 0.5) / count
    error = wanted[:, None] - told[:, :, None]
    huber = torch.where(error.abs() < 1, 0.5 * error.square(), error.abs() - 0.5)
    return ((share[:, None] - (error < 0).float()).abs() * huber).mean(2).sum(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=2**16, help="that are remembered, a power of two")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--wide", type=int, default=4)
    parser.add_argument("--quantiles", type=int, default=64)
    parser.add_argument("--tree", choices=["none", "host", "device"], default="device", help="where priorities are")
    parser.add_argument("--frames", choices=["host", "device"], default="device", help="where they are remembered")
    parser.add_argument("--buffers", choices=["plain", "pinned"], default="pinned", help="that batches come through")
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1724)
    online, target = (Player(args).to(device, memory_format=torch.channels_last) for _ in range(2))
    target.load_state_dict(online.state_dict())
    target.requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), args.lr, eps=1e-4, fused=True)
    memory, rows = Memory(args, device), torch.arange(args.batch, device=device)
    for step in range(1, 10_000_000):
        places, frames, moves, rewards, weights = memory.sample()
        now, later = frames[:, :STACK], frames[:, 1:]
        with torch.autocast(device.type, torch.bfloat16):
            with torch.no_grad():
                best = online(later).mean(2).argmax(1)
                wanted = rewards[:, None] + DISCOUNT * target(later)[rows, best]
            told = online(now)[rows, moves]
        each = quantile_loss(told, wanted)
        loss = (weights * each).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        optimizer.step()
        if memory.tree:
            memory.tree.update(places, (each.detach() + 1e-3).pow(0.6))
        if step % 2000 == 0:
            target.load_state_dict(online.state_dict())
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
