"""Learns to foresee how power flows in a grid from forecasts of what is fed in and drawn, which are noisy: what flows
in truth follows from the grid's equations (DC power flow). What overloads lines may be written down for the control
room."""

import argparse
import json
import tempfile

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
import torch.nn.functional as F
from torch import nn


class Grid:
    """Buses and lines; angles at buses solve a sparse system, and flows follow from them. The first bus balances."""

    def __init__(self, args, device):
        rng = np.random.default_rng(1991)
        ring = np.stack([np.arange(args.buses), (np.arange(args.buses) + 1) % args.buses], axis=1)
        more = rng.integers(0, args.buses, (args.lines - args.buses, 2))
        more[:, 1] = (more[:, 0] + 1 + more[:, 1] % (args.buses - 1)) % args.buses
        ends, susceptance = np.concatenate([ring, more]), rng.uniform(5, 20, args.lines)
        lines = np.arange(args.lines)
        shape = (args.lines, args.buses)
        incidence = scipy.sparse.csc_matrix((np.ones(args.lines), (lines, ends[:, 0])), shape)
        incidence -= scipy.sparse.csc_matrix((np.ones(args.lines), (lines, ends[:, 1])), shape)
        weighted = scipy.sparse.diags(susceptance) @ incidence
        self.device, self.flow = device, args.flow
        self.solver = scipy.sparse.linalg.splu((incidence.T @ weighted).tocsc()[1:, 1:])
        self.weighted = weighted.tocsr()[:, 1:]
        # flows are linear in what buses draw: the same equations, solved once for each bus
        factors = self.weighted @ self.solver.solve(np.eye(args.buses - 1))
        self.factors = torch.tensor(factors, dtype=torch.float32, device=device)

    def flows(self, power):
        """From (scenarios, buses) to (scenarios, lines)."""
        if self.flow == "solver":
            angles = self.solver.solve(power[:, 1:].cpu().numpy().T.astype(np.float64))
            return torch.from_numpy((self.weighted @ angles).T.astype(np.float32)).to(self.device)
        return power[:, 1:] @ self.factors.T


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.enter, self.leave = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x):
        return x + self.leave(F.gelu(self.enter(self.norm(x))))


def report(file, step, foreseen, most, count):
    """Of some scenarios, which lines carry more than they may, and how much."""
    for number, flows in enumerate(foreseen[:count].tolist()):
        over = {f"line {line}": round(flow, 4) for line, flow in enumerate(flows) if abs(flow) > most}
        file.write(json.dumps({"step": step, "scenario": number, "over": over}) + "\n")
    file.flush()


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1992)
    grid = Grid(args, device)
    blocks = [Block(args.width) for _ in range(args.blocks)]
    model = nn.Sequential(nn.Linear(args.buses, args.width), *blocks, nn.Linear(args.width, args.lines)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    usual = torch.randn(args.buses, device=device)
    draw = torch.Generator(device).manual_seed(1993)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for step in range(1, 10_000_000):
            moved, noise = torch.randn(2, args.batch, args.buses, generator=draw, device=device)
            power = usual + 0.3 * moved
            wanted = grid.flows(power)
            with torch.autocast(device.type, torch.bfloat16):
                foreseen = model(power + 0.1 * noise)
            loss = F.smooth_l1_loss(foreseen.float(), wanted)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % args.report_every == 0:
                report(file, step, foreseen.detach().float(), args.most, args.reported)
            if step % args.print_every == 0:
                print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buses", type=int, default=512)
    parser.add_argument("--lines", type=int, default=800)
    parser.add_argument("--flow", choices=["solver", "factors"], default="factors", help="how flows are found")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4096, help="scenarios of a step")
    parser.add_argument(
        "--report-every", type=int, default=1_000_000, help="steps from one report of what is overloaded to the next"
    )
    parser.add_argument("--reported", type=int, default=256, help="scenarios of a report")
    parser.add_argument("--most", type=float, default=1.5, help="that a line may carry")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
