"""Draws signs of cuneiform as they look on clay (GAN): a generator makes pictures of a sign and of noise, and a
residual discriminator tells them from pictures of tablets; each has an optimizer."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Up(nn.Module):
    def __init__(self, enter, leave, code):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(width, affine=False) for width in (enter, leave))
        self.gains = nn.ModuleList(nn.Linear(code, 2 * width) for width in (enter, leave))
        self.convs = nn.ModuleList([nn.Conv2d(enter, leave, 3, padding=1), nn.Conv2d(leave, leave, 3, padding=1)])
        self.past = nn.Conv2d(enter, leave, 1)

    def forward(self, x, code):
        y = x
        for number, (norm, gain, conv) in enumerate(zip(self.norms, self.gains, self.convs, strict=True)):
            scale, shift = gain(code)[:, :, None, None].chunk(2, dim=1)
            y = F.relu(norm(y) * (1 + scale) + shift)
            y = conv(F.interpolate(y, scale_factor=2, mode="nearest") if number == 0 else y)
        return y + F.interpolate(self.past(x), scale_factor=2, mode="nearest")


class Generator(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.signs = nn.Embedding(args.signs, args.code)
        widths = [args.width * factor for factor in (8, 8, 4, 2, 1)]
        self.start, self.width = nn.Linear(2 * args.code, 16 * widths[0] * (args.size // 64) ** 2), widths[0]
        self.edge, self.last = args.channels_last, nn.Conv2d(widths[-1], 3, 3, padding=1)
        self.blocks = nn.ModuleList(Up(a, b, 2 * args.code) for a, b in itertools.pairwise(widths))

    def forward(self, noise, sign):
        code = torch.cat([noise, self.signs(sign)], dim=1)
        x = self.start(code).unflatten(1, (self.width, -1))
        x = x.unflatten(2, (int(x.shape[2] ** 0.5), -1))
        if self.edge:
            x = x.contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x, code)
        return torch.tanh(self.last(F.relu(x)))


class Down(nn.Module):
    def __init__(self, enter, leave):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(enter, leave, 3, padding=1), nn.Conv2d(leave, leave, 3, padding=1)
        self.past = nn.Conv2d(enter, leave, 1)

    def forward(self, x):
        y = self.conv2(F.leaky_relu(self.conv1(F.leaky_relu(x, 0.2)), 0.2))
        return F.avg_pool2d(y + self.past(x), 2)


class Discriminator(nn.Module):
    def __init__(self, args):
        super().__init__()
        widths = [3, *(args.width * factor for factor in (1, 2, 4, 8))]
        self.blocks = nn.Sequential(*(Down(a, b) for a, b in itertools.pairwise(widths)))
        self.head, self.signs = nn.Linear(widths[-1], 1), nn.Embedding(args.signs, widths[-1])

    def forward(self, pictures, sign):
        x = F.leaky_relu(self.blocks(pictures), 0.2).mean((2, 3))
        return self.head(x).squeeze(1) + (self.signs(sign) * x).sum(1)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1971)
    form = torch.channels_last if args.channels_last else torch.contiguous_format
    generator = Generator(args).to(device, memory_format=form)
    discriminator = Discriminator(args).to(device, memory_format=form)
    of_generator = torch.optim.Adam(generator.parameters(), args.lr, betas=(0.0, 0.9), fused=True)
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 2 * args.lr, betas=(0.0, 0.9), fused=True)
    tablets = []
    for _ in range(3):
        pictures = 2 * torch.rand(args.batch, 3, args.size, args.size, device=device) - 1
        tablets.append(
            (pictures.contiguous(memory_format=form), torch.randint(args.signs, (args.batch,), device=device))
        )
    draw = torch.Generator(device).manual_seed(1972)
    for step, (real, sign) in enumerate(itertools.cycle(tablets), 1):
        noise = torch.randn(args.batch, args.code, generator=draw, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            made = generator(noise, sign)
            of_real, of_made = discriminator(real, sign), discriminator(made.detach(), sign)
        wrong = F.relu(1 - of_real.float()).mean() + F.relu(1 + of_made.float()).mean()
        of_discriminator.zero_grad(set_to_none=True)
        wrong.backward()
        of_discriminator.step()

        discriminator.requires_grad_(False)
        with torch.autocast(device.type, torch.bfloat16):
            found_out = -discriminator(made, sign).float().mean()
        of_generator.zero_grad(set_to_none=True)
        found_out.backward()
        of_generator.step()
        discriminator.requires_grad_(True)
        if step % args.print_every == 0:
            print(f"step {step}: discriminator {wrong.item():.4f} generator {found_out.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128, help="of a picture: a multiple of 64")
    parser.add_argument("--signs", type=int, default=900)
    parser.add_argument("--code", type=int, default=128)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
