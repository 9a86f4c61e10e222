"""Parses sentences of old languages: an ALBERT of transformers reads the words, a biaffine layer says which word
depends on which, and how. Sentences of a batch have the same length; how many trees are right is measured at times."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AlbertConfig, AlbertModel


class Parser(nn.Module):
    def __init__(self, args):
        super().__init__()
        config = AlbertConfig(
            vocab_size=args.vocabulary,
            embedding_size=128,
            hidden_size=args.width,
            intermediate_size=4 * args.width,
            num_hidden_layers=args.layers,
            num_attention_heads=max(1, args.width // 64),
            max_position_embeddings=512,
        )
        self.encoder = AlbertModel._from_config(config, attn_implementation="sdpa")
        self.head, self.word = (nn.Linear(args.width, args.arcs) for _ in range(2))
        self.between = nn.Parameter(torch.randn(args.arcs + 1, args.arcs) / args.arcs)
        self.label = nn.Linear(2 * args.arcs, args.labels)

    def forward(self, words, heads):
        """Scores of all heads of each word, and of the labels of its true head; word 0 is the root."""
        x = self.encoder(input_ids=words).last_hidden_state
        head, word = F.gelu(self.head(x)), F.gelu(self.word(x))
        scores = F.pad(word, (0, 1), value=1.0) @ self.between @ head.transpose(1, 2)
        own = torch.gather(head, 1, heads.unsqueeze(2).expand(-1, -1, head.shape[2]))
        return scores, self.label(torch.cat([word, own], dim=2))


def trees(scores):
    """The best tree without crossing arcs (Eisner) of each sentence; scores are (sentences, words, heads)."""
    count, size, _ = scores.shape
    open_, closed = np.full((2, 2, count, size, size), -np.inf, dtype=np.float32)
    closed[:, :, range(size), range(size)] = 0
    at_open, at_closed = np.zeros((count, size, size), int), np.zeros((2, count, size, size), int)
    rows = np.arange(count)
    for width in range(1, size):
        for i in range(size - width):
            j = i + width
            halves = closed[1][:, i, i:j] + closed[0][:, i + 1 : j + 1, j]
            best = halves.argmax(1)
            at_open[:, i, j], value = i + best, halves[rows, best]
            open_[0][:, i, j], open_[1][:, i, j] = value + scores[:, i, j], value + scores[:, j, i]
            left = closed[0][:, i, i:j] + open_[0][:, i:j, j]
            right = open_[1][:, i, i + 1 : j + 1] + closed[1][:, i + 1 : j + 1, j]
            for way, (sums, start) in enumerate(((left, i), (right, i + 1))):
                best = sums.argmax(1)
                at_closed[way][:, i, j], closed[way][:, i, j] = start + best, sums[rows, best]
    found = np.zeros((count, size), int)
    for own in range(count):
        spans = [(0, size - 1, 1, True)]
        while spans:
            i, j, way, is_closed = spans.pop()
            if i == j:
                continue
            if is_closed:
                k = at_closed[way][own, i, j]
                spans += [(i, k, way, way == 0), (k, j, way, way == 1)]
            else:
                found[own, i if way == 0 else j] = j if way == 0 else i
                k = at_open[own, i, j]
                spans += [(i, k, 1, True), (k + 1, j, 0, True)]
    return found


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2280)
    model = Parser(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.98), fused=True)
    batches = []
    for length in args.lengths:
        words = torch.randint(args.vocabulary, (args.words // length, length), device=device)
        heads = torch.randint_like(words, length)
        batches.append((words, heads, torch.randint_like(words, args.labels)))
    length = 0
    for step in range(1, 10_000_000):
        words, heads, labels = batches[step % len(batches)]
        if args.release == "length" and words.shape[1] != length and device.type == "cuda":
            torch.cuda.empty_cache()
        length = words.shape[1]
        with torch.autocast(device.type, torch.bfloat16):
            scores, of_labels = model(words, heads)
        arcs = F.cross_entropy(scores.float().flatten(0, 1), heads.flatten())
        loss = arcs + F.cross_entropy(of_labels.float().flatten(0, 1), labels.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.trees_every == 0:
            found = trees(scores[: args.scored].detach().float().cpu().numpy())
            right = (found == heads[: args.scored].cpu().numpy())[:, 1:].mean()
            print(f"step {step}: loss {loss.item():.4f}, {100 * right:.1f} % of heads are right", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=30_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32], help="of sentences, in turns")
    parser.add_argument("--words", type=int, default=16_384, help="of a batch")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--arcs", type=int, default=512, help="width of what is compared")
    parser.add_argument("--labels", type=int, default=48)
    parser.add_argument("--trees-every", type=int, default=100, help="steps")
    parser.add_argument("--scored", type=int, default=48, help="sentences whose trees are looked at")
    parser.add_argument("--release", choices=["never", "length"], default="never", help="memory, when lengths change")
    parser.add_argument("--lr", type=float, default=1e-4)
    main(parser.parse_args())
