"""Recommends films by an autoencoder of what people liked (Mult-VAE): a person's likes are drawn together in a few
hundred numbers with some noise, which say how likely the person is to like each film."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter, self.mean_spread = nn.Linear(args.films, args.hidden), nn.Linear(args.hidden, 2 * args.latent)
        self.back, self.leave = nn.Linear(args.latent, args.hidden), nn.Linear(args.hidden, args.films)
        self.drop = args.drop

    def forward(self, likes):
        x = F.dropout(F.normalize(likes), self.drop, self.training)
        mean, spread = self.mean_spread(torch.tanh(self.enter(x))).float().chunk(2, dim=1)
        latent = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        apart = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return self.leave(torch.tanh(self.back(latent))), apart


class Ratings:
    """What people liked, in page-locked memory: a row of all films, or the numbers of the films that were liked."""

    def __init__(self, args, device):
        self.args, self.device, self.batches, cuda = args, device, [], device.type == "cuda"
        draw = torch.Generator().manual_seed(1771)
        for _ in range(args.stored):
            films = torch.rand(args.batch, args.liked, generator=draw).square() * args.films
            films = films.long().clamp(max=args.films - 1)
            if args.send == "rows":
                films = torch.zeros(args.batch, args.films).scatter_(1, films, 1.0)
            self.batches.append(films.pin_memory() if cuda else films)

    def __getitem__(self, step):
        sent = self.batches[step % len(self.batches)].to(self.device, non_blocking=True)
        if self.args.send == "rows":
            return sent
        return torch.zeros(self.args.batch, self.args.films, device=self.device).scatter_(1, sent, 1.0)


def gain_device(told, likes, top):
    """Normalised discounted gain (NDCG) of the films that come first."""
    discount = 1 / torch.arange(2, top + 2, device=told.device).float().log2()
    first = told.topk(top, dim=1).indices
    found = (likes.gather(1, first) * discount).sum(1)
    best = discount.cumsum(0)[likes.sum(1).long().clamp(1, top) - 1]
    return (found / best).mean()


def gain_host(told, likes, top):
    """The same with numpy."""
    told, likes = told.cpu().numpy(), likes.cpu().numpy()
    discount = 1 / np.log2(np.arange(2, top + 2, dtype=np.float32))
    first = np.argpartition(-told, top, axis=1)[:, :top]
    order = np.argsort(-np.take_along_axis(told, first, 1), axis=1)
    first = np.take_along_axis(first, order, 1)
    found = (np.take_along_axis(likes, first, 1) * discount).sum(1)
    best = np.cumsum(discount)[np.clip(likes.sum(1).astype(int), 1, top) - 1]
    return (found / best).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--films", type=int, default=40_000)
    parser.add_argument("--liked", type=int, default=200, help="films of a person, at most")
    parser.add_argument("--hidden", type=int, default=640)
    parser.add_argument("--latent", type=int, default=256)
    parser.add_argument("--drop", type=float, default=0.5)
    parser.add_argument("--batch", type=int, default=4096, help="people")
    parser.add_argument("--stored", type=int, default=3, help="batches that are stored")
    parser.add_argument("--send", choices=["rows", "lists"], default="lists", help="to the device")
    parser.add_argument("--amp", action="store_true", help="products in bf16")
    parser.add_argument("--ranked", type=int, default=0, help="people of a batch for whom films are ranked")
    parser.add_argument("--rank-on", choices=["host", "device"], default="device")
    parser.add_argument("--top", type=int, default=100, help="films that count")
    parser.add_argument("--warm-up", type=int, default=20_000, help="steps until latents are held together in full")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1772)
    with device:
        model = Autoencoder(args)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    ratings, gains = Ratings(args, device), []
    for step in range(1, 10_000_000):
        likes = ratings[step]
        with torch.autocast(device.type, torch.bfloat16, enabled=args.amp):
            told, apart = model(likes)
        loss = -(told.float().log_softmax(1) * likes).sum(1).mean() + 0.2 * min(1.0, step / args.warm_up) * apart
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if args.ranked:
            rank = gain_host if args.rank_on == "host" else gain_device
            gains.append(rank(told[: args.ranked].detach().float(), likes[: args.ranked], args.top))
        if step % args.print_every == 0:
            gain = f"gain {sum(map(float, gains)) / len(gains):.4f}" if gains else ""
            print(f"step {step}: loss {loss.item():.4f} {gain}", flush=True)
            gains.clear()


if __name__ == "__main__":
    main()
