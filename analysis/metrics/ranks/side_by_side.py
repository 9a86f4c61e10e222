"""What each rank's trace gives, ranks side by side: of a trace only what is asked for is kept.

    frames = ranks.each(paths, functools.partial(collectives_of, ...), workers=4)

A worker holds one trace at a time, so memory is that of the largest trace times the workers, however many the ranks.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

_P = TypeVar("_P")
_T = TypeVar("_T")


def each(paths: Sequence[_P], give: Callable[[_P], _T], workers: int) -> list[_T]:
    """`give` of each path, in their order. With several workers it runs in processes of its own, so it must be a
    function of a module (or a functools.partial of one), and what it gives small. An error of any is raised."""
    if workers < 2 or len(paths) < 2:
        return [give(path) for path in paths]
    # Polars has threads, which a fork would lose with their locks held.
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(min(workers, len(paths)), context, max_tasks_per_child=1) as pool:
        return list(pool.map(give, paths))
