"""Learns to paint pixel after pixel (PixelCNN): convolutions that see only what lies above and to the left, with gates
and norms over channels, and for each pixel and colour a distribution over its 256 values."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

VALUES = 256


class MaskedConv(nn.Conv2d):
    """Sees the rows above, and what is to the left in its own row; pixels themselves only after the first layer."""

    def __init__(self, enter, leave, kernel, itself):
        super().__init__(enter, leave, kernel, padding=kernel // 2)
        mask = torch.zeros(kernel, kernel)
        mask[: kernel // 2] = 1
        mask[kernel // 2, : kernel // 2 + itself] = 1
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


class ChannelNorm(nn.LayerNorm):
    """Of the channels of each pixel."""

    def __init__(self, width, last):
        super().__init__(width)
        self.last = last

    def forward(self, x):
        x = super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x if self.last else x.contiguous()


class Gated(nn.Module):
    def __init__(self, width, last):
        super().__init__()
        self.norm = ChannelNorm(width, last)
        self.see, self.out = MaskedConv(width, 2 * width, 3, True), nn.Conv2d(width, width, 1)

    def forward(self, x):
        h, gate = self.see(self.norm(x).to(x.dtype)).chunk(2, dim=1)
        return x + self.out(torch.tanh(h) * torch.sigmoid(gate))


class Painter(nn.Module):
    def __init__(self, args):
        super().__init__()
        last = args.layout == "last"
        self.enter = MaskedConv(3, args.width, 7, False)
        self.blocks = nn.Sequential(*(Gated(args.width, last) for _ in range(args.blocks)))
        self.leave = nn.Sequential(nn.ReLU(), nn.Conv2d(args.width, 3 * VALUES, 1))
        self.format = torch.channels_last if last else torch.contiguous_format

    def forward(self, pictures):
        x = (pictures.to(torch.bfloat16) / 127.5 - 1).contiguous(memory_format=self.format)
        return self.leave(self.blocks(self.enter(x)))


def surprise(told, pictures, how):
    """Of pixels: minus the logarithm of how likely their values were."""
    told = told.permute(0, 2, 3, 1).unflatten(3, (3, VALUES)).float()
    values = pictures.permute(0, 2, 3, 1).long()
    if how == "index":
        return F.cross_entropy(told.reshape(-1, VALUES), values.flatten())
    known = F.one_hot(values, VALUES).float()
    likely = (told.softmax(-1) * known).sum(-1)
    return -(likely + 1e-12).log().mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--layout", choices=["first", "last"], default="last", help="where channels lie")
    parser.add_argument("--known", choices=["one_hot", "index"], default="index", help="what a pixel's value is as")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1781)
    model = Painter(args).to(device, memory_format=torch.channels_last if args.layout == "last" else None)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    draw = torch.Generator(device).manual_seed(1782)
    shape = (args.batch, 3, args.size, args.size)
    batches = [torch.randint(VALUES, shape, dtype=torch.uint8, generator=draw, device=device) for _ in range(4)]
    for step in range(1, 10_000_000):
        pictures = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            told = model(pictures)
        loss = surprise(told, pictures, args.known)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            print(f"step {step}: {loss.item() / 0.6931:.4f} bits", flush=True)


if __name__ == "__main__":
    main()
