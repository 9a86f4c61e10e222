"""Learns how things move from one picture to the next (optical flow, in the manner of RAFT): all places of both
pictures are compared, and a recurrent network of convolutions improves the flow by what lies around where it points."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, enter, leave, stride=1):
        super().__init__()
        self.first = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(leave) for _ in range(2))
        self.skip = nn.Conv2d(enter, leave, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.skip(x) + self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))))


class Update(nn.Module):
    """Of the state and the flow, at an eighth of the pictures' size."""

    def __init__(self, width, compared):
        super().__init__()
        self.compared, self.moved = nn.Conv2d(compared, width, 1), nn.Conv2d(2, 64, 7, padding=3)
        self.joined = nn.Conv2d(width + 64, width, 3, padding=1)
        self.gates, self.fresh = (nn.Conv2d(3 * width, n * width, 3, padding=1) for n in (2, 1))
        self.first, self.second = nn.Conv2d(width, 2 * width, 3, padding=1), nn.Conv2d(2 * width, 2, 3, padding=1)

    def forward(self, state, context, near, flow):
        x = torch.cat([F.relu(self.compared(near)), F.relu(self.moved(flow))], 1)
        x = torch.cat([context, F.relu(self.joined(x))], 1)
        keep, reset = self.gates(torch.cat([state, x], 1)).sigmoid().chunk(2, 1)
        state = state + keep * (self.fresh(torch.cat([reset * state, x], 1)).tanh() - state)
        return state, self.second(F.relu(self.first(state)))


class Flow(nn.Module):
    def __init__(self, args, memory):
        super().__init__()
        self.args, self.memory, self.state = args, memory, args.state
        low, middle, high = args.widths
        self.body = nn.Sequential(
            nn.Conv2d(3, low, 7, 2, 3),
            *(Residual(low, low) for _ in range(2)),
            Residual(low, middle, 2),
            Residual(middle, middle),
            Residual(middle, high, 2),
            *(Residual(high, high) for _ in range(args.deep)),
        )
        self.features, self.context = nn.Conv2d(high, args.features, 1), nn.Conv2d(high, 2 * args.state, 1)
        self.update = Update(args.state, (2 * args.around + 1) ** 2)

    def near(self, volume, places):
        """What was compared around the places, bilinearly, for each place of the first picture."""
        (batch, _, high, wide), reach = places.shape, self.args.around
        apart = torch.arange(-reach, reach + 1, device=places.device, dtype=places.dtype)
        window = torch.stack(torch.meshgrid(apart, apart, indexing="xy"), -1)
        centre = places.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2)
        x, y = (centre + window).unbind(-1)
        where = torch.stack([x * (2 / (wide - 1)) - 1, y * (2 / (high - 1)) - 1], -1)
        found = F.grid_sample(volume, where, align_corners=True).view(batch, high, wide, -1)
        return found.permute(0, 3, 1, 2).contiguous(memory_format=self.memory)

    def forward(self, first, second):
        body = self.body(torch.cat([first, second]))
        (one, two), (state, context) = self.features(body).chunk(2), self.context(body.chunk(2)[0]).chunk(2, 1)
        batch, _, high, wide = one.shape
        volume = one.flatten(2).transpose(1, 2) @ two.flatten(2) * one.shape[1] ** -0.5
        volume = volume.float().view(batch * high * wide, 1, high, wide)
        y, x = (torch.arange(n, device=one.device, dtype=torch.float32) for n in (high, wide))
        own = torch.stack(torch.meshgrid(x, y, indexing="xy")).expand(batch, 2, high, wide)
        flow, flows = torch.zeros_like(own).contiguous(memory_format=self.memory), []
        state, context = state.tanh(), F.relu(context)
        for _ in range(self.args.rounds):
            flow = flow.detach()
            with torch.autocast(own.device.type, enabled=False):
                near = self.near(volume, own + flow)
            state, change = self.update(state, context, near, flow)
            flow = flow + change.float()
            flows.append(flow)
        return flows


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(480)
    memory = torch.channels_last if args.channels_last else torch.contiguous_format
    model = Flow(args, memory).to(device, memory_format=memory)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    shape = (2, args.batch, 3, *args.size)
    pairs = [torch.randint(0, 256, shape, device=device, dtype=torch.uint8).cpu() for _ in range(2)]
    if cuda:
        pairs = [pair.pin_memory() for pair in pairs]
    right = torch.randn(2, args.batch, 2, *(side // 8 for side in args.size), device=device)
    for step in range(1, 1_000_000):
        first, second = pairs[step % 2].to(device, non_blocking=True)
        first, second = (one.contiguous(memory_format=memory) / 255 - 0.5 for one in (first, second))
        with torch.autocast(device.type, torch.bfloat16):
            flows = model(first, second)
        loss = sum(
            0.8 ** (args.rounds - place) * F.l1_loss(flow, right[step % 2]) for place, flow in enumerate(flows, 1)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs=2, default=[320, 448], help="of a picture, in pixels")
    parser.add_argument("--widths", type=int, nargs=3, default=[128, 256, 384], help="at a half to an eighth of it")
    parser.add_argument("--deep", type=int, default=3, help="blocks more at an eighth")
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--state", type=int, default=256)
    parser.add_argument("--around", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--channels-last", action="store_true")
    main(parser.parse_args())
