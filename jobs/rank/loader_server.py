"""The process that loader workers are forked from.

Python starts such a server with the first worker, and empty: each worker would then import torch for itself, and where
the data set is too large for a pipe to hold, one after another (3 s each). Started at once, with torch in it, it is
ready by the time the rank has imported torch too, and its workers have nothing left to import.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

PRELOADED = ["numpy", "torch", "torch.utils.data._utils.worker", "PIL.Image", "jobs.workloads.images.datasets"]


def start() -> None:
    """Start it, and go on; to be called before this process has threads of its own or a GPU."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
