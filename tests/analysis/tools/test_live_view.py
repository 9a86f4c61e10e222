"""`nightsweep watch`: its text of 80 columns, its JSON, and what it does to a terminal."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import unicodedata
from pathlib import Path

import pytest

from nightsweep.analysis.sweep import labels
from nightsweep.analysis.tools.cli import main
from nightsweep.analysis.tools.watch import view
from nightsweep.analysis.tools.watch.state import Reader
from nightsweep.jobs.record.json_files import write_json
from tests.analysis.tools.live_folders import (
    BASE,
    aged,
    beats,
    event,
    freeze,
    gpu,
    live_file,
    make_sweep,
    only,
    record,
    step,
    text,
)

ROOT = Path(__file__).parents[3]


def test_the_control_is_called_so(tmp_path):
    (point,) = make_sweep(tmp_path, 1)
    beats(point, step(9, 12.34, 66), look="cost-tracer-0.1")
    assert only(tmp_path).look == "cost-tracer-0"
    assert "control step 9/66  12.3 ms/step" in text(tmp_path)[1]


def test_text_of_a_point_with_gpus(tmp_path, monkeypatch):
    freeze(monkeypatch)
    point, other, done = make_sweep(tmp_path, 3)
    beats(other, "model")
    record(done, "failed")
    look = beats(point, step(17, 812.4), step(18, 810.0), age=1)
    live_file(look, "n1", gpu(0), gpu(1, sm=1.23, low_s=75.0))
    live_file(look, "n2", gpu(0, sm=None, power_w=None), gpu(1, sm=2.0, low_s=20.0, memory_used_bytes=None), age=35)
    aged(look / "events-n1.jsonl", event("GPU 1: under 5 % for 60 s") + event("XID 79", 5, kind="xid") + '{"t_ns": 17')
    assert text(tmp_path) == [
        "s: 1/3 points done, 1 failed, 2 left (2 running)",
        "  000000000000 timed step 17/25   811 ms/step  1 s ago  micro_batch 0",
        "    5 s ago, n1 gpu 1: xid: XID 79",
        "    12 s ago, n1: low_gpu: GPU 1: under 5 % for 60 s",
        "    n1 gpu 1    SM   1.2 %  412 W   61.0/140.0 GiB  LOW 75 s",
        "    n1 gpu 0    SM  83.1 %  412 W   61.0/140.0 GiB",
        "    n2 gpu 0  util  97.0 %    - W   61.0/140.0 GiB  stale 35 s",
        "    n2 gpu 1    SM   2.0 %  412 W      -/140.0 GiB  stale 35 s",
        "  000000000001 timed model                     0 s ago  micro_batch 1",
    ]
    assert [line.style for line in view.page(Reader(tmp_path).read(), 80)].count("red") == 1


def test_no_line_is_longer_than_the_terminal(tmp_path):
    name = "扫描" * 60 + "\x1b[2J"
    (tmp_path / "x").mkdir()
    points = [
        {"point_id": f"{n}{'y' * 99}", "settings": {**BASE, "data": "/d é\u0301" + "データ" * 60 + str(n)}}
        for n in (0, 1)
    ]
    write_json(tmp_path / "x/sweep.json", {"name": name, "points": points})
    for entry in points:
        look = beats(tmp_path / "x/points" / entry["point_id"], step(10**9, 1e12, 10**10))
        live_file(look, "h" * 70 + ".example.org", gpu(10**7, sm=1e9, power_w=1e9, memory_used_bytes=10**24))
        aged(look / "events-h.jsonl", event("a\nb\tc\x1b[31m\ud800" + "長" * 90, host="h" * 90))
    for width in (20, 80, 100):
        for line in text(tmp_path, width):
            assert sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line) <= width + line.count(
                "\u0301"
            )
            assert "\x1b" not in line
            assert "\n" not in line
    assert main(["watch", str(tmp_path), "--once"]) == 0


def test_settings_that_vary_in_few_words():
    settings = {"model": "llama-1b", "ranks_per_node": 2, "fault": None, "pin_memory": False, "learning_rate": 0.001}
    expected = "llama-1b, 2 ranks/node, no fault, no pin_memory, learning_rate 0.001"
    assert labels.label(settings, settings) == expected


def test_fits_a_terminal_what_needs_a_person_first(tmp_path):
    points = make_sweep(tmp_path, 40)
    for number, point in enumerate(points):
        look = beats(point, "step 3", age=600 if number == 30 else 0)
        if number in (20, 35):
            live_file(look, "n1", *(gpu(i, low_s=75.0 if number == 35 and i == 7 else 0.0) for i in range(8)))
        if number == 38:
            aged(look / "events-n1.jsonl", event("XID 79"))
    lines = text(tmp_path, height=24)
    assert len(lines) == 24
    assert [line.split()[0][-2:] for line in lines if line.startswith("  0")][:3] == ["1e", "23", "26"]
    assert "gpu 7" in lines[3]
    assert "LOW" in lines[3]
    assert lines[-1] == "... and 27 more running points"
    assert len(text(tmp_path)) == 1 + 40 + 16 + 1
    for height in range(1, 70):
        assert len(text(tmp_path, height=height)) <= height
    assert text(tmp_path, height=8)[-2:] == ["    ... and 5 more lines", "... and 38 more running points"]


def test_more_sweeps_than_lines(tmp_path):
    for name in range(30):
        make_sweep(tmp_path, 1, f"s{name:02d}")
    beats(tmp_path / "s29/points/000000000000", "start")
    lines = text(tmp_path, height=10)
    assert len(lines) <= 10
    assert lines[0].startswith("s29: ")
    assert "... and 25 more sweeps" in lines


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "x"])
def test_intervals_that_make_no_sense(tmp_path, capsys, interval):
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path), "--interval", interval])
    assert ended.value.code == 2
    assert "argument --interval" in capsys.readouterr().err


def command(*arguments):
    return [sys.executable, "-m", "nightsweep.analysis.tools.cli", "watch", *map(str, arguments)]


def test_json_once(tmp_path):
    point, _ = make_sweep(tmp_path, 2)
    look = beats(point, step(17, 812.4))
    live_file(look, "n1", gpu(0))
    aged(look / "events-n1.jsonl", event("low"))
    done = subprocess.run(command(tmp_path, "--once", "--json"), cwd=ROOT, capture_output=True, text=True, check=True)
    content = json.loads(done.stdout)
    assert list(content) == ["t_ns", "sweeps"]
    (sweep,) = content["sweeps"]
    assert list(sweep) == ["name", "points", "done", "failed", "running", "left", "left_s", "running_points"]
    (shown,) = sweep["running_points"]
    assert shown["settings"] == {"micro_batch": 0}
    assert 0 <= shown.pop("age_s") < 10
    assert {name: value for name, value in shown.items() if name not in ("gpus", "events", "settings")} == {
        "point_id": point.name, "look": "timed", "attempt": 1, "phase": "step", "step": 17, "steps": 25,
        "step_ms": 812.4, "silent": False,
    }  # fmt: skip
    assert set(shown["gpus"][0]) == set(gpu(0)) | {"host", "low", "age_s", "stale"}
    assert set(shown["events"][0]) == {"t_ns", "host", "gpu", "uuid", "kind", "message"}


@pytest.mark.parametrize("as_json", [False, True])
def test_a_pipe_gets_a_block_an_interval(tmp_path, as_json):
    (point,) = make_sweep(tmp_path, 1)
    beats(point, "step 1")
    extra = ["--json"] if as_json else []
    run = subprocess.Popen(command(tmp_path, "--interval", "0.2", *extra), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines = [run.stdout.readline() for _ in range(6)]
    record(point)
    lines += run.stdout.readlines()
    assert run.wait(60) == 0
    if as_json:
        assert all(json.loads(line)["sweeps"] for line in lines)
    else:
        assert lines[0] == lines[3] == "s: 0/1 points done, 1 left (1 running)\n"
        assert lines[2] == "\n"
        assert lines[-1] == "s: 1/1 points done, 0 left\n"


def at_terminal(arguments, wait_for, then, environment=None):
    """What the command draws at a terminal of 80 x 10, and its exit status."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, command(*arguments), {**os.environ, "TERM": "xterm", **(environment or {})})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 80, 0, 0))
    drawn, done = b"", False
    while True:
        try:
            drawn += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not done and drawn.count(wait_for) >= 2:
            then(child, terminal)
            done = True
    os.close(terminal)
    return drawn.decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def busy(tmp_path):
    for point in make_sweep(tmp_path, 30):
        beats(point, "step 1", age=600)
    return tmp_path


def test_ctrl_c_gives_the_terminal_back(busy, monkeypatch):
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    drawn, status = at_terminal([busy, "--interval", "0.2"], b"more running", lambda _, t: os.write(t, b"\x03"))
    assert status == 0
    assert "Traceback" not in drawn
    assert drawn.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
    assert drawn.endswith("\x1b[?25h\x1b[?1049l")
    assert "\x1b[1ms: 0/30" in drawn
    assert "\x1b[31m  000000000000 timed step 1/25" in drawn
    assert drawn.split("\x1b[H")[1].count("\r\n") == 9


def test_sigterm_gives_the_terminal_back_too(busy):
    plain = {"NO_COLOR": "1"}
    drawn, status = at_terminal(
        [busy, "--interval", "0.2"], b"more running", lambda child, _: os.kill(child, signal.SIGTERM), plain
    )
    assert status == 128 + signal.SIGTERM
    assert drawn.endswith("\x1b[?25h\x1b[?1049l")
    assert "\x1b[1m" not in drawn
    assert "\x1b[31m" not in drawn


def test_the_last_state_stays_on_the_terminal(busy):
    def finish(*_):
        for point in json.loads((busy / "s/sweep.json").read_text())["points"]:
            record(busy / "s/points" / point["point_id"])

    drawn, status = at_terminal([busy, "--interval", "0.2"], b"more running", finish, {"NO_COLOR": "1"})
    assert status == 0
    assert drawn.endswith("\x1b[?1049ls: 30/30 points done, 0 left\r\n")


def test_starts_fast_and_without_the_heavy_libraries(tmp_path):
    make_sweep(tmp_path, 1)
    seen = "print({'torch', 'polars'} & set(sys.modules))"
    code = f"import sys; from nightsweep.analysis.tools.cli import main; main(sys.argv[1:]); {seen}"
    done = subprocess.run(
        [sys.executable, "-c", code, "watch", str(tmp_path), "--once"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["s: 0/1 points done, 1 left", "set()"]
