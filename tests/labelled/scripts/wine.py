"""Grades wine by its infrared spectrum with an ensemble of networks (torch.func), each of which sees a sample of the
wines that is its own, and says a grade and how sure it is."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap


def network(args):
    sizes = [args.bands, *[args.width] * args.layers]
    parts = []
    for enter, leave in itertools.pairwise(sizes):
        parts += [nn.Linear(enter, leave), nn.SiLU()]
    return nn.Sequential(*parts, nn.Linear(args.width, 2))


class Ensemble(nn.Module):
    """Weights of all members, stacked."""

    def __init__(self, args):
        super().__init__()
        members = [network(args) for _ in range(args.members)]
        self.each, self.names = args.run == "each", [name for name, _ in members[0].named_parameters()]
        stacked, _ = stack_module_state(members)
        self.weights = nn.ParameterList(nn.Parameter(stacked[name].detach()) for name in self.names)
        self.skeleton = [network(args).to("meta")]  # in a list: its weights are not those of the ensemble

    def one(self, weights, spectra):
        return functional_call(self.skeleton[0], dict(zip(self.names, weights, strict=True)), (spectra,))

    def forward(self, spectra):
        """Spectra are (members, wines, bands)."""
        if self.each:
            members = zip(*(weight.unbind(0) for weight in self.weights), strict=True)
            return torch.stack([self.one(weights, own) for weights, own in zip(members, spectra, strict=True)])
        return vmap(self.one)(tuple(self.weights), spectra)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1981)
    model = Ensemble(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    spectra, grades = torch.randn(args.wines, args.bands, device=device), torch.randn(args.wines, device=device)
    grades = grades + spectra[:, :8].sum(1)
    draw = torch.Generator(device).manual_seed(1982)
    for step in range(1, 10_000_000):
        chosen = torch.randint(args.wines, (args.members, args.batch), generator=draw, device=device)
        mean, spread = model(spectra[chosen]).unbind(2)
        losses = F.gaussian_nll_loss(mean, grades[chosen], F.softplus(spread) + 1e-3, reduction="none").mean(1)
        optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {losses.mean().item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wines", type=int, default=50_000)
    parser.add_argument("--bands", type=int, default=256)
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--run", choices=["each", "joint"], default="joint", help="members one by one, or all at once")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1024, help="wines of each member, in a step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
