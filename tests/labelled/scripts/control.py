"""Teaches many simulated robots to walk by proximal policy optimization (PPO): the simulator runs on the device, and a
step learns from what all robots did in some moments."""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

JOINTS, FEET, SEEN, FALL, STEP = 12, 4, 38, 0.25, 0.005


class Simulator:
    """Bodies (height, tilt, and how fast they change) on legs with joints, which springs and motors move; crude."""

    def __init__(self, args, device):
        self.args = args
        self.inertia = torch.linspace(0.05, 0.15, JOINTS, device=device)
        self.stiff = torch.linspace(20, 40, JOINTS, device=device)
        self.rest = torch.linspace(-0.4, 0.4, JOINTS, device=device)
        self.angle = torch.zeros(args.robots, JOINTS, device=device)
        self.speed = torch.zeros_like(self.angle)
        self.body = torch.zeros(args.robots, 6, device=device)
        self.body[:, 0] = 0.5
        self.last, self.upright = torch.zeros_like(self.angle), self.body[0].clone()

    def seen(self):
        return torch.cat([self.angle, self.speed, self.body[:, :2], self.last], 1)

    def move(self, aim):
        """The joints' torques, and by them their speeds and angles."""
        if self.args.joints == "joint":
            torque = self.stiff * (aim + self.rest - self.angle) - 0.5 * self.speed
            torque = torque.clamp(-30, 30) - 0.1 * self.speed.sign()
            self.speed = (self.speed + STEP / self.inertia * torque).clamp(-20, 20)
            self.angle = (self.angle + STEP * self.speed).clamp(-2, 2)
            return
        for joint in range(JOINTS):
            angle, speed = self.angle[:, joint], self.speed[:, joint]
            torque = self.stiff[joint] * (aim[:, joint] + self.rest[joint] - angle) - 0.5 * speed
            torque = torque.clamp(-30, 30) - 0.1 * speed.sign()
            speed = (speed + STEP / self.inertia[joint] * torque).clamp(-20, 20)
            self.speed[:, joint] = speed
            self.angle[:, joint] = (angle + STEP * speed).clamp(-2, 2)

    def push(self):
        """What the ground does to the body through the feet that are in it."""
        depth = 0.45 - 0.1 * self.angle.view(-1, FEET, 3).cos().sum(2) / 3 - self.body[:, :1] * 0.7
        if self.args.contacts == "all":
            force = torch.where(depth > 0, 400 * depth - 8 * self.body[:, 1:2], 0.0)
        else:
            force = torch.zeros_like(depth)
            for foot in range(FEET):
                touches = depth[:, foot] > 0
                force[touches, foot] = 400 * depth[touches, foot] - 8 * self.body[touches, 1]
        lift, turn = force.sum(1), force[:, :2].sum(1) - force[:, 2:].sum(1)
        change = torch.stack([self.body[:, 1], lift / 15 - 9.81, self.body[:, 3], turn / 5, lift * 0, lift * 0], 1)
        self.body = self.body + STEP * change

    def act(self, aim):
        for _ in range(self.args.substeps):
            self.move(aim)
            self.push()
        reward = -(self.body[:, 0] - 0.5).abs() - 0.1 * self.body[:, 2].abs() - 0.01 * (aim - self.last).square().sum(1)
        fallen = (self.body[:, 0] < FALL) | (self.body[:, 2].abs() > 1)
        self.body = torch.where(fallen[:, None], self.upright, self.body)
        self.angle, self.speed = (torch.where(fallen[:, None], 0.0, part) for part in (self.angle, self.speed))
        self.last = aim
        return reward, fallen


class Policy(nn.Module):
    def __init__(self, args):
        super().__init__()
        sizes = [SEEN] + [args.hidden] * args.layers
        parts = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.ELU())]
        self.body, self.out = nn.Sequential(*parts), nn.Linear(args.hidden, JOINTS + 1)
        self.spread = nn.Parameter(torch.full((JOINTS,), -0.5))

    def forward(self, seen):
        found = self.out(self.body(seen)).float()
        return found[..., :JOINTS], found[..., JOINTS]

    def likely(self, mean, aim):
        return -(((aim - mean) / self.spread.exp()).square() / 2 + self.spread).sum(-1)


@torch.no_grad()
def play(policy, simulator, args, kind):
    told = []
    for _ in range(args.moments):
        seen = simulator.seen()
        with torch.autocast(kind, torch.bfloat16):
            mean, value = policy(seen)
        aim = mean + policy.spread.exp() * torch.randn_like(mean)
        told.append((seen, aim, policy.likely(mean, aim), value, *simulator.act(aim)))
    seen, aim, likely, value, reward, fallen = (torch.stack(part) for part in zip(*told, strict=False))
    gain, gains = torch.zeros_like(value[0]), []
    for moment in reversed(range(args.moments)):
        after = value[min(moment + 1, args.moments - 1)] * ~fallen[moment]
        gain = reward[moment] + 0.99 * after - value[moment] + 0.95 * 0.99 * gain * ~fallen[moment]
        gains.append(gain)
    gains = torch.stack(gains[::-1])
    return [part.flatten(0, 1) for part in (seen, aim, likely, (gains - gains.mean()) / gains.std(), gains + value)]


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(460)
    with device:
        model = Policy(args)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    simulator = Simulator(args, device)
    for step in range(1, 1_000_000):
        told = play(model, simulator, args, device.type)
        for seen, aim, before, gain, worth in zip(*(part.chunk(args.passes) for part in told), strict=False):
            with torch.autocast(device.type, torch.bfloat16):
                mean, value = model(seen)
            ratio = (model.likely(mean, aim) - before).exp()
            loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = (loss + 0.5 * F.mse_loss(value, worth) - 0.01 * model.spread.sum()) / args.passes
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--robots", type=int, default=16384)
    parser.add_argument("--moments", type=int, default=24, help="of each step")
    parser.add_argument("--substeps", type=int, default=4, help="of the simulator, in a moment")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--passes", type=int, default=4, help="in which a step is learnt from")
    parser.add_argument("--joints", choices=["joint", "each"], default="joint", help="how they are moved")
    parser.add_argument("--contacts", choices=["all", "picked"], default="all", help="which feet are reckoned with")
    main(parser.parse_args())
