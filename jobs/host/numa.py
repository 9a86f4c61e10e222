"""Binds a rank to a share of its host's CPUs that is the same however many GPUs its job has, or, to show what the place
is worth, to all those near its GPU, or far from it.

Linux places the memory of a process on the NUMA node whose CPU first touches it, so the CPUs decide for the memory too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from nightsweep.jobs.host import gpus
from nightsweep.jobs.host.unsupported import Unsupported

_BITS = 64
_CPUS = Path("/sys/devices/system/cpu")


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


def shares(near: Sequence[set[int]], cores: Collection[Collection[int]]) -> list[set[int]]:
    """Each GPU's share of a host: the cores near it, divided among the GPUs that these are near to.

    Args:
        near: CPUs near each GPU of the host, in NVML's order.
        cores: CPUs of each core (one, or the threads that share it).

    Returns:
        A set of CPUs a GPU: whole cores, as many for each GPU of a group; empty where there are more GPUs than cores.

    >>> shares([{0, 1, 2, 3}, {0, 1, 2, 3}], [(0, 2), (1, 3)])
    [{0, 2}, {1, 3}]
    """
    found = []
    for number, own in enumerate(near):
        peers = [other for other, cpus in enumerate(near) if cpus == own]
        there = sorted(sorted(core) for core in cores if set(core) <= own)
        each, place = len(there) // len(peers), peers.index(number)
        found.append({cpu for core in there[place * each : (place + 1) * each] for cpu in core})
    return found


def choose_share(own: set[int], allowed: set[int]) -> set[int]:
    """The share where this process may use all of it. Where it may not, a scheduler has given it others: those."""
    return own if own and own <= allowed else allowed


def bind(local_rank: int, want: str, gpus_of_rank: int = 1) -> list[int]:
    """Restrict this process, and all that it starts, to its CPUs.

    Args:
        local_rank: number of the rank on its node.
        want: its setting numa: none for the share of its GPUs, near, or far.
        gpus_of_rank: how many GPUs the rank drives.

    Returns:
        The CPUs.

    Raises:
        Unsupported: where there are no GPUs, or no CPUs near or far; with none, nothing is bound then.
    """
    works, why = gpus.probe()
    allowed = os.sched_getaffinity(0)
    if not works:
        if want == "none":
            return sorted(allowed)
        raise Unsupported(f"numa {want}: {why}")
    own = gpus.job_gpus()[local_rank * gpus_of_rank :][:gpus_of_rank]
    if want == "none":
        boards = gpus.host_boards()
        each = shares([near_cpus(board) for board in boards.values()], host_cores())
        mine = [share for index, share in zip(boards, each, strict=True) if index in {gpu.index for gpu in own}]
        cpus = choose_share(set().union(*mine), allowed)
    else:
        cpus = choose_cpus(near_cpus(own[0].board), allowed, want)
    os.sched_setaffinity(0, cpus)
    return sorted(cpus)


def near_cpus(board: Any) -> set[int]:
    """CPUs near a GPU, as NVML tells; all of the host where it does not."""
    import pynvml

    count = os.cpu_count() or 1
    try:
        return cpus_of_mask(pynvml.nvmlDeviceGetCpuAffinity(board, -(-count // _BITS)))
    except pynvml.NVMLError:
        return set(range(count))


def host_cores() -> list[list[int]]:
    """CPUs of each core of the host; each CPU is one where the kernel does not tell."""
    found: dict[str, list[int]] = {}
    for cpu in range(os.cpu_count() or 1):
        try:
            siblings = (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(cpu)
        found.setdefault(siblings, []).append(cpu)
    return list(found.values())
