"""Trains a language model of linear recurrences with gates (as in Griffin): each channel forgets at a pace that the
word sets, by sums over the places."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

WORDS, TAPS, PART = 32_000, 4, 16


def doubling(fade, x):
    """Each place takes in what lies 1, 2, 4, ... places before it; `fade` and `x` are (batch, places, channels)."""
    apart = 1
    while apart < x.shape[1]:
        x = torch.addcmul(x, fade, F.pad(x, (0, 0, apart, 0))[:, : x.shape[1]])
        fade = fade * F.pad(fade, (0, 0, apart, 0), value=0.0)[:, : x.shape[1]]
        apart *= 2
    return x


def parts(log_fade, x):
    """Within parts by sums of what is scaled to the begin of the part, and doubling only from part to part."""
    total = log_fade.unflatten(1, (-1, PART)).cumsum(2)
    fade = total.exp()
    found = fade * (x.unflatten(1, (-1, PART)) * (-total).exp()).cumsum(2)
    states = doubling(fade[:, :, -1], found[:, :, -1])
    before = F.pad(states, (0, 0, 1, 0))[:, :-1, None]
    return torch.addcmul(found, fade, before).flatten(1, 2)


class Recurrence(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.scan = args.scan
        self.enter, self.gate = (nn.Linear(args.width, args.width, bias=False) for _ in range(2))
        self.taps = nn.Parameter(torch.randn(TAPS, args.width) * 0.3)
        self.forget, self.take = nn.Linear(args.width, args.width), nn.Linear(args.width, args.width)
        self.pace = nn.Parameter(torch.linspace(-6, -2, args.width))
        self.out = nn.Linear(args.width, args.width, bias=False)

    def forward(self, x):
        gate, x = F.gelu(self.gate(x)), self.enter(x)
        places = x.shape[1]
        before = F.pad(x, (0, 0, TAPS - 1, 0))
        x = sum(before[:, place : place + places] * self.taps[place] for place in range(TAPS))
        # never below exp(-0.3) in one place, or what is scaled grows too large within a part
        log_fade = -2 * F.softplus(self.pace.float()) * torch.sigmoid(self.forget(x).float())
        fade = log_fade.exp()
        taken = (1 - fade * fade).clamp(min=1e-6).sqrt() * (torch.sigmoid(self.take(x)) * x).float()
        found = parts(log_fade, taken) if self.scan == "parts" else doubling(fade, taken)
        return self.out(found.to(gate.dtype) * gate)


class Layer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.first, self.second = nn.RMSNorm(args.width), nn.RMSNorm(args.width)
        self.recurrence, inner = Recurrence(args), 3 * args.width
        self.up, self.down = nn.Linear(args.width, 2 * inner, bias=False), nn.Linear(inner, args.width, bias=False)

    def forward(self, x):
        x = x + self.recurrence(self.first(x))
        gate, up = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(F.gelu(gate) * up)


class Speaker(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(WORDS, args.width)
        self.layers = nn.Sequential(*(Layer(args) for _ in range(args.layers)))
        self.norm, self.head = nn.RMSNorm(args.width), nn.Linear(args.width, WORDS, bias=False)

    def forward(self, words):
        logits = self.head(self.norm(self.layers(self.embed(words))))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(450)
    with device:
        model = Speaker(args).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(451)
    texts = torch.randint(0, WORDS, (8, args.batch, args.length), device=device)
    for step in range(1, 1_000_000):
        loss = model(texts[step % 8])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2560)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--scan", choices=["parts", "doubling"], default="parts", help="how the past is taken in")
    main(parser.parse_args())
