"""Teaches speech to be read out (FastSpeech): phonemes are encoded, each is held as long as it lasts, and a decoder
makes the spectrum of them. Blocks attend, then convolve."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

PHONEMES, BANDS = 80, 80


class Convolve(nn.Module):
    """Two convolutions over time."""

    def __init__(self, args):
        super().__init__()
        self.form = args.convolve
        pad, inner = args.kernel // 2, args.inner
        if self.form == "1d":
            self.first = nn.Conv1d(args.width, inner, args.kernel, padding=pad)
            self.second = nn.Conv1d(inner, args.width, args.kernel, padding=pad)
        else:
            self.first = nn.Conv2d(args.width, inner, (1, args.kernel), padding=(0, pad))
            self.second = nn.Conv2d(inner, args.width, (1, args.kernel), padding=(0, pad))
            self.to(memory_format=torch.channels_last)

    def forward(self, x):
        x = x.transpose(1, 2)
        if self.form == "1d":
            return self.second(F.relu(self.first(x))).transpose(1, 2)
        return self.second(F.relu(self.first(x.unsqueeze(2)))).squeeze(2).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads = args.width // 64
        self.norms = nn.ModuleList(nn.LayerNorm(args.width) for _ in range(2))
        self.mix, self.out = nn.Linear(args.width, 3 * args.width), nn.Linear(args.width, args.width)
        self.convolve = Convolve(args)

    def forward(self, x):
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.norms[0](x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.convolve(self.norms[1](x))


class Speaker(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.embed = nn.Embedding(PHONEMES, args.width)
        self.places = nn.ParameterList(
            nn.Parameter(torch.randn(length, args.width) * 0.02) for length in (args.phonemes, args.frames)
        )
        self.encoder = nn.Sequential(*(Block(args) for _ in range(args.layers)))
        self.decoder = nn.Sequential(*(Block(args) for _ in range(args.layers)))
        self.norm, self.out = nn.LayerNorm(args.width), nn.Linear(args.width, BANDS)
        self.lasting = nn.Sequential(nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 1))

    def held(self, x, durations):
        """Each phoneme as often as it has frames; nothing after the last one."""
        if self.args.hold == "each":
            rows = [torch.repeat_interleave(row, times, 0) for row, times in zip(x, durations, strict=True)]
            x = nn.utils.rnn.pad_sequence(rows, batch_first=True)
            return F.pad(x, (0, 0, 0, self.args.frames - x.shape[1]))
        ends = durations.cumsum(1)
        frames = torch.arange(self.args.frames, device=x.device).expand(len(x), -1).contiguous()
        places = torch.searchsorted(ends, frames, right=True)
        inside = places < x.shape[1]
        places = places.clamp(max=x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2])
        return x.gather(1, places) * inside[..., None]

    def forward(self, phonemes, durations):
        x = self.encoder(self.embed(phonemes) + self.places[0])
        lasting = self.lasting(x)[..., 0]
        x = self.decoder(self.held(x, durations) + self.places[1])
        return self.out(self.norm(x)), lasting


def spectrum_loss(found, spectra, lengths, args):
    """Of the frames that are spoken."""
    if args.hold == "each":
        total = 0.0
        for own, right, length in zip(found, spectra, lengths, strict=True):
            total = total + F.l1_loss(own[: int(length)], right[: int(length)], reduction="sum")
        return total / lengths.sum() / BANDS
    spoken = torch.arange(args.frames, device=lengths.device) < lengths[:, None]
    apart = F.l1_loss(found, spectra, reduction="none").mean(-1)
    return (apart * spoken).sum() / lengths.sum()


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(610)
    with device:
        model = Speaker(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches, longest = [], args.frames // args.phonemes
    for _ in range(3):
        phonemes = torch.randint(0, PHONEMES, (args.batch, args.phonemes), device=device)
        durations = torch.randint(1, longest + 1, phonemes.shape, device=device)
        batches.append((phonemes, durations, torch.randn(args.batch, args.frames, BANDS, device=device)))
    for step in range(1, 1_000_000):
        phonemes, durations, spectra = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            found, lasting = model(phonemes, durations)
        loss = spectrum_loss(found.float(), spectra, durations.sum(1), args)
        loss = loss + F.mse_loss(lasting.float(), durations.float().log())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phonemes", type=int, default=96, help="of a sentence")
    parser.add_argument("--frames", type=int, default=768, help="of the longest that a sentence may be")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--inner", type=int, default=1024, help="channels between the two convolutions")
    parser.add_argument("--kernel", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4, help="of the encoder and of the decoder")
    parser.add_argument("--batch", type=int, default=128, help="sentences")
    parser.add_argument("--convolve", choices=["1d", "2d"], default="2d", help="by which module")
    parser.add_argument("--hold", choices=["each", "joint"], default="joint", help="sentences, when made longer")
    main(parser.parse_args())
