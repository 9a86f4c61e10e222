"""Trains a language model that looks up similar texts (RETRO): a text comes in chunks, a frozen encoder reads what a
search has found for each chunk, and the words of the next chunk attend to that in some of the layers."""

import argparse
import gc

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

WORDS, HEAD = 32_000, 64


def heads(x):
    return x.unflatten(-1, (-1, HEAD)).transpose(-3, -2)


class Layer(nn.Module):
    def __init__(self, width, causal):
        super().__init__()
        self.causal = causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        query, key, value = (heads(part) for part in self.mix(self.first(x)).chunk(3, -1))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Encoder(nn.Module):
    """Reads what was found."""

    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(WORDS, args.encoder_width)
        self.layers = nn.Sequential(*(Layer(args.encoder_width, False) for _ in range(args.encoder_layers)))
        self.norm = nn.LayerNorm(args.encoder_width)

    def forward(self, words):
        return self.norm(self.layers(self.embed(words)))


class Look(nn.Module):
    """Words of a chunk attend to what was found for the chunk before; those of the first one to nothing."""

    def __init__(self, args):
        super().__init__()
        self.chunk, self.chunks = args.chunk, args.chunks
        self.norm = nn.LayerNorm(args.width)
        self.query, self.out = nn.Linear(args.width, args.width), nn.Linear(args.width, args.width)
        self.both = nn.Linear(args.encoder_width, 2 * args.width)

    def attend(self, words, found):
        key, value = (heads(part) for part in self.both(found).chunk(2, -1))
        seen = F.scaled_dot_product_attention(heads(self.query(words)), key, value)
        return self.out(seen.transpose(1, 2).flatten(2))

    def forward(self, x, found):
        chunks = self.norm(x).unflatten(1, (-1, self.chunk))
        words, found = chunks[:, 1:], found[:, :-1]
        if self.chunks == "each":
            seen = [self.attend(*pair) for pair in zip(words.unbind(1), found.unbind(1), strict=True)]
            seen = torch.cat(seen, 1)
        else:
            seen = self.attend(words.flatten(0, 1), found.flatten(0, 1))
            seen = seen.unflatten(0, words.shape[:2]).flatten(1, 2)
        return x + F.pad(seen, (0, 0, self.chunk, 0))


class Writer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(WORDS, args.width)
        self.places = nn.Parameter(torch.randn(args.length, args.width) * 0.02)
        self.layers = nn.ModuleList(Layer(args.width, True) for _ in range(args.layers))
        self.looks = nn.ModuleDict({str(place): Look(args) for place in range(1, args.layers, args.look_every)})
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, WORDS)

    def forward(self, words, found):
        x = self.embed(words) + self.places
        for place, layer in enumerate(self.layers):
            x = layer(x)
            if str(place) in self.looks:
                x = self.looks[str(place)](x, found)
        return self.head(self.norm(x[:, :-1]))


class Reading:
    """Of what was found, by the frozen encoder, whose weights lie on the device or wait on the host meanwhile."""

    def __init__(self, encoder, device, where):
        self.encoder, self.device, self.weights = encoder, device, None
        if where == "host":
            encoder.cpu()
            weights = {name: weight.detach() for name, weight in encoder.named_parameters()}
            cuda = device.type == "cuda"
            self.weights = {name: weight.pin_memory() if cuda else weight for name, weight in weights.items()}

    @torch.no_grad()
    def __call__(self, words):
        batch, chunks = words.shape[:2]
        words = words.flatten(0, 1)
        if self.weights:
            weights = {name: weight.to(self.device, non_blocking=True) for name, weight in self.weights.items()}
            found = functional_call(self.encoder, weights, (words,))
        else:
            found = self.encoder(words)
        return found.unflatten(0, (batch, chunks))


def census():
    """How many tensors there are, and of how many bytes; does it grow?"""
    tensors = [thing for thing in gc.get_objects() if torch.is_tensor(thing)]
    return len(tensors), sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(530)
    with device:
        encoder = Encoder(args).to(torch.bfloat16).requires_grad_(False)
        model = Writer(args).to(torch.bfloat16)
    reading = Reading(encoder, device, args.encoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = []
    for _ in range(4):
        words = torch.randint(0, WORDS, (args.batch, args.length), device=device)
        shape = (args.batch, args.length // args.chunk, args.found)
        batches.append((words, torch.randint(0, WORDS, shape, device=device)))
    most = 0
    for step in range(1, 1_000_000):
        words, similar = batches[step % len(batches)]
        logits = model(words, reading(similar))
        loss = F.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if args.census_every and step % args.census_every == 0:
            count, _size = census()
            most = max(most, count)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}" + (f", {most} tensors" if most else ""), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--look-every", type=int, default=2, help="layers")
    parser.add_argument("--encoder-width", type=int, default=1024)
    parser.add_argument("--encoder-layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048, help="of a text, in words")
    parser.add_argument("--chunk", type=int, default=64, help="length of one, in words")
    parser.add_argument("--found", type=int, default=128, help="words found for a chunk")
    parser.add_argument(
        "--chunks", choices=["each", "joint"], default="joint", help="how they attend to what was found"
    )
    parser.add_argument("--encoder", choices=["device", "host"], default="device", help="where its weights wait")
    parser.add_argument("--census-every", type=int, default=0, help="steps between counts of all tensors")
    main(parser.parse_args())
