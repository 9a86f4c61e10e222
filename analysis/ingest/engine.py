"""From one trace file to its tables: ranks told apart, events attributed, steps found, parts and sums computed."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import polars as pl

from analysis.metrics.kernels import kernel_class, occupancy
from analysis.metrics.launches import sums
from analysis.metrics.launches.attribution import ON_DEVICE, attribute
from analysis.metrics.points import efficiency
from analysis.metrics.ranks import collectives
from analysis.metrics.steps import detection, parts, temporal
from analysis.readers.kineto import reader as kineto
from analysis.readers.nsys import reader as nsys
from analysis.tables import column
from analysis.tables.events import Trace
from analysis.tables.traces import OF_RANK, TRACE_TABLES

Frames = dict[str, pl.DataFrame]
_RANK = re.compile(r"(?:(?<![a-z])rank[-_]?|[-_]r)(\d+)(?:_pqtdir|_parquetdir)?$", re.IGNORECASE)
"""At the end of a file's name, before its suffixes: trace-r3, trace_rank3."""
_NONE = -1


def read(path: Path) -> Trace:
    """The trace at a path, by its kind. ValueError, in one line, where it is none."""
    is_json = path.name.endswith((".json", ".json.gz"))
    return kineto.read(path) if is_json else nsys.read(path)


def analysed(path: Path, report: str, alone: bool = True) -> Iterator[Frames]:
    """All tables of a trace, under this name, rank by rank; with the last rank's comes `reports`. Ranks that it does
    not tell are counted by process id: from 0, or, where it is not `alone`, as -1, -2 and so on, for other traces may
    tell theirs."""
    trace = read(path)
    processes = of_processes(trace.events)
    told = rank_told(trace, report) if len(processes) == 1 else None
    ranks = [told if told is not None else place if alone else -1 - place for place in range(len(processes))]
    split = deque(apart(trace, processes))
    # Half the cores, for each rank's work is itself spread over threads: no rank is held before its turn is near.
    workers = max(1, (os.cpu_count() or 1) // 2)
    with ThreadPoolExecutor(workers) as pool:
        running: deque[Future[Frames]] = deque()
        for rank in ranks:
            running.append(pool.submit(of_rank, split.popleft(), trace.devices, rank, report))
            if len(running) > workers:
                yield running.popleft().result()
        while len(running) > 1:
            yield running.popleft().result()
        yield running.popleft().result() | {"reports": about(trace, report, ranks)}


def of_processes(events: Mapping[str, pl.DataFrame]) -> list[int]:
    """Processes that used a GPU, else those that did anything; -1 where none is told."""
    for kinds in (ON_DEVICE, ("runtime", "nvtx", "operators")):
        found = pl.concat([events[kind]["process"] for kind in kinds]).drop_nulls().unique().sort().to_list()
        if found:
            return found
    return [_NONE]


def rank_told(trace: Trace, report: str) -> int | None:
    """The rank that the trace, else its name, says."""
    for frame in trace.events.values():
        if frame.height and frame["rank"][0] is not None:
            return int(frame["rank"][0])
    found = _RANK.search(report.partition(".")[0])
    return int(found[1]) if found else None


def apart(trace: Trace, processes: list[int]) -> list[Frames]:
    """The events of each process, without a rank. They are taken out of the trace, so that large tables are not held
    twice."""
    out: list[Frames] = [{} for _ in processes]
    for kind in list(trace.events):
        frame = trace.events.pop(kind).drop("rank")
        split = len(processes) > 1 and "process" in frame.columns
        for own, process in zip(out, processes, strict=True):
            own[kind] = (frame.filter(pl.col("process") == process) if split else frame).rechunk()
    return out


def of_rank(own: Frames, devices: pl.DataFrame, rank: int, report: str) -> Frames:
    """All tables but `reports` of one process."""
    number = pl.lit(rank, dtype=pl.Int64).alias("rank")
    # Few names, looked at often.
    own = own | {k: own[k].with_columns(pl.col("name").cast(pl.Categorical())) for k in ("kernels", "runtime")}
    with ThreadPoolExecutor(1) as beside:  # neither needs the other, and each keeps little more than one core busy
        shaped = beside.submit(estimates, own["kernels"], devices)
        plain = beside.submit(unattributed, own, devices)
        found = attribute(own)
        events, ranges = found.events, found.ranges
        events["kernels"] = events["kernels"].hstack(shaped.result())
        totals = plain.result()
    launched = pl.concat(
        [events[kind].select("launch_ns", "launch_end_ns", "start_ns", "end_ns", "device") for kind in ON_DEVICE]
    )
    host, source = detection.found(events["nvtx"], events["kernels"])
    marked = {
        kind: events[kind].with_columns(detection.of_times(host, events[kind][_time(kind)]))
        for kind in (*ON_DEVICE, "runtime", "nvtx")
    }
    events |= marked
    ranges = ranges.with_columns(number, detection.of_times(host, ranges["start_ns"]))
    with ThreadPoolExecutor(1) as beside:  # as above
        parted = beside.submit(divided, events, host, launched, source)
        out = summed(own, events, ranges, totals, host, report)
        out |= parted.result()
    out |= {**events, "nvtx_gpu": ranges, "devices": devices}
    return {name: _conformed(frame.with_columns(number), name) for name, frame in out.items()}


def unattributed(own: Frames, devices: pl.DataFrame) -> Frames:
    """What the events of one process tell by themselves."""
    one = pl.lit(0, dtype=pl.Int64).alias("rank")  # all are of one rank, whatever its number
    return {
        "bandwidth": efficiency.bandwidth(own["copies"].with_columns(one), devices.with_columns(one)),
        "temporal": temporal.table(own),
        **sums.of_events(own),
    }


def summed(
    own: Frames, events: Frames, ranges: pl.DataFrame, totals: Frames, host: pl.DataFrame, report: str
) -> Frames:
    """The sums of one process, `totals` and those that need more, and its collectives. `own`: the events as they were
    read."""
    exchanged = own["kernels"].filter(events["kernels"]["category"].cast(pl.String) == "communication")
    calls = collectives.of_rank({**own, "kernels": exchanged.with_columns(pl.col("name").cast(pl.String))})
    made = totals | {"nvtx_gpu_sum": sums.of_ranges(ranges), "paper_calls": sums.paper(totals)}
    named = {name: frame for name, frame in made.items() if "report" in TRACE_TABLES[name]}
    return {
        **made,
        **{name: frame.with_columns(pl.lit(report).alias("report")) for name, frame in named.items()},
        "collectives": calls.with_columns(detection.of_times(host, calls["launch_ns"])),
    }


def estimates(kernels: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Class of each kernel, and how well it fills the device."""
    one = pl.lit(0, dtype=pl.Int64).alias("rank")  # all are of one rank, whatever its number
    classes = kernel_class.classified(kernels.select("name")).drop("name")
    texts = classes.with_columns(pl.col(pl.String).cast(pl.Categorical()))
    shapes = kernels.select(one, "device", "blocks", "threads", "registers", "shared_bytes")
    return texts.hstack(occupancy.occupancy(shapes, devices.with_columns(one)).select(occupancy.COLUMNS))


def _time(kind: str) -> str:
    return "launch_ns" if kind in ON_DEVICE else "start_ns"


def divided(events: Frames, host: pl.DataFrame, launched: pl.DataFrame, source: str) -> Frames:
    """windows, parts and step_parts of all devices. A trace without steps is one step 0."""
    out: dict[str, list[pl.DataFrame]] = {"windows": [], "parts": [], "step_parts": []}
    for device in launched["device"].unique().sort().to_list() or [None]:
        own = launched if device is None else launched.filter(pl.col("device") == device)
        found = detection.windows(host, own) if source != "none" else whole(own)
        hosts = host if source != "none" else found.select("step", "start_ns", "end_ns")
        counted = found.filter("counted")
        sets, hidden = parts.divided(events, hosts, counted, device)
        ranges = hosts.select("step", host_start_ns="start_ns", host_end_ns="end_ns")
        made = {
            "windows": found.join(ranges, on="step", maintain_order="left").with_columns(source=pl.lit(source)),
            "parts": parts.table(sets, hidden),
            "step_parts": parts.lengths(sets, hidden, counted),
        }
        mark = pl.lit(device, dtype=pl.Int32).alias("device")
        for name, frame in made.items():
            out[name].append(frame.with_columns(mark))
    return {name: pl.concat(frames) for name, frames in out.items()}


def whole(launched: pl.DataFrame) -> pl.DataFrame:
    """The time from the first to the last activity as one step."""
    bounds = launched.select(
        step=pl.lit(0, dtype=pl.Int32),
        start_ns=pl.col("start_ns").min(),
        end_ns=pl.col("end_ns").max(),
        counted=pl.lit(True),
    )
    return bounds.drop_nulls()


def about(trace: Trace, report: str, ranks: list[int]) -> pl.DataFrame:
    """What the file is, and what of it could not be read."""
    told = {
        "report": report,
        "format": trace.about.get("format"),
        "schema": trace.about.get("schema"),
        "tool": trace.about.get("nsys"),
        "partial": bool(trace.problems),
        "problems": list(trace.problems),
        "absent": sorted(trace.absent),
    }
    kinds = {name: column.dtype for name, column in TRACE_TABLES["reports"].items()}
    rows = pl.DataFrame([{"rank": rank, **told} for rank in ranks], schema=kinds)
    return _conformed(rows, "reports")


def _conformed(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """The table's columns in their order. Text may still be categorical: as such it is written faster."""
    texts = {n: frame[n].dtype for n in frame.columns if frame[n].dtype == pl.Categorical()}
    wanted = OF_RANK if name == "collectives" else TRACE_TABLES[name]
    columns = {n: c if n not in texts else type(c)(texts[n], c.text) for n, c in wanted.items()}
    return column.conform(frame, columns).collect()
