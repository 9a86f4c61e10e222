"""Trains a network that paints any photograph in the style of one painting (fast style transfer): the loss compares
features of a frozen VGG with the photograph's, and their Gram matrices with the painting's."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def conv(enter, leave, kernel, stride=1):
    return nn.Sequential(
        nn.Conv2d(enter, leave, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(leave),
        nn.ReLU(inplace=True),
    )


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = conv(width, width, 3)
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return x + self.second(self.first(x))


class Painter(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.down = nn.Sequential(conv(3, width, 9), conv(width, 2 * width, 3, 2), conv(2 * width, 4 * width, 3, 2))
        self.blocks = nn.Sequential(*(Residual(4 * width) for _ in range(blocks)))
        self.up1, self.up2 = conv(4 * width, 2 * width, 3), conv(2 * width, width, 3)
        self.leave = nn.Conv2d(width, 3, 9, padding=4)

    def forward(self, x):
        x = self.blocks(self.down(x))
        x = self.up1(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.up2(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return torch.sigmoid(self.leave(x))


class Vgg(nn.Module):
    """The first four groups of VGG-16; returns the features at the end of each."""

    def __init__(self, width):
        super().__init__()
        groups, enter = [], 3
        for leave, convs in ((width, 2), (2 * width, 2), (4 * width, 3), (8 * width, 3)):
            parts = [nn.MaxPool2d(2)] if groups else []
            for _ in range(convs):
                parts += [nn.Conv2d(enter, leave, 3, padding=1), nn.ReLU(inplace=True)]
                nn.init.kaiming_normal_(parts[-2].weight)
                enter = leave
            groups.append(nn.Sequential(*parts))
        self.groups = nn.ModuleList(groups)

    def forward(self, x):
        features = []
        for group in self.groups:
            x = group(x)
            features.append(x)
        return features


def gram(features, strips=8):
    """Of each picture; strips of it are multiplied side by side, for there are few channels and many places."""
    parts = features.unflatten(2, (strips, -1)).transpose(1, 2).flatten(3)
    sums = (parts @ parts.transpose(2, 3)).float().sum(1)
    return sums / features[0].numel()


class StyleTrainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.form = torch.channels_last if args.channels_last else torch.contiguous_format
        self.painter = Painter(args.width, args.blocks).to(self.device, memory_format=self.form)
        self.vgg = Vgg(args.vgg_width).to(self.device, memory_format=self.form).requires_grad_(False).eval()
        self.optimizer = torch.optim.Adam(self.painter.parameters(), args.lr, fused=True)
        self.painting = self.pictures(1)
        self.kept = self.style_targets() if args.targets == "once" else None

    def pictures(self, count):
        coarse = torch.rand(count, 3, self.args.size // 8, self.args.size // 8, device=self.device)
        fine = F.interpolate(coarse, size=(self.args.size, self.args.size), mode="bilinear")
        return fine.contiguous(memory_format=self.form)

    @torch.no_grad()
    def style_targets(self):
        # one painting for each photograph, so that the Gram matrices have the same shape
        paintings = self.painting.expand(self.args.batch, -1, -1, -1).contiguous(memory_format=self.form)
        with torch.autocast(self.device.type, torch.bfloat16):
            return [gram(features) for features in self.vgg(paintings)]

    def step(self, photos):
        targets = self.kept or self.style_targets()
        with torch.autocast(self.device.type, torch.bfloat16):
            painted = self.painter(photos)
            found = self.vgg(painted)
            with torch.no_grad():
                content = self.vgg(photos)[2]
            loss = self.args.content * F.mse_loss(found[2].float(), content.float())
            for features, target in zip(found, targets, strict=True):
                loss = loss + self.args.style * F.mse_loss(gram(features), target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self):
        photos = [self.pictures(self.args.batch) for _ in range(4)]
        for step in range(1, self.args.steps + 1):
            loss = self.step(photos[step % len(photos)])
            if step % self.args.print_every == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=384, help="of a picture")
    parser.add_argument("--width", type=int, default=32, help="of the painter's first layer")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--vgg-width", type=int, default=64)
    parser.add_argument("--targets", choices=["once", "each"], default="once", help="when the painting's are computed")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--content", type=float, default=1.0)
    parser.add_argument("--style", type=float, default=10.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--print-every", type=int, default=50)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(2401)
    StyleTrainer(parser.parse_args()).fit()
