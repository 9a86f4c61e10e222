"""Binds a rank to the CPUs beside its GPU, or, to show what that is worth, to the others.

Linux places the memory of a process on the NUMA node whose CPU first touches it, so the CPUs decide for the memory too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from jobs.host import gpus
from jobs.host.unsupported import Unsupported

_BITS = 64


def cpus_of_mask(words: Iterable[int]) -> set[int]:
    """CPU numbers of an affinity mask of 64-bit words, as NVML gives it."""
    return {i * _BITS + bit for i, word in enumerate(words) for bit in range(_BITS) if word >> bit & 1}


def choose_cpus(near: set[int], allowed: set[int], want: str) -> set[int]:
    """CPUs for `near` or `far` among those that this process may use. Raises Unsupported where there are none."""
    found = allowed & near if want == "near" else allowed - near
    if not found:
        where = "near its GPU" if want == "near" else "far from it"
        raise Unsupported(f"numa {want}: none of this job's {len(allowed)} CPUs is {where}")
    return found


def bind(local_rank: int, want: str) -> list[int]:
    """Restrict this process, and all that it starts, to the CPUs near or far its GPU; the CPUs. Raises Unsupported."""
    import pynvml

    works, why = gpus.probe()
    if not works:
        raise Unsupported(f"numa {want}: {why}")
    own = gpus.job_gpus()
    words = -(-(os.cpu_count() or 1) // _BITS)
    near = cpus_of_mask(pynvml.nvmlDeviceGetCpuAffinity(own[local_rank].board, words))
    cpus = choose_cpus(near, os.sched_getaffinity(0), want)
    os.sched_setaffinity(0, cpus)
    return sorted(cpus)
