"""Reads electrocardiograms of twelve leads with transformers' Trainer: a transformer reads each lead by itself, and
what it made of all of them tells which of many conditions a heart has. Every option of TrainingArguments is one of the
script."""

import sys
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Options:
    width: int = 384
    layers: int = 6
    leads: int = 12
    samples: int = field(default=5000, metadata={"help": "of a lead"})
    patch: int = 50
    conditions: int = 71
    read: str = field(default="joint", metadata={"help": "each: lead by lead; joint: all leads at once"})


class Hearts(torch.utils.data.Dataset):
    """Few recordings, again and again."""

    def __init__(self, options):
        draw = torch.Generator().manual_seed(2161)
        self.leads = torch.randn(512, options.leads, options.samples, generator=draw)
        self.conditions = (torch.rand(512, options.conditions, generator=draw) < 0.05).float()

    def __len__(self):
        return 4_000_000

    def __getitem__(self, number):
        number %= len(self.leads)
        return {"leads": self.leads[number], "labels": self.conditions[number]}


class Reader(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.options = options
        self.enter = nn.Conv1d(1, width, options.patch, options.patch)
        self.places = nn.Parameter(0.02 * torch.randn(options.samples // options.patch, width))
        self.which = nn.Parameter(0.02 * torch.randn(options.leads, width))
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, options.layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, options.conditions)

    def one(self, leads, which):
        """Of leads (recordings, samples), a vector each."""
        x = self.enter(leads[:, None]).transpose(1, 2) + self.places
        return self.body(x + which).mean(1)

    def forward(self, leads, labels=None):
        if self.options.read == "each":
            seen = [self.one(leads[:, lead], self.which[lead]) for lead in range(leads.shape[1])]
            seen = torch.stack(seen, dim=1)
        else:
            which = self.which.repeat(len(leads), 1)[:, None]
            seen = self.one(leads.flatten(0, 1), which).unflatten(0, leads.shape[:2])
        scores = self.head(seen.amax(1))
        loss = F.binary_cross_entropy_with_logits(scores.float(), labels) if labels is not None else None
        return {"loss": loss, "logits": scores}


def main():
    options, arguments = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses(sys.argv[1:])
    torch.manual_seed(2162)
    Trainer(Reader(options), arguments, train_dataset=Hearts(options)).train()


if __name__ == "__main__":
    main()
