"""Recognises words of sign language: where hands, face and body are in each frame goes through a transformer, and of
the frames of a clip the mean says which word it is. Clips last differently long."""

import argparse
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


class Signer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.masks = args.masks
        self.enter = nn.Linear(6 * args.points, args.width)
        self.places = nn.Parameter(0.02 * torch.randn(args.frames, args.width))
        layer = nn.TransformerEncoderLayer(
            args.width, args.width // 64, 4 * args.width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.body = nn.TransformerEncoder(layer, args.layers, norm=nn.LayerNorm(args.width), enable_nested_tensor=False)
        self.head = nn.Linear(args.width, args.words)

    def past_the_end(self, lengths, frames):
        if self.masks == "each":
            mask = torch.zeros(len(lengths), frames, dtype=torch.bool, device=lengths.device)
            for number, length in enumerate(lengths):
                mask[number, length:] = True
            return mask
        return torch.arange(frames, device=lengths.device) >= lengths[:, None]

    def forward(self, points, lengths):
        """Points are (clips, frames, points, 3): how fast they move is seen as well."""
        moved = F.pad(torch.diff(points, dim=1), (0, 0, 0, 0, 1, 0))
        mask = self.past_the_end(lengths, points.shape[1])
        x = self.enter(torch.cat([points, moved], dim=3).flatten(2)) + self.places
        x = self.body(x, src_key_padding_mask=mask)
        x = x.masked_fill(mask[..., None], 0).sum(1) / lengths[:, None]
        return self.head(x)


class Training:
    """All that is trained, and how."""

    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(1931)
        self.model = Signer(args).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), args.lr, fused=True)
        self.state = SimpleNamespace(step=0, loss=None)
        self.clips = [self.made() for _ in range(4)]

    def made(self):
        args = self.args
        points = torch.randn(args.batch, args.frames, args.points, 3, device=self.device)
        lengths = torch.randint(args.frames // 4, args.frames + 1, (args.batch,), device=self.device)
        return points, lengths, torch.randint(args.words, (args.batch,), device=self.device)

    def train_step(self, points, lengths, words):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.amp):
            scores = self.model(points, lengths)
        loss = F.cross_entropy(scores.float(), words, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def fit(self, steps=1_000_000):
        self.model.train()
        while self.state.step < steps:
            self.state.loss = self.train_step(*self.clips[self.state.step % len(self.clips)])
            self.state.step += 1
            if self.state.step % self.args.print_every == 0:
                print(f"step {self.state.step}: loss {self.state.loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=75, help="of hands, face and body")
    parser.add_argument("--frames", type=int, default=128, help="of the longest clip")
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--masks", choices=["each", "joint"], default="joint", help="clip by clip, or of all")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--print-every", type=int, default=50)
    Training(parser.parse_args()).fit()
