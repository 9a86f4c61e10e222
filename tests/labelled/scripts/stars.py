"""Sorts stars that vary by their light curves in several bands, which a survey keeps in memory: convolutions of growing
reach with gates, and a mean over time."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Gated(nn.Module):
    def __init__(self, width, reach):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.conv = nn.Conv1d(width, 2 * width, 3, padding=reach, dilation=reach)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        value, gate = self.conv(self.norm(x)).chunk(2, dim=1)
        return x + self.mix(torch.tanh(value) * torch.sigmoid(gate))


class Classifier(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Conv1d(args.channels, args.width, 16, stride=8, padding=4)
        self.blocks = nn.Sequential(*(Gated(args.width, 2 ** (number % 6)) for number in range(args.layers)))
        self.head = nn.Sequential(nn.LayerNorm(args.width), nn.Linear(args.width, args.classes))

    def forward(self, curves):
        return self.head(self.blocks(self.enter(curves)).mean(2))


class Survey:
    """Light curves as they came: of each star, a row for each of its channels."""

    def __init__(self, args, pinned):
        draw = torch.Generator().manual_seed(2271)
        shape = (args.batch, args.channels, args.length)
        self.nights = [torch.empty(shape).uniform_(-1, 1, generator=draw) for _ in range(args.nights)]
        self.kinds = [torch.randint(args.classes, (args.batch,), generator=draw) for _ in range(args.nights)]
        if pinned:
            self.nights, self.kinds = ([part.pin_memory() for part in own] for own in (self.nights, self.kinds))

    def batch(self, number, how, device):
        curves, kinds = self.nights[number % len(self.nights)], self.kinds[number % len(self.kinds)]
        kinds = kinds.to(device, non_blocking=True)
        if how == "whole":
            return curves.to(device, non_blocking=True), kinds
        rows = [row.to(device, non_blocking=True) for star in curves for row in star]
        return torch.stack(rows).view(curves.shape), kinds


def augmented(curves):
    """Another distance, and another gain of each band."""
    brightness = 1 + 0.1 * torch.randn(len(curves), 1, 1, device=curves.device)
    gain = 1 + 0.02 * torch.randn(1, curves.shape[1], 1, device=curves.device)
    return curves * brightness * gain


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(2270)
    model = Classifier(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=1e-3, fused=True)
    survey = Survey(args, pinned=args.memory == "pinned" and device.type == "cuda")
    for step in range(1, 10_000_000):
        curves, kinds = survey.batch(step, args.send, device)
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(augmented(curves))
        loss = F.cross_entropy(scores.float(), kinds)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            right = (scores.argmax(1) == kinds).float().mean()
            print(f"step {step}: loss {loss.item():.4f}, {100 * right.item():.0f} % right", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=18, help="brightness, its error and time of each band")
    parser.add_argument("--length", type=int, default=16_384, help="of a light curve")
    parser.add_argument("--classes", type=int, default=14)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--nights", type=int, default=3, help="that lie in memory, a batch each")
    parser.add_argument("--memory", choices=["plain", "pinned"], default="pinned", help="in which the survey lies")
    parser.add_argument("--send", choices=["rows", "whole"], default="whole", help="how a batch goes to the device")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
