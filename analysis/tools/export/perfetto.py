"""A window of a run as trace events for ui.perfetto.dev and chrome://tracing.

The format is Chrome's Trace Event Format, JSON object form: `ts` and `dur` in microseconds, ph X for slices, C for
counters, M for names. A process is a rank, a thread a lane of it: ranges and API calls of each host thread, then
kernels, communication, copies and memsets of each stream. Slices of one lane must nest, so what overlaps without
nesting gets a lane of its own. Counters (samples of GPUs and hosts, metrics that nsys sampled) stand under their host.

Events go from the tables of `nightsweep ingest` to the file one table of one rank at a time.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import polars as pl

from nightsweep.jobs.record.whole_file import whole_file

_THREAD = pl.format("thread {}", pl.col("thread").fill_null(-1))
_STREAM = pl.format("GPU {} stream {}", pl.col("device").fill_null(-1), pl.col("stream").fill_null(-1))
_EXCHANGE = pl.col("category") == "communication"
COUNTERS_FROM = 1_000_000
"""Process number of the first host's counters: ranks are below."""


@dataclass(frozen=True)
class Kind:
    """Events of a table: the lane that each goes to, and what is shown of it beside its name."""

    table: str
    category: str
    lane: pl.Expr
    shown: tuple[str, ...] = ()
    keep: pl.Expr | None = None


_LAUNCHED = ("step", "nvtx_path")
KINDS = (
    Kind("nvtx", "ranges", _THREAD, ("domain",)),
    Kind("operators", "operators", _THREAD),
    Kind("runtime", "API", _THREAD, ("step",)),
    Kind("graphs", "graphs", _STREAM, _LAUNCHED),
    Kind("kernels", "kernels", _STREAM, (*_LAUNCHED, "blocks", "threads", "precision"), _EXCHANGE.not_()),
    Kind("kernels", "communication", _STREAM, (*_LAUNCHED, "collective"), _EXCHANGE),
    Kind("copies", "copies", _STREAM, (*_LAUNCHED, "bytes", "source", "target")),
    Kind("memsets", "memsets", _STREAM, (*_LAUNCHED, "bytes")),
)
"""In the order of the lanes, from the top."""

SAMPLES = {
    "power_instant_w": "power (W)",
    "sm_active_percent": "SMs active (%)",
    "tensor_active_percent": "tensor pipe active (%)",
    "dram_active_percent": "memory interface active (%)",
    "nvlink_tx_bytes_per_s": "NVLink sent (bytes/s)",
    "pcie_rx_bytes_per_s": "PCIe received (bytes/s)",
    "sm_clock_mhz": "SM clock (MHz)",
    "memory_used_bytes": "memory used (bytes)",
}
"""Samples of a GPU that are shown."""
HOST_SAMPLES = {"cpu_percent": "CPU (%, 100 is a core)", "rss_bytes": "resident memory (bytes)"}


@dataclass(frozen=True)
class Window:
    """Times (ns) on the clock of the tables; what lies across an end is cut there."""

    start_ns: int
    end_ns: int

    def cut(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Events that lie in it at least in part, the outer one first where some start together."""
        inside = frame.filter(
            pl.col("start_ns") < self.end_ns, pl.col("end_ns") >= self.start_ns, pl.col("end_ns") >= pl.col("start_ns")
        )
        clipped = inside.with_columns(pl.col("start_ns", "end_ns").clip(self.start_ns, self.end_ns))
        return clipped.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)

    def us(self, time_ns: int) -> float:
        """Microseconds since its start: as a time of day they would lose their last digits in a double."""
        return (time_ns - self.start_ns) / 1000


class Writer:
    """Writes the events of a file, one after another."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.count = out, 0

    def add(self, **event: Any) -> None:
        self.out.write(("" if self.count == 0 else ",") + "\n" + json.dumps(event, separators=(",", ":")))
        self.count += 1


@contextmanager
def open_file(path: Path) -> Iterator[Writer]:
    """The file, gzipped where its name ends so. At a bad end there is none."""
    with ExitStack() as stack:
        raw: Any = stack.enter_context(stack.enter_context(whole_file(path)).open("wb"))
        if path.suffix == ".gz":  # whose header would have the scratch file's name, and in that this host's
            raw = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))
        out = stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8"))
        out.write('{"displayTimeUnit": "ns", "traceEvents": [')
        yield Writer(out)
        out.write("\n]}\n")


@dataclass
class Lane:
    """The ends of the slices that are open in a lane, the innermost last."""

    tid: int
    open: list[int] = field(default_factory=list)

    def takes(self, start: int, end: int) -> bool:
        """Whether the slice nests here; if so, it is open now."""
        while self.open and self.open[-1] <= start:
            self.open.pop()
        if self.open and self.open[-1] < end:
            return False
        self.open.append(end)
        return True


def window_of(folder: Path, steps: tuple[int, int] | None, ms: tuple[float, float] | None) -> Window:
    """The window of these steps, of this time (ms from the first event, as far as there are events), or of all.
    ValueError where it is empty."""
    if steps is not None:
        own = pl.read_parquet(folder / "windows.parquet").filter(pl.col("step").is_between(*steps))
        if own.is_empty():
            known = pl.read_parquet(folder / "windows.parquet")["step"].sort().to_list()
            have = f"{known[0]} to {known[-1]}" if known else "none"
            raise ValueError(f"no step from {steps[0]} to {steps[1]}; the trace has {have}")
        first = own.select(pl.min_horizontal(pl.col("start_ns").min(), pl.col("host_start_ns").min())).item()
        return Window(first, int(own["end_ns"].max()))  # type: ignore[arg-type]
    bounds = [
        pl.scan_parquet(folder / f"{table}.parquet").select(pl.col("start_ns").min(), pl.col("end_ns").max()).collect()
        for table in sorted({kind.table for kind in KINDS})
    ]
    every = pl.concat(bounds).drop_nulls()
    if every.is_empty():
        raise ValueError("the trace holds no event")
    start, end = int(every["start_ns"].min()), int(every["end_ns"].max())  # type: ignore[arg-type]
    if ms is None:
        return Window(start, end)
    if start + ms[0] * 1e6 >= end:
        raise ValueError(f"{ms[0]:g} ms is after the end; the trace is {(end - start) / 1e6:.3f} ms long")
    return Window(start + int(ms[0] * 1e6), start + int(min(ms[1] * 1e6, end - start)))


def ranks_of(folder: Path) -> list[int]:
    found = pl.concat([pl.scan_parquet(folder / f"{k.table}.parquet").select("rank").unique() for k in KINDS])
    return found.unique().sort("rank").collect()["rank"].drop_nulls().to_list()


def slices(folder: Path, rank: int, kind: Kind, window: Window) -> Iterator[dict[str, Any]]:
    """Rows of one table of one rank: lane, name, start_ns, end_ns, and what is shown."""
    own = pl.scan_parquet(folder / f"{kind.table}.parquet").filter(pl.col("rank") == rank)
    own = own if kind.keep is None else own.filter(kind.keep.fill_null(kind.category == "kernels"))
    name = pl.col("name").cast(pl.String).fill_null(kind.category)
    frame = window.cut(own).select("start_ns", "end_ns", *kind.shown, name=name, lane=kind.lane).collect()
    return frame.iter_rows(named=True)


def write_rank(out: Writer, folder: Path, rank: int, window: Window) -> None:
    lanes: dict[tuple[str, str], list[Lane]] = {}
    number = 0
    for kind in KINDS:
        for row in slices(folder, rank, kind, window):
            start, end = row["start_ns"], row["end_ns"]
            places = lanes.setdefault((kind.category, row["lane"]), [])
            lane = next((one for one in places if one.takes(start, end)), None)
            if lane is None:
                number += 1
                lane = Lane(number)
                lane.takes(start, end)
                places.append(lane)
                label = f"{row['lane']} {kind.category}" + (f" ({len(places)})" if len(places) > 1 else "")
                named(out, "thread", label, number, pid=rank, tid=number)
            args = {name: row[name] for name in kind.shown if row[name] is not None}
            times = {"ts": window.us(start), "dur": (end - start) / 1000}
            out.add(ph="X", pid=rank, tid=lane.tid, **times, cat=kind.category, name=row["name"], args=args)
    if number:
        named(out, "process", f"rank {rank}", rank, pid=rank)


def named(out: Writer, what: str, label: str, place: int, **of: int) -> None:
    """The name of a process or thread, and its place among others."""
    out.add(ph="M", name=f"{what}_name", **of, args={"name": label})
    out.add(ph="M", name=f"{what}_sort_index", **of, args={"sort_index": place})


def write_counters(out: Writer, frame: pl.DataFrame, shown: dict[str, str], window: Window, first: int) -> int:
    """Samples of hosts (t_ns, host, maybe gpu) as counters; returns how many hosts there were."""
    inside = frame.filter(pl.col("t_ns").is_between(window.start_ns, window.end_ns)).sort("t_ns")
    hosts = inside["host"].unique().sort().to_list()
    for place, host in enumerate(hosts):
        pid = first + place
        named(out, "process", f"{host} samples", pid, pid=pid)
        for row in inside.filter(pl.col("host") == host).iter_rows(named=True):
            prefix = f"GPU {row['gpu']} " if "gpu" in row else ""
            for column, label in shown.items():
                if row[column] is not None:
                    value = {"value": row[column]}
                    out.add(ph="C", pid=pid, ts=window.us(row["t_ns"]), name=prefix + label, args=value)
    return len(hosts)


def write_metrics(out: Writer, folder: Path, rank: int, window: Window) -> None:
    """The GPU metrics that nsys sampled, under their rank."""
    own = pl.scan_parquet(folder / "counters.parquet").filter(pl.col("rank") == rank)
    inside = own.filter(pl.col("start_ns").is_between(window.start_ns, window.end_ns)).sort("start_ns", "name")
    for row in inside.collect().iter_rows(named=True):
        label = f"GPU {row['device']} {row['name']}"
        out.add(ph="C", pid=rank, ts=window.us(row["start_ns"]), name=label, args={"value": row["value"]})


def write(folder: Path, path: Path, window: Window, samples: dict[str, pl.DataFrame]) -> int:
    """Write the window of a folder of tables to a file; returns the number of events. `samples`: gpu_samples and
    host_samples of the run, on the clock of the tables."""
    with open_file(path) as out:
        for rank in ranks_of(folder):
            write_rank(out, folder, rank, window)
            write_metrics(out, folder, rank, window)
        first = COUNTERS_FROM
        for name, shown in (("gpu_samples", SAMPLES), ("host_samples", HOST_SAMPLES)):
            if name in samples:
                first += write_counters(out, samples[name], shown, window, first)
    return out.count
