"""Fits Gaussian processes of gpytorch to several quantities that were measured at the same places, each with a network
in common before them (deep kernel learning)."""

import argparse

import gpytorch
import torch
from torch import nn


class Process(gpytorch.models.ExactGP):
    """One quantity, or with a batch shape all of them."""

    def __init__(self, places, values, likelihood, shape):
        super().__init__(places, values, likelihood)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=places.shape[-1], batch_shape=shape), batch_shape=shape
        )

    def forward(self, places):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(places), self.covar_module(places))


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(280)
    with device:
        given = torch.randn(args.places, args.features)
        values = torch.randn(args.quantities, args.places)
        network = nn.Sequential(
            nn.Linear(args.features, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(),
            nn.Linear(args.width, 4),
        )  # fmt: skip
        shapes = [torch.Size([args.quantities])] if args.processes == "joint" else [torch.Size()] * args.quantities
        joint = args.processes == "joint"
        processes, goals = nn.ModuleList(), []
        for number, shape in enumerate(shapes):
            noise = gpytorch.likelihoods.GaussianLikelihood(batch_shape=shape)
            own = values if joint else values[number]
            processes.append(Process(network(given).detach(), own, noise, shape))
            goals.append(gpytorch.mlls.ExactMarginalLogLikelihood(noise, processes[-1]))
    processes.train()
    optimizer = torch.optim.Adam([*network.parameters(), *processes.parameters()], lr=1e-4)
    for step in range(1, 1_000_000):
        places = network(given)
        loss = torch.zeros((), device=device)
        for process, goal in zip(processes, goals, strict=True):
            process.set_train_data(places, strict=False)
            loss = loss - goal(process(places), process.train_targets).sum() / args.quantities
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--places", type=int, default=400)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--quantities", type=int, default=8)
    parser.add_argument("--processes", choices=["joint", "each"], default="joint")
    main(parser.parse_args())
