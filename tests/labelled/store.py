"""Makes what tests/labelled/run.py left small enough to be kept, with nothing in it that tells where it ran.

    python -m tests.labelled.store OUT tests/data/labelled

Of each run that went well: label.json and record.json; of its looks the steps, results and samples, and the
exports, traced/trace-rR.sqlite.xz, with the tables that analysis/readers/nsys/reader.py reads. Each export is read
before and after: where any table of the engine differs, nothing of the run is kept and the exit status is 1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import shutil
import sys
import tempfile
from pathlib import Path

import polars as pl
import pyarrow as pa

from nightsweep.analysis.ingest import engine
from nightsweep.analysis.tools.publish.allowed import RECORD, Kind
from nightsweep.analysis.tools.publish.anonymizer import Anonymizer
from nightsweep.analysis.tools.publish.identity import Identity
from nightsweep.analysis.tools.publish.trace_copies import copy_nsys
from nightsweep.jobs.telemetry.gpu import log

KINDS = RECORD | {
    "phase": Kind.FACT, "host": Kind.HOST, "uuid": Kind.GPU, "kind": Kind.FACT, "device_name": Kind.FACT,
    "gpus.uuid": Kind.GPU, "weights_layout": Kind.FACT,
}  # fmt: skip
"""Keys of text in records, and in the lines and the results that ranks and samplers write."""
BEFORE_NS, AFTER_NS = 10**9, 10**8
"""Samples are kept from so long before a window to so long after it; then the next run may be on the GPU."""
REMEDIED = ".remedied"


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String))


def differing(source: Path, kept: Path, anonymizer: Anonymizer) -> list[str]:
    """Tables of the engine that are not the same of both exports, but for pseudonyms."""
    name = source.name
    both = zip(engine.analyse(source, name), engine.analyse(kept, name), strict=True)
    found = set()
    for whole, small in both:
        for table in whole.keys() | small.keys():
            before = plain(whole[table])
            if "uuid" in before.columns:
                before = before.with_columns(anonymizer.column(before["uuid"], Kind.GPU))
            if not before.equals(plain(small[table])):
                found.add(table)
    return sorted(found)


def write_gz(content: bytes, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_name(f"{target.name}.gz").write_bytes(gzip.compress(content, 9, mtime=0))


def write_xz(content: bytes, target: Path) -> None:
    """For exports: two thirds of what gzip makes of them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_name(f"{target.name}.xz").write_bytes(lzma.compress(content, preset=9))


def samples(source: Path, target: Path, window: tuple[int, int], anonymizer: Anonymizer) -> None:
    """The NVML log around the window."""
    read = list(log.batches(source))
    if not read:
        return
    table = pa.Table.from_batches(read)
    times = table["t_ns"].to_numpy()
    table = table.filter(pa.array((times >= window[0] - BEFORE_NS) & (times <= window[1] + AFTER_NS)))
    uuids = [anonymizer.text(Kind.GPU, uuid) for uuid in table["uuid"].to_pylist()]
    table = table.set_column(table.schema.get_field_index("uuid"), "uuid", pa.array(uuids, pa.string()))
    header = json.dumps(anonymizer.tree(log.header_of(source), KINDS)).encode()
    table = table.replace_schema_metadata({log.KEY: header})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    write_gz(sink.getvalue().to_pybytes(), target)


def window_of(look: Path) -> tuple[int, int]:
    """From the start of the first step that is no warm-up to the end of the last one, UTC ns."""
    lines = [line for path in look.glob("steps-r*.jsonl") for line in path.read_text().splitlines()]
    rows = [row for row in map(json.loads, lines) if row["phase"] != "warmup"]
    return min(row["start_ns"] for row in rows), max(row["end_ns"] for row in rows)


def anonymous_lines(source: Path, anonymizer: Anonymizer) -> bytes:
    rows = [anonymizer.tree(json.loads(line), KINDS) for line in source.read_text().splitlines()]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def anonymous_name(name: str, anonymizer: Anonymizer) -> str:
    """A sampler's file is named after its host."""
    kind, _, rest = name.partition("-")
    host, dot, suffix = rest.rpartition(".")
    return f"{kind}-{anonymizer.text(Kind.HOST, host)}{dot}{suffix}" if kind in ("nvml", "host", "events") else name


def look(source: Path, target: Path, anonymizer: Anonymizer) -> None:
    """A look, but for its exports."""
    window = window_of(source)
    for path in sorted(source.iterdir()):
        goal = target / anonymous_name(path.name, anonymizer)
        if path.match("nvml-*.arrow"):
            samples(path, goal, window, anonymizer)
        elif path.match("steps-r*.jsonl") or path.match("host-*.jsonl") or path.match("events-*.jsonl"):
            write_gz(anonymous_lines(path, anonymizer), goal)
        elif path.match("rank*.result.json"):
            goal.parent.mkdir(parents=True, exist_ok=True)
            goal.write_text(json.dumps(anonymizer.tree(json.loads(path.read_text()), KINDS), indent=1) + "\n")


def point(source: Path, target: Path, anonymizer: Anonymizer) -> list[str]:
    """One point's folder; the tables in which an export changed."""
    target.mkdir(parents=True)
    shutil.copy(source / "label.json", target)
    record = json.loads((source / "record.json").read_text())
    (target / "record.json").write_text(json.dumps(anonymizer.tree(record, KINDS), indent=1) + "\n")
    looks = record["looks"]
    for kind in ("timed", "traced"):
        if looks[kind]["status"] == "ok":
            look(source / kind, target / kind, anonymizer)
    wrong = []
    for path in sorted(source.glob("traced/trace-r*.sqlite")):
        with tempfile.TemporaryDirectory() as scratch:
            kept = Path(scratch, path.name)
            copy_nsys(path, kept, anonymizer)
            wrong += [f"{path.name} {table}" for table in differing(path, kept, anonymizer)]
            write_xz(kept.read_bytes(), target / "traced" / path.name)
    return wrong


def store(out: Path, target: Path) -> int:
    """All points that went well; 1 where one could not be kept."""
    identity = Identity.of_sweep(out)
    anonymizer = Anonymizer(identity.hosts, identity.uuids)
    bad = total = 0
    for source in sorted((out / "points").iterdir()):
        name, _, fixed = source.name.partition(REMEDIED[0])
        record = source / "record.json"
        if not record.exists() or json.loads(record.read_text())["status"] != "ok":
            print(f"{source.name}: left out: it did not go well")
            continue
        goal = target / name / fixed if fixed else target / name
        shutil.rmtree(goal, ignore_errors=True)
        wrong = point(source, goal, anonymizer)
        if wrong:
            shutil.rmtree(goal)
            print(f"{source.name}: not kept: the export reads differently in {', '.join(wrong)}", file=sys.stderr)
        size = sum(path.stat().st_size for path in goal.rglob("*") if path.is_file())
        bad, total = bad + bool(wrong), total + size
        print(f"{source.name}: {size / 1e3:.0f} kB")
    print(f"{target}: {total / 1e6:.2f} MB")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.labelled.store", description="Keep the runs of OUT, small.")
    parser.add_argument("out", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    return store(args.out, args.target)


if __name__ == "__main__":
    sys.exit(main())
