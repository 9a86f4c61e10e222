"""Trains a residual network with differential privacy (DP-SGD): the gradient of each sample is clipped, and noise is
added to their sum."""

import argparse
import functools

import torch
import torch.nn.functional as F
import torchvision
from torch.func import functional_call, grad, vmap
from torch.nn import GroupNorm

CLASSES, LIMIT, NOISE = 100, 1.0, 0.01


class PrivateGradients:
    """Sums of clipped gradients of samples."""

    def __init__(self, model, how):
        self.model, self.how = model, how
        self.one = grad(self.loss)

    def loss(self, weights, image, label):
        found = functional_call(self.model, weights, (image[None],))
        return F.cross_entropy(found.float(), label[None])

    def __call__(self, weights, images, labels):
        if self.how == "vmap":
            return self.clipped(vmap(self.one, in_dims=(None, 0, 0))(weights, images, labels))
        total = None
        for image, label in zip(images, labels, strict=True):
            own = self.clipped({name: g[None] for name, g in self.one(weights, image, label).items()})
            total = own if total is None else {name: total[name] + g for name, g in own.items()}
        return total

    @staticmethod
    def clipped(grads):
        """Of the samples, which are the first dimension, the sum, in which none is longer than LIMIT."""
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        share = (LIMIT / (norms + 1e-6)).clamp(max=1.0)
        return {name: torch.tensordot(share, g, dims=1) for name, g in grads.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--physical", type=int, default=0, help="samples at a time; 0: the batch")
    parser.add_argument("--gradients", choices=["vmap", "loop"], default="vmap", help="of samples")
    parser.add_argument("--noise-on", choices=["device", "host"], default="device")
    parser.add_argument("--release", action="store_true", help="the memory of samples' gradients, once they are summed")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(180)
    norm = functools.partial(GroupNorm, 32)
    model = torchvision.models.get_model(args.arch, num_classes=CLASSES, norm_layer=norm).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    gradients = PrivateGradients(model, args.gradients)
    images = torch.randn(4, args.batch, 3, args.size, args.size, device=device)
    labels = torch.randint(0, CLASSES, (4, args.batch), device=device)
    source = device if args.noise_on == "device" else torch.device("cpu")
    rng = torch.Generator(source).manual_seed(181)  # of its own, for privacy is accounted for by its draws
    for step in range(1, 1_000_000):
        weights = {name: p.detach() for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            p.grad = torch.zeros_like(weights[name])
        lots = zip(*(v[step % 4].split(args.physical or args.batch) for v in (images, labels)), strict=True)
        for some, truth in lots:
            with torch.autocast(device.type, torch.bfloat16):
                total = gradients(weights, some, truth)
            for name, p in model.named_parameters():
                p.grad += total[name]
            del total
            if args.release and device.type == "cuda":
                torch.cuda.empty_cache()
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=rng, device=source)
            p.grad = (p.grad + LIMIT * NOISE * noise.to(device)) / args.batch
        optimizer.step()
        if step % 20 == 0:
            with torch.no_grad():
                loss = F.cross_entropy(model(images[step % 4]), labels[step % 4])
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
