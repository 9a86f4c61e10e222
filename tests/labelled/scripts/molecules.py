"""Learns to make molecules by diffusion: noise is taken from places and kinds of atoms by a graph network over all
pairs of atoms that turns as the molecule does (EGNN). In single precision, as places want it."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

KINDS = 10


class PairMLP(nn.Module):
    """Of the features of two atoms, their distance now, and that at the beginning."""

    def __init__(self, width, out, edges):
        super().__init__()
        self.width, self.edges = width, edges
        self.first = nn.Linear(2 * width + 2, width)
        self.rest = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), *out)

    def forward(self, h, now, begun):
        atoms = h.shape[1]
        if self.edges == "cat":
            one = h[:, :, None].expand(-1, -1, atoms, -1)
            other = h[:, None].expand(-1, atoms, -1, -1)
            x = self.first(torch.cat([one, other, now, begun], dim=-1))
        else:
            one, other, far = self.first.weight.split([self.width, self.width, 2], dim=1)
            x = F.linear(h, one, self.first.bias)[:, :, None] + F.linear(h, other)[:, None]
            x = x + F.linear(torch.cat([now, begun], dim=-1), far)
        return self.rest(x)


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args.width
        self.message = PairMLP(width, [], args.edges)
        self.gate = nn.Linear(width, 1)
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.move = PairMLP(width, [nn.Linear(width, 1, bias=False)], args.edges)
        nn.init.xavier_uniform_(self.move.rest[-1].weight, gain=0.001)

    def forward(self, h, x, begun, there, pairs):
        now, _ = distances(x)
        messages = self.message(h, now, begun)
        messages = messages * torch.sigmoid(self.gate(messages)) * pairs
        h = (h + self.node(torch.cat([h, messages.sum(2) / 100], dim=-1))) * there
        now, apart = distances(x)
        steps = apart / (now + 1e-8).sqrt().add(1) * self.move(h, now, begun).tanh() * pairs
        return h, (x + steps.sum(2)) * there


def distances(x):
    apart = x[:, :, None] - x[:, None]
    return apart.square().sum(-1, keepdim=True), apart


class EGNN(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Linear(KINDS + 1, args.width)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.leave = nn.Linear(args.width, KINDS)

    def forward(self, kinds, x, time, there):
        pairs = there[:, :, None] * there[:, None] * (1 - torch.eye(x.shape[1], device=x.device))[..., None]
        h = self.enter(torch.cat([kinds, time[:, None, None].expand(-1, x.shape[1], 1)], dim=-1)) * there
        begun, start = distances(x)[0], x
        for block in self.blocks:
            h, x = block(h, x, begun, there, pairs)
        return self.leave(h) * there, centred((x - start) * there, there)


def centred(x, there):
    return (x - x.sum(1, keepdim=True) / there.sum(1, keepdim=True)) * there


class Diffusion:
    """A cosine schedule, noise is predicted."""

    def __init__(self, steps, device):
        t = torch.linspace(0, 1, steps + 1, device=device)
        self.steps, self.kept = steps, torch.cos((t + 0.008) / 1.008 * torch.pi / 2).clamp(0.01, 0.9999)

    def loss(self, model, kinds, x, there):
        time = torch.randint(1, self.steps + 1, (len(x),), device=x.device)
        alpha = self.kept[time][:, None, None]
        sigma = (1 - alpha**2).sqrt()
        noise_k, noise_x = torch.randn_like(kinds) * there, centred(torch.randn_like(x) * there, there)
        told_k, told_x = model(alpha * kinds + sigma * noise_k, alpha * x + sigma * noise_x, time / self.steps, there)
        wrong = (told_k - noise_k).square().sum((1, 2)) + (told_x - noise_x).square().sum((1, 2))
        return (wrong / there.sum((1, 2)) / (KINDS + 3)).mean()


def molecules(args, device):
    """Batches on the device: made-up drugs of 60 to 100 % of the largest one's atoms."""
    for _ in range(4):
        count = torch.randint(int(0.6 * args.atoms), args.atoms + 1, (args.batch, 1), device=device)
        there = (torch.arange(args.atoms, device=device) < count).float()[..., None]
        kinds = F.one_hot(torch.randint(KINDS, (args.batch, args.atoms), device=device), KINDS).float() * there
        yield kinds / 4, centred(2 * torch.randn(args.batch, args.atoms, 3, device=device) * there, there), there


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--atoms", type=int, default=48, help="of the largest molecule")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--edges", choices=["cat", "split"], default="split", help="how pairs of atoms are fed in")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--steps", type=int, default=1000, help="of the diffusion")
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(840)
    model = EGNN(args).to(device)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999), use_buffers=False
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, amsgrad=True, weight_decay=1e-12)
    diffusion, batches = Diffusion(args.steps, device), list(molecules(args, device))
    step = 0
    while True:
        loss = diffusion.loss(model, *batches[step % len(batches)])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        average.update_parameters(model)
        step += 1
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
