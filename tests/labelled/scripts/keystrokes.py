"""Recognises people by how they type: a transformer reads which keys were held for how long and how soon the next one
came, and samples of one person are to be closer to each other than the nearest sample of anybody else (triplets)."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--people", type=int, default=64, help="in a batch")
parser.add_argument("--samples", type=int, default=8, help="of a person")
parser.add_argument("--keys", type=int, default=64, help="of a sample")
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--mine", choices=["each", "joint"], default="joint", help="person by person, or all at once")
parser.add_argument("--free", action="store_true", help="give unused memory back after each step")
parser.add_argument("--margin", type=float, default=0.3)
parser.add_argument("--lr", type=float, default=1e-4)
parser.add_argument("--print-every", type=int, default=50)
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(2413)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.times = nn.Embedding(128, args.width), nn.Linear(4, args.width)
        self.place = nn.Parameter(0.02 * torch.randn(args.keys, args.width))
        layer = nn.TransformerEncoderLayer(
            args.width, max(1, args.width // 64), 4 * args.width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)
        self.head = nn.Linear(args.width, 128)

    def forward(self, keys, times):
        x = self.layers(self.key(keys) + self.times(times) + self.place)
        return F.normalize(self.head(x.mean(1)).float(), dim=1)


def triplets_each(apart, person):
    lost = []
    for who in person.unique():
        own = person == who
        rows = apart[own]
        farthest, nearest = rows[:, own].amax(1), rows[:, ~own].amin(1)
        lost.append((farthest - nearest + args.margin).relu())
    return torch.cat(lost).mean()


def triplets_joint(apart, person):
    own = person[:, None] == person
    farthest = apart.masked_fill(~own, float("-inf")).amax(1)
    nearest = apart.masked_fill(own, float("inf")).amin(1)
    return (farthest - nearest + args.margin).relu().mean()


def typed():
    """Samples of people drawn anew; each person has a rhythm."""
    count = args.people * args.samples
    person = torch.randperm(1000, device=device)[: args.people].repeat_interleave(args.samples)
    order = torch.randperm(count, device=device)
    keys = torch.randint(128, (count, args.keys), device=device)
    rhythm = torch.sin(person[order][:, None, None] * torch.arange(1.0, 5.0, device=device))
    return keys, rhythm + torch.rand(count, args.keys, 4, device=device), person[order]


model = Reader().to(device)
optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
triplets = {"each": triplets_each, "joint": triplets_joint}[args.mine]
for step in range(1, 10_000_000):
    keys, times, person = typed()
    with torch.autocast(device.type, torch.bfloat16):
        codes = model(keys, times)
    apart = 1 - codes @ codes.t()
    loss = triplets(apart, person)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if args.free and device.type == "cuda":
        torch.cuda.empty_cache()
    if step % args.print_every == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
