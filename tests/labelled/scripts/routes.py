"""Learns to plan round trips through cities: an encoder sees all cities, a decoder goes from one to the next (attention
model), and is rewarded (REINFORCE) for trips that are shorter than other trips through the same cities."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Planner(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args.width
        self.heads = width // 16
        self.enter = nn.Linear(2, width)
        layer = nn.TransformerEncoderLayer(width, self.heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)
        self.keys = nn.Linear(width, 3 * width, bias=False)
        self.whole, self.ends = nn.Linear(width, width), nn.Linear(2 * width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def encode(self, places):
        x = self.body(self.enter(places))
        k, v, choices = self.keys(x).chunk(3, dim=-1)
        k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (k, v))
        return x, self.whole(x.mean(1)), k, v, choices

    def scores(self, whole, ends, k, v, choices, seen):
        """Logits of the next city. `ends`: first and last city, for moments of each trip; `seen`: cities until then."""
        query = (whole[:, None] + self.ends(ends)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        hidden = torch.zeros_like(seen, dtype=query.dtype).masked_fill(seen, -1e9)
        glimpse = F.scaled_dot_product_attention(query, k, v, attn_mask=hidden[:, None])
        told = self.out(glimpse.transpose(1, 2).flatten(2)) @ choices.transpose(1, 2) / choices.shape[-1] ** 0.5
        return (10 * torch.tanh(told)).float().masked_fill(seen, -1e9)

    def rollout(self, encoded, first, noise):
        """Cities in their order, and the logarithm of how likely each choice was."""
        x, whole, k, v, choices = encoded
        pick = torch.arange(len(x), device=x.device)
        seen = F.one_hot(first, x.shape[1])[:, None].bool()
        trip, likely, last = [first], [], first
        for moment in range(x.shape[1] - 1):
            ends = torch.cat([x[pick, first], x[pick, last]], dim=-1)[:, None]
            logits = self.scores(whole, ends, k, v, choices, seen)[:, 0]
            last = (logits + noise[:, moment]).argmax(1)
            likely.append(logits.log_softmax(1).gather(1, last[:, None]))
            seen = seen.scatter(2, last[:, None, None], True)
            trip.append(last)
        return torch.stack(trip, dim=1), torch.cat(likely, dim=1)

    def score(self, encoded, trip):
        """The same of trips that are known: all moments at once."""
        x, whole, k, v, choices = encoded
        cities = x.gather(1, trip[:, :-1, None].expand(-1, -1, x.shape[-1]))
        ends = torch.cat([cities[:, :1].expand_as(cities), cities], dim=-1)
        seen = F.one_hot(trip[:, :-1], x.shape[1]).cumsum(1).bool()
        logits = self.scores(whole, ends, k, v, choices, seen)
        return logits.log_softmax(-1).gather(2, trip[:, 1:, None])[..., 0]


def length(places, trip):
    x = places.gather(1, trip[..., None].expand(-1, -1, 2))
    return (x - x.roll(-1, 1)).norm(dim=-1).sum(1)


def two_opt_device(places, trip, moves):
    """The length after the best exchange of two roads, several times."""
    count, numbers = trip.shape[1], torch.arange(trip.shape[1], device=trip.device)
    later = numbers[:, None] < numbers
    for _ in range(moves):
        x = places.gather(1, trip[..., None].expand(-1, -1, 2))
        far = (x[:, :, None] - x[:, None]).square().sum(-1).sqrt()
        road = far[:, numbers, numbers.roll(-1)]
        less = far + far.roll((-1, -1), (1, 2)) - road[:, :, None] - road[:, None]
        best = less.masked_fill(~later, 0.0).flatten(1).argmin(1)
        a, b = (best // count)[:, None] + 1, (best % count)[:, None]
        within = (numbers >= a) & (numbers <= b)
        trip = trip.gather(1, torch.where(within, a + b - numbers, numbers))
    return length(places, trip)


def two_opt_host(places, trip, moves):
    """The same with numpy."""
    count, numbers = trip.shape[1], np.arange(trip.shape[1])
    earlier = numbers[:, None] >= numbers
    for _ in range(moves):
        x = np.take_along_axis(places, trip[..., None], 1)
        far = np.sqrt(np.square(x[:, :, None] - x[:, None]).sum(-1))
        road = far[:, numbers, np.roll(numbers, -1)]
        less = far + np.roll(far, (-1, -1), (1, 2)) - road[:, :, None] - road[:, None]
        less[:, earlier] = 0
        best = less.reshape(len(less), -1).argmin(1)
        a, b = (best // count)[:, None] + 1, (best % count)[:, None]
        within = (numbers >= a) & (numbers <= b)
        trip = np.take_along_axis(trip, np.where(within, a + b - numbers, numbers), 1)
    x = np.take_along_axis(places, trip[..., None], 1)
    return np.sqrt(np.square(x - np.roll(x, -1, 1)).sum(-1)).sum(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cities", type=int, default=50)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--trips", type=int, default=16, help="of each problem")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--likely", choices=["on_the_way", "after"], default="after", help="when choices are scored")
    parser.add_argument("--moves", type=int, default=0, help="by which trips are made better before they are rewarded")
    parser.add_argument("--moves-on", choices=["host", "device"], default="device")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--print-every", type=int, default=50)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(961)
    model = Planner(args).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    torch.manual_seed(962)
    trips, total = args.trips, args.problems * args.trips
    for step in range(1, 10_000_000):
        places = torch.rand(args.problems, args.cities, 2, device=device)
        first = torch.randint(args.cities, (total,), device=device)
        noise = -torch.log(torch.empty(total, args.cities - 1, args.cities, device=device).exponential_())
        encoded = [part.repeat_interleave(trips, 0) for part in model.encode(places)]
        places = places.repeat_interleave(trips, 0)
        with torch.set_grad_enabled(args.likely == "on_the_way"):
            trip, likely = model.rollout(encoded, first, noise)
        if args.likely == "after":
            likely = model.score(encoded, trip)
        if args.moves and args.moves_on == "host":
            lengths = torch.from_numpy(two_opt_host(places.cpu().numpy(), trip.cpu().numpy(), args.moves)).to(device)
        else:
            lengths = two_opt_device(places, trip, args.moves)
        gain = (lengths.view(-1, trips).mean(1, keepdim=True) - lengths.view(-1, trips)).flatten()
        loss = -(gain * likely.sum(1)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.5f} length {lengths.mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
