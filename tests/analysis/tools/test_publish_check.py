"""Publishing: its check finds what was left, kernels keep their names, and what goes wrong leaves nothing behind."""

import shutil
import sqlite3

import pytest

from analysis.readers.nsys import reader as nsys
from analysis.tools.cli import main
from analysis.tools.publish import leaks, publish
from analysis.tools.publish.scrub import Scrubber
from tests.analysis.tools.secret_results import ENVIRONMENT, HOME, POINT, SECRETS, USER, UUIDS, make_results


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "fsdp2"
    make_results(folder)
    return folder


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
    monkeypatch.setattr(publish, "draw_again", lambda *folders: None)
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
    monkeypatch.setattr(publish, "draw_again", lambda *folders: None)
    assert publish.publish(copy, tmp_path / "web", traces=True) == 0
    before, after = nsys.read(trace).events, nsys.read(tmp_path / "web" / trace.relative_to(copy)).events
    assert before["kernels"]["name"].str.contains(rf"\b{user}\b").any() == (user != "root")
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


def test_bytes_are_searched_block_by_block_as_in_one(tmp_path, monkeypatch):
    """Wherever a block ends, before, in or after a word, the same is found; a part of a longer word never is."""
    secrets = leaks.Secrets({"host": ("fen07",), "home": ("/home/mhopper",), "user": ("mhopper",)}, "")
    path = tmp_path / "a.png"
    for content in (
        b"....fen07....",
        b"fen07",
        b"...xfen07..fen075..",
        b"..../home/mhopperx",
        b"../home/mhopper/fen07",
    ):
        path.write_bytes(content)
        monkeypatch.setattr(publish, "BLOCK", 1 << 20)
        whole = publish.raw(path, secrets, "")
        for size in range(1, len(content) + 2):
            monkeypatch.setattr(publish, "BLOCK", size)
            assert publish.raw(path, secrets, "") == whole, (content, size)
    assert whole == {"host", "home", "user"}
