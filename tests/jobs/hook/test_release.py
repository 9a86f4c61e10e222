"""Batches' memory given back without the interpreter. Pinning itself needs a GPU: here a copy stands for it, made by
the function that PyTorch's thread calls."""

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import pin_memory as torch_pins

from nightsweep.jobs.hook import release

SHAPE = (3, 500, 500)


class Parts:
    """Samples; a batch of them is one piece of memory, of which its tensors are parts, and one of its own."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full(SHAPE, float(index + 1))

    @staticmethod
    def collate(samples):
        whole = torch.stack(samples)
        return {"image": whole[:1], "others": [whole[1:], ("label", torch.arange(3))]}


@pytest.fixture
def pins(monkeypatch):
    monkeypatch.setattr(torch_pins, "pin_memory", torch_pins.pin_memory)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    release.unlock()
    release.unlock()  # once is enough
    return torch_pins.pin_memory


def test_pinned_batches_are_whole_and_the_workers_memory_is_given_back(pins):
    loader = DataLoader(Parts(), 4, num_workers=1, collate_fn=Parts.collate, multiprocessing_context="forkserver")
    (batch,) = loader
    pinned = pins(batch, "cuda")
    assert pinned["image"].unique().tolist() == [1.0]
    assert pinned["others"][0].unique().tolist() == [2.0, 3.0, 4.0]
    assert pinned["others"][1][1].tolist() == [0, 1, 2]
    assert not batch["others"][0][:2].any()  # pages that are gone
    assert batch["others"][1][1].tolist() == [0, 1, 2]  # less than a page stays


def test_memory_of_this_process_alone_stays(pins):
    own = torch.ones(SHAPE)
    assert pins([own])[0].sum() == own.sum() == own.numel()
