"""NVTX ranges as a tree: which range each one lies in, its nvtx_path, and the innermost range at a time on a thread.

A range lies in the last one to start on its thread that contains it whole. Thread and time are held in one number, so
that each search runs over all threads at once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.jobs.host.cores import allowed_cores

Ints = npt.NDArray[np.int64]
Depths = npt.NDArray[np.uint16]

SEPARATOR = "/"
"""Between the names of an nvtx_path, outermost first."""
PIECE = 1 << 16
"""Ranges in a piece: its arrays fit in the cache of a processor."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Tree:
    """Ranges in the order of thread, start and (outer first) end; all arrays are in that order.

    `row`: place in the frame that they came from; `begin`, `end`: thread and time in one number (`key`); `parent`:
    place of the range that it lies in, -1 for none; `depth`: how many it lies in. `threads`: ids of the threads,
    sorted; `base`: the earliest time, subtracted from all; `span`: the distance between two threads' keys; `crossed`:
    places of the ranges that end during one that began in them, so that parents do not lead to all that they contain.
    """

    row: Ints
    begin: Ints
    end: Ints
    parent: Ints
    depth: Depths
    threads: Ints
    base: int
    span: int
    crossed: Ints

    def key(self, thread: Ints, time_ns: Ints) -> Ints:
        """Thread and time in one number for each; -1 where the thread has no ranges."""
        place = np.searchsorted(self.threads, thread)
        known = np.append(self.threads, -1)[place] == thread
        return np.where(known, place * self.span + np.clip(time_ns - self.base + 1, 0, self.span - 1), -1)

    def innermost(self, thread: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
        """Place of the innermost range that contains each stretch of time on its thread; -1 for none."""
        if not len(self.begin):
            return np.full(len(thread), -1, dtype=np.int64)
        begin, end = self.key(thread, start_ns), self.key(thread, end_ns)
        found = np.searchsorted(self.begin, begin, side="right") - 1
        # The last range to start before may be one of another thread.
        found[(found < 0) | (begin < 0) | (self.begin[found] // self.span != begin // self.span)] = -1
        reach = np.append(self.end, np.iinfo(np.int64).max)  # found at -1, which is that last one
        wrong = np.flatnonzero(reach[found] < end)
        while len(wrong):
            found[wrong] = self.parent[found[wrong]]
            wrong = wrong[reach[found[wrong]] < end[wrong]]
        return found


def build(thread: Ints, start_ns: Ints, end_ns: Ints) -> Tree:
    """The tree of these ranges: arrays of shape (n,), one entry a range. `thread`: any number that identifies it."""
    threads = pl.Series(thread).unique().sort().to_numpy()
    base, last = (int(start_ns.min()), int(end_ns.max())) if len(start_ns) else (0, 0)
    span = last - base + 3  # times before and after all ranges keep a place of their own
    code = np.searchsorted(threads, thread)
    begin, end = start_ns - (base - 1), end_ns - (base - 1)
    if len(threads) > 1:
        begin += code * span
        end += code * span
    row, begin, end = _sort(code, begin, end)
    parent, depth, crossing = _nest(begin, end)
    crossed = _crossed_places(begin, end) if crossing else np.empty(0, dtype=np.int64)
    return Tree(row, begin, end, parent, depth, threads, base, span, crossed)


def _sort(code: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """The order by thread, start and, outer first, end; and the bounds in that order. Exports are mostly sorted."""
    # numpy sorts 16-bit numbers by radix, in linear time.
    most = int(code.max(initial=0))
    row, first, last = np.arange(len(code)), begin, end
    if most:
        row = np.argsort(code.astype(np.uint16) if most < 2**16 else code, kind="stable")
        first, last = begin[row], end[row]
    if ((first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (last[1:] <= last[:-1]))).all():
        return row, first, last
    row = np.lexsort((-end, begin))
    return row, begin[row], end[row]


def _nest(begin: Ints, end: Ints) -> tuple[Ints, Depths, bool]:
    """Parents and depths, and whether any two ranges cross.

    Pieces are computed on all cores; each ends where all ranges before have ended, so that none has its parent in
    another.
    """
    parent, depth = np.empty(len(begin), dtype=np.int64), np.empty(len(begin), dtype=np.uint16)
    over = np.flatnonzero(begin[1:] >= np.maximum.accumulate(end)[:-1]) + 1
    near = np.searchsorted(over, np.arange(PIECE, len(begin), PIECE))
    edges = np.unique(np.concatenate(([0], over[near[near < len(over)]], [len(begin)]))).tolist()

    def nest(low: int, high: int) -> bool:
        inner, crossing = _parents(begin[low:high], end[low:high])
        depth[low:high] = _depths(inner)
        parent[low:high] = np.where(inner >= 0, inner + low, -1)
        return crossing

    with ThreadPoolExecutor(allowed_cores()) as pool:
        crossing = list(pool.map(nest, edges[:-1], edges[1:]))
    return parent, depth, any(crossing)


def _parents(begin: Ints, end: Ints) -> tuple[Ints, bool]:
    """Place of the last range before each one that ends when it does or later; and whether any two ranges cross.

    By pointer doubling: the candidate of each range is the one before it. Where that ends too early, its own candidate
    is next, since all ranges between the two end earlier still. Each round skips twice as many as the one before.
    """
    parent = np.arange(-1, len(begin) - 1)
    reach = np.append(np.where(begin < end, end, -1), np.iinfo(np.int64).max)  # at -1: none contains all
    need = end + (begin == end)  # one without length is not in what ended just then
    wrong = np.flatnonzero(reach[:-2] < need[1:]) + 1 if len(begin) > 1 else np.empty(0, dtype=np.int64)
    short, start, need = wrong - 1, begin[wrong], need[wrong]
    reached, crossing = reach[short], False
    while len(wrong):
        crossing = crossing or bool((reached > start).any())
        short = parent[short]
        parent[wrong] = short
        reached = reach[short]
        left = reached < need
        wrong, short, start, need, reached = (array[left] for array in (wrong, short, start, need, reached))
    return parent, crossing


def _crossed_places(begin: Ints, end: Ints) -> Ints:
    """Places of the ranges that end during one that began in them."""
    count = len(begin)
    later = np.arange(1, count + 1)  # the next one that ends later, found as in _parents
    reach = np.append(end, np.iinfo(np.int64).max)
    wrong = np.flatnonzero(reach[later] <= end)
    while len(wrong):
        later[wrong] = later[later[wrong]]
        wrong = wrong[reach[later[wrong]] <= end[wrong]]
    return np.flatnonzero(np.append(begin, np.iinfo(np.int64).max)[later] < end)


def _depths(parent: Ints) -> Depths:
    """How many ranges each one lies in, all the way up."""
    depth = np.zeros(len(parent), dtype=np.int64)
    nested = np.flatnonzero(parent >= 0)
    above = parent[nested]
    while len(nested):
        depth[nested] += 1
        above = parent[above]
        nested, above = nested[above >= 0], above[above >= 0]
    return np.minimum(depth, 2**16 - 1).astype(np.uint16)


def paths(ranges: Tree, names: pl.Series) -> tuple[pl.Series, Ints]:
    """The distinct nvtx_paths, and for each range of the tree the place of its path among them.

    `names`: those of the frame that the tree was made of, categorical.
    """
    name = names.to_physical().fill_null(2**32 - 1).to_numpy().astype(np.uint64)[ranges.row]
    key = _path_hashes(ranges, name)
    _, path = encode(key)
    first = np.full(int(path.max(initial=-1)) + 1, -1, dtype=np.int64)
    first[path[::-1]] = np.arange(len(path) - 1, -1, -1)  # a holder stands before what it holds
    words = names.gather(ranges.row[first]).cast(pl.String).fill_null("?").to_list()
    texts: list[str] = [""] * len(first)
    for place in np.argsort(first, kind="stable").tolist():
        holder = int(ranges.parent[first[place]])
        texts[place] = (texts[path[holder]] + SEPARATOR if holder >= 0 else "") + words[place]
    return pl.Series("nvtx_path", texts, dtype=pl.String), path


def _path_hashes(ranges: Tree, name: npt.NDArray[np.uint64]) -> Ints:
    """A number for each range that is the same where all names from the root down are.

    It has 64 bits: of a million different paths two agree by chance once in forty million times.
    """
    key = _mix(name + np.uint64(1))
    for level in range(1, int(ranges.depth.max(initial=0)) + 1):
        own = np.flatnonzero(ranges.depth == level)
        key[own] = _mix(key[own] ^ (key[ranges.parent[own]] * _MIX))
    return key.view(np.int64)


def _mix(key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finaliser: every bit of the input changes half of the output's."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def encode(values: Ints) -> tuple[Ints, Ints]:
    """The distinct numbers, and for each value its place among them."""
    column = pl.Series("key", values, dtype=pl.Int64)
    words = column.unique()
    places = pl.DataFrame({"key": words, "place": np.arange(len(words))})
    found = column.to_frame().join(places, on="key", how="left", maintain_order="left")
    return words.to_numpy(), found["place"].to_numpy()
