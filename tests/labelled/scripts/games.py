"""Learns to play by advantage actor-critic: many games on the CPU, and a network that learns after a few moves."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

EDGE, COINS, GUARDS, MOVES = 16, 12, 4, np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])

parser = argparse.ArgumentParser()
parser.add_argument("--games", type=int, default=512)
parser.add_argument("--moves", type=int, default=8, help="of each game, between two updates")
parser.add_argument("--play", choices=["table", "objects"], default="table", help="all games in arrays, or one by one")
parser.add_argument("--channels", type=int, default=128)
parser.add_argument("--blocks", type=int, default=6)
args = parser.parse_args()


def following(state):
    """The next random number, the same for one game and for many."""
    return (state * 1_664_525 + 1_013_904_223) & 0xFFFFFFFF


class Game:
    """A board with walls, coins, the player and guards. A coin that is taken appears elsewhere; guards walk about."""

    def __init__(self, walls, coins, place, guards, state):
        self.board = np.zeros((4, EDGE, EDGE), np.uint8)
        self.board[0], self.board[1] = walls, coins
        self.y, self.x = int(place[0]), int(place[1])
        self.guards = [(int(y), int(x)) for y, x in guards]
        self.state = int(state)
        self.draw(1)

    def draw(self, value):
        self.board[2, self.y, self.x] = value
        for y, x in self.guards:
            self.board[3, y, x] = value

    def after(self, y, x, action):
        dy, dx = MOVES[action]
        to_y, to_x = (y + int(dy)) % EDGE, (x + int(dx)) % EDGE
        return (y, x) if self.board[0, to_y, to_x] else (to_y, to_x)

    def move(self, action):
        self.draw(0)
        self.y, self.x = self.after(self.y, self.x, action)
        for number, (y, x) in enumerate(self.guards):
            self.state = following(self.state)
            self.guards[number] = self.after(y, x, (self.state >> 18) % 4)
        reward = -0.01 - sum(guard == (self.y, self.x) for guard in self.guards)
        if self.board[1, self.y, self.x]:
            self.board[1, self.y, self.x] = 0
            self.state = following(self.state)
            self.board[1, (self.state >> 16) % EDGE, (self.state >> 20) % EDGE] = 1
            reward += 1.0
        self.draw(1)
        return self.board.copy(), reward


class Objects:
    """Games one by one, each an object of its own."""

    def __init__(self, *start):
        self.games = [Game(*own) for own in zip(*start, strict=True)]

    def boards(self):
        return np.stack([game.board for game in self.games])

    def move(self, actions):
        boards, rewards = zip(
            *(game.move(action) for game, action in zip(self.games, actions, strict=True)), strict=True
        )
        return np.stack(boards), np.array(rewards, np.float32)


class Table:
    """The same games in arrays."""

    def __init__(self, walls, coins, places, guards, states):
        self.board = np.stack([walls, coins, np.zeros_like(walls), np.zeros_like(walls)], axis=1)
        self.place, self.guards = tuple(places.T), [tuple(guards[:, n].T) for n in range(GUARDS)]
        self.state, self.all = states, np.arange(len(places))
        self.draw(1)

    def draw(self, value):
        self.board[self.all, 2, *self.place] = value
        for guard in self.guards:
            self.board[self.all, 3, *guard] = value

    def boards(self):
        return self.board.copy()

    def after(self, place, actions):
        to = tuple((np.stack(place) + MOVES[actions].T) % EDGE)
        free = self.board[self.all, 0, *to] == 0
        return tuple(np.where(free, new, old) for new, old in zip(to, place, strict=True))

    def move(self, actions):
        self.draw(0)
        self.place = self.after(self.place, actions)
        for number, guard in enumerate(self.guards):
            self.state = following(self.state)
            self.guards[number] = self.after(guard, (self.state >> 18) % 4)
        met = sum((y == self.place[0]) & (x == self.place[1]) for y, x in self.guards)
        taken = np.flatnonzero(self.board[self.all, 1, *self.place])
        self.board[taken, 1, self.place[0][taken], self.place[1][taken]] = 0
        self.state[taken] = following(self.state[taken])
        self.board[taken, 1, (self.state[taken] >> 16) % EDGE, (self.state[taken] >> 20) % EDGE] = 1
        rewards = np.asarray(-0.01 - met, np.float32)
        rewards[taken] += 1.0
        self.draw(1)
        return self.board.copy(), rewards


def beginnings(rng):
    walls = (rng.random((args.games, EDGE, EDGE)) < 0.1).astype(np.uint8)
    coins = np.zeros_like(walls)
    for _ in range(COINS):
        coins[np.arange(args.games), rng.integers(0, EDGE, args.games), rng.integers(0, EDGE, args.games)] = 1
    places, guards = rng.integers(0, EDGE, (args.games, 2)), rng.integers(0, EDGE, (args.games, GUARDS, 2))
    return walls, coins, places, guards, rng.integers(0, 2**32, args.games)


class Player(nn.Module):
    """A residual tower with a head for the moves and one for the value."""

    def __init__(self, channels, blocks):
        super().__init__()
        self.first = nn.Conv2d(4, channels, 3, padding=1)
        self.blocks = nn.ModuleList()
        for _ in range(blocks):
            pair = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
            self.blocks.append(nn.Sequential(nn.ReLU(), next(pair), nn.ReLU(), next(pair)))
        self.heads = nn.Linear(channels, len(MOVES) + 1)

    def forward(self, boards):
        x = self.first(boards)
        for block in self.blocks:
            x = x + 0.3 * block(x)
        found = self.heads(F.relu(x).mean((2, 3))).float()
        return found[:, :-1], found[:, -1]


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.backends.cudnn.benchmark = True
torch.manual_seed(4)
player = Player(args.channels, args.blocks).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.RMSprop(player.parameters(), lr=1e-6)
games = (Table if args.play == "table" else Objects)(*beginnings(np.random.default_rng(4)))


def seen(boards):
    """As the network takes them."""
    return torch.from_numpy(boards).to(device).float().contiguous(memory_format=torch.channels_last)


boards, update = seen(games.boards()), 0
while True:
    saw, did, got = [], [], []
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        for _ in range(args.moves):
            policy, _ = player(boards)
            action = (policy - torch.empty_like(policy).exponential_().log()).argmax(1)
            saw.append(boards)
            did.append(action)
            after, reward = games.move(action.cpu().numpy())
            boards = seen(after)
            got.append(torch.from_numpy(reward).to(device))
        _, ahead = player(boards)
    returns = []
    for reward in reversed(got):
        ahead = reward + 0.97 * ahead
        returns.insert(0, ahead)
    returns, actions = torch.cat(returns), torch.cat(did)
    with torch.autocast(device.type, torch.bfloat16):
        policy, value = player(torch.cat(saw))
    chances = policy.log_softmax(-1)
    advantage = (returns - value).detach()
    gain = (chances.gather(1, actions[:, None])[:, 0] * advantage).mean()
    surprise = -(chances.exp() * chances).sum(-1).mean()
    loss = 0.5 * F.mse_loss(value, returns) - gain - 0.01 * surprise
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(player.parameters(), 0.5)
    optimizer.step()
    update += 1
    if update % 50 == 0:
        print(update, "reward", float(torch.stack(got).mean()), "loss", loss.item(), flush=True)
