"""Learns a model of a world from what an agent saw and did there (as in Dreamer): a recurrent state that is partly
drawn by chance follows what happens, and frames and rewards are predicted from it."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class World(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        width, code = args.width, args.variables * args.classes
        self.look = nn.Sequential(
            *(nn.Conv2d(3, width, 4, 2, 1), nn.SiLU()),
            *(nn.Conv2d(width, 2 * width, 4, 2, 1), nn.SiLU()),
            *(nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.SiLU()),
            *(nn.Conv2d(4 * width, 8 * width, 4, 2, 1), nn.SiLU(), nn.Flatten()),
        )
        self.enter = nn.Sequential(nn.Linear(code + args.actions, args.state), nn.LayerNorm(args.state), nn.SiLU())
        self.cell = nn.GRUCell(args.state, args.state)
        self.guess = nn.Sequential(nn.Linear(args.state, args.state), nn.SiLU(), nn.Linear(args.state, code))
        seen = args.state + 8 * width * 16
        self.know = nn.Sequential(nn.Linear(seen, args.state), nn.SiLU(), nn.Linear(args.state, code))
        self.back = nn.Linear(args.state + code, 8 * width * 16)
        self.paint = nn.Sequential(
            *(nn.Unflatten(1, (8 * width, 4, 4)), nn.ConvTranspose2d(8 * width, 4 * width, 4, 2, 1), nn.SiLU()),
            *(nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.SiLU()),
            *(nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.SiLU()),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )
        self.reward = nn.Sequential(
            nn.Linear(args.state + code, args.state), nn.SiLU(), nn.Linear(args.state, args.state), nn.SiLU(),
            nn.Linear(args.state, 1),
        )  # fmt: skip

    def drawn(self, logits, chances):
        """A class of each variable, by the chances (Gumbel) that are given; gradients go through the probabilities."""
        logits = logits.float().unflatten(-1, (self.args.variables, self.args.classes))
        shares = logits.softmax(-1)
        sample = F.one_hot((logits + chances).argmax(-1), self.args.classes).float()
        return (sample + shares - shares.detach()).flatten(1)

    def told(self, features, frames, rewards):
        """Loss of frames and rewards, summed."""
        painted, reward = self.paint(self.back(features)), self.reward(features)[..., 0]
        wrong = F.mse_loss(painted.float(), frames, reduction="sum")
        return wrong + F.mse_loss(reward.float(), rewards, reduction="sum")

    def apart(self, known, guessed):
        known, guessed = (
            logits.float().unflatten(-1, (self.args.variables, self.args.classes)).log_softmax(-1)
            for logits in (known, guessed)
        )
        return (known.exp() * (known - guessed)).sum()

    def forward(self, frames, actions, rewards, chances):
        times, batch = frames.shape[:2]
        joint = self.args.frames == "joint"
        state = torch.zeros(batch, self.args.state, device=frames.device)
        code = torch.zeros(batch, self.args.variables * self.args.classes, device=frames.device)
        looks = self.look(frames.flatten(0, 1)).unflatten(0, (times, batch)) if joint else None
        features, known, guessed, told = [], [], [], 0.0
        for time in range(times):
            look = looks[time] if joint else self.look(frames[time])
            state = self.cell(self.enter(torch.cat([code, actions[time]], 1)).float(), state)
            guessed.append(self.guess(state))
            known.append(self.know(torch.cat([state, look], 1)))
            code = self.drawn(known[-1], chances[time])
            features.append(torch.cat([state, code], 1))
            if not joint:
                told = told + self.told(features[-1], frames[time], rewards[time])
        if joint:
            told = self.told(torch.cat(features), frames.flatten(0, 1), rewards.flatten())
        return (told + 0.1 * self.apart(torch.stack(known), torch.stack(guessed))) / (times * batch)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(670)
    with device:
        model = World(args)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    shape, batches = (args.times, args.batch), []
    for _ in range(3):
        frames = torch.rand(*shape, 3, 64, 64, device=device)
        actions, rewards = torch.randn(*shape, args.actions, device=device), torch.randn(shape, device=device)
        batches.append((frames, actions, rewards))
    for step in range(1, 1_000_000):
        chances = torch.rand(*shape, args.variables, args.classes, device=device).clamp(1e-6, 1 - 1e-6)
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(*batches[step % len(batches)], -(-chances.log()).log())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=64, help="moments of a sequence")
    parser.add_argument("--batch", type=int, default=16, help="sequences")
    parser.add_argument("--actions", type=int, default=6, help="numbers that say what the agent did")
    parser.add_argument("--width", type=int, default=32, help="channels of the first convolution")
    parser.add_argument("--state", type=int, default=512)
    parser.add_argument("--variables", type=int, default=32)
    parser.add_argument("--classes", type=int, default=32, help="of a variable")
    parser.add_argument("--frames", choices=["each", "joint"], default="joint", help="how they are seen and told")
    main(parser.parse_args())
