"""Trains a speech recogniser that writes while it listens (RNN transducer): an encoder hears, a recurrent network reads
what was written, and the loss sums over all ways in which the words may fall on the frames."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

MELS, BLANK = 80, 0


class Utterances(Dataset):
    """Made-up spectra and pieces of words."""

    def __init__(self, args):
        self.args = args
        draw = torch.Generator().manual_seed(830)
        self.noise = torch.randn(args.frames * 4 + 8192, MELS, generator=draw).half()
        self.pieces = torch.randint(1, args.pieces, (65_536,), generator=draw)

    def __len__(self):
        return 1 << 20

    def __getitem__(self, n):
        args = self.args
        frames = 4 * (args.frames - n % (args.frames // 4))
        pieces = args.labels - n % (args.labels // 4)
        start, text = n * 61 % 8192, n * 97 % (len(self.pieces) - args.labels)
        mels, words = self.noise[start : start + 4 * args.frames], self.pieces[text : text + args.labels]
        return mels, words, frames // 4, pieces


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.near = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.mix = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, 64)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.mix(F.silu(self.near(self.norms[1](x).transpose(1, 2)).transpose(1, 2)))
        return x + self.down(F.silu(self.up(self.norms[2](x))))


class Transducer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Linear(4 * MELS, args.width)
        self.layers = nn.ModuleList(Layer(args.width) for _ in range(args.layers))
        self.words = nn.Embedding(args.pieces, args.joint)
        self.reader = nn.LSTM(args.joint, args.joint, batch_first=True)
        self.hear, self.read = nn.Linear(args.width, args.joint), nn.Linear(args.joint, args.joint)
        self.head = nn.Linear(args.joint, args.pieces)

    def encode(self, mels):
        x = self.enter(mels.float().unflatten(1, (-1, 4)).flatten(2))
        for layer in self.layers:
            x = layer(x)
        return self.hear(x)

    def predict(self, words, state=None):
        with torch.autocast(words.device.type, enabled=False):
            x, state = self.reader(self.words(words), state)
        return self.read(x), state

    def joined(self, heard, read):
        return self.head(torch.tanh(heard + read))

    def forward(self, mels, words):
        """Log-probabilities of blank and of the next piece, at each frame after each piece."""
        heard = self.encode(mels)
        read, _ = self.predict(F.pad(words, (1, 0), value=BLANK))
        scores = self.joined(heard[:, :, None], read[:, None])
        norm = torch.logsumexp(scores.float(), dim=-1)
        places = words[:, None, :, None].expand(-1, heard.shape[1], -1, -1)
        right = scores[:, :, :-1].gather(-1, places)[..., 0].float() - norm[:, :, :-1]
        return scores[..., BLANK].float() - norm, right


def lattice_by_frames(blank, right):
    """Sums over paths, frame by frame; within a frame all pieces at once."""
    row = F.pad(right[:, 0].cumsum(-1), (1, 0))
    rows = [row]
    for before, own in zip(blank.unbind(1)[:-1], right.unbind(1)[1:], strict=True):
        upto = F.pad(own.cumsum(-1), (1, 0))
        row = upto + torch.logcumsumexp(row + before - upto, dim=-1)
        rows.append(row)
    return torch.stack(rows, dim=1)


def lattice_by_pieces(blank, right):
    """The same, piece by piece; all frames at once."""
    upto = F.pad(blank.cumsum(1), (0, 0, 1, 0))[:, :-1]
    column = upto[..., 0]
    columns = [column]
    for sums, own in zip(upto.unbind(2)[1:], right.unbind(2), strict=True):
        column = sums + torch.logcumsumexp(column + own - sums, dim=1)
        columns.append(column)
    return torch.stack(columns, dim=2)


def transducer_loss(blank, right, frames, pieces, loop):
    sums = lattice_by_frames(blank, right) if loop == "frames" else lattice_by_pieces(blank, right)
    each = torch.arange(len(frames), device=frames.device)
    return -(sums[each, frames - 1, pieces] + blank[each, frames - 1, pieces]).mean() / pieces.float().mean()


@torch.no_grad()
def greedy(model, mels):
    """Words of one utterance, one a frame at most."""
    heard = model.encode(mels[None])[0]
    word = torch.full((1, 1), BLANK, device=mels.device)
    read, state = model.predict(word)
    written = []
    for frame in heard:
        best = model.joined(frame, read[0, 0]).argmax().item()
        if best != BLANK:
            written.append(best)
            word.fill_(best)
            read, state = model.predict(word, state)
    return written


def error_rate(found, wanted):
    row = list(range(len(wanted) + 1))
    for i, one in enumerate(found, 1):
        corner, row[0] = row[0], i
        for j, other in enumerate(wanted, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (one != other))
    return row[-1] / max(1, len(wanted))


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(831)
    model = Transducer(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=1e-3, fused=True)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 2000))
    loader = DataLoader(Utterances(args), args.batch, num_workers=args.workers, pin_memory=cuda, drop_last=True)
    rate = float("nan")
    for step, batch in enumerate(loader, 1):
        mels, words, frames, pieces = (part.to(device, non_blocking=True) for part in batch)
        with torch.autocast(device.type, torch.bfloat16):
            blank, right = model(mels, words)
        loss = transducer_loss(blank, right, frames, pieces, args.loop)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        warm_up.step()
        optimizer.zero_grad(set_to_none=True)
        if args.wer_every and step % args.wer_every == 0:
            with torch.autocast(device.type, torch.bfloat16):
                rate = error_rate(greedy(model, mels[0]), batch[1][0, : batch[3][0]].tolist())
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}, word error rate {rate:.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=256, help="of an utterance, 40 ms each")
    parser.add_argument("--labels", type=int, default=40, help="pieces of words in an utterance")
    parser.add_argument("--pieces", type=int, default=1024, help="pieces of words that there are")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--joint", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument(
        "--loop", choices=["frames", "pieces"], default="pieces", help="what the lattice's loop is over"
    )
    parser.add_argument("--wer-every", type=int, default=1000, help="steps between words that are written for a look")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
