"""`nightsweep wrap`: a command line taken apart, and the whole of it once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nightsweep.analysis.tools import cli
from nightsweep.analysis.tools import wrap as wrapping
from nightsweep.analysis.tools.wrap import Given, as_point, name_of, reserve, take_apart
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.json_files import write_json

LINES = {
    "torchrun --standalone --nproc-per-node 4 train.py --lr 1": Given("torchrun", ["train.py", "--lr", "1"], 4),
    "torchrun --nnodes=1 --nproc_per_node=2 --max-restarts=3 -m a.b --x": Given(
        "torchrun", ["-m", "a.b", "--x"], 2, ("--max-restarts=3",)
    ),
    "/opt/bin/python3 -m torch.distributed.run --nproc-per-node gpu t.py": Given("torchrun", ["t.py"]),
    "deepspeed --num_gpus 2 --master_port 9 t.py --deepspeed": Given("deepspeed", ["t.py", "--deepspeed"], 2),
    "accelerate launch --multi_gpu --num_processes 2 --mixed_precision bf16 t.py": Given(
        "accelerate", ["t.py"], 2, ("--mixed_precision", "bf16")
    ),
    "python -m torch.distributed.launch --use-env --nproc-per-node cpu t.py": Given(
        "torchrun", ["t.py"], os.cpu_count()
    ),
    "torchrun --nproc-per-node=auto t.py": Given("torchrun", ["t.py"], os.cpu_count()),  # where there is no GPU
    "python train.py --a": Given("none", ["python", "train.py", "--a"]),
    "./run.sh": Given("none", ["./run.sh"]),
}


@pytest.mark.parametrize(("line", "expected"), LINES.items())
def test_command_lines_are_taken_apart(line, expected):
    assert take_apart(line.split()) == expected


@pytest.mark.parametrize("line", ["", "torchrun", "torchrun --nproc-per-node 2 train", "torchrun --nnodes 2 train.py",
                                  "torchrun --nproc-per-node many t.py", "deepspeed --include localhost:0 t.py",
                                  "accelerate launch --config_file none.yaml t.py"])  # fmt: skip
def test_what_cannot_be_wrapped_is_said(line):
    with pytest.raises(InputError) as caught:
        take_apart(line.split())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words", "steps"),
    [
        ("--steps 8 python t.py --steps 3", ["python", "t.py", "--steps", "3"], 8),
        ("-- torchrun t.py -- x", ["torchrun", "t.py", "--", "x"], 20),
        ("python t.py --help", ["python", "t.py", "--help"], 20),
        ("", [], 20),
    ],
)
def test_the_command_begins_with_its_first_word(line, words, steps, monkeypatch):
    seen = []
    monkeypatch.setattr("nightsweep.analysis.tools.wrap.wrap", lambda *given: seen.append(given) or 0)
    assert cli.main(["wrap", *line.split()]) == 0
    assert seen[0][:2] == (words, steps)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python train.py --lr 0.1", "train"), ("torchrun --nproc-per-node 2 -m pkg.train 1", "pkg-train"),
        ("bash night/run.sh", "run"), ("./Main", "main"),
        ("python -m pkg.train --at 0.1", "pkg-train"), ("python -X dev train.py", "train"),
    ],
)  # fmt: skip
def test_a_sweep_has_the_name_of_what_is_run(line, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "night").mkdir()
    for file in ("train.py", "night/run.sh"):
        (tmp_path / file).write_text("")
    assert name_of(take_apart(line.split()).words) == name


def test_a_run_that_was_stopped_is_not_told_by_an_earlier_record(tmp_path, monkeypatch, capsys):
    def stopped(command):
        write_json(tmp_path / command[3] / "record.json", {"status": "failed", "reason": "stalled"})
        return 130

    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()
    point = as_point(Given("none", ["t.py"]), 5, 0)
    (tmp_path / "results/t/points" / point.id).mkdir(parents=True)
    monkeypatch.setattr(wrapping, "run", stopped)
    assert cli.main(["wrap", "--steps", "5", "--traced-steps", "0", "t.py"]) == 130
    assert capsys.readouterr().err == "stopped: nothing is recorded\n"


def wrap(tmp_path, *words):
    command = [Path(sys.executable).with_name("nightsweep"), "wrap", "--steps", "5", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)


def test_a_file_of_accelerate_says_how_many_ranks(tmp_path):
    (tmp_path / "own.yaml").write_text("num_processes: 3\n")
    (tmp_path / "two.yaml").write_text("num_processes: 3\nnum_machines: 2\n")
    with pytest.raises(InputError, match="one node is wrapped at a time"):
        take_apart(f"accelerate launch --config_file {tmp_path}/two.yaml t.py".split())
    for option in (f"--config-file={tmp_path}/own.yaml", f"--config_file {tmp_path}/own.yaml"):
        given = take_apart(f"accelerate launch {option} t.py".split())
        assert (given.ranks, list(given.options)) == (3, option.split())


def test_sweeps_of_one_name_keep_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t-2.yaml").write_text("- a list\n")
    for base, path in (("a", "t.yaml"), ("b", "t-3.yaml"), ("a", "t.yaml"), ("b", "t-3.yaml")):
        content = {"name": "", "base": {"command": base}}
        assert str(reserve("t", content)[0]) == path and content["name"] == path.removesuffix(".yaml")
    assert (tmp_path / "t-2.yaml").read_text() == "- a list\n"


def test_a_command_that_is_not_there_is_said(capsys):
    assert cli.main(["wrap", "no-such-command", "--x"]) == 2
    assert capsys.readouterr().err == "nightsweep wrap: no-such-command: no such command\n"


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_leaves_nothing_behind(tmp_path):
    (tmp_path / "long.py").write_text("import time\nprint('on', flush=True)\ntime.sleep(300)")
    command = [Path(sys.executable).with_name("nightsweep"), "wrap", sys.executable, "long.py"]
    with subprocess.Popen(command, cwd=tmp_path, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        until = time.monotonic() + 100
        while not (begun := list(tmp_path.glob("results/long/points/*/timed*/rank0.log"))) and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=100)
    assert begun and (process.returncode, said) == (130, "stopped: nothing is recorded\n")
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout
    assert not left


@pytest.mark.slow
def test_a_script_that_fails_as_it_is_traced_is_said_and_a_measured_one_too(tmp_path):
    (tmp_path / "own").mkdir()
    text = "import nightsweep, time\nfor n in range(23): time.sleep(0.01), nightsweep.step()\nraise ValueError('late')"
    (tmp_path / "own/t.py").write_text(text)
    first, again = (wrap(tmp_path, "--", sys.executable, "-m", "own.t") for _ in range(2))
    for done in (first, again):
        assert done.returncode == 1, done.stdout
        assert done.stderr == "the script failed as it was traced: rank_exception, rank 0: ValueError: late\n"
    assert "measured on" not in first.stdout
    assert "measured on" in again.stdout and "and not again" in again.stdout
    (tmp_path / "own/t.py").write_text(text.replace("0.01", "0.05"))
    assert "measured on" not in wrap(tmp_path, "--", sys.executable, "-m", "own.t").stdout


@pytest.mark.slow
def test_a_script_that_fails__ends_with_its_reason(tmp_path):
    (tmp_path / "bad.py").write_text("raise KeyError('lr')")
    done = wrap(tmp_path, "--", sys.executable, "bad.py")
    assert done.returncode == 1, done.stdout
    said, where = done.stderr.splitlines()
    assert said == "failed: rank_exception, rank 0: KeyError: 'lr'"
    assert "KeyError" in (tmp_path / where.strip()).read_text()
    assert not (tmp_path / "bad.yaml").exists()
