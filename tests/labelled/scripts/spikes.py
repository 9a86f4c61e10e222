"""Recognises gestures in the pulses of an event camera with a network of spiking neurons: each leaks, sums up what
comes, and fires. Gradients pass a spike as if it were smooth."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

LEAK, BELOW, ABOVE, LITTLE = 0.8, 0.5, 1.5, 1e-3


class Fire(torch.autograd.Function):
    """A spike where the charge is large enough; gradients pass where it is about that large."""

    @staticmethod
    def forward(ctx, charge):
        ctx.save_for_backward(charge)
        return (charge > 1).to(charge.dtype)

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.aten.hardtanh_backward(grad, ctx.saved_tensors[0], BELOW - LITTLE, ABOVE + LITTLE)


def formula(charge):
    """The same, left to autograd."""
    smooth = charge.clamp(BELOW, ABOVE)
    return smooth + ((charge > 1).to(charge.dtype) - smooth).detach()


class Spiking(nn.Module):
    """A convolution, and neurons that fire. Either this moment only, or all moments of a stretch."""

    def __init__(self, enter, leave, stride, fire):
        super().__init__()
        self.conv = nn.Conv2d(enter, leave, 3, stride, 1)
        self.gain = nn.Parameter(torch.full((leave, 1, 1), 4.0))
        self.fire = Fire.apply if fire == "function" else formula

    def moment(self, x, charge):
        charge = x if charge is None else torch.add(x, charge, alpha=LEAK)
        spike = self.fire(charge)
        return spike, charge - spike

    def forward(self, x, charge):
        return self.moment(self.conv(x) * self.gain.to(x.dtype), charge)

    def stretch(self, x, batch):
        """Moments one behind the other."""
        x, charge, spikes = self.conv(x) * self.gain.to(x.dtype), None, []
        for now in x.split(batch):
            spike, charge = self.moment(now, charge)
            spikes.append(spike)
        return torch.cat(spikes)


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        widths = [2] + [args.width * 2 ** (n // 2) for n in range(args.layers)]
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(Spiking(a, b, 1 + n % 2, args.fire) for n, (a, b) in enumerate(pairs))
        self.head = nn.Linear(widths[-1], args.classes)
        self.order = args.order

    def forward(self, pulses):
        """Pulses as (moment, batch, 2, height, width)."""
        if self.order == "layers":
            x = pulses.flatten(0, 1)
            for layer in self.layers:
                x = layer.stretch(x, pulses.shape[1])
            x = x.mean((2, 3)).unflatten(0, pulses.shape[:2]).mean(0)
            return self.head(x.to(self.head.weight.dtype))
        charges, total = [None] * len(self.layers), 0.0
        for x in pulses.unbind():
            for n, layer in enumerate(self.layers):
                x, charges[n] = layer(x, charges[n])
            total = total + x.mean((2, 3))
        return self.head((total / len(pulses)).to(self.head.weight.dtype))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=16)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--width", type=int, default=32, help="channels of the first two layers")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--classes", type=int, default=11)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--order", choices=["moments", "layers"], default="layers", help="what goes on in the outer loop"
    )
    parser.add_argument(
        "--fire", choices=["formula", "function"], default="function", help="how gradients pass a spike"
    )
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(971)
    model = Net(args).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
    torch.manual_seed(972)
    shape = (args.moments * args.batch, 2, args.size, args.size)
    batches = []
    for _ in range(2):
        pulses = (torch.rand(shape, device=device) < 0.1).bfloat16().contiguous(memory_format=torch.channels_last)
        batches.append(
            (pulses.unflatten(0, (args.moments, -1)), torch.randint(args.classes, (args.batch,), device=device))
        )
    for step in range(1, 10_000_000):
        pulses, wanted = batches[step % len(batches)]
        with torch.autocast(device.type, torch.bfloat16):
            told = model(pulses)
        loss = F.cross_entropy(told.float(), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
