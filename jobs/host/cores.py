"""CPU cores that a process may use."""

import os


def allowed_cores() -> int:
    """How many cores this process may use: a Slurm job has fewer than its host. Where the system does not tell, as on
    macOS, it is all that there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
