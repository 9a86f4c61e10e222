"""Learns to act from recorded episodes (decision transformer): a transformer reads how much reward is still to come,
what was seen and what was done, and tells what to do next. What is seen is numbers or frames. One GPU or DDP."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def rewards_to_go(rewards, discount):
    """What is still to come at each moment."""
    to_go = np.zeros_like(rewards)
    to_go[-1] = rewards[-1]
    for t in reversed(range(len(rewards) - 1)):
        to_go[t] = rewards[t] + discount * to_go[t + 1]
    return to_go


class Episodes(Dataset):
    def __init__(self, args):
        rng = np.random.default_rng(910)
        self.args = args
        shape = (args.episodes, args.moments)
        self.states = rng.standard_normal((*shape, args.state), dtype=np.float32)
        self.actions = np.tanh(rng.standard_normal((*shape, args.actions), dtype=np.float32))
        self.rewards = rng.random(shape, dtype=np.float32)
        self.mean, self.spread = self.states.mean((0, 1)), self.states.std((0, 1)) + 1e-6
        self.to_go = None
        if args.returns == "once":
            self.to_go = [rewards_to_go(rewards, args.discount) for rewards in self.rewards]

    def __len__(self):
        return 200 * len(self.states)

    def __getitem__(self, n):
        args, episode = self.args, n % len(self.states)
        start = n * 7919 % (args.moments // 2)
        part = slice(start, start + args.context)
        if self.to_go is not None:
            to_go = self.to_go[episode][part]
        else:
            to_go = rewards_to_go(self.rewards[episode, start:], args.discount)[: args.context]
        states = (self.states[episode, part] - self.mean) / self.spread
        moments = np.arange(start, start + args.context)
        return states, self.actions[episode, part].copy(), to_go[:, None] / args.scale, moments


class Frames:
    """Batches of frames, as an emulator has left them in page-locked memory."""

    def __init__(self, args, device, cuda):
        shape = (args.batch, args.context)
        self.batches = []
        for _ in range(3):
            frames = torch.randint(0, 256, (*shape, 4, 84, 84), dtype=torch.uint8, device=device).cpu()
            actions = torch.tanh(torch.randn(*shape, args.actions))
            to_go = torch.rand(*shape, 1)
            moments = torch.randint(args.moments - args.context, (args.batch, 1)) + torch.arange(args.context)
            batch = [frames, actions, to_go, moments]
            self.batches.append([part.pin_memory() if cuda else part for part in batch])

    def __iter__(self):
        while True:
            yield from self.batches


class Ahead:
    """Copies the next batch on a separate stream, while the device works on this one."""

    def __init__(self, batches, device):
        self.batches, self.device = batches, device
        self.stream = torch.cuda.Stream()

    def __iter__(self):
        waiting = None
        for batch in self.batches:
            with torch.cuda.stream(self.stream):
                copies = [part.to(self.device, non_blocking=True) for part in batch]
                done = self.stream.record_event()
            if waiting is not None:
                yield self.handed(*waiting)
            waiting = (copies, done)

    @staticmethod
    def handed(copies, done):
        now = torch.cuda.current_stream()
        now.wait_event(done)
        for copy in copies:
            copy.record_stream(now)
        return copies


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, 64)).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class DecisionTransformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args.width
        self.frames = args.seen == "frames"
        if self.frames:
            self.see = nn.Sequential(
                *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
                *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, width), nn.Tanh()),
            )
        else:
            self.see = nn.Linear(args.state, width)
        self.hope, self.act = nn.Linear(1, width), nn.Linear(args.actions, width)
        self.moments = nn.Embedding(args.moments, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(args.layers)), nn.LayerNorm(width))
        self.tell = nn.Sequential(nn.Linear(width, args.actions), nn.Tanh())

    def forward(self, seen, actions, to_go, moments):
        batch = seen.shape[:2]
        seen = self.see(seen.flatten(0, 1) / 255).unflatten(0, batch) if self.frames else self.see(seen)
        x = torch.stack([self.hope(to_go), seen, self.act(actions)], dim=2) + self.moments(moments)[:, :, None]
        x = self.layers(x.flatten(1, 2))
        return self.tell(x[:, 1::3])


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(911)
    model = DecisionTransformer(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4, fused=True)
    if ranks > 1:
        model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    torch.manual_seed(912 + rank)
    if args.seen == "frames":
        loader = Frames(args, device, cuda)
    else:
        episodes = Episodes(args)
        sampler = DistributedSampler(episodes, ranks, rank, seed=913)
        loader = DataLoader(
            episodes, args.batch, sampler=sampler, num_workers=args.workers, pin_memory=cuda, drop_last=True,
            persistent_workers=True,
        )  # fmt: skip
    if args.ahead and cuda:
        loader = Ahead(loader, device)

    step, epoch = 0, 0
    while True:
        if args.seen == "states":
            sampler.set_epoch(epoch)
        for batch in loader:
            step += 1
            seen, actions, to_go, moments = (part.to(device, non_blocking=True) for part in batch)
            with torch.autocast(device.type, torch.bfloat16):
                loss = F.mse_loss(model(seen, actions, to_go, moments).float(), actions)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if rank == 0 and step % args.print_every == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.5f}", flush=True)
        epoch += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seen", choices=["states", "frames"], default="states")
    parser.add_argument("--state", type=int, default=111, help="numbers of a state")
    parser.add_argument("--actions", type=int, default=8, help="numbers of an action")
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--moments", type=int, default=2500, help="of an episode")
    parser.add_argument("--context", type=int, default=64, help="moments that the transformer reads")
    parser.add_argument("--batch", type=int, default=256, help="of each rank")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--returns", choices=["each", "once"], default="once", help="when rewards are summed")
    parser.add_argument("--discount", type=float, default=0.999)
    parser.add_argument("--scale", type=float, default=1000.0, help="of rewards to go")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--ahead", action="store_true", help="copy the next batch meanwhile")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
