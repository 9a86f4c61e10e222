"""Colours old photographs: a U-Net sees how light each place is (L of Lab) and says its colour (a and b), against a
discriminator that looks at patches. Gradients of several small batches are summed up before both are updated."""

import argparse
import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# over the white point
TO_XYZ = np.array([[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]], dtype=np.float32)


def double(enter, leave):
    parts = []
    for channels in (enter, leave):
        parts += [nn.Conv2d(channels, leave, 3, padding=1, bias=False), nn.BatchNorm2d(leave), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts)


class Generator(nn.Module):
    def __init__(self, width):
        super().__init__()
        sizes = [width, 2 * width, 4 * width, 8 * width]
        self.enter = double(1, width)
        self.down = nn.ModuleList(double(a, b) for a, b in itertools.pairwise(sizes))
        self.up = nn.ModuleList(double(a + b, a) for a, b in itertools.pairwise(sizes))
        self.leave = nn.Conv2d(width, 2, 1)

    def forward(self, light):
        kept = [self.enter(light)]
        for part in self.down:
            kept.append(part(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for part in reversed(self.up):
            x = part(torch.cat([kept.pop(), F.interpolate(x, scale_factor=2.0)], dim=1))
        return torch.tanh(self.leave(x))


def discriminator(width):
    parts, enter = [], 3
    for leave in (width, 2 * width, 4 * width):
        parts += [nn.Conv2d(enter, leave, 4, stride=2, padding=1), nn.LeakyReLU(0.2, inplace=True)]
        enter = leave
    return nn.Sequential(*parts, nn.Conv2d(enter, 1, 4, padding=1))


def lab_numpy(pictures):
    """Pictures (pictures, height, width, 3) in sRGB bytes as Lab (pictures, 3, height, width) between -1 and 1."""
    rgb = pictures.astype(np.float32) / 255
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    xyz = linear @ TO_XYZ.T
    x, y, z = np.moveaxis(np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116), 3, 0)
    return np.stack([(116 * y - 66) / 50, 500 * (x - y) / 110, 200 * (y - z) / 110], axis=1)


def lab_torch(pictures, to_xyz):
    rgb = pictures.float() / 255
    linear = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    xyz = linear @ to_xyz.t()
    x, y, z = torch.where(xyz > 0.008856, xyz.clamp(min=1e-8) ** (1 / 3), 7.787 * xyz + 16 / 116).unbind(3)
    return torch.stack([(116 * y - 66) / 50, 500 * (x - y) / 110, 200 * (y - z) / 110], dim=1)


class Colouriser:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.form = torch.channels_last if args.channels_last else torch.contiguous_format
        self.generator = Generator(args.width).to(self.device, memory_format=self.form)
        self.critic = discriminator(args.width).to(self.device, memory_format=self.form)
        adam = {"lr": args.lr, "betas": (0.5, 0.999), "fused": True}
        self.of_generator = torch.optim.Adam(self.generator.parameters(), **adam)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), **adam)
        draw = np.random.default_rng(2409)
        coarse = draw.integers(256, size=(args.known, args.size // 16, args.size // 16, 3), dtype=np.uint8)
        self.photos = coarse.repeat(16, axis=1).repeat(16, axis=2)
        self.draw = draw
        self.on_device = torch.from_numpy(self.photos).to(self.device)
        self.to_xyz = torch.from_numpy(TO_XYZ).to(self.device)

    def batch(self):
        turned = self.draw.random() < 0.5
        if self.args.lab == "host":
            photos = self.photos[self.draw.integers(len(self.photos), size=self.args.batch)]
            lab = torch.from_numpy(lab_numpy(photos[:, :, ::-1] if turned else photos)).to(self.device)
        else:
            photos = self.on_device[torch.randint(len(self.photos), (self.args.batch,), device=self.device)]
            lab = lab_torch(photos.flip(2) if turned else photos, self.to_xyz)
        return lab.contiguous(memory_format=self.form)

    def losses(self, lab):
        light, colour = lab[:, :1], lab[:, 1:]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.amp):
            found = self.generator(light)
            self.critic.requires_grad_(False)
            judged = self.critic(torch.cat([light, found], dim=1))
            of_generator = 100 * F.l1_loss(found.float(), colour) - judged.float().mean()
            self.critic.requires_grad_(True)
            real, fake = self.critic(lab), self.critic(torch.cat([light, found.detach()], dim=1))
            of_critic = (1 - real.float()).relu().mean() + (1 + fake.float()).relu().mean()
        return of_generator, of_critic

    def fit(self):
        for step in range(1, 10_000_000):
            for optimizer in (self.of_generator, self.of_critic):
                optimizer.zero_grad(set_to_none=True)
            for _ in range(self.args.accumulate):
                of_generator, of_critic = self.losses(self.batch())
                ((of_generator + of_critic) / self.args.accumulate).backward()
            self.of_generator.step()
            self.of_critic.step()
            if step % self.args.print_every == 0:
                print(f"step {step}: {of_generator.item():.4f} and {of_critic.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256, help="of a photograph")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lab", choices=["device", "host"], default="device", help="where pictures become Lab")
    parser.add_argument("--known", type=int, default=256, help="photographs")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--exact", action="store_true", help="convolutions without TF32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--accumulate", type=int, default=2, help="batches of a step")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()
    torch.manual_seed(2410)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = not args.exact
    Colouriser(args).fit()
