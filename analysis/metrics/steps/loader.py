"""When a thread waits for its loader: in its ranges, and as it starts workers anew, for which PyTorch makes no range.

At the end of its data an iterator of PyTorch's DataLoader is let go, unless its workers persist, and the next one draws
a seed from the CPU's generator (SEED) before it starts its workers; then comes the range of its first batch. So a start
is what passes from such a draw to such a range, if the thread calls nothing of CUDA meanwhile. A script that draws so
itself, and then does other work up to a batch, is taken for one.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.intervals import Intervals
from nightsweep.analysis.metrics.steps import selection
from nightsweep.analysis.metrics.steps.selection import Events

DATA = (
    r"(?i)^(?:data|dataload(?:er|ing)?|data[_ ]?wait|load[_ ]?(?:data|batch)|get[_ ]?batch|next[_ ]?batch|fetch)$"
    r"|^enumerate\(DataLoader\)"
)
"""NVTX ranges, annotations and operators in which a thread waits for its loader."""
WITH_WORKERS = "_MultiProcessingDataLoaderIter"
"""In the names of ranges of a DataLoader that has worker processes."""
SEED = "aten::random_"


def waits(events: Events, threads: list[int]) -> Intervals:
    """When any of these threads waits for a loader."""
    ranges = selection.filter_by_name(events["nvtx"].filter(pl.col("thread").is_in(threads)), DATA)
    return intervals.merge(selection.covered_time(ranges), *(starts(events, thread) for thread in threads))


def starts(events: Events, thread: int) -> Intervals:
    """When this thread starts a loader's workers."""
    batches = _begun(events["nvtx"], thread, WITH_WORKERS)
    if not len(batches) or "operators" not in events:
        return intervals.empty()
    seeds, calls = _begun(events["operators"], thread, f"^{SEED}$"), _begun(events["runtime"], thread, "")
    place = np.searchsorted(batches, seeds)
    seeds, place = seeds[place < len(batches)], place[place < len(batches)]
    spans = np.column_stack((seeds, batches[place]))
    return intervals.union(spans[np.searchsorted(calls, spans[:, 0]) == np.searchsorted(calls, spans[:, 1])])


def _begun(frame: pl.DataFrame, thread: int, pattern: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    own = selection.filter_by_name(frame.select("name", "start_ns", "thread"), pattern)
    return np.sort(own.filter(pl.col("thread") == thread)["start_ns"].to_numpy())
