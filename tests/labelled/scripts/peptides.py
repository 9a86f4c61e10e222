"""Reads peptides from their mass spectra (de novo sequencing): an encoder sees the peaks, a decoder writes amino acids
one after the other and must also know what is left of the mass."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

ACIDS = 24  # and marks of modifications, start and end


def waves(values, width):
    """Sines and cosines of a mass, of wavelengths from a thousandth to ten thousand."""
    lengths = torch.logspace(-3, 4, width // 2, device=values.device)
    angles = 2 * torch.pi * values.unsqueeze(-1) / lengths
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads, self.how = args.heads, args.attend
        self.q, self.kv = nn.Linear(args.width, args.width), nn.Linear(args.width, 2 * args.width)
        self.out = nn.Linear(args.width, args.width)

    def forward(self, x, other, seen):
        q = self.q(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(other).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.how == "library":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
            y = torch.softmax(scores.masked_fill(~seen, -1e4), dim=3) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, args, decoder):
        super().__init__()
        self.attention, self.cross = Attention(args), Attention(args) if decoder else None
        self.norms = nn.ModuleList(nn.LayerNorm(args.width) for _ in range(3 if decoder else 2))
        self.mlp = nn.Sequential(
            nn.Linear(args.width, 4 * args.width), nn.GELU(), nn.Linear(4 * args.width, args.width)
        )

    def forward(self, x, seen, other=None, other_seen=None):
        y = self.norms[0](x)
        x = x + self.attention(y, y, seen)
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), other, other_seen)
        return x + self.mlp(self.norms[1](x))


class Sequencer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.width = args.width
        self.strength, self.acids = nn.Linear(1, args.width), nn.Embedding(ACIDS, args.width)
        self.encoder = nn.ModuleList(Layer(args, decoder=False) for _ in range(args.layers))
        self.decoder = nn.ModuleList(Layer(args, decoder=True) for _ in range(args.layers // 2))
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, ACIDS)

    def forward(self, masses, strengths, peaks, acids, left):
        seen = (torch.arange(masses.shape[1], device=masses.device) < peaks[:, None])[:, None, None]
        x = waves(masses, self.width) + self.strength(strengths.unsqueeze(2))
        for layer in self.encoder:
            x = layer(x, seen)
        places = torch.arange(acids.shape[1], device=acids.device)
        before = (places <= places[:, None])[None, None]
        y = self.acids(acids) + waves(left, self.width)
        for layer in self.decoder:
            y = layer(y, before, x, seen)
        return self.head(self.norm(y))


def spectra(args, device):
    masses = torch.sort(2000 * torch.rand(args.batch, args.peaks, device=device)).values
    peaks = torch.randint(args.peaks // 2, args.peaks + 1, (args.batch,), device=device)
    acids = torch.randint(1, ACIDS, (args.batch, args.length + 1), device=device)
    left = 2000 - torch.cumsum(60 + 120 * torch.rand(args.batch, args.length, device=device), 1)
    return masses, torch.rand(args.batch, args.peaks, device=device), peaks, acids, left


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2230)
    model = Sequencer(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.01, fused=True)
    known = [spectra(args, device) for _ in range(4)]
    for step in range(1, 10_000_000):
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device)
        for part in zip(*(whole.split(args.part or args.batch) for whole in known[step % 4]), strict=True):
            masses, strengths, peaks, acids, left = part
            with torch.autocast(device.type, torch.bfloat16):
                scores = model(masses, strengths, peaks, acids[:, :-1], left)
            loss = F.cross_entropy(scores.float().flatten(0, 1), acids[:, 1:].flatten()) * len(masses) / args.batch
            loss.backward()
            total += loss.detach()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {total.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peaks", type=int, default=512)
    parser.add_argument("--length", type=int, default=32, help="of a peptide")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--layers", type=int, default=8, help="of the encoder; the decoder has half as many")
    parser.add_argument("--attend", choices=["library", "written"], default="library")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--part", type=int, default=0, help="spectra that go through the network at a time; 0: all")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
