"""Learns which features a language model thinks in (sparse autoencoder): activations of a layer, recorded before,
become sparse codes over a large dictionary, and activations again."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class SparseAutoencoder(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.encode = nn.Linear(width, features)
        self.decode = nn.Linear(features, width)
        with torch.no_grad():
            self.decode.weight.copy_(F.normalize(torch.randn_like(self.decode.weight), dim=0))
            self.encode.weight.copy_(self.decode.weight.T)
            self.encode.bias.zero_()
            self.decode.bias.zero_()

    def forward(self, x):
        codes = F.relu(self.encode(x - self.decode.bias))
        back = self.decode(codes)
        lengths = self.decode.weight.norm(dim=0)
        used = F.linear(codes, lengths[None])
        return F.mse_loss(back.float(), x), used.float().mean()


class Recorded:
    """Activations in page-locked memory, in an order drawn anew in each epoch."""

    def __init__(self, args, device):
        self.batch, self.device, self.way = args.batch, device, args.batches
        draw = torch.Generator().manual_seed(902)
        self.stored = torch.randn(args.stored * args.batch, args.width, generator=draw)
        self.draw = torch.Generator().manual_seed(903)
        cuda = device.type == "cuda"
        if self.way == "device":
            self.stored = self.stored.to(device)
        elif cuda:
            self.stored = self.stored.pin_memory()
        if self.way == "staged":
            self.staging = [torch.empty(args.batch, args.width, pin_memory=cuda) for _ in range(2)]
            self.copied = [torch.cuda.Event() if cuda else None for _ in range(2)]

    def staged(self, rows, turn):
        if self.copied[turn]:
            self.copied[turn].synchronize()
        torch.index_select(self.stored, 0, rows, out=self.staging[turn])
        x = self.staging[turn].to(self.device, non_blocking=True)
        if self.copied[turn]:
            self.copied[turn].record()
        return x

    def __iter__(self):
        number = 0
        while True:
            order = torch.randperm(len(self.stored), generator=self.draw)
            if self.way == "device":
                order = order.to(self.device)
            for rows in order.split(self.batch):
                number += 1
                if self.way == "staged":
                    yield self.staged(rows, number % 2)
                elif self.way == "device":
                    yield self.stored[rows]
                else:
                    yield self.stored.index_select(0, rows).to(self.device, non_blocking=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048, help="of the language model")
    parser.add_argument("--features", type=int, default=32_768, help="in the dictionary")
    parser.add_argument("--batch", type=int, default=16_384, help="activations")
    parser.add_argument("--stored", type=int, default=4, help="batches that are stored")
    parser.add_argument("--batches", choices=["indexed", "staged", "device"], default="staged")
    parser.add_argument("--sparsity", type=float, default=1e-3)
    parser.add_argument("--warm-up", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(901)
    with device:
        model = SparseAutoencoder(args.width, args.features)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.999), weight_decay=0.0, fused=True)
    for step, x in enumerate(Recorded(args, device), 1):
        with torch.autocast(device.type, torch.bfloat16):
            error, used = model(x)
        loss = error + args.sparsity * min(1.0, step / args.warm_up) * used
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            print(f"step {step}: error {error.item():.5f} used {used.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
