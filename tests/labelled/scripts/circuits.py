"""Trains a quantum circuit that sorts what sensors measure, simulated with all amplitudes of its state: layers turn
each qubit by three angles and entangle neighbours; measurements are fed again in each layer (data re-uploading)."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


def turn_z(angle):
    """Matrices (..., 2, 2) of a turn about the z axis."""
    half = torch.polar(torch.ones_like(angle), angle / 2)
    return torch.diag_embed(torch.stack([half.conj(), half], dim=-1))


def turn_y(angle):
    cos, sin = torch.cos(angle / 2), torch.sin(angle / 2)
    rows = torch.stack([torch.stack([cos, -sin], dim=-1), torch.stack([sin, cos], dim=-1)], dim=-2)
    return torch.complex(rows, torch.zeros_like(rows))


def apply(state, gate, qubit):
    """A gate of one qubit, (2, 2) or one for each state, on states (batch, 2 ** qubits)."""
    shape = state.shape
    state = state.view(shape[0], 2**qubit, 2, -1)
    low, high = state.unbind(2)
    a, b, c, d = (gate[..., i, j].view(-1, 1, 1) for i in range(2) for j in range(2))
    return torch.stack([a * low + b * high, c * low + d * high], dim=2).view(shape)


def ring(qubits):
    """Signs that controlled-Z gates between neighbours give to amplitudes."""
    number = torch.arange(2**qubits)
    bits = (number[:, None] >> torch.arange(qubits)) & 1
    pairs = (bits * bits.roll(1, dims=1)).sum(1)
    return (1 - 2 * (pairs % 2)).float()


class Circuit(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.qubits, self.merged = args.qubits, args.rotations == "merged"
        self.angles = nn.Parameter(0.3 * torch.randn(3, args.layers, args.qubits))
        self.scale = nn.Parameter(torch.ones(args.layers, args.qubits))
        self.head = nn.Linear(args.qubits, args.classes)
        self.register_buffer("ring", ring(args.qubits), persistent=False)
        bits = (torch.arange(2**args.qubits)[:, None] >> torch.arange(args.qubits)) & 1
        self.register_buffer("spins", 1 - 2 * bits.float(), persistent=False)

    def forward(self, measured):
        state = torch.zeros(len(measured), 2**self.qubits, dtype=torch.complex64, device=measured.device)
        state[:, 0] = 1
        feed = turn_y(self.scale * measured[:, None])
        turns = turn_z(self.angles[0]), turn_y(self.angles[1]), turn_z(self.angles[2])
        if self.merged:
            turns = (turns[2] @ turns[1] @ turns[0],)
        for layer in range(feed.shape[1]):
            for qubit in range(self.qubits):
                state = apply(state, feed[:, layer, qubit], qubit)
                for turn in turns:
                    state = apply(state, turn[layer, qubit], qubit)
            state = state * self.ring
        chance = state.real**2 + state.imag**2
        return self.head(chance @ self.spins)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--qubits", type=int, default=10)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument(
        "--rotations", choices=["apart", "merged"], default="merged",
        help="turns of a qubit one after the other, or the product of their matrices",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2405)
    model = Circuit(args).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr)
    measured = math.pi * torch.rand(4096, args.qubits, device=device)
    kinds = (measured[:, : args.classes]).argmax(1)
    step = 0
    while True:
        for rows in torch.randperm(len(measured), device=device).split(args.batch):
            step += 1
            loss = F.cross_entropy(model(measured[rows]), kinds[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % args.print_every == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
