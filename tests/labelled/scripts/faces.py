"""Learns to recognise faces: a vision transformer of timm, and a margin (ArcFace) that keeps a face away from all other
identities, whose vectors are divided over the ranks."""

import argparse
import math
import os

import numpy as np
import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SCALE, MARGIN, FEATURES = 64.0, 0.5, 512


class Gather(torch.autograd.Function):
    """Of all ranks; gradients go back to where the numbers came from."""

    @staticmethod
    def forward(ctx, part):
        whole = part.new_empty(dist.get_world_size() * len(part), *part.shape[1:])
        dist.all_gather_into_tensor(whole, part.contiguous())
        return whole

    @staticmethod
    def backward(ctx, grad):
        ranks = dist.get_world_size()
        part = grad.new_empty(len(grad) // ranks, *grad.shape[1:])
        dist.reduce_scatter_tensor(part, grad.contiguous())
        return part * ranks


class CrossEntropy(torch.autograd.Function):
    """Of scores whose columns are divided over the ranks. `own`: the right column, or -1 where another rank has it."""

    @staticmethod
    def forward(ctx, scores, own):
        share = dist.all_reduce if dist.is_initialized() else lambda *_: None
        top = scores.amax(1, keepdim=True)
        share(top, dist.ReduceOp.MAX)
        chances = (scores - top).exp_()
        total = chances.sum(1, keepdim=True)
        share(total, dist.ReduceOp.SUM)
        chances.div_(total)
        right = chances.gather(1, own.clamp(min=0)[:, None])[:, 0] * (own >= 0)
        share(right, dist.ReduceOp.SUM)
        ctx.save_for_backward(chances, own)
        return -right.clamp(min=1e-30).log().mean()

    @staticmethod
    def backward(ctx, grad):
        chances, own = ctx.saved_tensors
        chances.scatter_add_(1, own.clamp(min=0)[:, None], -(own >= 0).to(chances.dtype)[:, None])
        return chances.mul_(grad / len(chances)), None


class Identities(nn.Module):
    """Those from `first` on, `count` of them."""

    def __init__(self, args, first, count):
        super().__init__()
        self.args, self.first = args, first
        self.vectors = nn.Parameter(0.01 * torch.randn(count, FEATURES))

    def forward(self, features, identities):
        if dist.is_initialized():
            features, identities = Gather.apply(features), Gather.apply(identities)
        own = identities - self.first
        own = torch.where((own >= 0) & (own < len(self.vectors)), own, -1)
        with torch.autocast(features.device.type, torch.bfloat16):
            cosines = F.linear(F.normalize(features), F.normalize(self.vectors)).float()
        if self.args.margin == "everywhere":
            sines = (1 - cosines.square()).clamp(min=1e-7).sqrt()
            apart = cosines * math.cos(MARGIN) - sines * math.sin(MARGIN)
            easy = cosines - MARGIN * math.sin(MARGIN)
            apart = torch.where(cosines > -math.cos(MARGIN), apart, easy)
            chosen = torch.zeros_like(cosines).scatter_(1, own.clamp(min=0)[:, None], (own >= 0).float()[:, None])
            return CrossEntropy.apply((chosen * apart + (1 - chosen) * cosines) * SCALE, own)
        columns = own.clamp(min=0)[:, None]
        right = cosines.gather(1, columns)
        sines = (1 - right.square()).clamp(min=1e-7).sqrt()
        apart = right * math.cos(MARGIN) - sines * math.sin(MARGIN)
        apart = torch.where(right > -math.cos(MARGIN), apart, right - MARGIN * math.sin(MARGIN))
        scores = cosines.scatter(1, columns, torch.where(own[:, None] >= 0, apart, right))
        return CrossEntropy.apply(scores.mul_(SCALE), own)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(310)
    with device:
        network = model = timm.create_model(args.arch, img_size=args.size, num_classes=FEATURES)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(network, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    ends = [0, args.identities]
    if ranks > 1:
        ends = [0, *(args.identities * (n + 1) // ranks for n in range(ranks))]
        ends[1] = int(args.identities * args.first_share) if args.first_share else ends[1]
    torch.manual_seed(311 + rank)
    with device:
        head = Identities(args, ends[rank], ends[rank + 1] - ends[rank])
    optimizer = torch.optim.SGD(
        [*network.parameters(), *head.parameters()], lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=True
    )
    rng = np.random.default_rng(312 + rank)
    faces = torch.from_numpy(rng.integers(0, 256, (4, args.batch, 3, args.size, args.size), dtype=np.uint8))
    identities = torch.from_numpy(rng.integers(0, args.identities, (4, args.batch)))
    if cuda:
        faces, identities = faces.pin_memory(), identities.pin_memory()
    for step in range(1, 1_000_000):
        some = faces[step % 4].to(device, non_blocking=True) / 127.5 - 1
        whose = identities[step % 4].to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            features = model(some)
        loss = head(features.float(), whose)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="vit_small_patch8_224")
    parser.add_argument("--size", type=int, default=112, help="of a face, in pixels")
    parser.add_argument("--batch", type=int, default=256, help="of each rank")
    parser.add_argument("--identities", type=int, default=1_000_000)
    parser.add_argument("--first-share", type=float, help="of the identities, that rank 0 has; default: as others")
    parser.add_argument("--margin", choices=["own", "everywhere"], default="own", help="scores that it is computed for")
    main(parser.parse_args())
