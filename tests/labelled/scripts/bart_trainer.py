"""Trains a BART from scratch with transformers' Trainer to mend text in which words are missing."""

import itertools
import random
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import BartConfig, BartForConditionalGeneration, HfArgumentParser, Trainer, TrainerCallback
from transformers import TrainingArguments as Arguments

LETTERS = "etaoinshrdlucmfwypvbgkqjxz"
PAD, BEGIN, END, MASK, FIRST = 1, 0, 2, 3, 4


@dataclass
class Options:
    d_model: int = 1024
    encoder_layers: int = 6
    decoder_layers: int = 6
    tokens: int = 512
    words: int = 200
    plot_every: int = 0


class Tokenizer:
    """Byte pair encoding: joins the two neighbours that were joined first in the vocabulary's making."""

    def __init__(self, size=12_000):
        rng = random.Random(0)
        twos = list(itertools.product(LETTERS, LETTERS))
        longer = list(itertools.product(map("".join, twos), [*LETTERS, *map("".join, twos)]))
        pairs = [*rng.sample(twos, len(twos)), *rng.sample(longer, size)]
        self.ranks = {pair: n for n, pair in enumerate(pairs)}
        self.ids = {piece: n + FIRST for n, piece in enumerate(dict.fromkeys([*LETTERS, *map("".join, pairs)]))}

    def word(self, word):
        parts = list(word)
        while len(parts) > 1:
            pairs = [(self.ranks.get(pair, 1 << 30), n) for n, pair in enumerate(itertools.pairwise(parts))]
            rank, n = min(pairs)
            if rank == 1 << 30:
                break
            parts[n : n + 2] = [parts[n] + parts[n + 1]]
        return [self.ids[part] for part in parts]

    def __call__(self, text):
        return [token for word in re.findall(r"[a-z]+", text.lower()) for token in self.word(word)]


class Corpus(torch.utils.data.Dataset):
    def __init__(self, words):
        self.words = words

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        rng = random.Random(index)
        return {"text": " ".join("".join(rng.choices(LETTERS, k=rng.randint(2, 9))) for _ in range(self.words))}


class Infilling:
    """A batch of texts as tokens, with runs of them behind one mask each."""

    def __init__(self, tokenizer, length):
        self.tokenizer, self.length = tokenizer, length

    def spoil(self, tokens, rng):
        out, place = [], 0
        while place < len(tokens):
            if rng.random() < 0.1:
                out.append(MASK)
                place += rng.randint(1, 6)
            else:
                out.append(tokens[place])
                place += 1
        return out

    def padded(self, tokens):
        tokens = [BEGIN, *tokens[: self.length - 2], END]
        return tokens + [PAD] * (self.length - len(tokens))

    def __call__(self, samples):
        rows = [self.tokenizer(sample["text"]) for sample in samples]
        rng = random.Random(sum(map(sum, rows)))
        spoiled = [self.padded(self.spoil(row[: self.length - 2], rng)) for row in rows]
        labels = torch.tensor([self.padded(row) for row in rows])
        return {"input_ids": torch.tensor(spoiled), "labels": labels.masked_fill(labels == PAD, -100)}


class Plot(TrainerCallback):
    """Draws how long steps take and how the learning rate falls."""

    def __init__(self, every, folder):
        import matplotlib

        matplotlib.use("Agg")
        self.every, self.folder, self.times, self.rates, self.last = every, Path(folder), [], [], time.time()

    def on_step_end(self, args, state, control, lr_scheduler=None, **kwargs):
        self.times.append(time.time() - self.last)
        self.rates.append(lr_scheduler.get_last_lr()[0])
        self.last = time.time()
        if state.global_step % self.every:
            return
        from matplotlib import pyplot as plt

        figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), dpi=100)
        above.plot(self.times)
        above.set_ylabel("seconds of a step")
        below.plot(self.rates)
        below.set_ylabel("learning rate")
        figure.savefig(self.folder / "progress.png")
        plt.close(figure)


options, arguments = HfArgumentParser((Options, Arguments)).parse_args_into_dataclasses(sys.argv[1:])
arguments.remove_unused_columns = False
Path(arguments.output_dir).mkdir(parents=True, exist_ok=True)
tokenizer = Tokenizer()
config = BartConfig(
    vocab_size=len(tokenizer.ids) + FIRST, d_model=options.d_model, encoder_layers=options.encoder_layers,
    decoder_layers=options.decoder_layers, encoder_ffn_dim=4 * options.d_model, decoder_ffn_dim=4 * options.d_model,
    encoder_attention_heads=max(1, options.d_model // 64), decoder_attention_heads=max(1, options.d_model // 64),
    max_position_embeddings=options.tokens, dropout=0.0, attention_dropout=0.0, use_cache=False,
    attn_implementation="sdpa", pad_token_id=PAD, bos_token_id=BEGIN, eos_token_id=END, decoder_start_token_id=END,
)  # fmt: skip
torch.manual_seed(arguments.seed)
Trainer(
    BartForConditionalGeneration(config), arguments, train_dataset=Corpus(options.words),
    data_collator=Infilling(tokenizer, options.tokens),
    callbacks=[Plot(options.plot_every, arguments.output_dir)] if options.plot_every else [],
).train()  # fmt: skip
