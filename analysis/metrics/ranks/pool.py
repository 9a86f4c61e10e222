"""A pool of processes that read several traces at the same time, and of each return only what is needed.

    frames = pool.map_in_processes(paths, functools.partial(collectives_of, ...), workers=4)

A worker holds one trace at a time, so memory is that of the largest trace times the workers, however many the ranks.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from types import ModuleType
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_HIDDEN = threading.Lock()
END_AT_CTRL_C = signal.signal, (signal.SIGINT, signal.SIG_DFL)
"""The initializer of a pool's processes: Ctrl-C at a terminal reaches them, too, and each would print a traceback."""


def map_in_processes(items: Sequence[_In], work: Callable[[_In], _Out], workers: int, a_process: int = 1) -> list[_Out]:
    """`work` of each item, in their order; an error in any of them is raised.

    With several workers items have separate processes, so `work` must be a function of a module (or a
    functools.partial of one), and its results small. `a_process`: how many items one process does at most, before its
    memory is given back and another begins.
    """
    if workers < 2 or len(items) < 2:
        return [work(item) for item in items]
    # Polars has threads, which a fork would lose with their locks held.
    context = multiprocessing.get_context("forkserver")
    many = min(workers, len(items))
    with _hidden_script(), ProcessPoolExecutor(many, context, *END_AT_CTRL_C, max_tasks_per_child=1) as pool:
        return list(pool.map(work, items, chunksize=min(a_process, -(-len(items) // workers))))


@contextlib.contextmanager
def _hidden_script() -> Iterator[None]:
    """New processes do not run the caller's script first, as multiprocessing would have it: one that just calls
    `nightsweep.diagnose`, without asking for its `__name__`, would start processes in each of them."""
    with _HIDDEN:  # else, of two threads, the second would take the first one's for the script
        script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script
