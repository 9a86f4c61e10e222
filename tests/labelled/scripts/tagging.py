"""Tags sound (what is heard in a recording, several things at once) with a state-space model: each channel is convolved
with a kernel as long as the recording, the answer of a diagonal linear system (S4D), by Fourier transforms."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


class Kernel(nn.Module):
    """What a diagonal system with complex states answers to an impulse, at all places."""

    def __init__(self, args):
        super().__init__()
        self.form, self.length = args.kernel, args.length
        steps = torch.rand(args.width, 1) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)
        self.steps = nn.Parameter(steps)
        self.decay = nn.Parameter(torch.full((args.width, args.states), math.log(0.5)))
        self.speed = nn.Parameter(math.pi * torch.arange(args.states).float().repeat(args.width, 1))
        self.leave = nn.Parameter(torch.randn(args.width, args.states, 2) * args.states**-0.5)

    def forward(self):
        step = self.steps.exp()
        rate = torch.complex(-self.decay.exp() * step, self.speed * step)
        leave = torch.view_as_complex(self.leave) * step
        if self.form == "table":
            places = torch.arange(self.length, device=rate.device)
            table = (rate[..., None] * places).exp()
            return 2 * (leave[..., None] * table).sum(1).real
        part = 2 ** (int(math.log2(self.length)) // 2)
        far = torch.arange(0, self.length, part, device=rate.device)
        near = torch.arange(part, device=rate.device)
        begins = leave[:, None] * (rate[:, None] * far[:, None]).exp()
        found = begins @ (rate[..., None] * near).exp()
        return 2 * found.flatten(1).real


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.exact = args.exact
        self.kernel = Kernel(args)
        self.through = nn.Parameter(torch.randn(args.width))
        self.norm, self.mix = nn.LayerNorm(args.width), nn.Linear(args.width, 2 * args.width)
        self.up, self.down = nn.Linear(args.width, 2 * args.width), nn.Linear(2 * args.width, args.width)

    def convolve(self, x):
        with torch.autocast(x.device.type, enabled=False):
            x = x.float().transpose(1, 2)
            size = 2 * x.shape[2]
            answer = torch.fft.rfft(x, n=size) * torch.fft.rfft(self.kernel(), n=size)
            found = torch.fft.irfft(answer, n=size)[..., : size // 2]
            return (found + self.through[:, None] * x).transpose(1, 2)

    def change(self, x):
        x = x + F.glu(self.mix(F.gelu(self.convolve(self.norm(x)))), -1)
        return x + self.down(F.gelu(self.up(x)))

    def forward(self, x):
        if self.exact == "convolution":
            return self.change(x)
        # transforms are only known for single precision
        with torch.autocast(x.device.type, enabled=False):
            return self.change(x.float())


class Tagger(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Conv1d(1, args.width, args.hop, args.hop)
        self.blocks = nn.Sequential(*(Block(args) for _ in range(args.layers)))
        self.norm, self.out = nn.LayerNorm(args.width), nn.Linear(args.width, args.tags)

    def forward(self, sound):
        x = self.enter(sound[:, None]).transpose(1, 2)
        return self.out(self.norm(self.blocks(x)).mean(1))


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(520)
    with device:
        model = Tagger(args)
    gentle = [p for name, p in model.named_parameters() if name.endswith(("steps", "decay", "speed"))]
    known = {id(p) for p in gentle}
    others = [p for p in model.parameters() if id(p) not in known]
    groups = [{"params": gentle, "lr": 1e-5, "weight_decay": 0.0}, {"params": others}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    batches = []
    for _ in range(4):
        sound = torch.randn(args.batch, args.length * args.hop, device=device)
        batches.append((sound, (torch.rand(args.batch, args.tags, device=device) < 0.02).float()))
    for step in range(1, 1_000_000):
        sound, heard = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(sound)
        loss = F.binary_cross_entropy_with_logits(logits.float(), heard)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=8192, help="of a recording, in hops; a power of two")
    parser.add_argument("--hop", type=int, default=16, help="samples that are one place")
    parser.add_argument("--tags", type=int, default=527)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--states", type=int, default=32, help="of each channel")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--kernel", choices=["table", "parts"], default="parts", help="how it is made")
    parser.add_argument("--exact", choices=["convolution", "block"], default="convolution", help="what is in fp32")
    main(parser.parse_args())
