"""Trains a U-Net that segments images, which lie in memory, in a plain loop."""

import argparse
import itertools

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--base", type=int, default=64, help="channels of the first level; the next has twice as many")
parser.add_argument("--levels", type=int, default=4)
parser.add_argument("--middle", type=int, default=4, help="blocks at the lowest level")
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--size", type=int, default=256)
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--checkpoint", action="store_true", help="compute each block's activations again, going back")
parser.add_argument(
    "--watch", choices=["each", "late"], help="sizes of gradients by weights, read one by one, or when they are printed"
)
parser.add_argument("--print-every", type=int, default=50)
given = parser.parse_args()

CLASSES = 20
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layout = torch.channels_last if given.channels_last else torch.contiguous_format
torch.backends.cudnn.benchmark = True


class Block(nn.Module):
    """Two convolutions, and a way past them."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.past = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, bias=False)

    def compute(self, x):
        return functional.relu(self.body(x) + self.past(x))

    def forward(self, x):
        return checkpoint(self.compute, x, use_reentrant=False) if given.checkpoint else self.compute(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [given.base * 2**level for level in range(given.levels + 1)]
        pairs = list(itertools.pairwise(sizes))
        self.first = nn.Conv2d(3, given.base, 3, padding=1)
        self.down = nn.ModuleList(Block(size, size) for size in sizes[:-1])
        self.smaller = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in pairs)
        self.middle = nn.Sequential(*[Block(sizes[-1], sizes[-1]) for _ in range(given.middle)])
        self.larger = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs[::-1])
        self.up = nn.ModuleList(Block(2 * size, size) for size in sizes[-2::-1])
        self.head = nn.Conv2d(given.base, CLASSES, 1)

    def forward(self, x):
        x, seen = self.first(x), []
        for block, smaller in zip(self.down, self.smaller, strict=True):
            seen.append(block(x))
            x = smaller(seen[-1])
        x = self.middle(x)
        for larger, block in zip(self.larger, self.up, strict=True):
            x = block(torch.cat((larger(x), seen.pop()), 1))
        return self.head(x)


def ratios(read):
    """How large each parameter's gradient is for its weights."""
    found = {}
    for name, parameter in model.named_parameters():
        ratio = parameter.grad.norm() / (parameter.detach().norm() + 1e-6)
        found[name] = ratio.item() if read else ratio
    return found


torch.manual_seed(1)
with device:
    model = UNet().to(memory_format=layout)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
images = torch.randint(0, 256, (8, given.batch, 3, given.size, given.size), dtype=torch.uint8)
truths = (images[:, :, 0] // 13).clamp(max=CLASSES - 1)
if device.type == "cuda":
    images, truths = images.pin_memory(), truths.pin_memory()
step, log = 0, {}
while True:
    image = images[step % len(images)].to(device, non_blocking=True)
    image = image.float().div_(255.0).contiguous(memory_format=layout)
    truth = truths[step % len(truths)].to(device, non_blocking=True).long()
    with torch.autocast(device.type, torch.bfloat16):
        loss = functional.cross_entropy(model(image), truth)
    optimizer.zero_grad()
    loss.backward()
    if given.watch:
        log = ratios(read=given.watch == "each")
    optimizer.step()
    step += 1
    if step % given.print_every == 0:
        print(step, loss.item(), *(f"{name} {float(ratio):.2e}" for name, ratio in log.items()))
