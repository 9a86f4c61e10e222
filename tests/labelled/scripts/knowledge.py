"""Completes a knowledge graph (ComplEx): given a head and a relation, the tail must score higher than many other
entities, but for those that are known to be right as well."""

import argparse

import numpy as np
import torch
from torch import nn


class Known:
    """Questions (head, relation) and the tails that are right for them."""

    def __init__(self, args, device):
        rng = np.random.default_rng(330)
        self.args, self.device = args, device
        self.heads = rng.integers(args.entities, size=args.questions)
        self.relations = rng.integers(args.relations, size=args.questions)
        self.tails = rng.integers(args.entities, size=(args.questions, args.answers))
        if args.filter == "sets":
            self.sets = [set(own) for own in self.tails.tolist()]
        else:
            self.table = torch.from_numpy(self.tails).to(device)
            self.column = torch.full((args.entities,), -1, device=device)

    def among(self, others, others_on_device, questions, questions_on_device):
        """Rows and columns of the scores whose entity is a right one too."""
        if self.args.filter == "sets":
            column = {entity: place for place, entity in enumerate(others.tolist())}
            rows, columns = [], []
            for row, question in enumerate(questions.tolist()):
                for entity in self.sets[question]:
                    place = column.get(entity)
                    if place is not None:
                        rows.append(row)
                        columns.append(place)
            found = torch.tensor([rows, columns])
            found = found.pin_memory() if self.device.type == "cuda" else found
            return found.to(self.device, non_blocking=True)
        self.column.fill_(-1)
        self.column[others_on_device] = torch.arange(len(others), device=self.device)
        columns = self.column[self.table[questions_on_device]]
        rows = torch.arange(len(columns), device=self.device)[:, None].expand_as(columns)
        # One column more than there are entities takes what is not among them.
        return torch.stack([rows.flatten(), torch.where(columns < 0, len(others), columns).flatten()])


def complex_product(x, y):
    (a, b), (c, d) = x.chunk(2, 1), y.chunk(2, 1)
    return torch.cat([a * c - b * d, a * d + b * c], 1)


def main(args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(331)
    known = Known(args, device)
    with device:
        entities = nn.Embedding(args.entities, args.width, sparse=True)
        relations = nn.Embedding(args.relations, args.width, sparse=True)
        for table in (entities, relations):
            nn.init.normal_(table.weight, std=args.width**-0.5)
    if args.table == "host":
        entities = entities.cpu()
    optimizer = torch.optim.Adagrad([entities.weight, relations.weight], lr=1e-3)
    rng = np.random.default_rng(332)
    order = rng.permutation(args.entities)

    def moved(numbers):
        numbers = torch.from_numpy(numbers)
        return (numbers.pin_memory() if cuda else numbers).to(device, non_blocking=True)

    for step in range(1, 1_000_000):
        questions = rng.integers(args.questions, size=args.batch)
        right = known.tails[questions, rng.integers(args.answers, size=args.batch)]
        begin = rng.integers(args.entities - args.others)
        others = order[begin : begin + args.others]
        rows, columns = known.among(others, moved(others), questions, moved(questions))
        asked = np.concatenate([known.heads[questions], right, others])
        asked = torch.from_numpy(asked) if args.table == "host" else moved(asked)
        heads, tails, wrong = entities(asked).to(device).split([args.batch, args.batch, args.others])
        query = complex_product(heads, relations(moved(known.relations[questions])))
        own = (query * tails).sum(1)
        # The column that is added is no entity.
        wrong = torch.cat([wrong, wrong.new_zeros(64, args.width)])
        with torch.autocast(device.type, torch.bfloat16):
            scores = query @ wrong.T
        scores[:, args.others :] = -torch.inf
        scores[rows, columns] = -torch.inf
        loss = (torch.logaddexp(own, scores.float().logsumexp(1)) - own).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entities", type=int, default=500_000)
    parser.add_argument("--relations", type=int, default=2000)
    parser.add_argument("--questions", type=int, default=20_000, help="heads with a relation")
    parser.add_argument("--answers", type=int, default=64, help="tails that are right for a question")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--others", type=int, default=65_536, help="entities that a tail is compared with")
    parser.add_argument("--filter", choices=["table", "sets"], default="table", help="of what is right as well")
    parser.add_argument("--table", choices=["device", "host"], default="device", help="of the entities: where it lies")
    main(parser.parse_args())
