"""From one trace file to its tables: ranks separated, events attributed, steps found, parts and sums computed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import polars as pl

from nightsweep.analysis.ingest.soundness import keep_sound
from nightsweep.analysis.metrics.kernels import kernel_class, occupancy
from nightsweep.analysis.metrics.launches import sums
from nightsweep.analysis.metrics.launches.attribution import ON_DEVICE, attribute
from nightsweep.analysis.metrics.points import efficiency
from nightsweep.analysis.metrics.ranks import collectives
from nightsweep.analysis.metrics.steps import detection, parts, selection, temporal
from nightsweep.analysis.readers.kineto import reader as kineto
from nightsweep.analysis.readers.nsys import reader as nsys
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import Trace
from nightsweep.analysis.tables.traces import RANK_COLLECTIVES, TRACE_TABLES
from nightsweep.jobs.host.cores import allowed_cores

Frames = dict[str, pl.DataFrame]
_RANK = re.compile(r"(?:(?<![a-z])rank[-_]?|[-_]r)(\d+)(?:_pqtdir|_parquetdir)?$", re.IGNORECASE)
"""At the end of a file's name, before its suffixes: trace-r3, trace_rank3."""
_NO_PROCESS = -1
"""Stands for the process of a trace in which no event has one."""


def read_trace(path: Path) -> Trace:
    """Read a trace: Kineto's JSON by its name, else an Nsight Systems export.

    Raises:
        ValueError: in one line, where the path holds no trace.
        OSError: where it must not be read.
    """
    if path.is_file():
        path.open("rb").close()  # a reader would take it for empty, and SQLite say that memory is short
    is_json = path.name.endswith((".json", ".json.gz"))
    return kineto.read(path) if is_json else nsys.read(path)


def analyse(path: Path, report: str, alone: bool = True) -> Iterator[Frames]:
    """Make all tables of a trace, rank by rank.

    Args:
        path: the trace.
        report: the name that its rows have in the column `report`; it may hold the rank (trace-r3).
        alone: whether it is the only trace. Processes without a known rank are numbered by process id: from 0 where
            it is, else -1, -2 and so on, since other traces may hold ranks 0, 1 and so on.

    Yields:
        The tables of one rank by name, as in `TRACE_TABLES`; with the last rank's comes `reports`.
    """
    trace = keep_sound(read_trace(path))
    processes = processes_of(trace.events)
    known = rank_of(trace, report) if len(processes) == 1 else None
    ranks = [known if known is not None else place if alone else -1 - place for place in range(len(processes))]
    split = deque(split_by_process(trace, processes))
    # Half the cores, for each rank's work is itself spread over threads: no rank is held before its turn is near.
    workers = max(1, allowed_cores() // 2)
    with ThreadPoolExecutor(workers) as pool:
        running: deque[Future[Frames]] = deque()
        for rank in ranks:
            running.append(pool.submit(process_tables, split.popleft(), trace.devices, rank, report, cut=trace.cut))
            if len(running) > workers:
                yield running.popleft().result()
        while len(running) > 1:
            yield running.popleft().result()
        yield running.popleft().result() | {"reports": report_table(trace, report, ranks)}


def processes_of(events: Mapping[str, pl.DataFrame]) -> list[int]:
    """Ids of the processes that used a GPU, else of those that did anything, sorted; [-1] where no event has one."""
    for kinds in (ON_DEVICE, ("runtime", "nvtx", "operators")):
        found = pl.concat([events[kind]["process"] for kind in kinds]).drop_nulls().unique().sort().to_list()
        if found:
            return found
    return [_NO_PROCESS]


def rank_of(trace: Trace, report: str) -> int | None:
    """The rank that the trace records, else the one in the report's name; None where neither has one."""
    for frame in trace.events.values():
        if frame.height and frame["rank"][0] is not None:
            return int(frame["rank"][0])
    found = _RANK.search(report.partition(".")[0])
    return int(found[1]) if found else None


def split_by_process(trace: Trace, processes: list[int]) -> list[Frames]:
    """The event tables of each process, in their order, without the column `rank`.

    They are taken out of the trace, so that large tables are not held twice.
    """
    out: list[Frames] = [{} for _ in processes]
    for kind in list(trace.events):
        frame = trace.events.pop(kind).drop("rank")
        split = len(processes) > 1 and "process" in frame.columns
        for events, process in zip(out, processes, strict=True):
            events[kind] = (frame.filter(pl.col("process") == process) if split else frame).rechunk()
    return out


def process_tables(own: Frames, devices: pl.DataFrame, rank: int, report: str, *, cut: bool = False) -> Frames:
    """All tables of one process but `reports`. `own`: its events; `devices`: those of the trace; `cut`: no step of it
    is known to be whole."""
    number = pl.lit(rank, dtype=pl.Int64).alias("rank")
    # Few names, compared often.
    own = own | {k: own[k].with_columns(pl.col("name").cast(pl.Categorical())) for k in ("kernels", "runtime")}
    with ThreadPoolExecutor(1) as beside:  # neither needs the other, and each keeps little more than one core busy
        shaped = beside.submit(kernel_estimates, own["kernels"], devices)
        plain = beside.submit(unattributed_tables, own, devices)
        attributed = attribute(own)
        events, ranges = attributed.events, attributed.ranges
        events["kernels"] = events["kernels"].hstack(shaped.result())
        totals = plain.result()
    launched = pl.concat(
        [events[kind].select("launch_ns", "launch_end_ns", "start_ns", "end_ns", "device") for kind in ON_DEVICE]
    )
    host, source = detection.find_steps(events["nvtx"], events["kernels"])
    begun = dict.fromkeys(ON_DEVICE, "launch_ns") | {"runtime": "start_ns", "nvtx": "start_ns"}
    events |= {k: events[k].with_columns(detection.steps_at(host, events[k][name])) for k, name in begun.items()}
    ranges = ranges.with_columns(number, detection.steps_at(host, ranges["start_ns"]))
    with ThreadPoolExecutor(1) as beside:  # as above
        parted = beside.submit(part_tables, events, host, launched, source, cut=cut)
        out = sums_and_collectives(own, events, ranges, totals, host, report)
        out |= parted.result()
    out |= {**events, "nvtx_gpu": ranges, "devices": devices}
    return {name: _conform(frame.with_columns(number), name) for name, frame in out.items()}


def unattributed_tables(own: Frames, devices: pl.DataFrame) -> Frames:
    """The tables of one process that need neither launches nor steps."""
    one = pl.lit(0, dtype=pl.Int64).alias("rank")  # all are of one rank, whatever its number
    return {
        "bandwidth": efficiency.bandwidth(own["copies"].with_columns(one), devices.with_columns(one)),
        "temporal": temporal.table(own),
        **sums.event_sums(own),
    }


def sums_and_collectives(
    own: Frames, events: Frames, ranges: pl.DataFrame, totals: Frames, host: pl.DataFrame, report: str
) -> Frames:
    """The sums and the collectives of one process.

    Args:
        own: its events as they were read.
        events: the same, attributed.
        ranges: its table nvtx_gpu.
        totals: the sums of `unattributed_tables`.
        host: its steps on the host.
        report: the name of the trace.
    """
    exchanged = own["kernels"].filter(events["kernels"]["category"].cast(pl.String) == "communication")
    calls = collectives.rank_collectives({**own, "kernels": exchanged.with_columns(pl.col("name").cast(pl.String))})
    made = totals | {"nvtx_gpu_sum": sums.range_sums(ranges), "paper_calls": sums.paper_calls(totals)}
    named = {name: frame for name, frame in made.items() if "report" in TRACE_TABLES[name]}
    return {
        **made,
        **{name: frame.with_columns(pl.lit(report).alias("report")) for name, frame in named.items()},
        "collectives": calls.with_columns(detection.steps_at(host, calls["launch_ns"])),
    }


def kernel_estimates(kernels: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """The class of each kernel by its name, and estimates of how well it fills the device."""
    one = pl.lit(0, dtype=pl.Int64).alias("rank")  # all are of one rank, whatever its number
    classes = kernel_class.add_classes(kernels.select("name")).drop("name")
    texts = classes.with_columns(pl.col(pl.String).cast(pl.Categorical()))
    shapes = kernels.select(one, "device", "blocks", "threads", "registers", "shared_bytes")
    return texts.hstack(occupancy.occupancy(shapes, devices.with_columns(one)).select(occupancy.COLUMNS))


def part_tables(events: Frames, host: pl.DataFrame, launched: pl.DataFrame, source: str, *, cut: bool) -> Frames:
    """The tables windows, parts and step_parts of all devices; a trace without steps is one step 0.

    Args:
        events: of one process, attributed.
        host: its steps on the host.
        launched: times of all activities on its devices.
        source: where the steps come from: nvtx, launches or none.
        cut: none of them counts.
    """
    out: dict[str, list[pl.DataFrame]] = {"windows": [], "parts": [], "step_parts": []}
    calls = selection.filter_by_name(events["runtime"].select("name", "start_ns"), parts.LAUNCH)["start_ns"]
    for device in launched["device"].unique().sort().to_list() or [None]:
        own = launched if device is None else launched.filter(pl.col("device") == device)
        found = detection.windows(host, own, calls) if source != "none" else whole_trace_window(own)
        hosts = host if source != "none" else found.select("step", "start_ns", "end_ns")
        found = found.with_columns(counted=pl.col("counted") & (not cut))
        counted = found.filter("counted")
        sets, hidden = parts.part_sets(events, hosts, counted, device)
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


def whole_trace_window(launched: pl.DataFrame) -> pl.DataFrame:
    """The window of one step 0 that reaches from the first activity to the end of the last; empty without any."""
    bounds = launched.select(
        step=pl.lit(0, dtype=pl.Int32),
        start_ns=pl.col("start_ns").min(),
        end_ns=pl.col("end_ns").max(),
        counted=pl.lit(True),
    )
    return bounds.drop_nulls()


def report_table(trace: Trace, report: str, ranks: list[int]) -> pl.DataFrame:
    """The table `reports`: the file's format, and what of it could not be read, a row a rank."""
    facts = {
        "report": report,
        "format": trace.facts.get("format"),
        "schema": trace.facts.get("schema"),
        "tool": trace.facts.get("nsys"),
        "partial": bool(trace.problems),
        "problems": list(trace.problems),
        "absent": sorted(trace.absent),
    }
    rows = pl.DataFrame([{"rank": rank, **facts} for rank in ranks], schema=column.schema(TRACE_TABLES["reports"]))
    return _conform(rows, "reports")


def _conform(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """The table's columns in their order. Text may stay categorical: as such it is written faster."""
    texts = {n: frame[n].dtype for n in frame.columns if frame[n].dtype == pl.Categorical()}
    wanted = RANK_COLLECTIVES if name == "collectives" else TRACE_TABLES[name]
    columns = {n: c if n not in texts else type(c)(texts[n], c.text) for n, c in wanted.items()}
    return column.conform(frame, columns).collect()
