"""`nightsweep wrap`: a command line taken apart, and the whole of it once."""

import subprocess
import sys
from pathlib import Path

import pytest

from nightsweep.analysis.tools import cli
from nightsweep.analysis.tools.wrap import Given, as_point, name_of, take_apart
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
    "python train.py --a": Given("none", ["python", "train.py", "--a"]),
    "./run.sh": Given("none", ["./run.sh"]),
}


@pytest.mark.parametrize(("line", "expected"), LINES.items())
def test_command_lines_are_taken_apart(line, expected):
    assert take_apart(line.split()) == expected


@pytest.mark.parametrize("line", ["", "torchrun", "torchrun --nproc-per-node 2 train", "torchrun --nnodes 2 train.py"])
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
    def stopped(command, **_):
        write_json(tmp_path / command[3] / "record.json", {"status": "failed", "reason": "stalled"})
        return subprocess.CompletedProcess(command, 130)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()
    point = as_point(Given("none", ["t.py"]), 5, 0)
    (tmp_path / "results/t/points" / point.id).mkdir(parents=True)
    monkeypatch.setattr(subprocess, "run", stopped)
    assert cli.main(["wrap", "--steps", "5", "--traced-steps", "0", "t.py"]) == 130
    assert capsys.readouterr().err == "stopped: nothing is recorded\n"


def wrap(tmp_path, *words):
    command = [Path(sys.executable).with_name("nightsweep"), "wrap", "--steps", "5", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
def test_a_script_that_fails_ends_with_its_reason(tmp_path):
    (tmp_path / "bad.py").write_text("raise KeyError('lr')")
    done = wrap(tmp_path, "--", sys.executable, "bad.py")
    assert (done.returncode, done.stderr) == (1, "failed: rank_exception, rank 0: KeyError: 'lr'\n"), done.stdout
