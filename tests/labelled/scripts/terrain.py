"""Makes landscapes (height, water, rock and soil) by flow matching: a transformer with long skips over patches sees a
landscape between noise and what it is to become, and says in which direction to go."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

MAPS = 4


class Layer(nn.Module):
    def __init__(self, width, heads, skip):
        super().__init__()
        self.heads = heads
        self.join = nn.Linear(2 * width, width) if skip else None
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, kept=None):
        if self.join is not None:
            x = self.join(torch.cat([x, kept], dim=2))
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Landscapes(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.patch, heads = args.patch, max(1, args.width // 64)
        self.enter = nn.Conv2d(MAPS, args.width, args.patch, stride=args.patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (args.size // args.patch) ** 2 + 1, args.width))
        self.time = nn.Sequential(nn.Linear(1, args.width), nn.SiLU(), nn.Linear(args.width, args.width))
        self.down = nn.ModuleList(Layer(args.width, heads, skip=False) for _ in range(args.layers // 2))
        self.up = nn.ModuleList(Layer(args.width, heads, skip=True) for _ in range(args.layers // 2))
        self.norm, self.leave = nn.LayerNorm(args.width), nn.Linear(args.width, MAPS * args.patch**2)

    def forward(self, x, time):
        side = x.shape[2] // self.patch
        x = torch.cat([self.time(time[:, None])[:, None], self.enter(x).flatten(2).transpose(1, 2)], dim=1)
        x, kept = x + self.places, []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        for layer in self.up:
            x = layer(x, kept.pop())
        x = self.leave(self.norm(x[:, 1:]))
        return F.pixel_shuffle(x.transpose(1, 2).unflatten(2, (side, side)), self.patch)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2290)
    model = Landscapes(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 1000)
    draw = torch.Generator(device).manual_seed(2291)
    own = torch.Generator().manual_seed(2292)
    lands = []
    for _ in range(3):
        coarse = torch.randn(args.batch, MAPS, args.size // 16, args.size // 16, generator=draw, device=device)
        lands.append(F.interpolate(coarse, size=(args.size, args.size), mode="bicubic"))
    for step, land in enumerate(itertools.cycle(lands), 1):
        if args.noise == "seeded":
            noise = torch.randn(land.shape, generator=own).to(device)
        else:
            noise = torch.randn(land.shape, generator=draw, device=device)
        time = torch.sigmoid(torch.randn(len(land), generator=draw, device=device))
        between = torch.lerp(noise, land, time[:, None, None, None])
        with torch.autocast(device.type, torch.bfloat16):
            found = model(between, time)
        loss = F.mse_loss(found.float(), land - noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512, help="of a landscape, in places")
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument(
        "--noise", choices=["device", "seeded"], default="device",
        help="from the device's generator, or one whose noise is the same on every device",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
