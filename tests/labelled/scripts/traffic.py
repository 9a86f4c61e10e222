"""Forecasts the traffic of a city from maps of it (as in SimVP): maps are encoded one by one, the channels of all of
them are worked on together, and each of the next maps is decoded."""

import argparse
import gc

import torch
import torch.nn.functional as F
from torch import nn


def block(enter, leave, kernel=3, stride=1, groups=1):
    return nn.Sequential(
        nn.Conv2d(enter, leave, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(leave),
        nn.ReLU(inplace=True),
    )


class Mix(nn.Module):
    """All channels of all maps: narrow, two kernels beside each other, and back."""

    def __init__(self, channels, narrow):
        super().__init__()
        self.narrow = block(channels, narrow, 1)
        self.near, self.far = block(narrow, narrow, 3), block(narrow, narrow, 5)
        self.wide = nn.Sequential(nn.Conv2d(narrow, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        h = self.narrow(x)
        return F.relu(x + self.wide(self.near(h) + self.far(h)))


class Forecast(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.last, self.width, channels = args.fold == "last", args.width, args.maps * args.width
        self.encode = nn.Sequential(block(2, args.width), block(args.width, args.width, stride=2))
        self.mixes = nn.Sequential(*(Mix(channels, channels // args.narrow) for _ in range(args.blocks)))
        self.decode = nn.Sequential(
            block(2 * args.width, args.width), nn.Upsample(scale_factor=2), block(args.width, args.width)
        )
        self.leave = nn.Conv2d(args.width, 2, 1)

    def fold(self, x, batch):
        """Maps of a batch, and their channels as those of one map."""
        x = x.reshape(batch, -1, *x.shape[2:])
        return x.contiguous(memory_format=torch.channels_last) if self.last else x

    def unfold(self, x, batch):
        x = x.reshape(-1, self.width, *x.shape[2:])
        return x.contiguous(memory_format=torch.channels_last) if self.last else x

    def forward(self, maps):
        batch, count = maps.shape[:2]
        x = maps.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        seen = self.encode(x)
        x = self.unfold(self.mixes(self.fold(seen, batch)), batch)
        x = self.decode(torch.cat([x, seen], dim=1))
        return self.leave(x).unflatten(0, (batch, count))


def keep_below(limit):
    """Other jobs are on this GPU: what is not in use is given back where it is much."""
    if limit and torch.cuda.is_available() and torch.cuda.memory_reserved() > limit * 2**30:
        gc.collect(0)
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maps", type=int, default=8, help="that are seen, and as many to come")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--width", type=int, default=64, help="channels of a map")
    parser.add_argument("--narrow", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro", type=int, default=1, help="batches of a step")
    parser.add_argument("--fold", choices=["first", "last"], default="last", help="where channels of all maps lie")
    parser.add_argument("--limit", type=float, default=0, help="GiB that may be held, 0: any")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(951)
    model = Forecast(args).to(device)
    for part in (model.encode, model.decode, *([model.mixes] if args.fold == "last" else [])):
        part.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    torch.manual_seed(952)
    shape = (args.batch, args.maps, 2, args.size, args.size)
    days = [(torch.rand(shape, device=device), torch.rand(shape, device=device)) for _ in range(4)]
    for step in range(1, 10_000_000):
        total = 0.0
        for part in range(args.micro):
            seen, to_come = days[(step * args.micro + part) % len(days)]
            with torch.autocast(device.type, torch.bfloat16):
                told = model(seen)
            loss = F.mse_loss(told.float(), to_come) / args.micro
            loss.backward()
            total = total + loss.detach()
            keep_below(args.limit)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            print(f"step {step}: loss {total.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
