"""Begins to watch the script that this Python is about to run.

Everything here is done in somebody else's process: it reads clocks and counts, and must neither change what the script
computes nor end it where something is unusual.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TextIO

from ..record.folder import RunFolder
from .imports import Callback, after_import
from .watch import Watch

Report = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

RUN_VARIABLE, RANK_VARIABLE = "NIGHTSWEEP_RUN", "NIGHTSWEEP_RANK"
"""The run's folder, and the rank of the process that a supervisor started."""

WATCH: Watch | None = None
"""That of this process."""


def install() -> None:
    """Watch this process: a rank, or one of those that it starts."""
    global WATCH
    run_folder = RunFolder(Path(os.environ[RUN_VARIABLE]))
    if run_folder.rank_file(int(os.environ[RANK_VARIABLE]), "result.json").exists():
        return  # a script that trains several times, in a process each: the first counts
    order = json.loads(run_folder.order.read_text())
    WATCH = watch = Watch(run_folder, order, int(os.environ[RANK_VARIABLE]))
    sys.excepthook = reporting(run_folder, watch)
    stacks = run_folder.rank_file(watch.rank, "stacks.txt").open("a")
    watch.rearm = lambda: rearm(stacks, order["stall_s"])
    watch.rearm()

    def with_torch(module: ModuleType) -> None:
        from . import patches, switches

        switches.apply(watch, order["settings"])
        patches.patch_torch(watch)

    def with_engine(module: ModuleType) -> None:
        from . import patches

        patches.patch_engine(watch, module)

    def with_numpy(module: ModuleType) -> None:
        module.random.seed(watch.seed)

    def with_compiler(module: ModuleType) -> None:
        with contextlib.suppress(Exception):  # versions of PyTorch differ here
            watch.heart.follow_compiler(module)  # type: ignore[union-attr]

    found: dict[str, Callback] = {"torch": with_torch, "deepspeed.runtime.engine": with_engine, "numpy": with_numpy}
    settings = order["settings"]
    if settings["launcher"] != "none" or settings["ranks_per_node"] == 1:  # else ranks are not known before their steps
        found["torch._dynamo.callback"] = with_compiler
    after_import(found)


def rearm(stacks: TextIO, stall_s: float) -> None:
    """Write this process's stacks down should it not move again for nearly as long as the launcher waits. A thread of
    its own does it, whatever the others hang in; no signal is sent, since scripts use signals for their own ends."""
    if stacks.tell():
        stacks.truncate(0)
    faulthandler.dump_traceback_later(0.9 * stall_s, file=stacks)


def reporting(run_folder: RunFolder, watch: Watch) -> Report:
    """An excepthook that leaves the exception for the record, and goes on as before."""
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == watch.pid:
            lines = traceback.format_exception(kind, error, trace)
            run_folder.rank_file(watch.rank, "traceback.txt").write_text("".join(lines))
            content = {
                "kind": kind.__name__,
                "message": str(error),
                "errno": getattr(error, "errno", None),
                "step": watch.number,
            }
            run_folder.rank_file(watch.rank, "exception.json").write_text(json.dumps(content))
        before(kind, error, trace)

    return report
