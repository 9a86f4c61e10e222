"""Pinned batches are freed without holding Python's global interpreter lock (GIL).

Workers of a DataLoader put batches into shared memory; a thread of the rank pins them and drops the originals. To unmap
and free their pages takes some 36 ms at 192 MB (beside an H200; elsewhere 34 to 54, tests/bench/batch_release.py), and
meanwhile the thread holds the GIL, so that the launching thread stalls. Here calls that release the GIL do both: pages
are unmapped as soon as the batch is pinned, and freed where a second descriptor of the memory is closed, with the next
batch. Nothing is lost where somebody else still has the memory.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

LEAST_BYTES = 1 << 20
"""Less is freed in a fraction of a millisecond."""


class Descriptors:
    """Second descriptors of shared memories, which keep them until this is dropped, by its thread or with it."""

    def __init__(self) -> None:
        self.all: list[int] = []

    def add(self, memory: Any) -> bool:
        """Whether it is a memory with a descriptor, as one that a worker has sent; a file that is mapped is none."""
        try:
            self.all.append(os.dup(memory._share_fd_cpu_()[0]))
        except (OSError, RuntimeError):
            return False
        return True

    def __del__(self) -> None:
        for each in self.all:
            os.close(each)


def unlock() -> None:
    """Free batches so in every DataLoader of this process that pins in a thread."""
    import torch
    from torch.utils.data._utils import pin_memory as torch_pins

    pin, state = torch_pins.pin_memory, threading.local()
    if hasattr(pin, "frees_unlocked"):
        return
    libc = ctypes.CDLL(None)

    @functools.wraps(pin)
    def pins(data: Any, device: Any = None) -> Any:
        if threading.current_thread() is threading.main_thread() or getattr(state, "inside", False):
            return pin(data, device)
        state.before = None  # closes them
        state.inside = True
        try:
            pinned = pin(data, device)
        finally:
            state.inside = False
        if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":
            state.before = Descriptors()
            for start, memory in {memory.data_ptr(): memory for memory in _shared(data, torch)}.items():
                if state.before.add(memory):
                    whole = memory.nbytes() // mmap.PAGESIZE * mmap.PAGESIZE
                    libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(whole), mmap.MADV_DONTNEED)
        return pinned

    pins.frees_unlocked = True  # type: ignore[attr-defined]
    torch_pins.pin_memory = pins


def _shared(data: Any, torch: Any) -> Iterator[Any]:
    """The memories of a batch that came from a worker, of the tensors that PyTorch pins."""
    if isinstance(data, torch.Tensor):
        if data.layout is torch.strided and data.device.type == "cpu" and data.is_shared():
            memory = data.untyped_storage()
            if memory.nbytes() >= LEAST_BYTES:
                yield memory
    elif isinstance(data, Mapping):
        for each in data.values():
            yield from _shared(each, torch)
    elif isinstance(data, (list, tuple)):
        for each in data:
            yield from _shared(each, torch)
