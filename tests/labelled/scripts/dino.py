"""Learns pictures without labels by self-distillation (DINO): a student sees large and small crops of a picture, and is
to say of each what its teacher, an average of the student's weights, says of the large ones. One GPU or DDP."""

import argparse
import copy
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PATCH = 16


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a momentum (Chen et al., 2023)."""

    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.1, foreach=True):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "foreach": foreach})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, (slow, fast), decay = group["lr"], group["betas"], group["weight_decay"]
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight]["mean"] = torch.zeros_like(weight)
            means = [self.state[weight]["mean"] for weight in weights]
            grads = [weight.grad for weight in weights]
            if group["foreach"]:
                ways = torch._foreach_mul(means, slow)
                torch._foreach_add_(ways, grads, alpha=1 - slow)
                torch._foreach_sign_(ways)
                torch._foreach_mul_(weights, 1 - lr * decay)
                torch._foreach_add_(weights, ways, alpha=-lr)
                torch._foreach_mul_(means, fast)
                torch._foreach_add_(means, grads, alpha=1 - fast)
                continue
            for weight, grad, mean in zip(weights, grads, means, strict=True):
                way = mean.mul(slow).add_(grad, alpha=1 - slow).sign_()
                weight.mul_(1 - lr * decay).add_(way, alpha=-lr)
                mean.mul_(fast).add_(grad, alpha=1 - fast)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Viewer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Linear(3 * PATCH**2, args.width)
        self.large = nn.Parameter(torch.randn((args.large // PATCH) ** 2, args.width) * 0.02)
        self.small = nn.Parameter(torch.randn((args.small // PATCH) ** 2, args.width) * 0.02)
        self.layers = nn.Sequential(*(Layer(args.width) for _ in range(args.layers)))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Sequential(
            nn.Linear(args.width, 2048), nn.GELU(), nn.Linear(2048, 256), nn.LayerNorm(256),
            nn.Linear(256, args.kinds, bias=False),
        )  # fmt: skip

    def seen(self, crops, places):
        x = F.pixel_unshuffle(crops, PATCH).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(self.enter(x) + places)).mean(1)).float()

    def forward(self, large, small=None):
        """Large and small crops, of all pictures one after the other."""
        found = self.seen(large, self.large)
        return found if small is None else torch.cat([found, self.seen(small, self.small)])


def apart(student, taught, views):
    """Each large crop's answer of the teacher is to be the student's for all other crops of the picture."""
    student, taught = (student / 0.1).log_softmax(1).unflatten(0, (views, -1)), taught.unflatten(0, (2, -1))
    total = 0.0
    for place, wanted in enumerate(taught):
        total = total - (wanted * (student.sum(0) - student[place])).sum(1).mean()
    return total / (2 * (views - 1))


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(710)
    with device:
        student = Viewer(args)
    teacher = copy.deepcopy(student).requires_grad_(False)
    own, kept = list(student.parameters()), list(teacher.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        student = DistributedDataParallel(
            student, device_ids=[local] if cuda else None, gradient_as_bucket_view=True, bucket_cap_mb=args.bucket_mb
        )
    if args.optimizer == "lion":
        optimizer = Lion(own, lr=1e-5, foreach=args.updates == "joint")
    else:
        optimizer = torch.optim.AdamW(own, lr=1e-5, fused=True)
    torch.manual_seed(711 + rank)
    batches, centre = [], torch.zeros(args.kinds, device=device)
    for _ in range(3):
        large = torch.randn(2 * args.batch, 3, args.large, args.large, device=device)
        batches.append((large, torch.randn(args.crops * args.batch, 3, args.small, args.small, device=device)))
    for step in range(1, 1_000_000):
        large, small = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            with torch.no_grad():
                told = teacher(large)
            found = student(large, small)
        loss = apart(found, ((told - centre) / 0.04).softmax(1), 2 + args.crops)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(kept, own, 0.004)
            mean = told.mean(0)
            if ranks > 1:
                dist.all_reduce(mean)
            centre.lerp_(mean / ranks, 0.1)
        if step % args.print_every == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--large", type=int, default=224, help="pixels of a large crop, of which there are two")
    parser.add_argument("--small", type=int, default=96, help="pixels of a small crop")
    parser.add_argument("--crops", type=int, default=8, help="small ones of each picture")
    parser.add_argument("--kinds", type=int, default=16_384, help="kinds that the head tells apart")
    parser.add_argument("--batch", type=int, default=32, help="pictures, of each rank")
    parser.add_argument("--optimizer", choices=["adamw", "lion"], default="adamw")
    parser.add_argument("--updates", choices=["each", "joint"], default="joint", help="of lion's tensors")
    parser.add_argument("--bucket-mb", type=float, default=25, help="of gradients that are summed at a time")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
