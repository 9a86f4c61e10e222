"""Tells where somebody went by the sensors of a phone alone (inertial odometry): a network corrects the turn rates and
accelerations that a phone measures, and what is integrated from them must end where the person was."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEP = 0.02  # seconds between two samples


class Walks(Dataset):
    """Windows of recordings, each turned by a random angle, with noise of the sensors."""

    def __init__(self, args, recordings=32, length=60_000):
        draw = np.random.default_rng(2411)
        self.window = args.window
        self.rates = draw.standard_normal((recordings, length, 3)).cumsum(1).astype(np.float32)
        self.rates = np.sin(0.05 * self.rates)
        self.forces = 0.3 * draw.standard_normal((recordings, length, 3)).astype(np.float32)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        which, start = draw.integers(len(self.rates)), draw.integers(self.rates.shape[1] - self.window)
        span = slice(start, start + self.window)
        angle = draw.uniform(0, 2 * np.pi)
        turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]], np.float32)
        rates, forces = self.rates[which, span] @ turn.T, self.forces[which, span] @ turn.T
        end = forces.cumsum(0).sum(0) * STEP**2
        noisy = [
            true + draw.normal(0, 0.05, 3).astype(np.float32) + 0.02 * draw.standard_normal(true.shape, np.float32)
            for true in (rates, forces)
        ]
        return np.concatenate(noisy, axis=1), end


class Corrector(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter, self.leave = nn.Linear(6, args.width), nn.Linear(args.width, 6)
        self.places = nn.Parameter(0.02 * torch.randn(args.window, args.width))
        layer = nn.TransformerEncoderLayer(
            args.width, max(1, args.width // 64), 4 * args.width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)

    def forward(self, measured):
        return measured + self.leave(self.layers(self.enter(measured) + self.places)).float()


def rotations(rates):
    """Rodrigues' formula: turns (..., 3) of one sample as matrices (..., 3, 3)."""
    turn = rates * STEP
    angle = (turn.square().sum(-1, keepdim=True) + 1e-8).sqrt().unsqueeze(-1)
    x, y, z = turn.unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))
    one = torch.eye(3, device=rates.device)
    return one + torch.sin(angle) / angle * cross + (1 - torch.cos(angle)) / angle**2 * (cross @ cross)


def end_loop(turns, forces):
    """Where a walk ends: sample after sample."""
    heading = torch.eye(3, device=turns.device).expand(len(turns), 3, 3)
    speed = place = torch.zeros_like(forces[:, 0])
    for turn, force in zip(turns.unbind(1), forces.unbind(1), strict=True):
        heading = heading @ turn
        speed = speed + (heading @ force.unsqueeze(2)).squeeze(2) * STEP
        place = place + speed * STEP
    return place


def end_scan(turns, forces):
    """The same, by products over spans that double in length."""
    span = 1
    while span < turns.shape[1]:
        turns = torch.cat([turns[:, :span], turns[:, :-span] @ turns[:, span:]], dim=1)
        span *= 2
    return (turns @ forces.unsqueeze(3)).squeeze(3).cumsum(1).sum(1) * STEP**2


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2412)
    model = Corrector(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    integrate = {"loop": end_loop, "scan": end_scan}[args.integrate]
    loader = DataLoader(Walks(args), args.batch, num_workers=args.workers, pin_memory=device.type == "cuda")
    for step, (measured, end) in enumerate(loader, 1):
        measured, end = measured.to(device, non_blocking=True), end.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            corrected = model(measured)
        loss = F.huber_loss(integrate(rotations(corrected[..., :3]), corrected[..., 3:]), end)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", type=int, default=200, help="samples")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--integrate", choices=["loop", "scan"], default="scan")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
