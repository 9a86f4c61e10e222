"""Teaches agents to act together from recorded episodes (QMIX): each agent remembers what it saw by a recurrent network
and values its own moves; a mixer, whose weights are made from the state of all, says what the moves are worth
together."""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import nn

DISCOUNT = 0.99


class Agent(nn.Module):
    """One network for all agents: rows are the agents of all episodes."""

    def __init__(self, args):
        super().__init__()
        self.recurrence = args.recurrence
        self.enter = nn.Linear(args.seen + args.moves + args.agents, args.width)
        self.memory = nn.GRU(args.width, args.width)
        self.leave = nn.Linear(args.width, args.moves)

    def forward(self, seen):
        """(moment, row, feature)"""
        x = F.relu(self.enter(seen))
        if self.recurrence == "whole":
            return self.leave(self.memory(x)[0])
        own = self.memory
        state, states = x.new_zeros(x.shape[1:]), []
        for now in x.unbind():
            state = torch.gru_cell(now, state, own.weight_ih_l0, own.weight_hh_l0, own.bias_ih_l0, own.bias_hh_l0)
            states.append(state)
        return self.leave(torch.stack(states))


class Mixer(nn.Module):
    def __init__(self, args, inner=32):
        super().__init__()
        self.agents, self.inner = args.agents, inner
        self.first = nn.Sequential(nn.Linear(args.state, 256), nn.ReLU(), nn.Linear(256, args.agents * inner))
        self.second = nn.Sequential(nn.Linear(args.state, 256), nn.ReLU(), nn.Linear(256, inner))
        self.shift = nn.Linear(args.state, inner)
        self.last = nn.Sequential(nn.Linear(args.state, inner), nn.ReLU(), nn.Linear(inner, 1))

    def forward(self, values, state):
        """Values of each agent's move, as (moment, episode, agent)."""
        first = self.first(state).abs().unflatten(-1, (self.agents, self.inner))
        h = F.elu((values[..., None, :] @ first).squeeze(-2) + self.shift(state))
        return (h * self.second(state).abs()).sum(-1) + self.last(state).squeeze(-1)


def episode(args, device):
    rows = (args.moments + 1, args.episodes * args.agents)
    moves = torch.randint(args.moves, rows, device=device)
    before = F.one_hot(moves.roll(1, 0), args.moves).float()
    who = torch.eye(args.agents, device=device).repeat(args.episodes, 1).expand(rows[0], -1, -1)
    return {
        "seen": torch.cat([torch.randn(*rows, args.seen, device=device), before, who], dim=-1),
        "moves": moves[:-1, :, None],
        "state": torch.randn(args.moments + 1, args.episodes, args.state, device=device),
        "rewards": torch.randn(args.moments, args.episodes, device=device),
    }


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1851)
    agent, mixer = Agent(args).to(device), Mixer(args).to(device)
    old_agent, old_mixer = copy.deepcopy(agent).requires_grad_(False), copy.deepcopy(mixer).requires_grad_(False)
    weights = [*agent.parameters(), *mixer.parameters()]
    optimizer = torch.optim.Adam(weights, args.lr, fused=True)
    recorded = [episode(args, device) for _ in range(3)]
    for step in range(1, 10_000_000):
        batch = recorded[step % len(recorded)]
        values = agent(batch["seen"])
        with torch.no_grad():
            best = values[1:].argmax(-1, keepdim=True)
            later = old_agent(batch["seen"])[1:].gather(-1, best).squeeze(-1).unflatten(1, (-1, args.agents))
            goal = batch["rewards"] + DISCOUNT * old_mixer(later, batch["state"][1:])
        taken = values[:-1].gather(-1, batch["moves"]).squeeze(-1).unflatten(1, (-1, args.agents))
        loss = F.mse_loss(mixer(taken, batch["state"][:-1]), goal)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 10.0)
        optimizer.step()
        if step % 200 == 0:
            old_agent.load_state_dict(agent.state_dict())
            old_mixer.load_state_dict(mixer.state_dict())
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64, help="of a step")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--moments", type=int, default=200, help="of an episode")
    parser.add_argument("--seen", type=int, default=112, help="numbers that an agent sees")
    parser.add_argument("--state", type=int, default=256, help="numbers that tell the state of all")
    parser.add_argument("--moves", type=int, default=16)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--recurrence", choices=["moments", "whole"], default="whole", help="how it is run")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
