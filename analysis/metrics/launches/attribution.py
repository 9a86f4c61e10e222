"""Which call launched each activity of a GPU, and in which NVTX ranges that call lies.

An activity belongs to the call with its process and correlation id; a call to all ranges of its thread that contain it
whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl

from nightsweep.analysis.metrics.launches import projection, range_tree
from nightsweep.analysis.metrics.launches.range_tree import Ints

ON_DEVICE = ("kernels", "graphs", "copies", "memsets")


@dataclass(frozen=True)
class Attribution:
    """Events of one process with their launches. `ranges`: the table nvtx_gpu."""

    events: dict[str, pl.DataFrame]
    ranges: pl.DataFrame


def attribute(events: Mapping[str, pl.DataFrame]) -> Attribution:
    """Join the activities of one process with the calls that launched them and the ranges around these.

    Args:
        events: the tables of EVENTS, of one process.

    Returns:
        The events with more columns: nvtx_path for ranges, calls and activities; depth for ranges; thread, launch_ns
        and launch_end_ns of the launching call for activities. And the table nvtx_gpu.
    """
    across = events["nvtx"]["style"] == "across"
    marks = events["nvtx"].filter(~across) if across.any() else events["nvtx"]
    calls = events["runtime"]
    tree = range_tree.build(*_bounds(marks))
    activities = pl.concat([events[kind].select("start_ns", "end_ns", "correlation") for kind in ON_DEVICE])
    with ThreadPoolExecutor(1) as beside:  # neither needs the other, and each keeps one core busy
        named = beside.submit(range_tree.paths, tree, marks["name"])
        inner = tree.innermost(*_bounds(calls))
        call = launching_calls(calls["correlation"], activities["correlation"])
        place, gpu = projection.project(tree, inner, calls, activities, call)
        texts, path = named.result()
    words = texts.cast(pl.Categorical())
    of_call = _path_column(words, path[inner] if len(path) else inner, inner >= 0)
    launches = _launches(calls, of_call, call)
    own = _add_paths(marks, tree, words, path)
    edges = np.cumsum([0, *(events[kind].height for kind in ON_DEVICE)]).tolist()
    found = {
        kind: events[kind].hstack(launches.slice(first, last - first))
        for kind, first, last in zip(ON_DEVICE, edges[:-1], edges[1:], strict=True)
    }
    spans = gpu.with_columns(gpu_span_ns=pl.col("gpu_end_ns") - pl.col("gpu_start_ns"))
    rest = pl.concat([own, events["nvtx"].filter(across)], how="diagonal") if across.any() else own
    return Attribution(
        {**events, **found, "nvtx": rest, "runtime": calls.with_columns(nvtx_path=of_call)},
        own[tree.row[place]].hstack(spans),
    )


def _bounds(frame: pl.DataFrame) -> tuple[Ints, Ints, Ints]:
    """Thread, start and end, ns."""
    thread, start, end = (frame[name].fill_null(-1).to_numpy() for name in ("thread", "start_ns", "end_ns"))
    return thread, start, np.maximum(start, end)


def _path_column(words: pl.Series, place: Ints, known: np.typing.NDArray[np.bool_]) -> pl.Series:
    """The paths at these places, as nvtx_path; null where not known."""
    if not len(words):
        return pl.Series("nvtx_path", [None] * len(place), dtype=pl.Categorical())
    places = pl.Series(place.astype(np.uint32))
    return words.gather(places if known.all() else places.set(pl.Series(~known), None)).alias("nvtx_path")


def _add_paths(marks: pl.DataFrame, tree: range_tree.Tree, words: pl.Series, path: Ints) -> pl.DataFrame:
    back, depth = np.empty(len(path), dtype=np.int64), np.empty(len(path), dtype=np.int32)
    back[tree.row], depth[tree.row] = path, tree.depth
    return marks.with_columns(_path_column(words, back, back >= 0), pl.Series("depth", depth))


def launching_calls(call_ids: pl.Series, activity_ids: pl.Series) -> Ints:
    """Place of the call that launched each activity, by correlation id within a process; -1 for none.

    Of several calls with one id it is the first.
    """
    ids, wanted = call_ids.fill_null(-1).to_numpy(), activity_ids.fill_null(-2).to_numpy()
    if not len(ids) or not len(wanted):
        return np.full(len(wanted), -1, dtype=np.int64)
    least, room = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    if room > 4 * len(ids) + (1 << 22):  # ids far apart: a table would be too large
        order = np.argsort(ids, kind="stable")
        at = np.searchsorted(ids, wanted, sorter=order)
        place = order[np.minimum(at, len(ids) - 1)]
        return np.where(ids[place] == wanted, place, -1)
    table = np.full(room + 1, -1, dtype=np.int64)
    table[ids[::-1] - least] = np.arange(len(ids) - 1, -1, -1)
    return table[np.where((wanted >= least) & (wanted < least + room), wanted - least, room)]


def _launches(calls: pl.DataFrame, of_call: pl.Series, call: Ints) -> pl.DataFrame:
    """The launching call of each activity: thread, launch_ns, launch_end_ns, nvtx_path."""
    columns = calls.select("thread", launch_ns="start_ns", launch_end_ns="end_ns").with_columns(of_call)
    if columns.is_empty():
        return columns.clear(len(call))
    place = pl.Series(np.maximum(call, 0).astype(np.uint32))
    return columns.select(pl.all().gather(place if (call >= 0).all() else place.set(pl.Series(call < 0), None)))
