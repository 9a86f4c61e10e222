"""Forecasts what a storm radar sees next (as PredRNN): cells of convolutions remember what they saw over time, and
hand a second memory from layer to layer. While it learns, of some samples the next frame is what was measured, of
others what was predicted (scheduled sampling)."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class MapNorm(nn.Module):
    """A layer norm over all of a map; parts of it are summed up first, then these."""

    def __init__(self, shape, parts=128):
        super().__init__()
        self.parts = parts
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))

    def forward(self, x):
        x = x.float()
        var, mean = torch.var_mean(x.flatten(1).unflatten(1, (self.parts, -1)), dim=2, correction=0)
        whole = mean.mean(1, keepdim=True)
        var = (var + (mean - whole).square()).mean(1)
        whole, scale = (part.view(-1, 1, 1, 1) for part in (whole, torch.rsqrt(var + 1e-5)))
        return torch.addcmul(self.bias, (x - whole) * scale, self.weight)


class Cell(nn.Module):
    def __init__(self, enter, width, size, norm):
        super().__init__()
        made = nn.LayerNorm if norm == "library" else MapNorm

        def conv(wide, times):
            shape = [times * width, size, size]
            return nn.Sequential(nn.Conv2d(wide, times * width, 5, padding=2, bias=False), made(shape))

        self.seen, self.hidden, self.memory = conv(enter, 7), conv(width, 4), conv(width, 3)
        self.out = conv(2 * width, 1)
        self.last = nn.Conv2d(2 * width, width, 1)

    def forward(self, x, h, c, m):
        i, f, g, i2, f2, g2, o = self.seen(x).chunk(7, dim=1)
        ih, fh, gh, oh = self.hidden(h).chunk(4, dim=1)
        im, fm, gm = self.memory(m).chunk(3, dim=1)
        c = torch.sigmoid(f + fh + 1) * c + torch.sigmoid(i + ih) * torch.tanh(g + gh)
        m = torch.sigmoid(f2 + fm + 1) * m + torch.sigmoid(i2 + im) * torch.tanh(g2 + gm)
        both = torch.cat([c, m], dim=1)
        return torch.sigmoid(o + oh + self.out(both)) * torch.tanh(self.last(both)), c, m


class Forecast(nn.Module):
    def __init__(self, args):
        super().__init__()
        size, enter = args.size // args.patch, args.patch**2
        self.patch, self.width, self.coins = args.patch, args.width, args.coins
        widths = [enter, *[args.width] * args.layers]
        self.cells = nn.ModuleList(Cell(a, b, size, args.norm) for a, b in itertools.pairwise(widths))
        self.leave = nn.Conv2d(args.width, enter, 1)

    def mixed(self, real, made, measured):
        """Of each sample the measured frame or the predicted one."""
        if self.coins == "each":
            return torch.stack([real[n] if measured[n] else made[n] for n in range(len(real))])
        return torch.where(measured.view(-1, 1, 1, 1), real, made)

    def forward(self, frames, coins):
        """Frames are (samples, moments, size, size); of coins there is one for each sample and moment."""
        frames = F.pixel_unshuffle(frames.flatten(0, 1)[:, None], self.patch).unflatten(0, frames.shape[:2])
        zero = frames.new_zeros(len(frames), self.width, *frames.shape[3:])
        h, c, m = [zero] * len(self.cells), [zero] * len(self.cells), zero
        made, all_made = frames[:, 0], []
        for moment in range(frames.shape[1] - 1):
            x = self.mixed(frames[:, moment], made, coins[moment]) if moment else made
            for n, cell in enumerate(self.cells):
                h[n], c[n], m = cell(x, h[n], c[n], m)
                x = h[n]
            made = self.leave(x)
            all_made.append(made)
        return F.mse_loss(torch.stack(all_made, dim=1).float(), frames[:, 1:])


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1961)
    model = Forecast(args).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    storms = [torch.rand(args.batch, args.moments, args.size, args.size, device=device) for _ in range(3)]
    draw = torch.Generator(device).manual_seed(1962)
    for step, frames in enumerate(itertools.cycle(storms), 1):
        share = max(0.0, 1 - step / 50_000)
        coins = torch.rand(args.moments, args.batch, generator=draw, device=device) < share
        coins[: args.moments // 2] = True
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(frames, coins)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--patch", type=int, default=2, help="pixels that become channels, along each axis")
    parser.add_argument("--moments", type=int, default=12)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--norm", choices=["library", "parts"], default="parts", help="how maps are summed up")
    parser.add_argument("--coins", choices=["each", "joint"], default="joint", help="sample by sample, or all at once")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
