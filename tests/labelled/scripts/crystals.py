"""Predicts energies of crystals with a network of e3nn, whose features turn as the crystal does; one GPU or DDP."""

import argparse
import os

import numpy as np
import torch
import torch.nn.functional as F
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import nn
from torch.utils.data import DataLoader, Dataset

SPECIES, CUTOFF, VOLUME = 8, 4.5, 16.0  # of an atom; some 24 neighbours
IMAGES = np.array([(i, j, k) for i in (0, -1, 1) for j in (0, -1, 1) for k in (0, -1, 1)], dtype=np.float32)


class Crystals(Dataset):
    """Atoms at random in a cubic cell that repeats."""

    def __init__(self, opt):
        self.opt, self.smallest = opt, (2 * CUTOFF) ** 3 / 8
        self.atoms = np.random.default_rng(1).integers(opt.atoms[0], opt.atoms[1] + 1, 65_536)

    def __len__(self):
        return len(self.atoms)

    def __getitem__(self, index):
        rng, atoms = np.random.default_rng(index), int(self.atoms[index])
        edge = max(VOLUME * atoms, self.smallest) ** (1 / 3)
        places = rng.uniform(0, edge, (atoms, 3)).astype(np.float32)
        species = rng.integers(0, SPECIES, atoms)
        energy = np.float32(np.cos(species).sum() / atoms)
        return places, species, np.float32(edge), energy, self.pairs(places, edge)

    def pairs(self, places, edge):
        """Sender, receiver and the way between them, of each pair within the cutoff."""
        if self.opt.neighbours != "loader":
            return None
        found, ghosts = [], (IMAGES[:, None] * np.float32(edge) + places).reshape(-1, 3)
        for receiver, place in enumerate(places):
            way = ghosts - place
            length = np.sqrt((way**2).sum(1))
            near = np.flatnonzero((length < CUTOFF) & (length > 1e-3))
            found.extend((ghost % len(places), receiver, *way[ghost]) for ghost in near)
        return np.array(found, dtype=np.float32).reshape(-1, 5)


def collate(crystals):
    places, species, edges, energies, pairs = zip(*crystals, strict=True)
    counts = [len(own) for own in species]
    starts = np.cumsum([0, *counts[:-1]])
    batch = {
        "places": torch.from_numpy(np.concatenate(places)),
        "species": torch.from_numpy(np.concatenate(species)),
        "crystal": torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)),
        "edges": torch.tensor(np.array(edges)),
        "energies": torch.tensor(np.array(energies)),
    }
    if pairs[0] is not None:
        joined = torch.from_numpy(np.concatenate(pairs))
        offsets = torch.repeat_interleave(torch.tensor(starts), torch.tensor([len(own) for own in pairs]))
        batch |= {"sender": joined[:, 0].long() + offsets, "receiver": joined[:, 1].long() + offsets}
        batch["way"] = joined[:, 2:].contiguous()
    return batch, counts


class Sampler:
    """Batches over all ranks; crystals of a batch are in order of their size, which is how the rows were stored."""

    def __init__(self, data, opt, ranks, rank):
        self.data, self.opt, self.ranks, self.rank = data, opt, ranks, rank

    def __len__(self):
        return len(self.data) // (self.opt.batch * self.ranks)

    def __iter__(self):
        order = np.random.default_rng(2).permutation(len(self.data))
        for rows in order[: len(self) * self.opt.batch * self.ranks].reshape(len(self), -1):
            rows = rows[np.argsort(self.data.atoms[rows], kind="stable")]
            mine = rows.reshape(self.ranks, -1) if self.opt.share == "blocks" else rows.reshape(-1, self.ranks).T
            yield mine[self.rank].tolist()


def pairs_each(batch, counts, images):
    """Pairs within the cutoff, crystal by crystal."""
    senders, receivers, ways, start = [], [], [], 0
    for places, edge in zip(batch["places"].split(counts), batch["edges"], strict=True):
        ghosts = (places + images[:, None] * edge).flatten(0, 1)
        way = ghosts - places[:, None]
        length = way.square().sum(-1)
        receiver, ghost = torch.nonzero((length < CUTOFF**2) & (length > 1e-6), as_tuple=True)
        senders.append(ghost % len(places) + start)
        receivers.append(receiver + start)
        ways.append(way[receiver, ghost])
        start += len(places)
    return torch.cat(senders), torch.cat(receivers), torch.cat(ways)


def pairs_joint(batch, counts, images):
    """Pairs within the cutoff, of all crystals at once; those that are smaller than the largest leave places empty."""
    most, device = max(counts), batch["places"].device
    rooms = (torch.arange(most) < torch.tensor(counts)[:, None]).flatten()
    rooms = rooms.nonzero()[:, 0].to(device)
    places = batch["places"].new_full((len(counts) * most, 3), torch.nan).index_copy(0, rooms, batch["places"])
    atoms = torch.zeros(len(counts) * most, dtype=torch.long, device=device)
    atoms = atoms.index_copy(0, rooms, torch.arange(len(rooms), device=device)).view(len(counts), most)
    places = places.view(len(counts), most, 3)
    ghosts = (places[:, None] + images[:, None] * batch["edges"][:, None, None, None]).flatten(1, 2)
    way = ghosts[:, None] - places[:, :, None]
    length = way.square().sum(-1)
    crystal, receiver, ghost = torch.nonzero((length < CUTOFF**2) & (length > 1e-6), as_tuple=True)
    return atoms[crystal, ghost % most], atoms[crystal, receiver], way[crystal, receiver, ghost]


class Layer(nn.Module):
    """Messages from neighbours: their features times the direction to them, weighted by the distance."""

    def __init__(self, irreps, directions, radial):
        super().__init__()
        between, paths = [], []
        for i, (multiple, own) in enumerate(irreps):
            for j, (_, direction) in enumerate(directions):
                for made in own * direction:
                    if made in irreps:
                        paths.append((i, j, len(between), "uvu", True))
                        between.append((multiple, made))
        scalars, others = irreps.filter(keep=["0e"]), irreps.filter(drop=["0e"])
        gates = o3.Irreps([(others.num_irreps, "0e")])
        self.gate = e3nn_nn.Gate(scalars, [F.silu], gates, [torch.sigmoid], others)
        self.enter = o3.Linear(irreps, irreps)
        self.product = o3.TensorProduct(
            irreps, directions, o3.Irreps(between), paths, shared_weights=False, internal_weights=False
        )
        self.weights = nn.Sequential(nn.Linear(radial, 64), nn.SiLU(), nn.Linear(64, self.product.weight_numel))
        self.leave, self.own = o3.Linear(between, self.gate.irreps_in), o3.Linear(irreps, self.gate.irreps_in)

    def forward(self, x, sender, receiver, direction, distance):
        messages = self.product(self.enter(x)[sender], direction, self.weights(distance))
        summed = messages.new_zeros(len(x), messages.shape[1]).index_add(0, receiver, messages)
        return x + self.gate(self.own(x) + self.leave(summed) / 5)


class Energy(nn.Module):
    def __init__(self, opt):
        super().__init__()
        irreps = o3.Irreps([(opt.features, "0e"), (opt.features, "1o"), (opt.features, "2e")])
        self.directions, self.start = o3.Irreps.spherical_harmonics(2), nn.Embedding(SPECIES, opt.features)
        self.empty = irreps.dim - opt.features
        self.layers = nn.ModuleList(Layer(irreps, self.directions, 8) for _ in range(opt.layers))
        self.head = nn.Sequential(nn.Linear(opt.features, opt.features), nn.SiLU(), nn.Linear(opt.features, 1))
        self.register_buffer("waves", torch.arange(1, 9) * torch.pi / CUTOFF)

    def forward(self, species, crystal, crystals, sender, receiver, way):
        length = way.norm(dim=1, keepdim=True)
        distance = torch.sin(length * self.waves) / length * (1 - length / CUTOFF) ** 2
        direction = o3.spherical_harmonics(self.directions, way, normalize=True, normalization="component")
        x = F.pad(self.start(species), (0, self.empty))
        for layer in self.layers:
            x = layer(x, sender, receiver, direction, distance)
        atoms = self.head(x[:, : self.start.embedding_dim])[:, 0]
        total = atoms.new_zeros(crystals).index_add(0, crystal, atoms)
        return total / torch.ones_like(total).index_add(0, crystal, torch.ones_like(atoms))


def main(opt):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(71)
    model = Energy(opt).to(device)
    if ranks > 1:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
        model = nn.parallel.DistributedDataParallel(model, device_ids=[local] if cuda else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)
    data, images = Crystals(opt), torch.from_numpy(IMAGES).to(device)
    loader = DataLoader(
        data, batch_sampler=Sampler(data, opt, ranks, rank), collate_fn=collate, num_workers=opt.workers,
        pin_memory=cuda, persistent_workers=opt.workers > 0,
    )  # fmt: skip
    for epoch in range(1000):
        for step, (batch, counts) in enumerate(loader):
            batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
            if opt.neighbours == "loader":
                pairs = batch["sender"], batch["receiver"], batch["way"]
            else:
                pairs = {"each": pairs_each, "joint": pairs_joint}[opt.neighbours](batch, counts, images)
            found = model(batch["species"], batch["crystal"], len(counts), *pairs)
            loss = F.mse_loss(found, batch["energies"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 99:
                print(f"epoch {epoch} step {step + 1} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--atoms", type=int, nargs=2, default=[16, 48], help="of a crystal, at least and at most")
    parser.add_argument("--features", type=int, default=64, help="of each kind")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="crystals of each rank")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument(
        "--neighbours", choices=["loader", "each", "joint"], default="joint",
        help="are found by the loader, or on the device for each crystal or for all",
    )  # fmt: skip
    parser.add_argument("--share", choices=["turns", "blocks"], default="turns", help="of a batch, for each rank")
    main(parser.parse_args())
