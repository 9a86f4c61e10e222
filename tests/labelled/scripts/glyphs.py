"""Draws letters of typefaces: a glyph is a series of commands of a pen (move, line, curve, end) with whole numbers
behind each, which a transformer writes command by command, given the letter and the typeface."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

COMMANDS, NUMBERS, LETTERS = 5, 6, 128


class Layer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads = args.width // 64
        self.norms = nn.ModuleList(nn.LayerNorm(args.width) for _ in range(2))
        self.qkv, self.out = nn.Linear(args.width, 3 * args.width), nn.Linear(args.width, args.width)
        self.wide, self.narrow = nn.Linear(args.width, 4 * args.width), nn.Linear(4 * args.width, args.width)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Writer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.grid = args.grid
        self.command, self.letter = nn.Embedding(COMMANDS, args.width), nn.Embedding(LETTERS, args.width)
        self.face, self.place = nn.Embedding(args.faces, args.width), nn.Embedding(args.length, args.width)
        self.number = nn.Embedding(NUMBERS * args.grid, args.width // 4)
        self.numbers = nn.Linear(NUMBERS * (args.width // 4), args.width)
        self.layers = nn.ModuleList(Layer(args) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.heads = nn.Linear(args.width, COMMANDS + NUMBERS * args.grid)
        self.register_buffer("offsets", args.grid * torch.arange(NUMBERS), persistent=False)
        self.register_buffer("places", torch.arange(args.length), persistent=False)

    def forward(self, commands, numbers, letter, face):
        x = self.command(commands) + self.numbers(self.number(numbers + self.offsets).flatten(2))
        x = x + (self.letter(letter) + self.face(face))[:, None] + self.place(self.places)
        for layer in self.layers:
            x = layer(x)
        scores = self.heads(self.norm(x))
        return scores[..., :COMMANDS], scores[..., COMMANDS:].unflatten(2, (NUMBERS, self.grid))


def glyphs(args, device):
    def whole(top, *shape):
        return torch.randint(top, (args.batch, *shape), device=device)

    rows = args.length + 1
    return whole(COMMANDS, rows), whole(args.grid, rows, NUMBERS), whole(LETTERS), whole(args.faces)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2300)
    model = Writer(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    fonts = [glyphs(args, device) for _ in range(4)]
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(1, 10_000_000):
        commands, numbers, letter, face = fonts[step % len(fonts)]
        with torch.autocast(device.type, torch.bfloat16):
            of_commands, of_numbers = model(commands[:, :-1], numbers[:, :-1], letter, face)
            loss = F.cross_entropy(of_commands.flatten(0, 1), commands[:, 1:].flatten())
            loss = loss + F.cross_entropy(of_numbers.flatten(0, 2), numbers[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if args.keep_every and step % args.keep_every == 0:
            torch.save({"step": step, "model": model.state_dict()}, folder / "latest.tmp")
            (folder / "latest.tmp").replace(folder / "latest.pt")
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="glyphs", help="folder for what is kept")
    parser.add_argument("--faces", type=int, default=2000)
    parser.add_argument("--grid", type=int, default=128, help="numbers of a pen's place")
    parser.add_argument("--length", type=int, default=128, help="of a glyph, in commands")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--keep-every", type=int, default=1000, help="steps; 0: nothing is kept")
    parser.add_argument("--batch", type=int, default=384)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
