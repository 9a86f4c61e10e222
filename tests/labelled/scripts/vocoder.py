"""Trains a vocoder (HiFi-GAN): a generator makes sound of mel spectra, against discriminators that look at the sound
folded at several periods and at its spectrum at several resolutions."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

RATE, MELS, SIZE, HOP = 22_050, 80, 1024, 256


class ResBlock(nn.Module):
    def __init__(self, channels, kernel, dilations=(1, 3, 5)):
        super().__init__()
        self.wide = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel // 2))) for d in dilations
        )
        self.near = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, padding=kernel // 2)) for _ in dilations
        )

    def forward(self, x):
        for wide, near in zip(self.wide, self.near, strict=True):
            x = x + near(F.leaky_relu(wide(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Generator(nn.Module):
    def __init__(self, channels, rates=(8, 8, 2, 2), kernels=(3, 7, 11)):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(MELS, channels, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for rate in rates:
            self.ups.append(weight_norm(nn.ConvTranspose1d(channels, channels // 2, 2 * rate, rate, rate // 2)))
            channels //= 2
            self.blocks.append(nn.ModuleList(ResBlock(channels, kernel) for kernel in kernels))
        self.post = weight_norm(nn.Conv1d(channels, 1, 7, padding=3))

    def forward(self, mels):
        x = self.pre(mels)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.post(F.leaky_relu(x)))


class Discriminator(nn.Module):
    """Of sound folded at a period, or of the magnitude of its spectrum."""

    def __init__(self, channels, period=None, size=None):
        super().__init__()
        self.period, self.size = period, size
        widths = (
            [1, channels, 4 * channels, 16 * channels, 32 * channels, 32 * channels] if period else [1] + 5 * [channels]
        )
        strides = [3, 3, 3, 3, 1] if period else [(1, 1), (1, 2), (1, 2), (1, 2), (1, 1)]
        kernel, padding = ((5, 1), (2, 0)) if period else ((3, 9), (1, 4))
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, kernel, (stride, 1) if period else stride, padding))
            for a, b, stride in zip(widths, widths[1:], strides, strict=False)
        )
        self.post = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1) if period else 3, padding=(1, 0) if period else 1))
        if size:
            self.register_buffer("window", torch.hann_window(size), persistent=False)

    def forward(self, sound):
        if self.period:
            sound = F.pad(sound, (0, -sound.shape[-1] % self.period), mode="reflect")
            x = sound.unflatten(-1, (-1, self.period))
        else:
            spectrum = torch.stft(
                sound[:, 0].float(), self.size, self.size // 4, window=self.window, return_complex=True
            )
            x = spectrum.abs().transpose(1, 2)[:, None]
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            features.append(x)
        x = self.post(x)
        return x.flatten(1), [*features, x]


class Discriminators(nn.Module):
    def __init__(self, channels):
        super().__init__()
        periods = [Discriminator(channels, period=period) for period in (2, 3, 5, 7, 11)]
        self.each = nn.ModuleList(periods + [Discriminator(channels, size=size) for size in (2048, 1024, 512)])

    def forward(self, sound):
        return [each(sound) for each in self.each]


class Mel(nn.Module):
    def __init__(self):
        super().__init__()
        top = 2595 * torch.log10(torch.tensor(1 + RATE / 2 / 700))
        edges = 700 * (10 ** (torch.linspace(0, 1, MELS + 2) * top / 2595) - 1)
        bins = torch.linspace(0, RATE / 2, SIZE // 2 + 1)
        rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
        self.register_buffer("bank", torch.minimum(rise, fall).clamp(min=0))
        self.register_buffer("window", torch.hann_window(SIZE))

    def forward(self, sound):
        sound = F.pad(sound, ((SIZE - HOP) // 2, (SIZE - HOP) // 2), mode="reflect")[:, 0]
        spectrum = torch.stft(sound, SIZE, HOP, window=self.window, center=False, return_complex=True)
        return (self.bank @ (spectrum.abs() + 1e-9)).clamp(min=1e-5).log()


def halves(judged):
    """What was said of real sound and of made sound, which were judged at once."""
    real = [(said.chunk(2)[0], [f.chunk(2)[0] for f in features]) for said, features in judged]
    made = [(said.chunk(2)[1], [f.chunk(2)[1] for f in features]) for said, features in judged]
    return real, made


def judge(discriminators, real, made, passes):
    if passes == "joint":
        return halves(discriminators(torch.cat([real, made])))
    return discriminators(real), discriminators(made)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segment", type=int, default=8192, help="samples")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--channels", type=int, default=512, help="of the generator, at first")
    parser.add_argument("--judges", type=int, default=32, help="channels of discriminators, at first")
    parser.add_argument("--passes", choices=["each", "joint"], default="joint", help="of real and made sound")
    parser.add_argument("--free-between", action="store_true", help="free memory between the two turns")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--print-every", type=int, default=50)
    h = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(850)
    generator, discriminators = Generator(h.channels).to(device), Discriminators(h.judges).to(device)
    mel = Mel().to(device)
    optim_g = torch.optim.AdamW(generator.parameters(), h.lr, betas=(0.8, 0.99))
    optim_d = torch.optim.AdamW(discriminators.parameters(), h.lr, betas=(0.8, 0.99))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.999) for o in (optim_g, optim_d)]
    torch.manual_seed(851)
    sounds = [0.3 * torch.randn(h.batch, 1, h.segment, device=device).clamp(-3, 3) for _ in range(4)]

    for step in itertools.count(1):
        real = sounds[step % len(sounds)]
        spectrum = mel(real)
        made = generator(spectrum)

        said_real, said_made = judge(discriminators, real, made.detach(), h.passes)
        loss_d = sum(
            (1 - r[0]).square().mean() + m[0].square().mean() for r, m in zip(said_real, said_made, strict=True)
        )
        optim_d.zero_grad()
        loss_d.backward()
        optim_d.step()
        del said_real, said_made
        if h.free_between and cuda:
            torch.cuda.empty_cache()

        said_real, said_made = judge(discriminators, real, made, h.passes)
        loss_g = 45 * F.l1_loss(mel(made), spectrum)
        for (_, wanted), (said, features) in zip(said_real, said_made, strict=True):
            loss_g = loss_g + (1 - said).square().mean()
            loss_g = loss_g + 2 * sum(F.l1_loss(f, w.detach()) for f, w in zip(features, wanted, strict=True))
        optim_g.zero_grad()
        loss_g.backward()
        optim_g.step()
        del said_real, said_made, made
        if h.free_between and cuda:
            torch.cuda.empty_cache()
        if step % 1000 == 0:
            for schedule in schedules:
                schedule.step()
        if step % h.print_every == 0:
            print(f"step {step}: generator {loss_g.item():.4f} discriminators {loss_d.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
