"""Makes holograms: a network sees a picture and how far everything in it is, and says the phase at each point of a
display; light is followed from there to planes in depth, at each of which it is to look as the picture does."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

COLOURS = (6.38e-7, 5.20e-7, 4.50e-7)  # wavelengths, m


class Norm(nn.Module):
    def __init__(self, width, groups, how):
        super().__init__()
        self.groups, self.how = groups, how
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        if self.how == "library":
            return F.group_norm(x, self.groups, self.weight, self.bias)
        parts = x.unflatten(1, (self.groups, -1))
        variance, mean = torch.var_mean(parts.float(), (2, 3, 4), correction=0, keepdim=True)
        gain = torch.rsqrt(variance + 1e-5) * self.weight.view(1, self.groups, -1, 1, 1)
        shift = self.bias.view(1, self.groups, -1, 1, 1) - mean * gain
        return (parts * gain.to(x.dtype) + shift.to(x.dtype)).flatten(1, 2)


class Phases(nn.Module):
    """Residual layers at the display's resolution."""

    def __init__(self, args):
        super().__init__()
        self.enter = nn.Conv2d(4, args.width, 3, padding=1)
        self.norms = nn.ModuleList(Norm(args.width, args.groups, args.norm) for _ in range(args.layers))
        self.convs = nn.ModuleList(nn.Conv2d(args.width, args.width, 3, padding=1) for _ in range(args.layers))
        self.leave = nn.Conv2d(args.width, 3, 3, padding=1)

    def forward(self, x):
        x = self.enter(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = x + conv(F.silu(norm(x)))
        return torch.pi * torch.tanh(self.leave(x).float())


def transfer(args, device):
    """How light comes to each plane (band-limited angular spectrum): (colours, planes, rows, columns)."""
    along = torch.fft.fftfreq(args.size, args.pitch, dtype=torch.float64, device=device)
    fy, fx = along[:, None], along[None, :]
    colours = torch.tensor(COLOURS, dtype=torch.float64, device=device).view(-1, 1, 1, 1)
    depths = torch.linspace(args.near, args.far, args.planes, dtype=torch.float64, device=device).view(1, -1, 1, 1)
    root = torch.sqrt((1 / colours**2 - fx**2 - fy**2).clamp(min=0))
    limit = 1 / (colours * torch.sqrt((2 * depths / (args.size * args.pitch)) ** 2 + 1))
    through = (fx.abs() < limit) & (fy.abs() < limit)
    return (torch.exp(2j * torch.pi * root * depths) * through).to(torch.complex64)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(2220)
    model = Phases(args).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    scenes = []
    for _ in range(3):
        coarse = torch.rand(args.batch, 4, args.size // 32, args.size // 32, device=device)
        scenes.append(F.interpolate(coarse, size=(args.size, args.size), mode="bilinear"))
    places = torch.linspace(0, 1, args.planes, device=device).view(1, 1, -1, 1, 1)
    kept = transfer(args, device) if args.transfer == "kept" else None
    for step, scene in enumerate(itertools.cycle(scenes), 1):
        with torch.autocast(device.type, torch.bfloat16):
            phase = model(scene)
        light = torch.fft.fft2(torch.polar(torch.ones_like(phase), phase))
        way = transfer(args, device) if kept is None else kept
        seen = torch.fft.ifft2(light[:, :, None] * way).abs()
        sharp = ((scene[:, 3:, None] - places).abs() < 0.5 / args.planes).float()
        loss = ((seen - scene[:, :3, None]).square() * sharp).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024, help="of the display, in points")
    parser.add_argument("--pitch", type=float, default=8e-6, help="of the display, m")
    parser.add_argument("--planes", type=int, default=16)
    parser.add_argument("--near", type=float, default=0.05, help="the first plane, m")
    parser.add_argument("--far", type=float, default=0.15, help="the last plane, m")
    parser.add_argument("--transfer", choices=["kept", "made"], default="kept")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--norm", choices=["library", "moments"], default="moments")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
