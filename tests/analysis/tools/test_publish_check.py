"""Publishing: its check finds what was left, kernels keep their names, and what goes wrong leaves nothing behind."""

import contextlib
import shutil
import sqlite3

import polars as pl
import pytest

from nightsweep.analysis.readers.nsys import reader as nsys
from nightsweep.analysis.tools.cli import main
from nightsweep.analysis.tools.publish import publish
from nightsweep.analysis.tools.publish.allowed import RECORD, Kind
from nightsweep.analysis.tools.publish.anonymizer import Anonymizer
from nightsweep.analysis.tools.publish.identity import Identity
from tests.analysis.tools.secret_results import POINT, SECRETS, UUIDS, make_results


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "fsdp2"
    make_results(folder)
    return folder


def _copied(source, target, anonymizer):
    shutil.copy(source, target)


@pytest.mark.parametrize(
    ("owner", "step", "instead", "file"),
    [
        (Anonymizer, "table", lambda self, frame: frame, "tables/failures.parquet"),
        (Anonymizer, "tree", lambda self, value, kinds: value, f"points/{POINT}/record.json"),
        (publish, "copy_nsys", _copied, f"points/{POINT}/traced/trace-r0.sqlite"),
        (publish, "copy_kineto", _copied, f"points/{POINT}/traced/trace-r1.json.gz"),
    ],
)
def test_the_check_fires(owner, step, instead, file, sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(owner, step, instead)
    monkeypatch.setattr(publish, "draw_again", lambda *folders: None)
    assert publish.publish(sweep, tmp_path / "web", traces=True) == 1
    assert list(tmp_path.iterdir()) == []
    lines = capsys.readouterr().err.splitlines()
    assert any(f"web/{file}: it still holds a name (host)" in line for line in lines)
    assert not any(secret in line for line in lines for secret in SECRETS)


def test_the_check_reads_pages_tables_and_databases(tmp_path):
    (tmp_path / "report.html").write_text("<p>fen07 &lt;x&gt;, fen075, step</p>")
    (tmp_path / "fen11.json").write_text("{}")
    (tmp_path / "a.sqlite").write_bytes(b"\x00tEXt /home/mhopper \x00")
    (tmp_path / "empty").touch()
    pl.DataFrame({"host": [["of fen11.hpc.moor.example"]]}).write_parquet(tmp_path / "t.parquet")
    identity = Identity(("fen07", "fen11.hpc.moor.example", "step"), (), {"/home/mhopper": "home"})
    assert identity.search(tmp_path) == [
        ("a.sqlite", "home"),
        ("fen11.json", "host"),
        ("report.html", "host"),
        ("t.parquet", "host"),
    ]


@pytest.mark.parametrize("host", ["native", "void"])
def test_names_of_kernels_survive_a_host_of_that_name(host, sweep, tmp_path, monkeypatch):
    copy = tmp_path / "results"
    shutil.copytree(sweep, copy)
    record = copy / f"points/{POINT}/record.json"
    record.write_text(record.read_text().replace("fen07", host))
    monkeypatch.setattr(publish, "draw_again", lambda *folders: None)
    assert publish.publish(copy, tmp_path / "web", traces=True) == 0
    trace = copy / f"points/{POINT}/traced/trace-r0.sqlite"
    before, after = nsys.read(trace).events, nsys.read(tmp_path / "web" / trace.relative_to(copy)).events
    assert before["kernels"]["name"].str.contains(rf"\b{host}\b").any()
    assert all(before[kind].equals(after[kind]) for kind in before)


def test_a_stop_leaves_nothing(sweep, tmp_path, monkeypatch):
    def stop(*folders):
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


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("node2 and ash.moor.example, not ashes", "host2 and host1, not <...>"),
        ('File "/home/ann/qq/jobs/rank/worker.py", line 7', 'File "<...>/jobs/rank/worker.py", line 7'),
        ("a rate of 3.5 GB/s, 12 GiB, 80% of it", "a rate of 3.5 GB/s, 12 GiB, 80% of it"),
        ("10.2.3.4:80 fe80::1a:2 gpu-17 frontier", "<...>:80 <...> <...> <...>"),
        ("key hf_Zq81xvKp33 of mhopper@moor", "key <...> of <...>"),
        ("GPU-" + UUIDS[0], "<...>"),
        ("00:11:22:33:44:55 at 2001:db8::12, ::1 and 1:2:3:4:5:6:7:8", "<...> at <...>, <...> and <...>"),
        ("write to step@rank.example or node2@step.rank", "write to <...> or <...>"),
        ('File "/home/step/run.py", ~/step/rank.py', 'File "<...>/run.py", <...>'),
        ("AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "<...> <...>"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "-----BEGIN <...> PRIVATE KEY-----"),
        ("rank 1 died of signal 9 (SIGKILL)", "rank 1 died of signal 9 (SIGKILL)"),
    ],
)
def test_free_text_is_published_word_by_word(text, published):
    anonymizer = Anonymizer(["node2", "ash", "ash.moor.example"], [])
    assert anonymizer.text(Kind.WORDS, text) == published


def test_a_symbol_keeps_its_words_but_no_path_address_or_uuid():
    anonymizer = Anonymizer(["ash"], [])
    kernel = "void at::native::zyx<ash, 3>(float*)"
    assert anonymizer.text(Kind.SYMBOL, kernel) == kernel
    for secret in ("load(/home/ann/k.cu)", f"copy {UUIDS[0]}", "send 10.2.3.4", "mail ann@moor"):
        published = anonymizer.text(Kind.SYMBOL, secret)
        assert "<...>" in published and not any(word in published for word in ("ann", UUIDS[0], "10.2", "moor"))


def test_a_fact_keeps_no_address():
    anonymizer = Anonymizer([], [])
    for fact in ("NVIDIA H200", "6.8.0-1021-gcp", "2.13.0+cu130", "2026-11-21T10:11:12.123+00:00", "ns::add"):
        assert anonymizer.text(Kind.FACT, fact) == fact
    assert anonymizer.text(Kind.FACT, f"build of ann@moor.example, {UUIDS[0]}") == "build of <...>, <...>"


def test_only_known_tables_columns_and_folders_are_published(sweep, tmp_path, monkeypatch, capsys):
    copy, secret = tmp_path / "results", "zyxqq"
    shutil.copytree(sweep, copy)
    steps = pl.read_parquet(copy / "tables/steps.parquet")
    steps.with_columns(pl.lit(1).alias(secret), loss=pl.lit(secret.encode())).clear().write_parquet(
        copy / "tables/steps.parquet"
    )
    steps.write_parquet(copy / f"tables/{secret}.parquet")
    shutil.copytree(copy / "points" / POINT, copy / "points" / secret)
    trace = copy / "points" / POINT / "traced/trace-r0.sqlite"
    shutil.copy(trace, trace.with_name(f"trace-r{secret}.sqlite"))
    with contextlib.closing(sqlite3.connect(trace)) as db:
        db.execute("DROP TABLE TARGET_INFO_CUDA_DEVICE")
        db.execute(f'CREATE TABLE TARGET_INFO_CUDA_DEVICE ("gpuId" {secret}, pid INTEGER)')
        db.commit()
    monkeypatch.setattr(publish, "draw_again", lambda *folders: None)
    assert publish.publish(copy, tmp_path / "web", traces=True) == 0
    left_out = capsys.readouterr().err
    assert f"tables/{secret}.parquet: left out" in left_out and f"points/{secret}/record.json: left out" in left_out
    for path in (path for path in (tmp_path / "web").rglob("*") if path.is_file()):
        assert secret not in str(path) and secret.encode() not in path.read_bytes(), path


def test_a_key_that_is_no_word_of_ours_is_left_out():
    found = Anonymizer([], []).tree({"status": "ok", "mhopper": 1, "settings": {"data": "qq", "zyx": 2}}, RECORD)
    assert found == {"status": "ok", "settings": {"data": "data1"}}
