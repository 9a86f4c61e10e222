"""Learns auctions (as RegretNet): one network says who gets what, another one what each bidder pays. Bidders must gain
nothing by lying about what items are worth to them, so each step first looks for their best lies by gradient ascent."""

import argparse

import torch
from torch import nn


def perceptron(enter, hidden, layers, leave):
    parts = []
    for _ in range(layers):
        parts += [nn.Linear(enter, hidden), nn.Tanh()]
        enter = hidden
    return nn.Sequential(*parts, nn.Linear(enter, leave))


def make_auction(args, device):
    allocation = perceptron(args.bidders * args.items, args.hidden, args.layers, (args.bidders + 1) * args.items)
    payment = perceptron(args.bidders * args.items, args.hidden, args.layers, args.bidders)
    allocation, payment = allocation.to(device), payment.to(device)

    def outcome(bids):
        """Of bids (auctions, bidders, items): shares of items that bidders get, and what they pay."""
        flat = bids.flatten(1)
        # the share of nobody makes an item stay unsold
        shares = allocation(flat).unflatten(1, (args.bidders + 1, args.items)).softmax(1)[:, :-1]
        part = torch.sigmoid(payment(flat))
        return shares, part * (shares * bids).sum(2)

    return allocation, payment, outcome


def utility(outcome, bids, values, bidder):
    """What a bidder gains; `bidder` names one of each auction."""
    shares, paid = outcome(bids)
    worth = (shares * values).sum(2) - paid
    return worth.gather(1, bidder[:, None])[:, 0]


def gains_each(outcome, values, lies):
    """Utilities of lies (auctions, bidders, items), bidder after bidder."""
    gains = []
    for bidder in range(values.shape[1]):
        bids = values.clone()
        bids[:, bidder] = lies[:, bidder]
        of = torch.full((len(bids),), bidder, device=bids.device)
        gains.append(utility(outcome, bids, values, of))
    return torch.stack(gains, dim=1)


def gains_joint(outcome, values, lies):
    """The same, with the auctions of all bidders in one batch."""
    auctions, bidders, _ = values.shape
    own = torch.eye(bidders, device=values.device, dtype=torch.bool)[:, None, :, None]
    bids = torch.where(own, lies, values).flatten(0, 1)
    of = torch.arange(bidders, device=values.device).repeat_interleave(auctions)
    return utility(outcome, bids, values.repeat(bidders, 1, 1), of).view(bidders, auctions).t()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bidders", type=int, default=5)
    parser.add_argument("--items", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8192, help="auctions")
    parser.add_argument("--ascent", type=int, default=12, help="steps that look for lies")
    parser.add_argument("--ascent-lr", type=float, default=0.1)
    parser.add_argument(
        "--lies", choices=["each", "joint"], default="joint", help="bidder after bidder, or all at once"
    )
    parser.add_argument("--matmul", choices=["highest", "high"], default="high", help="precision of products in fp32")
    parser.add_argument("--rho", type=float, default=1.0, help="weight of the square of regret")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    torch.manual_seed(2402)
    torch.set_float32_matmul_precision(args.matmul)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    allocation, payment, outcome = make_auction(args, device)
    weights = [*allocation.parameters(), *payment.parameters()]
    optimizer = torch.optim.Adam(weights, args.lr, fused=True)
    gains = {"each": gains_each, "joint": gains_joint}[args.lies]
    multipliers = torch.ones(args.bidders, device=device)
    for step in range(1, 10_000_000):
        values = torch.rand(args.batch, args.bidders, args.items, device=device)
        lies = torch.rand_like(values)
        for _ in range(args.ascent):
            lies.requires_grad_(True)
            (slope,) = torch.autograd.grad(gains(outcome, values, lies).sum(), lies)
            lies = (lies.detach() + args.ascent_lr * slope).clamp_(0, 1)
        shares, paid = outcome(values)
        honest = (shares * values).sum(2) - paid
        regret = (gains(outcome, values, lies) - honest).relu().mean(0)
        loss = -paid.sum(1).mean() + (multipliers * regret).sum() + 0.5 * args.rho * (regret**2).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        multipliers += args.rho * 0.01 * regret.detach()
        if step % args.print_every == 0:
            print(
                f"step {step}: revenue {paid.sum(1).mean().item():.4f}, regret {regret.mean().item():.5f}", flush=True
            )


if __name__ == "__main__":
    main()
