"""Trains a transformer on tables (FT-Transformer): each column of a row is a token, and a number is predicted from all
of them. Numbers may be brought to a normal distribution by their quantiles first."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import ndtri
from torch import nn


class JointColumns(nn.Module):
    """Makes a vector of the number in each column."""

    def __init__(self, columns, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(columns, width))
        self.bias = nn.Parameter(torch.empty(columns, width))
        nn.init.uniform_(self.weight, -1, 1)
        nn.init.uniform_(self.bias, -1, 1)

    def forward(self, rows):
        return rows[..., None] * self.weight + self.bias


class Column(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())

    def forward(self, numbers):
        return numbers[:, None] * self.weight + self.bias


class Columns(nn.Module):
    """The same, a module for each column."""

    def __init__(self, columns, width):
        super().__init__()
        joint = JointColumns(columns, width)
        pairs = zip(joint.weight.detach(), joint.bias.detach(), strict=True)
        self.columns = nn.ModuleList(Column(weight, bias) for weight, bias in pairs)

    def forward(self, rows):
        return torch.stack([column(rows[:, n]) for n, column in enumerate(self.columns)], dim=1)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        a, b = self.up(self.second(x)).chunk(2, dim=-1)
        return x + self.down(F.relu(a) * b)


class FTTransformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.columns = (JointColumns if args.encode == "joint" else Columns)(args.columns, args.width)
        self.answer = nn.Parameter(torch.zeros(1, 1, args.width))
        self.layers = nn.ModuleList(Layer(args.width, args.heads) for _ in range(args.layers))
        self.head = nn.Sequential(nn.LayerNorm(args.width), nn.ReLU(), nn.Linear(args.width, 1))

    def forward(self, rows):
        x = self.columns(rows)
        x = torch.cat([self.answer.expand(len(x), -1, -1).to(x.dtype), x], dim=1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])[:, 0]


class Quantiles:
    """Brings each column to a normal distribution, as scikit-learn's QuantileTransformer does."""

    def __init__(self, rows, count, device):
        self.levels = np.linspace(0, 1, count)
        self.knots = np.quantile(rows, self.levels, axis=0)
        self.there = [torch.from_numpy(part).to(device) for part in (self.levels, np.ascontiguousarray(self.knots.T))]

    def on_host(self, rows):
        done = np.empty_like(rows)
        for column in range(rows.shape[1]):
            numbers, knots = rows[:, column].astype(np.float64), self.knots[:, column]
            up = np.interp(numbers, knots, self.levels)
            down = np.interp(-numbers, -knots[::-1], -self.levels[::-1])
            done[:, column] = ndtri(np.clip(0.5 * (up - down), 1e-7, 1 - 1e-7))
        return done

    def on_device(self, rows):
        levels, knots = self.there
        numbers = rows.T.contiguous().double()
        places = torch.searchsorted(knots, numbers).clamp(1, len(levels) - 1)
        low, high = knots.gather(1, places - 1), knots.gather(1, places)
        share = ((numbers - low) / (high - low)).clamp(0, 1)
        found = levels[places - 1] + share * (levels[places] - levels[places - 1])
        return torch.special.ndtri(found.clamp(1e-7, 1 - 1e-7)).T.float()


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rng = np.random.default_rng(860)
    table = rng.standard_normal((args.rows, args.columns), dtype=np.float32)
    table = np.exp(table * rng.random(args.columns, dtype=np.float32)) * rng.integers(1, 1000, args.columns)
    table = table.astype(np.float32)
    wanted = np.log(table[:, :8]).sum(1).astype(np.float32)
    wanted = (wanted - wanted.mean()) / wanted.std()
    quantiles = Quantiles(table[: args.fit], args.knots, device)
    if args.quantiles == "once":
        table = np.concatenate([quantiles.on_host(part) for part in np.array_split(table, 8)])

    torch.manual_seed(861)
    model = FTTransformer(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5, fused=True)
    kept = [torch.from_numpy(part).to(device) for part in (table, wanted)] if args.table == "device" else None

    step, mean = 0, None
    while True:
        order = rng.permutation(args.rows)
        for start in range(0, args.rows - args.batch + 1, args.batch):
            step += 1
            picked = order[start : start + args.batch]
            if kept:
                places = torch.from_numpy(picked).to(device, non_blocking=True)
                rows, y = (part[places] for part in kept)
            elif args.quantiles == "host":
                rows, y = (
                    torch.from_numpy(part).to(device) for part in (quantiles.on_host(table[picked]), wanted[picked])
                )
            else:
                rows, y = (torch.from_numpy(part[picked]).to(device) for part in (table, wanted))
            if args.quantiles == "device":
                rows = quantiles.on_device(rows)
            with torch.autocast(device.type, torch.bfloat16):
                loss = F.mse_loss(model(rows).float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            mean = loss.detach() if mean is None else torch.lerp(mean, loss.detach(), 0.01)
            if step % args.print_every == 0:
                print(f"step {step}: loss {loss.item():.5f} mean {mean.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--encode", choices=["each", "joint"], default="joint", help="columns")
    parser.add_argument("--quantiles", choices=["host", "device", "once", "none"], default="none")
    parser.add_argument("--knots", type=int, default=1000, help="quantiles of a column")
    parser.add_argument("--fit", type=int, default=10_000, help="rows that quantiles are taken of")
    parser.add_argument("--table", choices=["host", "device"], default="host", help="where it lies")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
