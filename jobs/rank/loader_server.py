"""The process that loader workers are forked from.

Python starts such a server with the first worker, and empty: each worker would then import torch for itself, and where
the data set is too large for a pipe to hold, one after another (3 s each). Started at once, with torch in it, it is
ready by the time the rank has imported torch too, and its workers have nothing left to import. Of a rank that was
forked from a process with all imports (jobs/rank/server.py) it is a fork, too.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, util
from pathlib import Path

from nightsweep.jobs.host import start as processes

PRELOADED = [
    "numpy",
    "torch",
    "torch.utils.data._utils.worker",
    "PIL.Image",
    "nightsweep.jobs.workloads.images.datasets",
]


def start() -> None:
    """Start it, and go on; to be called before this process has threads of its own or a GPU."""
    # Python 3.11.0 would open a socket to which anybody on the host may send code (CVE-2022-42919).
    util.abstract_sockets_supported = False  # type: ignore[misc]
    if not processes.is_preloaded:
        multiprocessing.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
        return
    with forks():
        forkserver.ensure_running()


@contextmanager
def forks() -> Iterator[None]:
    """Where multiprocessing would start a Python, its server or what tracks its resources, it forks this process."""

    def fork(_: str, arguments: Sequence[str], kept: Sequence[int]) -> int:
        code = str(arguments[-1])  # what it has `python -c` run

        def run() -> None:
            for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
                # The server ends when nobody holds the other ends of its pipes.
                if number > 2 and number not in kept:
                    with suppress(OSError):
                        os.close(number)
            exec(code, {})

        return processes.Forked(run).pid

    usual, util.spawnv_passfds = util.spawnv_passfds, fork  # type: ignore[attr-defined, assignment]
    try:
        yield
    finally:
        util.spawnv_passfds = usual  # type: ignore[attr-defined]
