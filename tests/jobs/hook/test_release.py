"""Pinned batches freed without the GIL. Pinning needs a GPU: here a copy replaces it, made by the function that
PyTorch's thread calls."""

import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import pin_memory as torch_pins

from nightsweep.jobs.hook import release

SHAPE = (3, 500, 500)


class Kept(IterableDataset):
    """A worker that sends parts of one tensor, and then the same again, with a sparse tensor and a text."""

    def __iter__(self):
        whole = torch.arange(4.0).repeat_interleave(750_000).reshape(4, *SHAPE)
        for _ in range(2):
            own, sparse = torch.ones(SHAPE), torch.eye(9).to_sparse()
            yield {"parts": [whole[:1], (whole[1:], "text")], "own": own, "sparse": sparse}


@pytest.fixture
def pins(monkeypatch):
    """What pins batches in another thread: the pinned ones, and how much of each stays mapped, kB."""
    monkeypatch.setattr(torch_pins, "pin_memory", torch_pins.pin_memory)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    release.unlock()
    release.unlock()  # once is enough

    def in_thread(batches):
        found = []

        def run():
            for batch in batches:
                pinned = torch_pins.pin_memory(batch, "cuda")
                found.append((pinned, resident(batch["own"])))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found

    return in_thread


def resident(tensor):
    """kB of a tensor's memory that are mapped."""
    start = tensor.untyped_storage().data_ptr()
    lines = Path("/proc/self/smaps").read_text().split(f"\n{start:x}-")[1].splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_pages_are_freed_and_nothing_is_lost_that_the_worker_sends_again(pins):
    loader = DataLoader(Kept(), None, num_workers=1, multiprocessing_context="forkserver")
    before = descriptors()
    found = pins(loader)
    for pinned, pages in found:
        (first, (others, text)) = pinned["parts"]
        assert (first.unique().tolist(), others.unique().tolist(), text) == ([0.0], [1.0, 2.0, 3.0], "text")
        assert pinned["own"].all() and pinned["sparse"].to_dense().sum() == 9
        assert pages < 100  # of 3,000
    assert len(found) == 2
    del found, loader
    assert descriptors() <= before + 2


def test_what_this_process_owns_stays(pins, tmp_path):
    """Without workers PyTorch pins in the thread that trains; and a file may be mapped."""
    torch.ones(SHAPE).numpy().tofile(tmp_path / "file")
    mapped = torch.from_file(str(tmp_path / "file"), shared=True, size=750_000)
    shared = torch.ones(SHAPE).share_memory_()
    assert all(pinned["own"].all() for pinned, _ in pins([{"own": mapped}, {"own": shared}, {"own": mapped}]))
    pages = resident(shared)
    assert torch_pins.pin_memory([shared], "cuda")[0].all() and resident(shared) >= pages
    assert mapped.all() and shared.all()
    assert (torch.from_file(str(tmp_path / "file"), size=750_000) == 1).all()
