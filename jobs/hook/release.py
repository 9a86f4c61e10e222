"""The memory of pinned batches is given back without Python's interpreter.

Workers of a DataLoader put batches into shared memory, and a thread of the rank pins them and drops them again. The
last of that, munmap, goes through all their pages, and the thread holds the interpreter meanwhile: the thread that
launches stands for some 36 ms at 192 MB (beside an H200; elsewhere 34 to 54 ms, tests/bench/batch_release.py). Here the
pages are given back before, by a call for which ctypes lets the interpreter go.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
from collections.abc import Iterator, Mapping
from typing import Any

_MADV_REMOVE = 9
"""Of Linux: the pages are freed, and what is read there is 0."""


def unlock() -> None:
    """Have it so in every DataLoader of this process. A batch that its worker keeps and sends again would be 0 the
    second time."""
    import torch
    from torch.utils.data._utils import pin_memory as torch_pins

    pin, state = torch_pins.pin_memory, threading.local()
    if hasattr(pin, "gives_back"):
        return
    libc = ctypes.CDLL(None)

    @functools.wraps(pin)
    def pins(data: Any, device: Any = None) -> Any:
        if getattr(state, "inside", False):  # of a part of a batch, whose other parts may lie in the same memory
            return pin(data, device)
        state.inside = True
        try:
            pinned = pin(data, device)
        finally:
            state.inside = False
        for start, end in {_pages(tensor) for tensor in _shared(data, torch.Tensor)}:
            if end > start:
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_REMOVE)
        return pinned

    pins.gives_back = True  # type: ignore[attr-defined]
    torch_pins.pin_memory = pins


def _shared(data: Any, kind: type) -> Iterator[Any]:
    """The tensors of a batch that came through shared memory, of those that PyTorch pins."""
    if isinstance(data, kind):
        if data.device.type == "cpu" and data.is_shared() and not data.is_pinned():  # type: ignore[attr-defined]
            yield data
    elif isinstance(data, Mapping):
        for each in data.values():
            yield from _shared(each, kind)
    elif isinstance(data, (list, tuple)):
        for each in data:
            yield from _shared(each, kind)


def _pages(tensor: Any) -> tuple[int, int]:
    """The addresses of the whole pages of a tensor's memory."""
    memory = tensor.untyped_storage()
    start, page = memory.data_ptr(), mmap.PAGESIZE
    return -(-start // page) * page, (start + memory.nbytes()) // page * page
