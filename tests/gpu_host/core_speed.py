"""How fast the core of a rank was beside each of its steps: the time of a piece of plain Python.

Cores of a virtual machine are faster and slower by a tenth from one second to the next; of a step whose length the host
decides, the ratio to such a piece is not. Times of the device do not contain it, for it runs between two steps.
"""

from __future__ import annotations

import json
import os
import time
from types import ModuleType
from typing import Any

from jobs.hook.imports import after_import

ADDITIONS = 20_000
FILE = "core-speed.json"
CORE_VARIABLE = "NIGHTSWEEP_TEST_CORE"


def install() -> None:
    """In a rank, or in what ranks are forked from: as soon as the step loop is imported."""
    after_import({"jobs.rank.loop": measured})


def piece_ns() -> int:
    began, total = time.perf_counter_ns(), 0
    for number in range(ADDITIONS):
        total += number
    return time.perf_counter_ns() - began


def measured(module: ModuleType) -> None:
    """Let steps be followed by the piece; its times, ns, are written when the steps are over."""
    loop: Any = module.Loop
    one_step, run = loop.one_step, loop.run
    times: list[int] = []

    def step_and_piece(self: Any, step: Any) -> Any:
        if not times and is_launch_bound(self.point):
            # Its Python runs on one core then, that of the piece, which nothing else runs on.
            os.sched_setaffinity(0, {int(os.environ[CORE_VARIABLE])})
        step = one_step(self, step)
        times.append(piece_ns())
        return step

    def run_and_write(self: Any, run_folder: Any, plan: Any) -> Any:
        found = run(self, run_folder, plan)
        (run_folder.path / FILE).write_text(json.dumps(times))
        return found

    loop.one_step, loop.run = step_and_piece, run_and_write


def is_launch_bound(point: Any) -> bool:
    return point.workload == "llm" and point.compile == "none"
