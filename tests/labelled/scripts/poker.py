"""Learns what players of poker would regret (deep counterfactual regret minimisation): each of two players has a
network and a reservoir of moments of its games; later games count the more, so moments are drawn by their game."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ACTIONS = 6


def make_network(features, width, layers):
    parts, enter = [], features
    for _ in range(layers):
        parts += [nn.Linear(enter, width), nn.LayerNorm(width), nn.ReLU()]
        enter = width
    return nn.Sequential(*parts, nn.Linear(enter, ACTIONS))


class Reservoir:
    """Moments of games, on the device; `draw` says who draws from them."""

    def __init__(self, args, device, seed):
        self.args, self.device = args, device
        self.random = torch.Generator(device).manual_seed(seed)
        self.seen = torch.randn(args.moments, args.features, device=device, dtype=torch.bfloat16)
        self.regrets = self.seen[:, :ACTIONS].float() - self.seen[:, ACTIONS : 2 * ACTIONS].float()
        self.game = 1 + torch.arange(args.moments, device=device).float() // 1000
        self.on_host = np.random.default_rng(seed) if args.draw == "numpy" else None
        self.games = self.game.double().cpu().numpy()

    def add(self, game):
        """New moments take the places of some old ones."""
        apart = self.args.moments // self.args.fresh
        slots = torch.arange(self.args.fresh, device=self.device) * apart + game % apart
        fresh = torch.randn(len(slots), self.args.features, generator=self.random, device=self.device)
        self.seen[slots] = fresh.bfloat16()
        self.regrets[slots] = fresh[:, :ACTIONS] - fresh[:, ACTIONS : 2 * ACTIONS]
        self.game[slots] = float(self.args.moments // 1000 + game)
        if self.on_host is not None:
            self.games[game % apart : apart * self.args.fresh : apart] = self.args.moments // 1000 + game

    def rows(self):
        count = self.args.batch
        if self.args.draw == "numpy":
            rows = self.on_host.choice(len(self.games), size=count, p=self.games / self.games.sum())
            return torch.from_numpy(rows).to(self.device)
        if self.args.draw == "multinomial":
            return torch.multinomial(self.game, count, replacement=True, generator=self.random)
        up_to = self.game.cumsum(0)
        goal = up_to[-1] * torch.rand(count, generator=self.random, device=self.device)
        return torch.searchsorted(up_to, goal).clamp_(max=len(up_to) - 1)

    def sample(self):
        rows = self.rows()
        return self.seen[rows], self.regrets[rows], self.game[rows]


class Player:
    def __init__(self, args, device, seed):
        self.network = make_network(args.features, args.width, args.layers).to(device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), args.lr, fused=True)
        self.reservoir, self.device = Reservoir(args, device, seed), device

    def learn(self, game):
        self.reservoir.add(game)
        seen, regrets, _ = self.reservoir.sample()
        with torch.autocast(self.device.type, torch.bfloat16):
            found = self.network(seen)
        loss = F.mse_loss(found.float(), regrets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=1_000_000, help="of a reservoir")
    parser.add_argument("--fresh", type=int, default=1000, help="moments that a step adds")
    parser.add_argument("--features", type=int, default=256, help="of a moment")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--draw", choices=["search", "multinomial", "numpy"], default="search")
    parser.add_argument("--batch", type=int, default=32_768)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2416)
    players = [Player(args, device, seed) for seed in (2417, 2418)]
    for step in range(1, 10_000_000):
        losses = [player.learn(step) for player in players]
        if step % args.print_every == 0:
            print(f"step {step}: " + " and ".join(f"{loss.item():.4f}" for loss in losses), flush=True)


if __name__ == "__main__":
    main()
