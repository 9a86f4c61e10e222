"""Maps glaciers, lakes on them and debris from satellite pictures of several bands: a U-Net of residual blocks, each
of which has norms over channels (as ConvNeXt), not over places."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class ChannelNorm(nn.LayerNorm):
    """A layer norm of each place."""

    def __init__(self, width, contiguous):
        super().__init__(width)
        self.contiguous = contiguous

    def forward(self, x):
        x = super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x.contiguous() if self.contiguous else x


class Block(nn.Module):
    def __init__(self, width, contiguous):
        super().__init__()
        self.norms = nn.ModuleList(ChannelNorm(width, contiguous) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x):
        kept = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = conv(F.gelu(norm(x)))
        return x + kept


class UNet(nn.Module):
    def __init__(self, args):
        super().__init__()
        widths = [args.width * factor for factor in (1, 2, 4, 4)]
        pairs = list(itertools.pairwise(widths))
        contiguous = args.norm == "contiguous"

        def stage(width):
            return nn.Sequential(*(Block(width, contiguous) for _ in range(args.blocks)))

        self.enter = nn.Conv2d(args.bands, widths[0], 3, padding=1)
        self.before = nn.ModuleList(stage(a) for a, _ in pairs)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in pairs)
        self.middle = stage(widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs[::-1])
        self.join = nn.ModuleList(nn.Conv2d(2 * a, a, 1) for a, _ in pairs[::-1])
        self.after = nn.ModuleList(stage(a) for a, _ in pairs[::-1])
        self.leave = nn.Conv2d(widths[0], args.classes, 1)

    def forward(self, x):
        x, kept = self.enter(x), []
        for before, down in zip(self.before, self.down, strict=True):
            x = before(x)
            kept.append(x)
            x = down(x)
        x = self.middle(x)
        for up, join, after in zip(self.up, self.join, self.after, strict=True):
            x = after(join(torch.cat([up(x), kept.pop()], dim=1)))
        return self.leave(x)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1921)
    model = UNet(args).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    tiles = []
    for _ in range(3):
        bands = torch.rand(args.batch, args.bands, args.tile, args.tile, device=device)
        classes = torch.randint(args.classes, (args.batch, args.tile, args.tile), device=device)
        tiles.append((bands.contiguous(memory_format=torch.channels_last), classes))
    share = torch.linspace(0.5, 1.5, args.classes, device=device)
    for step, (bands, classes) in enumerate(itertools.cycle(tiles), 1):
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(bands)
            loss = F.cross_entropy(scores, classes, weight=share)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tile", type=int, default=256)
    parser.add_argument("--bands", type=int, default=8)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2, help="of a stage")
    parser.add_argument("--norm", choices=["contiguous", "as_is"], default="as_is", help="how what leaves a norm lies")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
