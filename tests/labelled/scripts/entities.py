"""Finds names in texts: a transformer scores the tags of each word, and a conditional random field (CRF) scores which
tag may follow which. Its loss sums over all ways in which a sentence may be tagged."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

NEVER = -1e4


def log_product(left, right):
    """Matrix product of numbers that are given, and wanted, as logarithms."""
    most_left, most_right = left.amax(-1, keepdim=True), right.amax(-2, keepdim=True)
    product = (left - most_left).exp() @ (right - most_right).exp()
    return product.clamp(min=1e-30).log() + most_left + most_right


class Field(nn.Module):
    """The conditional random field."""

    def __init__(self, tags, sums):
        super().__init__()
        self.follow = nn.Parameter(torch.randn(tags, tags) * 0.1)
        self.begin, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))
        self.all_ways = self.by_words if sums == "words" else self.by_halves

    def by_words(self, scores, mask):
        """Word after word."""
        total = self.begin + scores[:, 0]
        for place in range(1, scores.shape[1]):
            more = total[:, :, None] + self.follow + scores[:, place, None]
            total = torch.where(mask[:, place, None], more.logsumexp(1), total)
        return (total + self.end).logsumexp(1)

    def by_halves(self, scores, mask):
        """Neighbours are put together, then pairs of them, and so on."""
        nothing = torch.full_like(self.follow, NEVER).fill_diagonal_(0)
        steps = torch.where(mask[:, 1:, None, None], self.follow + scores[:, 1:, None], nothing)
        while steps.shape[1] > 1:
            if steps.shape[1] % 2:
                steps = torch.cat([steps, nothing.expand(len(steps), 1, -1, -1)], dim=1)
            steps = log_product(steps[:, ::2], steps[:, 1::2])
        total = log_product((self.begin + scores[:, 0])[:, None], steps[:, 0])[:, 0]
        return (total + self.end).logsumexp(1)

    def of_way(self, scores, tags, mask, lengths):
        """The score of one way to tag the sentence."""
        words = (scores.gather(2, tags[:, :, None])[..., 0] * mask).sum(1)
        pairs = (self.follow[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]).sum(1)
        last = tags.gather(1, lengths[:, None] - 1)[:, 0]
        return words + pairs + self.begin[tags[:, 0]] + self.end[last]

    def forward(self, scores, tags, mask, lengths):
        return (self.all_ways(scores, mask) - self.of_way(scores, tags, mask, lengths)) / lengths


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Reader(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.words, self.places = nn.Embedding(args.words, args.width), nn.Embedding(args.length, args.width)
        self.layers = nn.ModuleList(Layer(args.width) for _ in range(args.layers))
        self.norm, self.scores = nn.LayerNorm(args.width), nn.Linear(args.width, args.tags)

    def forward(self, words, mask):
        x = self.words(words) + self.places.weight[: words.shape[1]]
        for layer in self.layers:
            x = layer(x, mask[:, None, None])
        return self.scores(self.norm(x)).float()


class Score:
    """How many words, and how many sentences as a whole, are tagged as they should be."""

    def __init__(self, device, how):
        self.how = how
        self.words, self.wholes, self.of = (torch.zeros((), dtype=torch.long, device=device) for _ in range(3))

    def add(self, guess, tags, mask, lengths):
        if self.how == "joint":
            right = (guess == tags) & mask
            self.words += right.sum()
            self.wholes += (right.sum(1) == lengths).sum()
            self.of += mask.sum()
            return
        for told, known, length in zip(guess, tags, lengths, strict=True):
            length = length.item()
            right = (told[:length] == known[:length]).sum().item()
            self.words += right
            self.wholes += right == length
            self.of += length

    def __str__(self):
        return f"{self.words.item() / max(1, self.of.item()):.4f} of words, {self.wholes.item()} whole sentences"


def sentences(args, device):
    """Batches of sentences that differ in length."""
    draw = torch.Generator(device).manual_seed(1731)
    shape = (args.batch, args.length)
    lengths = torch.randint(args.length // 2, args.length + 1, (args.batch,), generator=draw, device=device)
    lengths[0] = args.length
    return (
        torch.randint(args.words, shape, generator=draw, device=device),
        torch.randint(args.tags, shape, generator=draw, device=device),
        torch.arange(args.length, device=device) < lengths[:, None],
        lengths,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=30_000)
    parser.add_argument("--tags", type=int, default=17)
    parser.add_argument("--length", type=int, default=128, help="words of the longest sentence")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--sums", choices=["words", "halves"], default="halves", help="how ways are summed over")
    parser.add_argument(
        "--score", choices=["none", "each", "joint"], default="none", help="of sentences, while it trains"
    )
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1732)
    with device:
        reader, field = Reader(args), Field(args.tags, args.sums)
    optimizer = torch.optim.AdamW([*reader.parameters(), *field.parameters()], args.lr, fused=True)
    batches = [sentences(args, device) for _ in range(4)]
    score = Score(device, args.score)
    for step in range(1, 10_000_000):
        words, tags, mask, lengths = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            scores = reader(words, mask)
        loss = field(scores, tags, mask, lengths).mean()
        if args.score != "none":
            score.add(scores.detach().argmax(2), tags, mask, lengths)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f} {score if args.score != 'none' else ''}", flush=True)


if __name__ == "__main__":
    main()
