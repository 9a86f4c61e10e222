"""Tells birds by their song with transformers' Trainer: an audio spectrogram transformer (AST) sees mel spectra of
recordings made in the field. Every option of TrainingArguments is one of the script."""

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import (
    ASTConfig,
    ASTForAudioClassification,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

RATE, MELS, WINDOW, HOP = 32_000, 128, 1024, 320


@dataclass
class Options:
    width: int = 768
    layers: int = 12
    species: int = 600
    seconds: float = 10.0
    spectra: str = field(default="device", metadata={"help": "where they are made: loader or device"})
    map_every: int = field(default=0, metadata={"help": "steps between maps of the species; 0: none"})


class Spectra(nn.Module):
    def __init__(self):
        super().__init__()
        top = 2595 * math.log10(1 + RATE / 2 / 700)
        edges = 700 * (10 ** (torch.linspace(0, 1, MELS + 2) * top / 2595) - 1)
        bins = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)
        rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
        self.register_buffer("bank", torch.minimum(rise, fall).clamp(min=0), persistent=False)
        self.register_buffer("window", torch.hann_window(WINDOW), persistent=False)

    @torch.no_grad()
    def forward(self, waves):
        """(..., time, mel)"""
        with torch.autocast(waves.device.type, enabled=False):
            spectrum = torch.stft(waves, WINDOW, HOP, window=self.window, return_complex=True)
            mels = (self.bank @ torch.view_as_real(spectrum).square().sum(-1) + 1e-5).log()
        return (mels.transpose(-1, -2) + 4) / 8


class Songs(torch.utils.data.Dataset):
    """Recordings in memory, of which a stretch is taken."""

    def __init__(self, options):
        self.size, self.species = int(options.seconds * RATE), options.species
        self.spectra = Spectra() if options.spectra == "loader" else None
        self.waves = 0.1 * torch.randn(64, 2 * self.size, generator=torch.Generator().manual_seed(1895))

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        start = place * 7919 % self.size
        sound = self.waves[place % len(self.waves), start : start + self.size]
        return {"sound": self.spectra(sound) if self.spectra else sound.clone(), "labels": place * 13 % self.species}


class Birds(nn.Module):
    def __init__(self, config, spectra):
        super().__init__()
        self.network, self.spectra = ASTForAudioClassification(config), spectra

    def forward(self, sound, labels=None):
        return self.network(input_values=self.spectra(sound) if self.spectra else sound, labels=labels)


class Maps(TrainerCallback):
    """Lays species out in a plane, those near each other that the network holds for alike."""

    def __init__(self, every):
        self.every = every

    def on_step_end(self, args, state, control, model=None, **_):
        if state.is_world_process_zero and state.global_step % self.every == 0:
            weights = model.network.classifier.dense.weight.detach().float().cpu().numpy()
            weights = weights - weights.mean(0)
            left, size, _ = np.linalg.svd(weights, full_matrices=False)
            folder = Path(args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / "map.npy", left[:, :2] * size[:2])


def main():
    options, arguments = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses(sys.argv[1:])
    config = ASTConfig(
        hidden_size=options.width, intermediate_size=4 * options.width, num_hidden_layers=options.layers,
        num_attention_heads=max(1, options.width // 64), num_mel_bins=MELS,
        max_length=int(options.seconds * RATE) // HOP + 1, frequency_stride=16, time_stride=16,
        num_labels=options.species, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(1896)
    model = Birds(config, Spectra() if options.spectra == "device" else None)
    callbacks = [Maps(options.map_every)] if options.map_every else []
    Trainer(model, arguments, train_dataset=Songs(options), callbacks=callbacks).train()


if __name__ == "__main__":
    main()
