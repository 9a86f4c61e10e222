"""What the CUDA caching allocator did in each step, read on the host without waiting for the device (8 us a step)."""

from __future__ import annotations

from typing import Any

import torch


class Allocator:
    """Peaks of each step, and of the whole run. Gives None for a CPU. `resets`: whether peaks begin anew with each
    step; else they are the process's so far, for a script may look at them, too."""

    def __init__(self, device: torch.device, *, resets: bool = True) -> None:
        self.device, self.resets = device, resets
        self.on = device.type == "cuda"
        self.peaks = {"peak_allocated_bytes": 0, "peak_reserved_bytes": 0}
        self.step()

    def step(self) -> dict[str, int] | None:
        """What happened since the last call. Counters (retries, device calls) are totals of the process.

        inactive_bytes: reserved in blocks that are split, so that it can serve some requests but not be given back:
        over reserved_bytes it is the pool's fragmentation.
        """
        if not self.on:
            return None
        stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(self.device)
        if self.resets:
            torch.cuda.reset_peak_memory_stats(self.device)
        if not stats:  # no context yet
            return None
        found = {
            "peak_allocated_bytes": stats["allocated_bytes"]["all"]["peak"],
            "peak_reserved_bytes": stats["reserved_bytes"]["all"]["peak"],
            "reserved_bytes": stats["reserved_bytes"]["all"]["current"],
            "inactive_bytes": stats["inactive_split_bytes"]["all"]["current"],
            "alloc_retries": stats["num_alloc_retries"],
            "device_allocs": stats["num_device_alloc"],
            "device_frees": stats["num_device_free"],
        }
        for name in self.peaks:
            self.peaks[name] = max(self.peaks[name], found[name])
        return found

    def result(self) -> dict[str, int | None]:
        """The run's peaks."""
        return {name: value if self.on else None for name, value in self.peaks.items()}
