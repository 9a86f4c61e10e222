"""Trains a language model of a single layer whose output is its own input again until nothing changes (deep
equilibrium): the state is sought by iterating, and so is the gradient that flows through it."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    """Of the state and of the words; gentle enough for a state to be found."""

    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, state, words):
        q, k, v = self.qkv(state).unflatten(-1, (3, self.heads, 64)).permute(2, 0, 3, 1, 4)
        h = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = h + self.down(F.gelu(self.up(state)))
        return self.norm(words + 0.25 * h)


class Solver:
    """Iterates until what changes is small, or often enough."""

    def __init__(self, args):
        self.check, self.tolerance, self.found = args.check == "each", args.tolerance, []

    def __call__(self, function, state, most):
        for _ in range(most):
            after = function(state)
            if self.check:
                change = (after - state).float().norm().item()
                self.found.append(change / (after.float().norm().item() + 1e-9))
                if self.found[-1] < self.tolerance:
                    return after
            state = after
        return state


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args, self.solve = args, Solver(args)
        self.table = nn.Embedding(args.words, args.width)
        self.places = nn.Parameter(0.02 * torch.randn(args.length, args.width))
        self.layer, self.head = Layer(args.width), nn.Linear(args.width, args.words, bias=False)

    def forward(self, words):
        x = self.table(words) + self.places
        with torch.no_grad():
            state = self.solve(lambda state: self.layer(state, x), torch.zeros_like(x), self.args.there)
        state = self.layer(state, x)
        if torch.is_grad_enabled():
            before = state.detach().requires_grad_()
            after = self.layer(before, x)

            def back(grad):
                def through(g):
                    return torch.autograd.grad(after, before, g, retain_graph=True)[0] + grad

                return self.solve(through, grad, self.args.back)

            state.register_hook(back)
        return self.head(state)


def report(step, device):
    """How much memory the step left, but for what the allocator keeps."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, whole = torch.cuda.mem_get_info()
        return {"step": step, "used": whole - free, "most": torch.cuda.max_memory_allocated()}
    return {"step": step, "used": 0, "most": 0}


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1841)
    model = Model(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    texts = torch.randint(args.words, (4, args.batch, args.length + 1), device=device)
    memory = []
    for step in range(1, 10_000_000):
        text = texts[step % len(texts)]
        with torch.autocast(device.type, torch.bfloat16):
            told = model(text[:, :-1])
            loss = F.cross_entropy(told.flatten(0, 1), text[:, 1:].flatten())
        del told
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if args.memory_every and step % args.memory_every == 0:
            memory.append(report(step, device))
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f} {memory[-1:]}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=32_000)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--there", type=int, default=40, help="most iterations to the state")
    parser.add_argument("--back", type=int, default=30, help="most iterations to its gradient")
    parser.add_argument("--check", choices=["each", "never"], default="never", help="whether it is near enough")
    parser.add_argument("--tolerance", type=float, default=1e-12)
    parser.add_argument("--memory-every", type=int, default=0, help="steps between reports of memory; 0: none")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
