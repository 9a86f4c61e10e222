"""Trains an autoencoder with a codebook against a discriminator of patches (VQGAN)."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--base", type=int, default=128, help="channels of the two largest levels")
arguments.add_argument("--size", type=int, default=256)
arguments.add_argument("--batch", type=int, default=24)
arguments.add_argument("--codes", type=int, default=2048)
arguments.add_argument("--channels-last", action="store_true")
arguments.add_argument("--tidy", action="store_true", help="give memory back after each of the two passes")
arguments.add_argument(
    "--revive", choices=["each", "all"], default="all",
    help="codes that nothing uses, looking at them one by one, or at all of them at once",
)  # fmt: skip
opt = arguments.parse_args()

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
LAYOUT = torch.channels_last if opt.channels_last else torch.contiguous_format
CODE, DECAY, UNUSED = 64, 0.99, 0.05
torch.backends.cudnn.benchmark = True


class Residual(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x):
        return F.relu(self.skip(x) + self.body(x))


class Codebook(nn.Module):
    """The nearest of the codes; each code is an average of what has been near to it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(opt.codes, CODE))
        self.register_buffer("used", torch.ones(opt.codes))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x):
        flat = x.float().permute(0, 2, 3, 1).reshape(-1, CODE)
        with torch.no_grad():
            nearest = (self.codes.square().sum(1) - 2 * flat.to(x.dtype) @ self.codes.to(x.dtype).T).argmin(1)
        found = self.codes[nearest]
        commitment = F.mse_loss(flat, found)
        if self.training:
            self.learn(flat.detach(), nearest)
        through = (flat + (found - flat).detach()).unflatten(0, (x.shape[0], *x.shape[2:]))
        return through.permute(0, 3, 1, 2), commitment

    @torch.no_grad()
    def learn(self, flat, nearest):
        count = torch.zeros_like(self.used).index_add_(0, nearest, torch.ones_like(flat[:, 0]))
        self.used.lerp_(count, 1 - DECAY)
        self.sums.lerp_(torch.zeros_like(self.sums).index_add_(0, nearest, flat), 1 - DECAY)
        self.codes.copy_(self.sums / self.used.clamp(min=1e-3)[:, None])

    @torch.no_grad()
    def revive(self, how):
        """Codes that are not used begin anew, near to one that is."""
        if how == "all":
            unused = (self.used < UNUSED)[:, None]
            other = self.codes.index_select(0, self.used.argmax()[None]) + 0.1 * torch.randn_like(self.codes)
            self.codes.copy_(torch.where(unused, other, self.codes))
            return
        for number in range(opt.codes):
            if self.used[number].item() < UNUSED:
                self.codes[number] = self.codes[self.used.argmax()] + 0.1 * torch.randn(CODE, device=DEVICE)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [opt.base, opt.base, 2 * opt.base, 2 * opt.base]
        down, up = [nn.Conv2d(3, widths[0], 3, padding=1)], [nn.Conv2d(CODE, widths[-1], 3, padding=1)]
        for inputs, outputs in itertools.pairwise(widths):
            down += [Residual(inputs, inputs), nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)]
        for inputs, outputs in itertools.pairwise(reversed(widths)):
            up += [Residual(inputs, inputs), nn.Upsample(scale_factor=2), nn.Conv2d(inputs, outputs, 3, padding=1)]
        self.encoder = nn.Sequential(*down, Residual(widths[-1], widths[-1]), nn.Conv2d(widths[-1], CODE, 1))
        self.decoder = nn.Sequential(*up, Residual(widths[0], widths[0]), nn.Conv2d(widths[0], 3, 3, padding=1))
        self.codebook = Codebook()

    def forward(self, pictures):
        quantised, commitment = self.codebook(self.encoder(pictures))
        return self.decoder(quantised), commitment


def discriminator():
    layers, widths = [], [3, 64, 128, 256]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, 1, 1))


def tidy():
    if opt.tidy and CUDA:
        torch.cuda.empty_cache()


torch.manual_seed(90)
with DEVICE:
    autoencoder, judge = Autoencoder(), discriminator()
autoencoder, judge = autoencoder.to(memory_format=LAYOUT), judge.to(memory_format=LAYOUT)
of_autoencoder = torch.optim.Adam(autoencoder.parameters(), lr=1e-5, betas=(0.5, 0.9), fused=True)
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-5, betas=(0.5, 0.9), fused=True)
pool = torch.randint(0, 256, (6, opt.batch, 3, opt.size, opt.size), dtype=torch.uint8)
pool = pool.pin_memory() if CUDA else pool
step = 0
while True:
    pictures = pool[step % len(pool)].to(DEVICE, non_blocking=True).to(memory_format=LAYOUT).float() / 127.5 - 1
    judge.requires_grad_(False)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        made, commitment = autoencoder(pictures)
        fooled = judge(made)
    loss = F.l1_loss(made.float(), pictures) + 0.25 * commitment - 0.1 * fooled.float().mean()
    of_autoencoder.zero_grad()
    loss.backward()
    of_autoencoder.step()
    autoencoder.codebook.revive(opt.revive)
    tidy()
    judge.requires_grad_(True)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        of_real, of_made = judge(pictures), judge(made.detach())
    judged = F.relu(1 - of_real.float()).mean() + F.relu(1 + of_made.float()).mean()
    of_judge.zero_grad()
    judged.backward()
    of_judge.step()
    tidy()
    step += 1
    if step % 50 == 0:
        print(f"step {step}: {loss.item():.4f}, judge {judged.item():.4f}", flush=True)
