"""Trains a vision transformer of timm as it will be with weights and activations of 8 bits: numbers are rounded on the
way to each matrix product, and gradients pass through."""

import argparse
import os

import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchmetrics
from torch import nn
from torch.nn.parallel import DistributedDataParallel

KINDS = 100


class Rounded(nn.Module):
    """Numbers as 8 bits have them, in a range that follows what was seen."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.low, self.high = (0.0, 0.0) if args.ranges == "read" else (torch.zeros(()), torch.zeros(()))

    def follow(self, x):
        """Scale and zero point: read to the host, or left where they are."""
        if self.args.ranges == "read":
            self.low += 0.1 * (x.min().item() - self.low)
            self.high += 0.1 * (x.max().item() - self.high)
            scale = (self.high - self.low) / 255
            return scale, round(-self.low / scale)
        low, high = torch.aminmax(x)
        self.low.lerp_(low, 0.1)
        self.high.lerp_(high, 0.1)
        scale = (self.high - self.low) / 255
        return scale, (-self.low / scale).round().to(torch.int32)

    def forward(self, x):
        x = x.float()
        scale, zero = self.follow(x.detach())
        if self.args.rounding == "formula":
            scaled = x / scale
            rounded = scaled + (scaled.round() - scaled).detach()
            return (torch.clamp(rounded + zero, 0, 255) - zero) * scale
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)


class RoundedLinear(nn.Module):
    def __init__(self, linear, args):
        super().__init__()
        self.linear, self.product = linear, args.product
        self.weight, self.input = Rounded(args), Rounded(args)

    def forward(self, x):
        weight, x = self.weight(self.linear.weight), self.input(x)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.product == "bf16"):
            return F.linear(x, weight, self.linear.bias)


def round_linears(module, args):
    for name, part in module.named_children():
        if isinstance(part, nn.Linear):
            setattr(module, name, RoundedLinear(part, args))
        else:
            round_linears(part, args)


def scores_to_follow(each_step):
    """How good it is, by several measures; those of all ranks together in each step, or when they are asked for."""
    of_kinds = {"num_classes": KINDS, "validate_args": False, "dist_sync_on_step": each_step}
    return torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.classification.MulticlassAccuracy(**of_kinds),
            "top5": torchmetrics.classification.MulticlassAccuracy(top_k=5, **of_kinds),
            "precision": torchmetrics.classification.MulticlassPrecision(**of_kinds),
            "recall": torchmetrics.classification.MulticlassRecall(**of_kinds),
            "f1": torchmetrics.classification.MulticlassF1Score(**of_kinds),
            "specificity": torchmetrics.classification.MulticlassSpecificity(**of_kinds),
            "kappa": torchmetrics.classification.MulticlassCohenKappa(**of_kinds),
        }
    )


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(260)
    with device:
        model = timm.create_model(args.arch, num_classes=KINDS, img_size=args.size)
        round_linears(model.blocks, args)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        model = DistributedDataParallel(
            model, device_ids=[local] if cuda else None, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True)
    metrics = scores_to_follow(args.metrics == "each_step").to(device) if args.metrics else None
    torch.manual_seed(261 + rank)
    pictures = torch.randint(0, 256, (4, args.batch, 3, args.size, args.size), dtype=torch.uint8)
    kinds = torch.randint(0, KINDS, (4, args.batch))
    if cuda:
        pictures, kinds = pictures.pin_memory(), kinds.pin_memory()
    for step in range(1, 1_000_000):
        some = pictures[step % 4].to(device, non_blocking=True) / 255 - 0.5
        truth = kinds[step % 4].to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(some)
        loss = F.cross_entropy(scores.float(), truth)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.metrics == "each_step":
            metrics(scores.detach().float(), truth)
        elif args.metrics == "late":
            metrics.update(scores.detach().float(), truth)
        if step % 200 == 0:
            good = {name: value.item() for name, value in metrics.compute().items()} if metrics else {}
            if rank == 0:
                print(f"step {step}: loss {loss.item():.4f}", good, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="vit_base_patch16_224")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=96, help="of each rank")
    parser.add_argument("--rounding", choices=["kernel", "formula"], default="kernel")
    parser.add_argument("--ranges", choices=["kept", "read"], default="kept", help="on the device, or by the host")
    parser.add_argument("--product", choices=["bf16", "fp32"], default="bf16", help="precision of matrix products")
    parser.add_argument("--metrics", choices=["late", "each_step"], help="that ranks bring together")
    main(parser.parse_args())
