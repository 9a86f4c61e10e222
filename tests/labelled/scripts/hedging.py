"""Learns to hedge what a bank has sold (deep hedging): a network says each day how much of each stock to hold, given
prices; what is lost or won at the end, less what trading cost, is judged by a spectral measure, which weighs paths by
their rank."""

import argparse
import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

COST, DRAWN_BY = 0.001, 0.2


def market(args, draw, device):
    """Prices of all stocks on all days, along paths that are drawn."""
    size = (args.paths, args.days, args.stocks)
    moves = torch.randn(size, generator=draw, device=device) * (DRAWN_BY / 250**0.5) - DRAWN_BY**2 / 500
    return F.pad(moves.cumsum(1), (0, 0, 1, 0)).exp()


def markets(args, device):
    """New ones for each step, or stored ones, which may be sent while the step before is worked on."""
    draw = torch.Generator(device).manual_seed(1861)
    if args.market == "made":
        while True:
            yield market(args, draw, device)
    cuda = device.type == "cuda"
    stored = [market(args, draw, device).cpu() for _ in range(2)]
    stored = [prices.pin_memory() if cuda else prices for prices in stored]
    if not args.ahead or not cuda:
        while True:
            for prices in stored:
                yield prices.to(device, non_blocking=True)
    stream, step = torch.cuda.Stream(), 0

    def send(number):
        with torch.cuda.stream(stream):
            return stored[number % len(stored)].to(device, non_blocking=True)

    coming = send(step)
    while True:
        torch.cuda.current_stream().wait_stream(stream)
        now = coming
        now.record_stream(torch.cuda.current_stream())
        step += 1
        coming = send(step)
        yield now


class Trader(nn.Module):
    def __init__(self, args):
        super().__init__()
        sizes = [args.stocks + 2, *[args.width] * args.layers]
        parts = []
        for enter, leave in itertools.pairwise(sizes):
            parts += [nn.Linear(enter, leave), nn.SiLU()]
        self.body = nn.Sequential(*parts, nn.Linear(args.width, args.stocks))

    def forward(self, prices):
        left = torch.linspace(1, 0, prices.shape[1], device=prices.device)[:, None].expand(*prices.shape[:2], 1)
        basket = prices.mean(2, keepdim=True) - 1
        return self.body(torch.cat([prices - 1, basket, left], dim=2))


def outcome(held, prices):
    """Of each path: what holding brought, less trading and what the buyer of the option is owed."""
    brought = (held * torch.diff(prices, dim=1)).sum((1, 2))
    traded = (torch.diff(F.pad(held, (0, 0, 1, 1)), dim=1).abs() * prices).sum((1, 2))
    owed = (prices[:, -1].mean(1) - 1).clamp(min=0)
    return brought - COST * traded - owed


def weights_by_rank(results, weights, where):
    """The worst path has the first weight, and so on."""
    if where == "host":
        order = np.argsort(results.detach().cpu().numpy(), kind="stable")
        found = np.empty(len(order), dtype=np.float32)
        found[order] = weights.numpy()
        return torch.from_numpy(found).to(results.device)
    order = torch.argsort(results.detach(), stable=True)
    return torch.empty_like(weights).scatter_(0, order, weights)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1862)
    model = Trader(args).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    spectrum = torch.exp(-20 * (torch.arange(args.paths) + 0.5) / args.paths)
    spectrum /= spectrum.sum()
    if args.rank_on == "device":
        spectrum = spectrum.to(device)
    for step, prices in enumerate(markets(args, device), 1):
        with torch.autocast(device.type, torch.bfloat16):
            held = model(prices[:, :-1])
        results = outcome(held.float(), prices)
        loss = -(weights_by_rank(results, spectrum, args.rank_on) * results).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: risk {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stocks", type=int, default=6)
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--paths", type=int, default=1 << 18, help="of the market, in each step")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--market", choices=["made", "stored"], default="made", help="on the device, or in the host")
    parser.add_argument("--ahead", action="store_true", help="send the market of the next step meanwhile")
    parser.add_argument("--rank-on", choices=["host", "device"], default="device", help="where paths are sorted")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
