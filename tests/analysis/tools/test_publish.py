"""What is published: nothing says who measured it and where, and traces and figures are as good as before."""

import gzip
import json
import re
import sqlite3
import zlib
from typing import Literal, get_args, get_origin

import polars as pl
import pytest
from msgspec.inspect import is_struct_type
from msgspec.structs import fields

from nightsweep.analysis.readers.kineto import reader as kineto
from nightsweep.analysis.readers.nsys import reader as nsys
from nightsweep.analysis.tables import points as tables
from nightsweep.analysis.tools.cli import main
from nightsweep.analysis.tools.draw import main as draw
from nightsweep.analysis.tools.publish import allowed
from nightsweep.jobs.record.record import Record
from tests.analysis.tools.secret_results import POINT, SECRETS, make_results


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "fsdp2"
    make_results(folder)
    return folder


@pytest.fixture(scope="module")
def public(sweep, tmp_path_factory):
    out = tmp_path_factory.mktemp("public") / "web"
    assert main(["publish", str(sweep), "--out", str(out), "--traces"]) == 0
    return out


def plain(path):
    """A file's bytes, and what is packed in them."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        content += repr(pl.read_parquet(path).to_dict(as_series=False)).encode()
    if path.suffix == ".gz":
        content += gzip.decompress(content)
    if path.suffix == ".pdf":
        for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL):
            content += drawn(stream)
    return content


def drawn(stream):
    try:
        shown = zlib.decompress(stream)
    except zlib.error:
        return b""
    lines = re.findall(rb"[\[(][^\[]*?[\])]\s+T[jJ]", shown)
    texts = [b"".join(re.findall(rb"\((.*?)\)", line)) for line in lines]
    return shown + b"\n".join(texts).replace(b"\0", b"")


def test_no_file_holds_a_secret(sweep, public):
    files = [path for path in public.rglob("*") if path.is_file()]
    assert len(files) > 35
    for path in files:
        content = plain(path)
        for secret in (*SECRETS, str(sweep)):
            assert secret.encode() not in content, (path.name, secret)


def test_the_search_here_finds_what_is_there(sweep, tmp_path):
    draw(["failures", "--tables", str(sweep / "tables"), "--out", str(tmp_path)])
    assert b"gpu_out_of_memory" in plain(tmp_path / "supplement/failures.pdf")
    content = b"".join(plain(path) for path in sweep.rglob("*") if path.is_file())
    assert all(secret.encode() in content for secret in SECRETS)


def test_what_is_published_and_what_is_not(public):
    names = {str(path.relative_to(public)) for path in public.rglob("*") if path.is_file()}
    point = f"points/{POINT}"
    assert {f"{point}/record.json", "sweep.json", "report.html", "manifest.json"} <= names
    assert {f"{point}/traced/trace-r0.sqlite", f"{point}/traced/trace-r1.json.gz"} <= names
    # The others have nothing to show of these tables.
    drawn = ("setting_effects", "scaling", "traced_steps", "causes", "held_time", "timeline")
    assert {f"figures/{family}{end}" for family in drawn for end in (".png", ".pdf", "-column.pdf")} <= names
    assert not [name for name in names if name.endswith((".nsys-rep", ".log", ".jsonl")) or "/." in name]


def test_pseudonyms_are_the_same_everywhere(public):
    record = json.loads((public / f"points/{POINT}/record.json").read_text())
    assert [host["hostname"] for host in record["hosts"]] == ["node1", "node2"]
    assert record["failure"]["host"] == "node2"
    assert set(record["slurm"].values()) == {None} and record["command"] is None
    assert record["settings"]["data"] == "data1" and record["settings"]["model"] == "llama-160m"
    points = pl.read_parquet(public / "tables/points.parquet")
    assert points["hosts"].to_list()[0] == ["node1", "node2"]
    assert points["data"].unique().to_list() == [record["settings"]["data"]]
    uuids = pl.read_parquet(public / "tables/gpu_samples.parquet")["uuid"].to_list()
    assert uuids == [host["gpus"][0]["uuid"] for host in record["hosts"]] == ["GPU-1", "GPU-2"]
    with sqlite3.connect(public / f"points/{POINT}/traced/trace-r0.sqlite") as db:
        assert ("GPU-1",) in db.execute("SELECT uuid FROM TARGET_INFO_GPU").fetchall()
        assert (
            db.execute("SELECT text FROM NVTX_EVENTS WHERE eventType = 34").fetchone()[0]
            == "opened <...> on node1, key <...>"
        )
    sweep = json.loads((public / "sweep.json").read_text())
    assert sweep.keys() == {"name", "points"} and sweep["points"][0].keys() >= {"point_id", "settings"}


def test_tracebacks_stay_readable(public):
    row = pl.read_parquet(public / "tables/failures.parquet").row(0, named=True)
    assert '/jobs/rank/worker.py", line 7, in main' in row["traceback"]
    assert '"<...>/site-packages/torch/x.py", line 9, in send' in row["traceback"]
    assert row["traceback"].endswith("Error: node2 (<...>:29500) for <...>: <...>/lock")
    assert row["host"] == "node2" and row["message"] == "<...> on node1: <...>"


def test_events_of_traces_are_the_same(sweep, public):
    for read, name in ((nsys.read, "trace-r0.sqlite"), (kineto.read, "trace-r1.json.gz")):
        before, after = (read(folder / f"points/{POINT}/traced" / name).events for folder in (sweep, public))
        assert all(before[kind].equals(after[kind]) for kind in before)
    with sqlite3.connect(public / f"points/{POINT}/traced/trace-r0.sqlite") as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        assert tables.isdisjoint({"TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "PROCESSES", "ProcessStreams"})
        assert db.execute("PRAGMA freelist_count").fetchone() == (0,)
    with gzip.open(public / f"points/{POINT}/traced/trace-r1.json.gz", "rt") as stream:
        trace = json.load(stream)
    assert trace.keys().isdisjoint({"host_name", "traceName", "metadata"})
    assert not [event for event in trace["traceEvents"] if "Call stack" in event.get("args", {})]


def test_figures_are_drawn_from_the_published_tables(public, tmp_path):
    draw(["timeline", "--tables", str(public / "tables"), "--out", str(tmp_path)])
    for name in ("timeline.png", "timeline.pdf"):
        assert (tmp_path / name).read_bytes() == (public / "figures" / name).read_bytes()
    assert "First to fail: rank 1 on node2" in (public / "report.html").read_text()


def test_manifest(public):
    manifest = json.loads((public / "manifest.json").read_text())
    assert {"host", "gpu", "name", "words", "out"} <= set(manifest["replaced"])
    assert {entry["file"] for entry in manifest["files"]} >= {"tables/points.parquet", "report.html"}
    assert all(len(entry["sha256"]) == 64 and entry["bytes"] for entry in manifest["files"])
    assert manifest["nightsweep"]["version"]


def test_every_column_and_key_of_text_is_listed():
    columns = {
        name
        for table in tables.TABLES.values()
        for name, column in table.items()
        if column.dtype in (pl.String, pl.List(pl.String))
    }
    assert columns <= allowed.COLUMNS.keys()
    assert set(texts_of(Record)) <= allowed.RECORD.keys() | UNPUBLISHED


UNPUBLISHED = {
    "command",
    "failure.tracebacks.first_failed",
    "failure.tracebacks.rank0",
    "settings.*",
    "slurm.job_id",
    "slurm.nodelist",
    "slurm.partition",
}
"""Keys that are left out on purpose; the settings are listed one by one."""


def texts_of(kind, path=""):
    """Paths of the fields of a Struct that may hold text."""
    inner = [part for part in (kind, *get_args(kind)) if is_struct_type(part)]
    if inner:
        for field in fields(inner[0]):
            yield from texts_of(field.type, f"{path}.{field.encode_name}".removeprefix("."))
    elif get_origin(kind) is dict:
        yield f"{path}.*"
    elif kind is str or str in get_args(kind) or any(isinstance(part, str) for part in closed(kind)):
        yield path


def closed(kind):
    """The values of a Literal, also where it is one of several types."""
    parts = [part for part in (kind, *get_args(kind)) if get_origin(part) is Literal]
    return [value for part in parts for value in get_args(part)]
