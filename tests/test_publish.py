"""Publishing: nothing tells who ran it and where, traces and figures are as good as before, and the check fires."""

import gzip
import json
import re
import shutil
import sqlite3
import zlib

import polars as pl
import pytest
from test_figures import made_up, write
from test_readers import DATA

from analysis import leaks, publish
from analysis.cli import main
from analysis.figures.__main__ import FAMILIES
from analysis.figures.__main__ import main as draw
from analysis.readers import kineto, nsys
from analysis.scrub import Scrubber

USER, TOKEN, PHRASE, ADDRESS = "mhopper", "hf_Zq81xvKp33", "correct horse; battery=staple", "10.31.7.8"
HOME, WORK = "/home/mhopper", "/scratch/proj42/run7"
HOSTS, DOMAIN = ("fen07", "fen11"), "hpc.moor.example"
UUIDS = ("5f3c1a2b-0d4e-4f60-8a71-92b3c4d5e6f7", "6a4d2b3c-1e5f-4a71-9b82-a3c4d5e6f708")
SECRETS = (
    USER,
    TOKEN,
    PHRASE,
    ADDRESS,
    HOME,
    WORK,
    *HOSTS,
    DOMAIN,
    *UUIDS,
    "fen[07,11]",
    "proj42",
    "hooks.moor",
    "sealed",
)
ENVIRONMENT = (
    f"HOME={HOME};USER={USER};HF_TOKEN={TOKEN};NOTE={PHRASE};HOSTNAME={HOSTS[0]}.{DOMAIN};PWD={WORK};RANK=0;"
    f"DB_PASSWORD=sealed;SLURM_JOB_NODELIST=fen[07,11];SSH_CLIENT={ADDRESS} 5122 22;LANG=C.UTF-8;PATH=/usr/bin:/bin"
)
TRACEBACK = (
    f'Traceback:\n  File "{HOME}/nightsweep/jobs/worker.py", line 7, in main\n  File "{HOME}/venv/lib/python3.12/'
    f'site-packages/torch/x.py", line 9, in send\nError: {HOSTS[1]}.{DOMAIN} ({ADDRESS}:29500) for {USER}: {WORK}/lock'
)
POINT = "73676f623ce0"


def as_record(content: str) -> str:
    """The fixture's record of two nodes, with hosts and GPUs that are secrets."""
    record = json.loads(content.replace('"n1"', f'"{HOSTS[0]}.{DOMAIN}"').replace('"n2"', f'"{HOSTS[1]}"'))
    for host, uuid in zip(record["hosts"], UUIDS, strict=True):
        host["gpus"][0]["uuid"] = f"GPU-{uuid}"
    record["command"] = f"{HOME}/nightsweep/jobs/launch.py results/x -> srun {HOME}/venv/bin/python -m jobs.rank"
    record["slurm"] |= {"nodelist": "fen[07,11]", "partition": "moor", "job_id": "81723"}
    record["settings"]["data"] = f"{HOME}/corpora/english"
    record["failure"] = {"host": HOSTS[1], "tracebacks": {}}
    return json.dumps(record)


def make_tables(folder):
    """Made-up tables whose texts hold secrets."""
    tables = made_up()
    last = {
        "host": pl.lit(HOSTS[1]),
        "traceback": pl.lit(TRACEBACK),
        "message": pl.lit(f"{USER} on {HOSTS[0]}: {WORK}"),
    }
    frames = {name: tables[name] for name in tables.frames}
    frames["failures"] = frames["failures"].with_columns(**last)
    frames["host_samples"] = frames["host_samples"].with_columns(host=pl.lit(HOSTS[0]))
    frames["gpu_samples"] = tables["gpu_samples"].clear(2).with_columns(uuid=pl.Series([f"GPU-{u}" for u in UUIDS]))
    hosts = pl.Series("hosts", [list(HOSTS)] * frames["points"].height)
    message = pl.when(pl.col("status") == "failed").then(pl.lit(TRACEBACK)).alias("message")
    frames["points"] = frames["points"].with_columns(hosts, message, data=pl.lit(f"{HOME}/corpora/english"))
    write(type(tables)(frames), folder)


def make_nsys(path):
    """The fixture's export, with what nsys writes beside the events."""
    path.write_bytes(gzip.decompress((DATA / "h200-ddp-r0.sqlite.gz").read_bytes()))
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        db.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
        db.execute("CREATE TABLE PROCESSES (pid INTEGER, name TEXT)")
        db.execute("CREATE TABLE DIAGNOSTIC_EVENT (text TEXT)")
        db.execute("CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER)")
        db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('DeviceEnvironment', ?)", (ENVIRONMENT,))
        db.execute("INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', ?)", (f'X_KEY="{TOKEN}"',))
        db.execute("INSERT INTO PROCESSES VALUES (1, ?)", (f"{HOME}/bin/edit",))
        db.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (?)", (f"see {WORK}/log",))
        db.execute("INSERT INTO StringIds VALUES (900001, ?), (900002, ?)", (f"{WORK}/out", f"hello {USER} {TOKEN}"))
        db.execute("INSERT INTO ProcessStreams VALUES (1, 900001, 900002)")
        mark = "INSERT INTO NVTX_EVENTS (start, eventType, text, textId) VALUES (1, 34, ?, 900001)"
        db.execute(mark, (f"opened {HOME}/corpora/english on {HOSTS[0]}, key {TOKEN}",))
        db.execute("UPDATE TARGET_INFO_GPU SET uuid = ? WHERE id = 0", (UUIDS[0],))
        db.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (?)", [(ENVIRONMENT * 20,)] * 50)
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM DIAGNOSTIC_EVENT")  # its pages stay in the file


def make_kineto(path):
    trace = json.loads(gzip.decompress((DATA / "kineto-cpu-r0.json.gz").read_bytes()))
    trace |= {"host_name": HOSTS[0], "traceName": f"{WORK}/k.json", "metadata": {"env": {"HF_TOKEN": TOKEN}}}
    trace["traceEvents"][0].setdefault("args", {})["Call stack"] = [f"{HOME}/x.py(3): go", f"{WORK}/y.py(4): run"]
    trace["traceEvents"].append({"ph": "M", "name": "process_name", "args": {"name": f"{HOSTS[1]}: {USER}"}})
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Results with secrets wherever some were ever seen."""
    folder = tmp_path_factory.mktemp("results") / "fsdp2"
    point = folder / "points" / POINT
    (point / "traced").mkdir(parents=True)
    record = as_record((DATA / "h200-2node/zero3/record.json").read_text())
    (point / "record.json").write_text(record)
    (point / "point.json").write_text(json.dumps({"point_id": POINT, "settings": json.loads(record)["settings"]}))
    (point / "attempts.jsonl").write_text('{"attempt": 1, "host": "fen07"}\n{"att')
    (point / "traced/rank0.log").write_text(ENVIRONMENT)
    (point / "traced/trace-r0.nsys-rep").write_bytes(b"binary")
    alert = {"below_percent": 5.0, "command": "curl https://hooks.moor.example/T0/K81"}
    (folder / "sweep.json").write_text(json.dumps({"name": "fsdp2", "alert": alert, "points": [json.loads(record)]}))
    make_tables(folder / "tables")
    make_nsys(point / "traced/trace-r0.sqlite")
    make_kineto(point / "traced/trace-r1.json.gz")
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
    assert {f"figures/{family}.{end}" for family in FAMILIES for end in ("png", "pdf")} <= names
    assert not [name for name in names if name.endswith((".nsys-rep", ".log", ".jsonl")) or "/." in name]


def test_pseudonyms_are_the_same_everywhere(public):
    record = json.loads((public / f"points/{POINT}/record.json").read_text())
    assert [host["hostname"] for host in record["hosts"]] == ["node1", "node2"]
    assert record["failure"]["host"] == "node2"
    assert record["slurm"] == {"job_id": None, "partition": None, "nodelist": "node1,node2", "restart_count": None}
    assert record["command"].startswith("<root>/jobs/launch.py results/x -> srun <dir")
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
    assert '"<root>/jobs/worker.py", line 7' in row["traceback"]
    assert '"<python>/torch/x.py", line 9' in row["traceback"]
    assert row["traceback"].endswith("node2.<domain> (<ip>:29500) for <user>: <work>/lock")
    assert row["host"] == "node2" and row["message"] == "<user> on node1: <work>"


def test_events_of_traces_are_the_same(sweep, public):
    for reader, name in ((nsys, "trace-r0.sqlite"), (kineto, "trace-r1.json.gz")):
        before, after = (reader.read(folder / f"points/{POINT}/traced" / name) for folder in (sweep, public))
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


def _copied(source, target, scrubber):
    shutil.copy(source, target)


@pytest.mark.parametrize(
    ("owner", "step", "instead", "file"),
    [
        (Scrubber, "table", lambda self, frame, name: frame, "tables/failures.parquet"),
        (Scrubber, "tree", lambda self, value: value, f"points/{POINT}/record.json"),
        (publish, "nsys_copy", _copied, f"points/{POINT}/traced/trace-r0.sqlite"),
        (publish, "kineto_copy", _copied, f"points/{POINT}/traced/trace-r1.json.gz"),
    ],
)
def test_the_check_fires(owner, step, instead, file, sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(owner, step, instead)
    monkeypatch.setattr(publish, "draw_again", lambda out: None)
    assert publish.publish(sweep, tmp_path / "web", traces=True) == 1
    assert list(tmp_path.iterdir()) == []
    lines = capsys.readouterr().err.splitlines()
    assert any(f"web/{file}: it still holds a secret (host)" in line for line in lines)
    assert not any(secret in line for line in lines for secret in SECRETS)


def test_the_check_reads_pages_and_pictures(tmp_path):
    (tmp_path / "report.html").write_text("<p>fen07 &lt;x&gt;</p>")
    (tmp_path / "a.png").write_bytes(b"\x89PNG tEXt /home/mhopper \x00")
    secrets = leaks.Secrets({"host": ("fen07",), "home": ("/home/mhopper",), "user": ("step",)}, "")
    assert publish.search(tmp_path, secrets) == [("a.png", "home"), ("report.html", "host")]


@pytest.mark.parametrize("user", ["native", "void", "root"])
def test_names_of_kernels_survive_a_user_of_that_name(user, sweep, tmp_path, monkeypatch):
    copy = tmp_path / "results"
    shutil.copytree(sweep, copy)
    trace = copy / f"points/{POINT}/traced/trace-r0.sqlite"
    with sqlite3.connect(trace) as db:
        changed = ENVIRONMENT.replace(f"USER={USER}", f"USER={user}").replace(HOME, "/root")
        db.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ?", (changed,))
    monkeypatch.setattr(publish, "draw_again", lambda out: None)
    assert publish.publish(copy, tmp_path / "web", traces=True) == 0
    before, after = nsys.read(trace), nsys.read(tmp_path / "web" / trace.relative_to(copy))
    assert before["kernels"]["name"].str.contains(rf"\b{user}\b").any() == (user != "root")
    assert all(before[kind].equals(after[kind]) for kind in before)


def test_a_stop_leaves_nothing(sweep, tmp_path, monkeypatch):
    def stop(out):
        raise KeyboardInterrupt

    monkeypatch.setattr(publish, "draw_again", stop)
    with pytest.raises(KeyboardInterrupt):
        publish.publish(sweep, tmp_path / "web", traces=False)
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_one_line(sweep, tmp_path, capsys):
    (tmp_path / "cut/tables").mkdir(parents=True)
    (tmp_path / "cut/tables/points.parquet").write_bytes(b"PAR1")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for results, out, told in (
        (tmp_path / "none", tmp_path / "web", "points.parquet: no such file; expected"),
        (tmp_path / "cut", tmp_path / "web", "points.parquet: cut, or no table; expected"),
        (sweep, tmp_path / "full", "full: there is something already; expected"),
    ):
        assert main(["publish", str(results), "--out", str(out)]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and told in lines[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_lists_of_hosts():
    assert leaks.hosts_of("gpu[01-03,7]-ib,login") == ["gpu01-ib", "gpu02-ib", "gpu03-ib", "gpu7-ib", "login"]
    assert leaks.hosts_of("r[1-2]n[3-4]") == ["r1n3", "r1n4", "r2n3", "r2n4"]


def test_texts():
    found = {"host": ("node2", "ash"), "user": ("ann",), "home": ("/home/ann",), "path": ("/scratch",)}
    scrubber = Scrubber(leaks.Secrets(found, "12.8.4.1"))
    for text, new in (
        ("node2 and ash, not ashes", "host2 and host1, not ashes"),
        ("/home/ann/a/x /home/ann/b/x /home/ann/a/y", "<dir1>/x <dir2>/x <dir1>/y"),
        ("~ann -I/home/ann/inc scan_ann.py", "~<user> -I<home>/inc scan_<user>.py"),
        ("/usr/lib/x.so /dev/shm a/b 3/4 https://x.org/a/b", "/usr/lib/x.so /dev/shm a/b 3/4 https://x.org/a/b"),
        ("/scratch", "<dir3>"),
        ("10.2.3.4:80 127.0.0.1 fe80::1a:2%ib0 cublas 12.8.4.1", "<ip>:80 127.0.0.1 <ip>%ib0 cublas 12.8.4.1"),
        ("NCCL version 2.1.3.4, 580.159.04, c10d::f", "NCCL version 2.1.3.4, 580.159.04, c10d::f"),
        ("GPU-" + UUIDS[0], "GPU-1"),
        ("run " + UUIDS[1], "run <uuid>"),
    ):
        assert scrubber.text(text) == new
    assert scrubber.tail("n/x.py\n" + "y" * 4000) == "y" * 4000  # the first line was cut
    assert scrubber.symbol("void ann::node2<ash>(/home/ann/k.cu)") == "void ann::node2<ash>(<home>/k.cu)"
