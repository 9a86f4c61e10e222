"""Sharpens pictures that a moving camera has blurred: a network of residual blocks at three scales, which weighs its
channels by what is in each on average and at most, adds to the picture what is missing."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class ChannelWeights(nn.Module):
    def __init__(self, width, most):
        super().__init__()
        self.most = nn.AdaptiveMaxPool2d(1) if most == "pool" else None
        self.net = nn.Sequential(nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width))

    def forward(self, x):
        mean = x.mean((2, 3))
        most = self.most(x).flatten(1) if self.most else x.flatten(2).max(2).values
        return x * torch.sigmoid(self.net(mean) + self.net(most))[:, :, None, None]


class Block(nn.Module):
    def __init__(self, width, most):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            ChannelWeights(width, most),
        )

    def forward(self, x):
        return x + self.body(x)


class Sharpener(nn.Module):
    def __init__(self, args):
        super().__init__()
        w = args.width

        def stage(width):
            return nn.Sequential(*[Block(width, args.most) for _ in range(args.blocks)])

        self.enter = nn.Conv2d(3, w, 3, padding=1)
        self.fine, self.middle, self.coarse = stage(w), stage(2 * w), stage(4 * w)
        self.down = nn.ModuleList([nn.Conv2d(w, 2 * w, 2, 2), nn.Conv2d(2 * w, 4 * w, 2, 2)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), nn.ConvTranspose2d(2 * w, w, 2, 2)])
        self.middle_again, self.fine_again = stage(2 * w), stage(w)
        self.leave = nn.Conv2d(w, 3, 3, padding=1)

    def forward(self, blurred):
        fine = self.fine(self.enter(blurred))
        middle = self.middle(self.down[0](fine))
        x = self.up[0](self.coarse(self.down[1](middle)))
        x = self.up[1](self.middle_again(x + middle))
        return blurred + self.leave(self.fine_again(x + fine))


def tidy(limit):
    """The GPU is shared with who labels pictures: give back what is not in use once there is much of it."""
    if limit and torch.cuda.is_available() and torch.cuda.memory_reserved() > limit * 2**30:
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256, help="of a picture")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=4, help="of a stage")
    parser.add_argument("--most", choices=["pool", "max"], default="max", help="by a pooling layer, or by max()")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--memory-limit", type=float, default=0, help="GiB to reserve; 0: none")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-4)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(2171)
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = Sharpener(args).to(device, memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.9), fused=True)
    pictures = []
    for _ in range(3):
        sharp = torch.rand(args.batch, 3, args.size, args.size, device=device)
        blurred = F.avg_pool2d(sharp, (1, 9), 1, (0, 4))
        pictures.append([blurred.contiguous(memory_format=layout), sharp.contiguous(memory_format=layout)])
    for step, (blurred, sharp) in enumerate(itertools.cycle(pictures), 1):
        with torch.autocast(device.type, torch.bfloat16):
            made = model(blurred)
        loss = F.smooth_l1_loss(made.float(), sharp, beta=0.01)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        tidy(args.memory_limit)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
