"""Finds what is odd in the logs of servers (as LogBERT): a DistilBERT of transformers guesses hidden events of a window
of a log, and the windows of a healthy server are to lie close to one centre. Trained by transformers' Trainer."""

import gc
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    DistilBertConfig,
    DistilBertModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


@dataclass
class Options:
    events: int = 3000
    length: int = 256
    width: int = 768
    layers: int = 6
    hidden_share: float = 0.3
    collect_every: int = 0
    """Steps after which Python's garbage is collected; 0: as Python decides."""


class LogModel(nn.Module):
    def __init__(self, options):
        super().__init__()
        config = DistilBertConfig(
            vocab_size=options.events + 2,
            max_position_embeddings=options.length + 1,
            dim=options.width,
            hidden_dim=4 * options.width,
            n_layers=options.layers,
            n_heads=max(1, options.width // 64),
        )
        self.encoder = DistilBertModel._from_config(config, attn_implementation="sdpa")
        self.head = nn.Linear(options.width, options.events + 2)
        self.register_buffer("centre", torch.zeros(options.width))

    def forward(self, input_ids, labels):
        x = self.encoder(input_ids=input_ids).last_hidden_state
        scores = self.head(x[:, 1:])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)
        window = x[:, 0].float()
        if self.training:
            with torch.no_grad():
                self.centre.lerp_(window.mean(0), 0.01)
        return {"loss": loss + 0.1 * F.mse_loss(window, self.centre.expand_as(window)), "logits": scores}


class Windows(torch.utils.data.Dataset):
    """A window is a walk over events, of which some are hidden (number 1); number 0 stands at its start."""

    def __init__(self, options):
        self.options = options
        self.following = torch.randint(options.events, (options.events, 4))

    def __len__(self):
        return 2_000_000

    def __getitem__(self, place):
        draw = torch.Generator().manual_seed(place)
        start = torch.randint(self.options.events, (1,), generator=draw)
        ways = torch.randint(4, (8,), generator=draw).tolist()
        walk = [start.item()]
        for way in ways:
            walk.append(self.following[walk[-1], way].item())
        events = torch.tensor(walk).repeat(self.options.length // len(walk) + 1)[: self.options.length] + 2
        hidden = torch.rand(self.options.length, generator=draw) < self.options.hidden_share
        seen = torch.cat([torch.zeros(1, dtype=torch.long), events.masked_fill(hidden, 1)])
        return {"input_ids": seen, "labels": events.masked_fill(~hidden, -100)}


class Collect(TrainerCallback):
    """Keeps the process small on servers with little memory."""

    def __init__(self, every):
        self.every = every

    def on_step_end(self, args, state, control, **_):
        if state.global_step % self.every == 0:
            gc.collect()


def main():
    options, arguments = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses(sys.argv[1:])
    torch.manual_seed(2408)
    callbacks = [Collect(options.collect_every)] if options.collect_every else []
    Trainer(LogModel(options), arguments, train_dataset=Windows(options), callbacks=callbacks).train()


if __name__ == "__main__":
    main()
