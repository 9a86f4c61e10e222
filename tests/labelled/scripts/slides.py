"""Grades slides of tissue from their patches, whose features another network has made (multiple instance learning):
patches attend to each other, then the slide gathers from them. Slides lie in the host's memory."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

FEATURES, GRADES = 1536, 6


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        query, key, value = self.mix(self.first(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.think(self.second(x))


class Grader(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.enter = nn.Linear(FEATURES, args.width)
        self.layers = nn.Sequential(*(Layer(args.width) for _ in range(args.layers)))
        self.norm, self.weigh, self.grade = (
            nn.LayerNorm(args.width), nn.Linear(args.width, 1), nn.Linear(args.width, GRADES)
        )  # fmt: skip

    def forward(self, patches):
        x = self.norm(self.layers(self.enter(patches)))
        return self.grade((self.weigh(x).softmax(1) * x).sum(1))


def slides_of(store, grades, device):
    """Batch by batch, when they are asked for."""
    step = 0
    while True:
        place = step % len(store)
        yield store[place].to(device, non_blocking=True), grades[place].to(device, non_blocking=True)
        step += 1


def ahead(batches):
    """The same, each copied while the one before it is worked on."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        following = next(batches)
    while True:
        torch.cuda.current_stream().wait_stream(stream)
        batch = following
        for part in batch:
            part.record_stream(torch.cuda.current_stream())
        # Not earlier than that: two batches at most lie on the device.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            following = next(batches)
        yield batch


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(340)
    with device:
        model = Grader(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    kind = torch.bfloat16 if args.stored == "bf16" else torch.float32
    pinned = cuda and args.features == "pinned"
    store = torch.empty(2, args.slides, args.patches, FEATURES, dtype=kind, pin_memory=pinned)
    for batch in store:
        batch.copy_(torch.randn(batch.shape, device=device))
    grades = torch.randint(0, GRADES, (2, args.slides))
    grades = grades.pin_memory() if pinned else grades
    batches = slides_of(store, grades, device)
    if args.ahead and cuda:
        batches = ahead(batches)
    at_once = args.at_once or args.slides
    share = torch.tensor(at_once / args.slides, device=device)
    for step, (patches, truth) in enumerate(batches, 1):
        for some, own in zip(patches.split(at_once), truth.split(at_once), strict=True):
            with torch.autocast(device.type, torch.bfloat16):
                found = model(some)
            loss = F.cross_entropy(found.float(), own, label_smoothing=0.1)
            loss.backward(share)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--slides", type=int, default=8, help="of a step")
    parser.add_argument("--at-once", type=int, default=0, help="slides of a pass; 0: all of the step")
    parser.add_argument("--patches", type=int, default=8192, help="of a slide")
    parser.add_argument("--stored", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--features", choices=["pinned", "plain"], default="pinned", help="memory they are kept in")
    parser.add_argument("--ahead", action="store_true", help="slides are copied before they are needed")
    main(parser.parse_args())
