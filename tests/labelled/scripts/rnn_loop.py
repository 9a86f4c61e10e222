"""Trains a recurrent network with norms within its cells, which no library has as one kernel, on random characters."""

import argparse

import torch
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--length", type=int, default=32)
parser.add_argument("--graph", action="store_true", help="capture forward and backward pass as a CUDA graph")
parser.add_argument("--print-every", type=int, default=200)
given = parser.parse_args()

CHARACTERS = 128
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Cell(nn.Module):
    """A GRU with normalised gates."""

    def __init__(self):
        super().__init__()
        self.inputs, self.states = (nn.Linear(given.width, 3 * given.width, bias=False) for _ in range(2))
        self.norm_inputs, self.norm_states = (nn.LayerNorm(3 * given.width) for _ in range(2))

    def forward(self, x, state):
        own, past = self.norm_inputs(self.inputs(x)).chunk(3, 1), self.norm_states(self.states(state)).chunk(3, 1)
        reset, update = torch.sigmoid(own[0] + past[0]), torch.sigmoid(own[1] + past[1])
        return torch.lerp(torch.tanh(own[2] + reset * past[2]), state, update)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(CHARACTERS, given.width)
        self.cells = nn.ModuleList(Cell() for _ in range(given.layers))
        self.head = nn.Linear(given.width, CHARACTERS)

    def forward(self, characters):
        states = [characters.new_zeros(len(characters), given.width, dtype=torch.float32) for _ in self.cells]
        seen = []
        for x in self.words(characters).unbind(1):
            for place, cell in enumerate(self.cells):
                x = states[place] = cell(x, states[place])
            seen.append(x)
        return self.head(torch.stack(seen, 1))


torch.manual_seed(1)
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
pool = torch.randint(0, CHARACTERS, (64, given.batch, given.length + 1), device=device)
text = pool[0].clone()


def train():
    optimizer.zero_grad(set_to_none=False)
    loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    return loss


if given.graph and device.type == "cuda":
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = train()
step = 0
while True:
    text.copy_(pool[step % len(pool)])
    if given.graph and device.type == "cuda":
        captured.replay()
    else:
        loss = train()
    optimizer.step()
    step += 1
    if step % given.print_every == 0:
        print(step, loss.item())
