"""Outlines layers of the retina and what is ill of it in scans of eyes (optical coherence tomography): a U-Net of
residual blocks. Layers lie in the host's memory as people have drawn them. May be trained with LARS, by which each
weight has its own rate."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Lars(torch.optim.Optimizer):
    """SGD with momentum, whose steps are as long as a share of the weight is."""

    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-4, trust=0.001, ratios="joint"):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})
        self.each = ratios == "each"

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in weights]
            for p in weights:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            kept = [self.state[p]["momentum"] for p in weights]
            (self.step_each if self.each else self.step_joint)(weights, grads, kept, group)

    def step_each(self, weights, grads, kept, group):
        for p, grad, momentum in zip(weights, grads, kept, strict=True):
            length, steepness = p.norm(), grad.norm()
            rate = group["lr"]
            if length > 0 and steepness > 0:
                rate = rate * group["trust"] * length / (steepness + group["weight_decay"] * length)
            grad = grad.add(p, alpha=group["weight_decay"])
            momentum.mul_(group["momentum"]).add_(grad * rate)
            p.sub_(momentum)

    def step_joint(self, weights, grads, kept, group):
        lengths, steepness = (torch.stack(torch._foreach_norm(of)) for of in (weights, grads))
        own = group["trust"] * lengths / (steepness + group["weight_decay"] * lengths)
        rates = group["lr"] * torch.where((lengths > 0) & (steepness > 0), own, 1.0)
        steps = torch._foreach_add(grads, weights, alpha=group["weight_decay"])
        torch._foreach_mul_(steps, list(rates.unbind()))
        torch._foreach_mul_(kept, group["momentum"])
        torch._foreach_add_(kept, steps)
        torch._foreach_sub_(weights, kept)


class Block(nn.Module):
    def __init__(self, enter, leave):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(enter, leave, 3, padding=1, bias=False), nn.BatchNorm2d(leave), nn.ReLU(inplace=True),
            nn.Conv2d(leave, leave, 3, padding=1, bias=False), nn.BatchNorm2d(leave),
        )  # fmt: skip
        self.past = nn.Conv2d(enter, leave, 1) if enter != leave else nn.Identity()

    def forward(self, x):
        return F.relu(self.convs(x) + self.past(x), inplace=True)


def stage(enter, leave, blocks):
    return nn.Sequential(Block(enter, leave), *(Block(leave, leave) for _ in range(blocks - 1)))


class UNet(nn.Module):
    def __init__(self, args):
        super().__init__()
        widths = [args.width * 2**n for n in range(args.scales)]
        pairs = list(itertools.pairwise(widths))
        self.enter = stage(1, widths[0], args.blocks)
        self.down = nn.ModuleList(stage(a, b, args.blocks) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs[::-1])
        self.join = nn.ModuleList(stage(2 * a, a, args.blocks) for a, _ in pairs[::-1])
        self.leave = nn.Conv2d(widths[0], args.classes, 1)

    def forward(self, x):
        kept = [self.enter(x)]
        for down in self.down:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], dim=1))
        return self.leave(x)


def scans(args, device):
    """Few scans, again and again. Layers are numbers of classes, or a picture for each class."""
    draw = torch.Generator().manual_seed(2191)
    stored = []
    for _ in range(2):
        eyes = torch.rand(args.batch, 1, args.size, args.size, generator=draw)
        layers = torch.randint(args.classes, (args.batch, args.size, args.size), generator=draw)
        if args.layers == "one_hot":
            layers = F.one_hot(layers, args.classes).permute(0, 3, 1, 2).float()
        stored.append((eyes, layers))
    if device.type == "cuda":
        stored = [[part.pin_memory() for part in scan] for scan in stored]
    for scan in itertools.cycle(stored):
        yield [part.to(device, non_blocking=True) for part in scan]


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(2192)
    model = UNet(args).to(device, memory_format=torch.channels_last)
    if args.optimizer == "lars":
        optimizer = Lars(model.parameters(), args.lr, ratios=args.ratios)
    else:
        optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4, fused=True)
    for step, (eyes, layers) in enumerate(scans(args, device), 1):
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(eyes.contiguous(memory_format=torch.channels_last))
            loss = F.cross_entropy(scores, layers)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512, help="of a scan")
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--layers", choices=["index", "one_hot"], default="index", help="how they are stored")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--scales", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=1, help="of a stage")
    parser.add_argument("--optimizer", choices=["sgd", "lars"], default="sgd")
    parser.add_argument("--ratios", choices=["each", "joint"], default="joint", help="of LARS: found one by one or not")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
