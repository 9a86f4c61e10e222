"""From what the command line names to what is known: traces, a folder of tables that `nightsweep ingest` wrote, or a
point's folder."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.diagnosis.evidence import lane, samples
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.diagnosis.evidence.rank_choice import choose_ranks
from nightsweep.analysis.ingest import point_tables, trace_tables
from nightsweep.analysis.metrics.ranks import clock
from nightsweep.analysis.metrics.steps import detection
from nightsweep.analysis.tables import trace_files
from nightsweep.analysis.tables.part_names import HIDDEN
from nightsweep.jobs.point.point import FIELDS, Point, complete
from nightsweep.jobs.point.workloads import WORKLOADS
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.point_folder import record_of, results_of
from nightsweep.jobs.record.raw_files import unpacked

KINDS = ("kernels", "graphs", "copies", "memsets", "runtime", "operators", "nvtx", "collectives")
ON_DEVICE = ("start_ns", "end_ns", "device", "stream", "thread", "launch_ns")
COLUMNS = {
    "kernels": (
        *ON_DEVICE, "name", "nvtx_path", "category", "precision", "tensor_cores", "est_sm_efficiency", "blocks",
    ),
    "graphs": ON_DEVICE,
    "copies": (*ON_DEVICE, "bytes", "direction", "source", "target"),
    "memsets": ON_DEVICE,
    "runtime": ("start_ns", "end_ns", "name", "thread"),
    "operators": ("name", "start_ns", "thread"),
    "nvtx": ("start_ns", "end_ns", "name", "thread"),
}  # fmt: skip
"""What rules read of the tables."""
PUBLISHED = {"record.json", "point.json"}
"""All that a published data set has of a point beside its tables; only older ones have point.json, too."""


def gather(paths: Sequence[Path], log_of_gpus: Path | None = None) -> Evidence:
    """All that is known of a run. `paths`: traces of its ranks, or one folder: a point's, or one of tables.
    `log_of_gpus`: the samplers' log beside bare traces. Raises InputError."""
    if log_of_gpus is not None and not log_of_gpus.is_file():
        why = "is no file" if log_of_gpus.exists() else "is not there"
        raise InputError(f"{log_of_gpus}: {why}; a log of the GPUs' counters was expected (--nvml)")
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: is not there; a trace, a folder of tables, or a point's folder was expected")
        if any((path / name).is_file() for name in ("tables/points.parquet", "sweep.json")):
            own = f"{path}: has many runs; one of its points was expected ({path}/points/ID)"
            tables = "; tables/diagnoses.parquet has what is said of them"
            raise InputError(own + (tables if (path / "tables/diagnoses.parquet").is_file() else ""))
        if points := sorted((path / "points").glob("*/record.json")):
            raise InputError(
                f"{path}: no results of a sweep that Snakemake has run (no sweep.json): name one of its points, such "
                f"as {points[0].parent}, or run the sweep with snakemake first"
            )
    folders = [path for path in paths if path.is_dir() and (is_point(path) or is_tables(path))]
    if folders and len(paths) > 1:
        raise InputError(f"{folders[0]}: is a whole run; one run at a time was expected, or traces of its ranks")
    if not folders:
        return with_log(from_traces(paths), log_of_gpus)
    if is_tables(paths[0]):
        trace_files.require(paths[0], trace_tables.FOR_DIAGNOSIS)
        return with_log(from_tables(paths[0]), log_of_gpus)
    return with_log(from_folder(paths[0]), log_of_gpus)


def is_tables(path: Path) -> bool:
    return (path / "windows.parquet").is_file() and (path / "reports.parquet").is_file()


def is_point(path: Path) -> bool:
    return any((path / name).exists() for name in ("record.json", "point.json"))


def from_traces(traces: Sequence[Path]) -> Evidence:
    """Traces alone. Raises InputError where none can be read."""
    with tempfile.TemporaryDirectory() as scratch:
        good, problems = trace_tables.write_all(traces, Path(scratch), names=trace_tables.FOR_DIAGNOSIS)
        if not good:
            raise InputError("; ".join(problems))
        found = from_tables(Path(scratch))
    partial = {"trace, in part": "; ".join(problems)} if problems else {}
    return dataclasses.replace(found, absent={**found.absent, **partial})


def from_tables(folder: Path) -> Evidence:
    """A folder of trace tables. Of many ranks a choice is looked at."""
    windows, step_parts, devices, waits = (
        pl.read_parquet(folder / f"{n}.parquet") for n in ("windows", "step_parts", "devices", "waited_for")
    )
    traced = windows.filter("counted")["rank"].unique().sort().to_list()
    chosen = choose_ranks(traced, waits, step_parts)
    spans = pl.scan_parquet(folder / "parts.parquet").filter(pl.col("rank").is_in(chosen)).collect()
    lanes = []
    for rank in chosen:
        events = {kind: _events(folder, kind, rank) for kind in KINDS}
        own = windows.filter(pl.col("rank") == rank)
        for (device,), steps in sorted(own.partition_by("device", as_dict=True).items(), key=str):
            here = spans.filter(pl.col("rank") == rank, pl.col("device").eq_missing(device))
            made = lane.device_lane(events, steps, here, rank, device)
            lanes += [made] if made else []
    absent = trace_gaps(lanes, cut=bool(windows.height) and not traced) | {"counters": "no log of the GPUs' counters"}
    parts = step_parts.filter(pl.col("device").is_null(), pl.col("part") != HIDDEN)
    return Evidence(
        lanes=tuple(lanes), devices=devices, cpu_parts=parts.clear() if lanes else parts, traced=traced, absent=absent
    )


def _events(folder: Path, kind: str, rank: int) -> pl.DataFrame:
    frame = pl.scan_parquet(folder / f"{kind}.parquet").filter(pl.col("rank") == rank)
    own = frame.select(COLUMNS[kind]) if kind in COLUMNS else frame
    names = [name for name in ("name", "nvtx_path", "category", "precision") if name in COLUMNS.get(kind, ())]
    return own.with_columns(pl.col(names).cast(pl.Categorical())).collect()


def trace_gaps(lanes: Sequence[Lane], *, cut: bool) -> dict[str, str]:
    """What traces do not tell, with the reason. `cut`: they have steps, none of them whole."""
    if not lanes:
        return {"trace": "no step of it is known to be whole" if cut else "no activity of a GPU in it"}
    found = {}
    if all(one.source != "nvtx" for one in lanes):
        launches = lanes[0].source == "launches"
        how = "steps are found by the period of launches" if launches else "the whole trace is one step"
        found["trace of steps' ranges"] = how
    if any(not one.windows["counted"][:-1].any() and detection.last_is_open(one.windows) for one in lanes):
        found["trace of the next step"] = "of the only step that counts, what lies between it and the next is not seen"
    if any(len(one.sets["idle_unmarked_data"]) for one in lanes):
        found["trace of the loader's ranges"] = "what is idle before a batch's copy is taken for loading"
    if not any(one.launches_known for one in lanes):
        found["trace of launching calls"] = "idle time cannot be divided by its reason"
    return found | _unheard(lanes)


def _unheard(lanes: Sequence[Lane]) -> dict[str, str]:
    """What is not known of collectives."""
    calls = pl.concat([one.collectives for one in lanes])
    if calls.is_empty() or lane.is_one_process(lanes):
        return {}
    found = {}
    if not all(one.heard for one in lanes):
        most = max(one.lengths(one.sets["communication"]).sum() / one.periods.sum() for one in lanes)
        found["trace of the other ranks"] = f"up to {most:.0%} of the step may be waiting for them"
    if calls["bytes"].null_count() == calls.height:
        found["trace of message sizes"] = "the export has no payloads of NCCL's ranges (--include-blobs=true)"
    return found


def from_folder(folder: Path, *, with_traces: bool = True) -> Evidence:
    """A point's folder, as a launch leaves it, or as a published data set has it; traces and logs may also lie in the
    folder itself."""
    if (published := published_tables(folder)) is not None:
        return from_data_set(folder, published)
    with tempfile.TemporaryDirectory() as scratch, unpacked(folder) as raw:
        tables = Path(scratch)
        made = point_tables.ingest(raw, tables, drawn=False)
        point_tables.write({name: made[name] for name in point_tables.FOR_DIAGNOSIS}, tables)
        return from_point(raw, tables, with_traces=with_traces)


def published_tables(folder: Path) -> Path | None:
    """The tables of the data set that a point's folder is of; None where it is as a launch left it."""
    tables = folder.resolve().parent.parent / "tables"
    alone = {path.name for path in folder.iterdir()} <= PUBLISHED
    return tables if alone and (tables / "steps.parquet").is_file() else None


def from_data_set(folder: Path, tables: Path) -> Evidence:
    """A point of a data set, of which these are the tables: its timed steps and the samples of its GPUs."""
    record = record_of(folder)
    own = pl.col("point_id") == record.point_id
    steps = pl.scan_parquet(tables / "steps.parquet").filter(own, pl.col("phase") == "timed").collect()
    inside = pl.col("t_ns").is_between(steps["start_ns"].min(), steps["end_ns"].max())
    seen = pl.scan_parquet(tables / "gpu_samples.parquet").filter(own, pl.col("look") == "timed", inside).collect()
    gpus = seen.with_columns(top_clock_mhz=pl.col("sm_clock_mhz").max().over("uuid")).partition_by("uuid")
    samples = dict(enumerate(gpus)) if steps.height else {}
    absent = {"trace": "a data set keeps none", **counter_gaps(samples, record.nvml.reason)}
    return Evidence(
        point=point_of(record.settings), record=record, steps=steps, samples=samples, absent=absent,
        disturbed=disturbance(tables, own),
    )  # fmt: skip


def disturbance(tables: Path, point: pl.Expr) -> str | None:
    """What disturbed a point, of a folder of tables; None also where they do not tell, as older ones do not."""
    found = pl.scan_parquet(tables / "points.parquet").filter(point)
    if "disturbed_reason" not in found.collect_schema().names():
        return None
    reasons = found.select("disturbed_reason").drop_nulls().collect()["disturbed_reason"]
    return str(reasons[0]) if len(reasons) else None


def from_point(folder: Path, tables: Path, *, with_traces: bool = True) -> Evidence:
    """A point's folder, and the folder of its tables."""
    record = record_of(folder)
    point = point_of(record.settings)
    traces = tables / point_tables.TRACES
    has_traces = with_traces and (traces / "windows.parquet").is_file()
    unread = traces / f"{point_tables.UNREAD}.parquet"
    problems = "; ".join(pl.read_parquet(unread)["problem"]) if unread.is_file() else ""
    found = from_tables(traces) if has_traces else Evidence(absent={})
    steps, gpus, hosts, clocks = (
        pl.read_parquet(tables / f"{name}.parquet") for name in ("steps", "gpu_samples", "host_samples", "clocks")
    )
    loop = traces / f"{point_tables.LOOP_STEPS}.parquet"
    traced = pl.read_parquet(loop) if loop.is_file() else steps.clear()
    traced = traced.filter(pl.col("phase") == "traced")
    ranks = results_of(folder) or results_of(folder, "traced")
    absent = dict(found.absent)
    if not has_traces:
        why = None if record.tracer.used else record.tracer.reason
        absent["trace"] = problems or why or "none of a rank in the folder"
    elif point and len(found.traced) < point.processes:
        absent["trace of all ranks"] = f"{len(found.traced)} of {point.processes} ranks are traced"
    if has_traces and problems:
        absent["trace, in part"] = problems
    if record.device == "cpu" and found.traced_ranks:
        absent.pop("trace", None)
    offsets = clock.host_offsets(
        clocks.filter(pl.col("between") == "ranks").to_dicts(), {rank.rank: rank.host for rank in ranks}
    )
    held = samples.select_spans(gpus, samples.timed_spans(ranks, offsets)) or samples.select_spans(gpus, spans(found))
    timed = steps.filter(pl.col("phase") == "timed")
    seen, look = (timed, "timed") if timed.height else (traced, "traced")
    window = pl.col("t_ns").is_between(seen["start_ns"].min(), seen["end_ns"].max())
    return dataclasses.replace(
        found, point=point, record=record, results=ranks, steps=timed, traced_steps=traced,
        hosts=hosts.filter((pl.col("look") == look) & window), samples=held,
        disturbed=disturbance(tables, pl.lit(True)),
        absent={k: v for k, v in absent.items() if not k.startswith("counters")}
        | ({} if record.device == "cpu" else counter_gaps(held, record.nvml.reason)),
    )  # fmt: skip


def counter_gaps(held: Mapping[int, pl.DataFrame], reason: str | None) -> dict[str, str]:
    """What the counters do not tell. `reason`: why the GPUs could not be sampled."""
    if not held:
        return {"counters": str(reason or "no samples of the GPUs while steps ran")}
    silent = [rank for rank, own in held.items() if own["sm_active_percent"].null_count() == own.height]
    return {"counters of GPM": f"none of rank {', '.join(map(str, silent))}"} if silent else {}


def point_of(settings: Mapping[str, Any]) -> Point | None:
    """The point of a record's settings; those that are not known here are left out. None where the workload is not
    known, or where a value that must be a number is not one."""
    if settings.get("workload") == "command":
        return complete(dict(settings)) if "command" in settings else None
    known = {name: value for name, value in settings.items() if name in FIELDS}
    if settings.get("workload") not in WORKLOADS or "model" not in known:
        return None
    try:
        return complete(known)
    except (TypeError, ValueError):
        return None


def spans(e: Evidence) -> list[samples.Span]:
    """When each rank's traced steps ran."""
    out = []
    for one in e.lanes:
        begin, end = int(one.steps["start_ns"].min()), int(one.steps["end_ns"].max())  # type: ignore[arg-type]
        out.append(samples.Span(one.rank, e.of_device(one, "uuid"), begin, end))
    return out


def with_log(e: Evidence, path: Path | None) -> Evidence:
    """The evidence with the counters of a log beside bare traces. Raises InputError where it is none."""
    if path is None:
        return e
    try:
        log = point_tables.gpu_log_samples(path)
    except (ValueError, OSError) as error:
        raise InputError(" ".join(str(error).split())) from error
    held = samples.select_spans(log, spans(e))
    gaps = counter_gaps(held, f"{path}: no samples of these GPUs while the traces ran")
    rest = {k: v for k, v in e.absent.items() if not k.startswith("counters")}
    return dataclasses.replace(e, samples=held, absent=rest | gaps)
