"""How long the launching thread stalls while another thread frees pinned batches, as PyTorch does and without the GIL:

    python -m tests.bench.batch_release [--megabytes 192] [--batches 8]

Pinning needs a GPU; here a copy replaces it. The launching thread only reads the clock.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import pin_memory as torch_pins

from nightsweep.jobs.hook import release

STALL_S = 0.02
"""Shorter waits are usual: threads take turns with the GIL every 5 ms."""


class Batches(IterableDataset[torch.Tensor]):
    """`count` batches of `size` bytes."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.count):
            yield torch.ones(self.size, dtype=torch.uint8)


def longest(size: int, count: int) -> list[float]:
    """Stalls of the thread that reads the clock, ms, the longest first."""
    loader = DataLoader(Batches(size, count), None, num_workers=1, multiprocessing_context="forkserver")

    def pins() -> None:
        torch.set_num_threads(1)
        for batch in loader:
            torch_pins.pin_memory(batch, "cuda")
            time.sleep(0.1)

    other = threading.Thread(target=pins)
    other.start()
    stalls, before = [], time.perf_counter()
    while other.is_alive():
        now = time.perf_counter()
        if now - before > STALL_S:
            stalls.append((now - before) * 1000)
        before = now
    return sorted(stalls, reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.batch_release", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=192)
    parser.add_argument("--batches", type=int, default=8)
    options = parser.parse_args()
    multiprocessing.set_forkserver_preload(["torch"])
    torch.Tensor.pin_memory = torch.Tensor.clone  # type: ignore[method-assign]
    for how in ("as PyTorch does it", "unlocked"):
        if how == "unlocked":
            release.unlock()
        stalls = longest(options.megabytes * 10**6, options.batches)
        print(f"{how}: {len(stalls)} stalls of 20 ms or longer, ms: {[round(each) for each in stalls[:10]]}")


if __name__ == "__main__":
    main()
