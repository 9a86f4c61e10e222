"""The whole chain through Snakemake, on a small sweep: run, killed, run again, figures drawn again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SWEEP = """
name: chain
base: {workload: llm, model: llama-nano, seq_len: 32, micro_batch: 2, device: cpu, warmup_steps: 1, timed_steps: 3,
       traced_steps: 1}
axes:
  seed: [0, 1]
include:
  - {learning_rate: 1.0e-4, fault: "exception@rank0:step1"}
"""


BARE = {"HOME": os.environ["HOME"], "PATH": "/usr/local/bin:/usr/bin:/bin"}
"""Only the path of snakemake names the environment, for nothing may depend on an activated one."""


def start(folder, *targets, profile="local", more=()):
    command = [
        str(Path(sys.executable).with_name("snakemake")),
        *targets,
        *more,
        "-s",
        str(ROOT / "Snakefile"),
        "--directory",
        str(folder),
        "--profile",
    ]
    command += [str(ROOT / "profiles" / profile), "--configfile", "sweep.yaml"]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True, env=BARE)


def finish(process, status=0):
    """What it says. `status`: 1 where a point is not ok."""
    _, errors = process.communicate(timeout=400)
    assert process.returncode == status, errors
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--default-resources", "batch_min=30")], ids=["points", "batch"])
def test_killed_half_way_and_run_again(tmp_path, more):
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("[0, 1]", "[0]"))
    records = tmp_path / "results/chain/points"
    first = start(tmp_path, more=more)
    deadline = time.monotonic() + 120
    while not (tmp_path / "results/chain/.driver").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    if not more:
        second = start(tmp_path)
        assert "another Nightsweep is at work" in second.communicate(timeout=200)[1] and second.returncode != 0
    while not list(records.glob("*/.measured.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    if not more:
        assert "to run" in finish(start(tmp_path, "-n"))
    done = {p.with_name("record.json"): p.read_bytes() for p in records.glob("*/.measured.json")}
    assert done
    # What is drawn does not know in which jobs its points ran.
    targets = ("points",) if more else ()
    said = finish(start(tmp_path, *targets, more=more), 1)
    assert "1 of 2 points ok" in said and "DrillError" in said
    assert {p: p.read_bytes() for p in done} == done
    statuses = sorted(json.loads(p.read_text())["status"] for p in records.glob("*/record.json"))
    assert statuses == ["failed", "ok"]

    if not more:
        assert "DrillError" in (tmp_path / "results/chain/report.html").read_text()
        figures = tmp_path / "results/chain/figures"
        drawn = {p: p.read_bytes() for p in figures.rglob("*") if p.is_file()}
        names = {str(p.relative_to(figures)) for p in drawn}
        assert {"timeline.pdf", "timeline-column.png", "held_time.rst", "supplement/failures.png"} <= names
        shutil.rmtree(figures)
        finish(start(tmp_path, "figures"), 1)
        assert {p: p.read_bytes() for p in figures.rglob("*") if p.is_file()} == drawn
    said = finish(start(tmp_path, *targets, more=more), 1)
    assert "1 of 2 points ok" in said and ("results/chain/report.html" in said) == (not more)
    assert {p: p.read_bytes() for p in done} == done


@pytest.mark.parametrize(
    ("seeds", "more", "said"),
    [
        ("[0, one]", (), "axes.seed[1]"),
        ("[0, 1]", ("--default-resources", "batch_min=6.5"), "expected whole minutes"),
        ("[0, 1]", ("--config", "container=none.sif"), "container=none.sif: no such file"),
    ],
    ids=["sweep", "profile", "image"],
)
def test_what_cannot_be_read_submits_nothing(tmp_path, seeds, more, said):
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("[0, 1]", seeds))
    process = start(tmp_path, more=more)
    _, errors = process.communicate(timeout=200)
    assert process.returncode != 0
    assert said in errors and "Traceback" not in errors
    assert "--configfile names another" not in errors, "it is given"
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("profile", "jobs"), [("local", "3 point"), ("slurm", "1 point, 2 led_point")])
def test_a_dry_run_says_what_would_run_and_what_it_costs(tmp_path, profile, jobs):
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("device: cpu", "device: cuda"))
    said = finish(start(tmp_path, "-n", profile=profile))
    assert f"{jobs}, 1 derive, 1 tables" in said and "Warning" not in said
    assert "chain: 3 of 3 points to run" in said and "3 points of 1 GPU, 0.0" in said
    assert not (tmp_path / "results").exists()
