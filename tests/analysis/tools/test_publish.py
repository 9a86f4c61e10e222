"""What is published: nothing tells who ran it and where, and traces and figures are as good as before."""

import gzip
import json
import re
import sqlite3
import zlib

import polars as pl
import pytest

from analysis.figures.families import FAMILIES
from analysis.readers.kineto import reader as kineto
from analysis.readers.nsys import reader as nsys
from analysis.tools.cli import main
from analysis.tools.draw import main as draw
from tests.analysis.tools.secret_results import HOSTS, POINT, SECRETS, make_results


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
    draw(["timeline", "--tables", str(sweep / "tables"), "--out", str(tmp_path)])
    assert HOSTS[0].encode() in plain(tmp_path / "timeline.pdf")
    content = b"".join(plain(path) for path in sweep.rglob("*") if path.is_file())
    assert all(secret.encode() in content for secret in SECRETS)


def test_what_is_published_and_what_is_not(public):
    names = {str(path.relative_to(public)) for path in public.rglob("*") if path.is_file()}
    point = f"points/{POINT}"
    assert {f"{point}/record.json", f"{point}/point.json", "sweep.json", "report.html", "manifest.json"} <= names
    assert {f"{point}/traced/trace-r0.sqlite", f"{point}/traced/trace-r1.json.gz"} <= names
    # The others have nothing to show of these tables.
    drawn = FAMILIES.keys() - {"energy", "remedies", "roofline"}
    assert {f"figures/{family}.{end}" for family in drawn for end in ("png", "pdf")} <= names
    assert not [name for name in names if name.endswith((".nsys-rep", ".log", ".jsonl")) or "/." in name]


def test_pseudonyms_are_the_same_everywhere(public):
    record = json.loads((public / f"points/{POINT}/record.json").read_text())
    assert [host["hostname"] for host in record["hosts"]] == ["node1", "node2"]
    assert record["failure"]["host"] == "node2"
    assert record["slurm"] == {"job_id": None, "partition": None, "nodelist": "node1,node2", "restart_count": None}
    assert record["command"].startswith("<root>/jobs/launch/launch.py results/x -> srun <dir")
    assert re.fullmatch(r"<dir\d+>/english", record["settings"]["data"])
    points = pl.read_parquet(public / "tables/points.parquet")
    assert points["hosts"].to_list()[0] == ["node1", "node2"]
    assert points["data"].unique().to_list() == [record["settings"]["data"]]
    uuids = pl.read_parquet(public / "tables/gpu_samples.parquet")["uuid"].to_list()
    assert uuids == [host["gpus"][0]["uuid"] for host in record["hosts"]] == ["GPU-1", "GPU-2"]
    with sqlite3.connect(public / f"points/{POINT}/traced/trace-r0.sqlite") as db:
        assert ("GPU-1",) in db.execute("SELECT uuid FROM TARGET_INFO_GPU").fetchall()
        assert (
            db.execute("SELECT text FROM NVTX_EVENTS WHERE eventType = 34")
            .fetchone()[0]
            .endswith("/english on node1, key <env>")
        )
    assert json.loads((public / "sweep.json").read_text())["alert"] == {"below_percent": 5.0, "command": None}


def test_tracebacks_stay_readable(public):
    row = pl.read_parquet(public / "tables/failures.parquet").row(0, named=True)
    assert '"<root>/jobs/rank/worker.py", line 7' in row["traceback"]
    assert '"<python>/torch/x.py", line 9' in row["traceback"]
    assert row["traceback"].endswith("node2.<domain> (<ip>:29500) for <user>: <work>/lock")
    assert row["host"] == "node2" and row["message"] == "<user> on node1: <work>"


def test_events_of_traces_are_the_same(sweep, public):
    for read, name in ((nsys.read, "trace-r0.sqlite"), (kineto.read, "trace-r1.json.gz")):
        before, after = (read(folder / f"points/{POINT}/traced" / name).events for folder in (sweep, public))
        assert all(before[kind].equals(after[kind]) for kind in before)
    with sqlite3.connect(public / f"points/{POINT}/traced/trace-r0.sqlite") as db:
        for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "PROCESSES", "ProcessStreams"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        assert db.execute("PRAGMA freelist_count").fetchone() == (0,)


def test_figures_are_drawn_from_the_published_tables(public, tmp_path):
    draw(["timeline", "--tables", str(public / "tables"), "--out", str(tmp_path)])
    for name in ("timeline.png", "timeline.pdf"):
        assert (tmp_path / name).read_bytes() == (public / "figures" / name).read_bytes()
    assert "First to fail: rank 1 on node2" in (public / "report.html").read_text()


def test_manifest(public):
    manifest = json.loads((public / "manifest.json").read_text())
    assert {"env", "host", "path", "user", "address", "uuid"} <= set(manifest["replaced"])
    assert {entry["file"] for entry in manifest["files"]} >= {"tables/points.parquet", "report.html"}
    assert all(len(entry["sha256"]) == 64 and entry["bytes"] for entry in manifest["files"])
    assert manifest["nightsweep"]["version"]
