"""Writes music, note by note, with a transformer that hears notes less the longer ago they were (ALiBi), or knows their
places. Matrices may be trained by Muon, which makes each update orthogonal, and all else by Adam."""

import argparse
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn

EVENTS, HEAD = 512, 64


class Muon(torch.optim.Optimizer):
    """With momentum; updates of matrices are orthogonal (by Newton and Schulz), those of other weights are Adam's."""

    def __init__(self, matrices, others, lr, together):
        self.together = together
        super().__init__([{"params": matrices, "muon": True}, {"params": others, "muon": False}], {"lr": lr})

    @staticmethod
    def orthogonal(x):
        high, wide = x.shape[-2:]
        x = x.bfloat16()
        x = x.mT if high > wide else x
        x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
        for _ in range(5):
            square = x @ x.mT
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return (x.mT if high > wide else x) * max(1, high / wide) ** 0.5

    def momentum(self, weight):
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        return state["momentum"]

    def change_each(self, group):
        for weight in group["params"]:
            momentum = self.momentum(weight)
            momentum.lerp_(weight.grad, 0.05)
            update = self.orthogonal(weight.grad.lerp(momentum, 0.95))
            weight.mul_(1 - group["lr"] * 0.01).add_(update, alpha=-group["lr"])

    def change_together(self, group):
        alike = defaultdict(list)
        for weight in group["params"]:
            alike[weight.shape].append(weight)
        for weights in alike.values():
            momenta = [self.momentum(weight) for weight in weights]
            gradients = [weight.grad for weight in weights]
            torch._foreach_lerp_(momenta, gradients, 0.05)
            updates = self.orthogonal(torch.stack(torch._foreach_lerp(gradients, momenta, 0.95)))
            torch._foreach_mul_(weights, 1 - group["lr"] * 0.01)
            torch._foreach_add_(weights, list(updates.float().unbind()), alpha=-group["lr"])

    def change_adam(self, group):
        for weight in group["params"]:
            state = self.state[weight]
            if not state:
                state.update(step=0, first=torch.zeros_like(weight), second=torch.zeros_like(weight))
            state["step"] += 1
            state["first"].lerp_(weight.grad, 0.1)
            state["second"].lerp_(weight.grad.square(), 0.05)
            scale = (state["second"] / (1 - 0.95 ** state["step"])).sqrt_().add_(1e-8)
            weight.addcdiv_(state["first"], scale, value=-0.1 * group["lr"] / (1 - 0.9 ** state["step"]))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["muon"]:
                self.change_adam(group)
            elif self.together:
                self.change_together(group)
            else:
                self.change_each(group)


class Layer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention, width = args.attention, args.width
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def attend(self, x, fading):
        query, key, value = (
            part(x).unflatten(2, (-1, HEAD)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        if fading is None:
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        elif self.attention == "library":
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=fading)
        else:
            scores = query @ key.transpose(-2, -1) * HEAD**-0.5
            found = F.softmax(scores + fading, dim=-1).to(value.dtype) @ value
        return self.out(found.transpose(1, 2).flatten(2))

    def forward(self, x, fading):
        x = x + self.attend(F.rms_norm(x, x.shape[-1:]), fading)
        return x + self.down(F.gelu(self.up(F.rms_norm(x, x.shape[-1:]))))


class Composer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(EVENTS, args.width)
        self.places = nn.Parameter(torch.randn(args.length, args.width) * 0.02) if args.places == "learned" else None
        self.layers = nn.ModuleList(Layer(args) for _ in range(args.layers))
        self.tell = nn.Linear(args.width, EVENTS, bias=False)
        if args.places == "alibi":
            heads, ago = args.width // HEAD, torch.arange(args.length)
            ago = (ago[:, None] - ago).float()
            slopes = 2 ** (-8 * torch.arange(1, heads + 1) / heads)
            fading = (-slopes[:, None, None] * ago).masked_fill(ago < 0, float("-inf"))
            self.register_buffer("fading", fading.bfloat16(), persistent=False)

    def forward(self, notes):
        x, fading = self.embed(notes), None
        if self.places is not None:
            x = x + self.places
        else:
            fading = self.fading.expand(len(notes), -1, -1, -1)
        for layer in self.layers:
            x = layer(x, fading)
        return self.tell(F.rms_norm(x, x.shape[-1:]))


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(650)
    with device:
        model = Composer(args)
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    else:
        matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
        known = {id(weight) for weight in matrices}
        others = [weight for weight in model.parameters() if id(weight) not in known]
        optimizer = Muon(matrices, others, 0.01, args.updates == "together")
    pieces = [torch.randint(0, EVENTS, (args.batch, args.length + 1), device=device) for _ in range(4)]
    for step in range(1, 1_000_000):
        notes = pieces[step % len(pieces)]
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(notes[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), notes[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=1024, help="of a piece, in events")
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16, help="pieces")
    parser.add_argument("--places", choices=["learned", "alibi"], default="learned")
    parser.add_argument("--attention", choices=["library", "formula"], default="library", help="where notes fade")
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw")
    parser.add_argument("--updates", choices=["each", "together"], default="together", help="of matrices, by Muon")
    main(parser.parse_args())
