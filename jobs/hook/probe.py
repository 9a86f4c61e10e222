"""Lines of the script that may cost time. Looks at one step of the warm-up for those that make the host wait for the
GPU, copy to it, or copy pictures from one layout to another; and counts the calls of the script's models.

PyTorch itself tells of calls that wait (torch.cuda.set_sync_debug_mode). Telling costs time, so that the step is one of
those that are not measured.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .watch import Watch


def begin(watch: Watch) -> Callable[[], None]:
    """Begin to look; the function that ends it."""
    import torch

    filters, show = warnings.filters[:], warnings.showwarning  # type: ignore[index]
    copies = {name: getattr(torch.Tensor, name) for name in ("to", "cuda")}
    turns = {name: getattr(torch.Tensor, name) for name in ("contiguous", "reshape", "flatten")}

    def count(message: Any, *rest: Any, **named: Any) -> None:
        if "synchronizing CUDA" in str(message):
            watch.found_place("wait for the GPU")
        else:
            show(message, *rest, **named)

    def end() -> None:
        counted()
        torch.cuda.set_sync_debug_mode("default")
        warnings.filters[:], warnings.showwarning = filters, show  # type: ignore[index]
        for name, call in (copies | turns).items():
            setattr(torch.Tensor, name, call)

    def watched(copy: Any) -> Any:
        @functools.wraps(copy)
        def copying(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = copy(self, *args, **kwargs)
            if self.device.type == "cpu" and found.device.type == "cuda":
                watch.found_place("copy to the GPU")
            return found

        return copying

    def turning(call: Any) -> Any:
        @functools.wraps(call)
        def turned(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = call(self, *args, **kwargs)
            if _was_turned(self, found):
                watch.found_place("copy from NHWC to NCHW")
            return found

        return turned

    for name, copy in copies.items():
        setattr(torch.Tensor, name, watched(copy))
    for name, call in turns.items():
        setattr(torch.Tensor, name, turning(call))
    counted = watch.calls.begin()
    warnings.simplefilter("always")
    warnings.showwarning = count
    torch.cuda.set_sync_debug_mode("warn")
    return end


def _was_turned(before: Any, after: Any) -> bool:
    """Whether pictures in NHWC have become others in NCHW, which no view of them can be. What torch.compile traces is
    of another class, and is not asked."""
    import torch

    try:
        nhwc = type(before) is torch.Tensor and before.dim() == 4 and not before.is_contiguous()
        return nhwc and before.is_contiguous(memory_format=torch.channels_last) and bool(after.is_contiguous())
    except RuntimeError:  # within torch.vmap nothing is known of layouts
        return False


ROOT = f"{Path.cwd()}{os.sep}"
"""The folder in which the script was started: its own code is there."""


def script_line() -> str | None:
    """The innermost line of the running stack that is the script's own: in its folder, and in no installed package."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        own = name.removeprefix(ROOT)
        if not (own.startswith((os.sep, "<")) or "site-packages" in own):
            return f"{own}:{frame.f_lineno}"
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None
