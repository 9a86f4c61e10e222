"""Looks at one step of the warm-up for the lines of the script that make the host wait for the GPU, or copy to it.

PyTorch itself tells of calls that wait (torch.cuda.set_sync_debug_mode). Telling costs time, so that the step is one of
those that are not measured.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .watch import Watch


def begin(watch: Watch) -> Callable[[], None]:
    """Begin to look; the function that ends it."""
    import torch

    filters, show = warnings.filters[:], warnings.showwarning  # type: ignore[index]
    copies = {name: getattr(torch.Tensor, name) for name in ("to", "cuda")}

    def count(message: Any, *rest: Any, **named: Any) -> None:
        if "synchronizing CUDA" in str(message):
            watch.found_place("wait for the GPU")
        else:
            show(message, *rest, **named)

    def end() -> None:
        torch.cuda.set_sync_debug_mode("default")
        warnings.filters[:], warnings.showwarning = filters, show  # type: ignore[index]
        for name, copy in copies.items():
            setattr(torch.Tensor, name, copy)

    def watched(copy: Any) -> Any:
        @functools.wraps(copy)
        def copying(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = copy(self, *args, **kwargs)
            if self.device.type == "cpu" and found.device.type == "cuda":
                watch.found_place("copy to the GPU")
            return found

        return copying

    for name, copy in copies.items():
        setattr(torch.Tensor, name, watched(copy))
    warnings.simplefilter("always")
    warnings.showwarning = count
    torch.cuda.set_sync_debug_mode("warn")
    return end
