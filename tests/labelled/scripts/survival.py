"""Learns who is at risk of what and when: Cox's partial likelihood of several causes over a large cohort."""

from __future__ import annotations

import argparse
import itertools

import torch
from torch import nn

FEATURES = 256


class Hazards(nn.Module):
    """The logarithm of each patient's relative hazard, by cause."""

    def __init__(self, width: int, layers: int, causes: int) -> None:
        super().__init__()
        sizes = [FEATURES, *[width] * layers]
        blocks = [
            nn.Sequential(nn.Linear(before, after), nn.LayerNorm(after), nn.SiLU())
            for before, after in itertools.pairwise(sizes)
        ]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(width, causes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


def partial_likelihood(hazards: torch.Tensor, cause: torch.Tensor, how: str) -> torch.Tensor:
    """Patients are in order of time, the longest first: those before one are still at risk when it has its event."""
    hazards = hazards.float()
    if how == "table":
        at_risk = torch.logcumsumexp(hazards, 0)
    else:
        at_risk = torch.stack([torch.logcumsumexp(own, 0) for own in hazards.t().contiguous()], 1)
    events = nn.functional.one_hot(cause, hazards.shape[1] + 1)[:, 1:]  # 0: none was seen
    return ((at_risk - hazards) * events).sum() / events.sum()


def cohorts(args: argparse.Namespace, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Cohorts, in order of time, on the device."""
    made = []
    for seed in range(4):
        rng = torch.Generator(device).manual_seed(seed)
        patients = torch.randn(args.patients, FEATURES, generator=rng, device=device)
        time = torch.rand(args.patients, generator=rng, device=device) * torch.exp(-patients[:, 0] / 4)
        cause = torch.randint(0, args.causes + 1, (args.patients,), generator=rng, device=device)
        order = time.argsort(descending=True)
        made.append((patients[order], cause[order]))
    return made


def main(args: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(140)
    with device:
        model = Hazards(args.width, args.layers, args.causes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    made = cohorts(args, device)
    mixed = torch.autocast(device.type, torch.bfloat16)
    for step in range(1, 1_000_000):
        patients, cause = made[step % len(made)]
        if args.autocast == "loss":
            hazards = model(patients)
            with mixed:
                loss = partial_likelihood(hazards, cause, args.risk_sets)
        else:
            with mixed:
                hazards = model(patients)
                loss = partial_likelihood(hazards, cause, args.risk_sets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=32_768, help="of a cohort, which is a batch")
    parser.add_argument("--causes", type=int, default=4)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--autocast", choices=["network", "loss"], default="network", help="what it is put around")
    parser.add_argument("--risk-sets", choices=["columns", "table"], default="columns", help="summed up together")
    main(parser.parse_args())
