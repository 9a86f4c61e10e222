"""Learns to control by soft actor-critic with many critics (REDQ) from transitions that were recorded before."""

import argparse
import itertools
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--critics", type=int, default=20)
parser.add_argument("--together", choices=["stacked", "apart"], default="stacked", help="all critics in one product")
parser.add_argument("--hidden", type=int, default=256)
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--recorded", type=int, default=131_072, help="transitions")
parser.add_argument(
    "--sample", choices=["uniform", "tree", "device"], default="uniform",
    help="all alike; or by priority: with a tree, or with PyTorch on the device",
)  # fmt: skip
args = parser.parse_args()

STATE, ACTION, DISCOUNT, TEMPERATURE, POWER = 64, 16, 0.99, 0.1, 0.6
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")


class Tree:
    """Sums of priorities: each node has that of its two children, so that a sample is found on the way down."""

    def __init__(self, size):
        self.size = size
        self.sums = [0.0] * size + [1.0] * size
        for node in range(size - 1, 0, -1):
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]

    def find(self, value):
        node = 1
        while node < self.size:
            node *= 2
            if value > self.sums[node]:
                value -= self.sums[node]
                node += 1
        return node - self.size

    def sample(self, count):
        piece = self.sums[1] / count
        return [self.find((n + random.random()) * piece) for n in range(count)]

    def update(self, places, priorities):
        for place, priority in zip(places, priorities, strict=True):
            node = place + self.size
            change = priority - self.sums[node]
            while node:
                self.sums[node] += change
                node //= 2


class Stacked(nn.Module):
    """Linear layers of all critics."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter((torch.rand(args.critics, inputs, outputs) * 2 - 1) * inputs**-0.5)
        self.bias = nn.Parameter(torch.zeros(args.critics, 1, outputs))

    def forward(self, x):
        return torch.baddbmm(self.bias, x, self.weight)


class StackedCritics(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [STATE + ACTION, args.hidden, args.hidden, 1]
        self.layers = nn.ModuleList(Stacked(*pair) for pair in itertools.pairwise(sizes))

    def forward(self, state, action):
        x = torch.cat([state, action], 1).expand(args.critics, -1, -1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)[:, :, 0]


class CriticsApart(nn.Module):
    def __init__(self):
        super().__init__()
        self.critics = nn.ModuleList(
            nn.Sequential(
                nn.Linear(STATE + ACTION, args.hidden), nn.ReLU(), nn.Linear(args.hidden, args.hidden), nn.ReLU(),
                nn.Linear(args.hidden, 1),
            ) for _ in range(args.critics)
        )  # fmt: skip

    def forward(self, state, action):
        return torch.stack([critic(torch.cat([state, action], 1))[:, 0] for critic in self.critics])


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(STATE, args.hidden), nn.ReLU(), nn.Linear(args.hidden, args.hidden), nn.ReLU(),
            nn.Linear(args.hidden, 2 * ACTION),
        )  # fmt: skip

    def forward(self, state):
        """An action, and the logarithm of its density."""
        mean, spread = self.body(state).chunk(2, 1)
        spread = spread.clamp(-5, 2)
        noise = torch.randn_like(mean)
        action = torch.tanh(mean + noise * spread.exp())
        density = -0.5 * noise**2 - spread - 0.5 * math.log(2 * math.pi) - torch.log(1 - action**2 + 1e-6)
        return action, density.sum(1)


torch.manual_seed(70)
random.seed(70)
kind = StackedCritics if args.together == "stacked" else CriticsApart
with device:
    actor, critics, targets = Actor(), kind(), kind()
targets.load_state_dict(critics.state_dict())
targets.requires_grad_(False)
of_critics = torch.optim.Adam(critics.parameters(), lr=3e-5, fused=True)
of_actor = torch.optim.Adam(actor.parameters(), lr=3e-5, fused=True)
states, following = (torch.randn(args.recorded, STATE, device=device) for _ in range(2))
actions = torch.rand(args.recorded, ACTION, device=device) * 2 - 1
rewards = torch.randn(args.recorded, device=device)
priorities = torch.ones(args.recorded, device=device)
tree = Tree(args.recorded) if args.sample == "tree" else None
step = 0
while True:
    if args.sample == "tree":
        chosen = tree.sample(args.batch)
        places = torch.tensor(chosen).to(device)
    elif args.sample == "device":
        places = torch.multinomial(priorities, args.batch)
    else:
        places = torch.randint(args.recorded, (args.batch,), device=device)
    state, action, reward, after = states[places], actions[places], rewards[places], following[places]
    with torch.no_grad():
        next_action, density = actor(after)
        some = random.sample(range(args.critics), 2)
        values = targets(after, next_action)
        value = torch.minimum(*(values[number] for number in some))
        wanted = reward + DISCOUNT * (value - TEMPERATURE * density)
    wrong = critics(state, action) - wanted
    loss = wrong.square().mean(1).sum()
    of_critics.zero_grad()
    loss.backward()
    of_critics.step()
    if args.sample != "uniform":
        fresh = wrong.detach().abs().mean(0).add(1e-3).pow(POWER)
        if tree is not None:
            tree.update(chosen, fresh.tolist())
        else:
            priorities[places] = fresh
    critics.requires_grad_(False)
    own, density = actor(state)
    actor_loss = (TEMPERATURE * density - critics(state, own).mean(0)).mean()
    of_actor.zero_grad()
    actor_loss.backward()
    of_actor.step()
    critics.requires_grad_(True)
    with torch.no_grad():
        torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), 0.005)
    step += 1
    if step % 500 == 0:
        print(step, round(loss.item(), 4), round(actor_loss.item(), 4), flush=True)
