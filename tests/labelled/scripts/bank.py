"""Learns pictures without labels (instance discrimination): a network of timm is to tell each picture from all others,
whose features of the last time they were seen are kept in a bank."""

import argparse
import os

import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Discriminator(nn.Module):
    """Scores of pictures against their own rows of the bank, at 0, and against some of others."""

    def __init__(self, args):
        super().__init__()
        self.net = timm.create_model(args.arch, num_classes=args.width)
        self.register_buffer("bank", F.normalize(torch.randn(args.pictures, args.width), dim=1))

    def forward(self, pictures, rows, of_others):
        found = F.normalize(self.net(pictures).float(), dim=1)
        own = (found * self.bank[rows]).sum(1, keepdim=True)
        return torch.cat([own, found @ self.bank[of_others].T], 1) / 0.07, found.detach()

    @torch.no_grad()
    def remember(self, found, rows, keep=0.5):
        self.bank[rows] = F.normalize(keep * self.bank[rows] + (1 - keep) * found, dim=1)


def from_all(part, ranks):
    """Of all ranks, one behind the other."""
    if ranks == 1:
        return part
    whole = part.new_empty(ranks * len(part), *part.shape[1:])
    dist.all_gather_into_tensor(whole, part)
    return whole


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    torch.manual_seed(250)
    with device:
        inner = Discriminator(args)
    memory = torch.channels_last if args.channels_last else torch.contiguous_format
    inner = inner.to(memory_format=memory)
    model = inner
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(
            inner, device_ids=[local] if cuda else None, broadcast_buffers=args.buffers == "broadcast",
            gradient_as_bucket_view=True,
        )  # fmt: skip
    optimizer = torch.optim.SGD(inner.parameters(), lr=1e-5, momentum=0.9, weight_decay=1e-4, fused=True)
    torch.manual_seed(251 + rank)
    pictures = torch.randint(0, 256, (4, args.batch, 3, args.size, args.size), dtype=torch.uint8)
    if cuda:
        pictures = pictures.pin_memory()
    truth = torch.zeros(args.batch, dtype=torch.long, device=device)
    for step in range(1, 1_000_000):
        some = pictures[step % len(pictures)].to(device, non_blocking=True)
        rows, of_others = torch.randint(args.pictures, (args.batch + args.negatives,), device=device).split(
            [args.batch, args.negatives]
        )
        flipped = torch.rand(args.batch, 1, 1, 1, device=device) < 0.5
        some = torch.where(flipped, some.flip(3), some).contiguous(memory_format=memory)
        with torch.autocast(device.type, torch.bfloat16):
            scores, found = model(some / 255 - 0.5, rows, of_others)
        loss = F.cross_entropy(scores.float(), truth)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        inner.remember(from_all(found, ranks), from_all(rows, ranks))
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="resnet50d")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=192, help="of each rank")
    parser.add_argument("--pictures", type=int, default=1_281_167, help="that the bank has rows for")
    parser.add_argument("--width", type=int, default=128, help="of a row")
    parser.add_argument("--negatives", type=int, default=16_384, help="rows of others in a step")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--buffers", choices=["own", "broadcast"], default="own", help="of rank 0 before each step")
    main(parser.parse_args())
