"""Foresees how much water rivers carry (rainfall and runoff): a recurrent network goes through the weather of months, a
catchment's own features say what it lets in (EA-LSTM), or stand beside the weather (LSTM)."""

import argparse

import torch
from torch import nn


class EntityAware(nn.Module):
    """An LSTM whose input gate depends on the catchment alone."""

    def __init__(self, args):
        super().__init__()
        self.joint = args.gates == "joint"
        self.enter = nn.Linear(args.features, args.hidden)
        self.weather, self.memory = nn.Linear(args.forcings, 3 * args.hidden), nn.Linear(args.hidden, 3 * args.hidden)

    def forward(self, weather, catchment):
        let_in = torch.sigmoid(self.enter(catchment))
        hidden = cell = torch.zeros_like(let_in)
        if self.joint:
            of_weather = self.weather(weather).unbind(1)
            for today in of_weather:
                gates = today + self.memory(hidden)
                keep, show = torch.sigmoid(gates[:, : 2 * hidden.shape[1]]).chunk(2, dim=1)
                cell = torch.addcmul(keep * cell, let_in, torch.tanh(gates[:, 2 * hidden.shape[1] :]))
                hidden = show * torch.tanh(cell)
            return hidden
        by_weather, by_memory = (
            [*zip(part.weight.chunk(3), part.bias.chunk(3), strict=True)] for part in (self.weather, self.memory)
        )
        for today in weather.unbind(1):
            keep, show, new = (
                nn.functional.linear(today, *of_weather) + nn.functional.linear(hidden, *of_memory)
                for of_weather, of_memory in zip(by_weather, by_memory, strict=True)
            )
            cell = torch.sigmoid(keep) * cell + let_in * torch.tanh(new)
            hidden = torch.sigmoid(show) * torch.tanh(cell)
        return hidden


class Plain(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.lstm = nn.LSTM(args.forcings + args.features, args.hidden, batch_first=True)

    def forward(self, weather, catchment):
        beside = catchment[:, None].expand(-1, weather.shape[1], -1)
        return self.lstm(torch.cat([weather, beside], dim=2))[0][:, -1]


class Runoff(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.memory = {"ea": EntityAware, "lstm": Plain}[args.model](args)
        self.head = nn.Sequential(nn.Dropout(0.4), nn.Linear(args.hidden, 1))

    def forward(self, weather, catchment):
        return self.head(self.memory(weather, catchment))[:, 0]


def efficiency_each(found, flow, basin, spread):
    """One minus the efficiency of Nash and Sutcliffe, a mean over basins."""
    lost = []
    for own in basin.unique():
        here = basin == own
        lost.append(((found[here] - flow[here]) ** 2 / (spread[own] + 0.1) ** 2).mean())
    return torch.stack(lost).mean()


def efficiency_joint(found, flow, basin, spread):
    off = (found - flow) ** 2 / (spread[basin] + 0.1) ** 2
    empty = torch.zeros_like(spread)
    days = empty.index_add(0, basin, torch.ones_like(off))
    return (empty.index_add(0, basin, off) / days.clamp(min=1)).sum() / (days > 0).sum()


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2250)
    model = Runoff(args).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    days = args.length + 3650
    weather = torch.randn(args.basins, days, args.forcings, device=device)
    flow = weather[..., 0].cumsum(1).sub(weather[..., 0].cumsum(1).roll(30, 1)).relu()
    catchments, spread = torch.randn(args.basins, args.features, device=device), flow.std(1)
    past = torch.arange(args.length, device=device)
    efficiency = {"each": efficiency_each, "joint": efficiency_joint}[args.loss]
    draw = torch.Generator(device).manual_seed(2251)
    for step in range(1, 10_000_000):
        basin = torch.randint(args.basins, (args.batch,), generator=draw, device=device)
        start = torch.randint(days - args.length, (args.batch,), generator=draw, device=device)
        found = model(weather[basin[:, None], start[:, None] + past], catchments[basin])
        loss = efficiency(found, flow[basin, start + args.length - 1], basin, spread)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % args.print_every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["ea", "lstm"], default="ea")
    parser.add_argument("--basins", type=int, default=500)
    parser.add_argument("--forcings", type=int, default=5, help="rain, sun, warmth and so on")
    parser.add_argument("--features", type=int, default=27, help="of a catchment")
    parser.add_argument("--length", type=int, default=270, help="days before the one that is foreseen")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--gates", choices=["each", "joint"], default="joint")
    parser.add_argument("--loss", choices=["each", "joint"], default="joint", help="basin by basin, or of all at once")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
