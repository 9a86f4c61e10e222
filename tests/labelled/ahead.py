"""While one run is measured on a GPU, the next one's ranks already start, as far as they get without it.

Most of a short run is Python that is loaded. So a rank loads what its worker will import, and then waits for the GPU,
until the file of $NIGHTSWEEP_TEST_GO is there (site/sitecustomize.py, run.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

GO_VARIABLE = "NIGHTSWEEP_TEST_GO"
POLL_S = 0.05
MODULES = {
    "image": ("transformers.models.resnet.modeling_resnet", "transformers.models.vit.modeling_vit"),
    "llm": ("transformers.models.llama.modeling_llama", "nightsweep.jobs.workloads.llm"),
}


def wait(folder: Path) -> None:
    """In a rank of this run: be ready, and wait to be told to go on."""
    from nightsweep.jobs.host.processes import die_with_parent
    from nightsweep.jobs.record.folder import RunFolder
    from nightsweep.jobs.sweep.order import read_order

    die_with_parent()
    settings = read_order(RunFolder(folder)).settings
    common = (
        "nightsweep.jobs.rank.loop",
        "nightsweep.jobs.strategies.ddp",
        f"nightsweep.jobs.workloads.{settings['workload']}",
    )
    for name in (
        *common,
        *MODULES[settings["workload"]],
        *(["torch._dynamo"] if settings["compile"] != "none" else []),
    ):
        importlib.import_module(name)
    while not Path(os.environ[GO_VARIABLE]).exists():
        time.sleep(POLL_S)


class Turn:
    """A run's turn on its GPUs, which has come once it is the only one that has them; `go` is then there."""

    def __init__(self, folder: Path, gpus: list[int], go: Path) -> None:
        # By number, so that no two runs wait for each other; opened here, so that a lock that cannot be is an error.
        self.locks = [(folder / f".gpu{gpu}").open("w") for gpu in sorted(gpus)]
        self.held: list[IO[str]] = []
        self.go, self.come = go, threading.Event()

    def take(self) -> None:
        for lock in self.locks:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.held.append(lock)
        self.go.touch()
        self.come.set()

    def end(self) -> None:
        while self.held:
            self.held.pop().close()


@contextlib.contextmanager
def turn(folder: Path, gpus: list[int], go: Path) -> Iterator[Turn]:
    """Wait for the turn in the background; it ends here at the latest."""
    go.unlink(missing_ok=True)
    mine = Turn(folder, gpus, go)
    threading.Thread(target=mine.take, daemon=True).start()
    try:
        yield mine
    finally:
        mine.end()
