"""What a run says at its end, and its exit status: the same points for the driver, watch, retry and the tables."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.ingest.derived import Derived
from nightsweep.analysis.tools.cli import main
from nightsweep.analysis.tools.collect import collect
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.sweep.driver import Run
from nightsweep.jobs.sweep.sweep import load

ROOT = Path(__file__).parents[2]
SWEEP = """
name: ending
base: {workload: command, command: "job.py {seed}", launcher: none, device: cpu, traced_steps: 0}
axes: {seed: [0, 1]}
"""
SCRIPT = """
import sys
assert sys.argv[1] != "2"
"""
DEAD_LAUNCHER = """
import os, sys
if "nightsweep.jobs.launch.launch" in sys.orig_argv:
    os._exit(3)
"""


def snakemake(folder, *targets, **environment):
    command = [str(Path(sys.executable).with_name("snakemake")), *targets, "-s", str(ROOT / "Snakefile")]
    command += ["--directory", str(folder), "--profile", str(ROOT / "profiles/local"), "--configfile", "sweep.yaml"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path} | environment, capture_output=True, text=True, timeout=400
    )


def counts(capsys, *command):
    """What a command of nightsweep prints."""
    assert main(command) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_all_count_the_same_points_and_the_exit_status_says_whether_all_are_ok(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text(SCRIPT)
    Path("sweep.yaml").write_text(SWEEP.replace("[0, 1]", "[0]"))
    good = snakemake(tmp_path, "points")
    assert good.returncode == 0 and "1 of 1 points ok" in good.stderr, good.stderr
    Path("sweep.yaml").write_text(SWEEP.replace("[0, 1]", "[0, 1, 2]"))
    for _ in range(2):  # the second time there is nothing to be done
        done = snakemake(tmp_path, "results/ending/tables/points.parquet")
        assert done.returncode == 1 and "2 of 3 points ok" in done.stderr, done.stderr
        assert "failed: rank_exception, " in done.stderr
        assert "None" not in done.stderr and "Traceback" not in done.stderr
    (seen,) = json.loads(counts(capsys, "watch", "results", "--once", "--json"))["sweeps"]
    assert (seen["points"], seen["done"], seen["failed"]) == (3, 3, 1)
    own = Run(Path("results/ending"), load(Path("sweep.yaml"))).own
    begun = [read_json(Path(f"results/ending/points/{point}/record.json"), Record).started_at for point in own]
    assert begun == sorted(begun), "the order of the file"
    assert counts(capsys, "retry", "sweep.yaml") == "0 of 3 points set aside\n"
    table = pl.read_parquet("results/ending/tables/points.parquet")
    assert sorted(table["status"]) == ["failed", "ok", "ok"]
    said = counts(capsys, "diagnose", "results/ending")
    shown = [line.split()[:2] for line in said.splitlines() if line[:12] in set(table["point_id"])]
    assert len(shown) == 3 and next(line for line in shown if len(line) == 2)[1] == "failed:"
    ok = table.filter(table["status"] == "ok")["point_id"]
    assert json.loads(counts(capsys, "diagnose", "results/ending", "--json")).keys() == set(ok)


@pytest.mark.slow
def test_points_whose_launcher_dies_are_not_run(tmp_path):
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(DEAD_LAUNCHER)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    done = snakemake(tmp_path, "points", PYTHONPATH=path)
    assert done.returncode == 1 and "0 of 2 points ok" in done.stderr, done.stderr
    assert "  2 not run; the same command runs them" in done.stderr
    assert "None" not in done.stderr and "Cannot restore" not in done.stderr


def test_points_of_a_round_of_remedies_count_before_they_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(SWEEP)
    Path("job.py").write_text(SCRIPT)
    run = Run(Path("results/ending"), load(Path("sweep.yaml")))
    run.begin(None)
    first, second = run.own
    for point in (first, second):
        (run.folder / "points" / point).mkdir(parents=True)
        write_json(run.folder / "points" / point / "record.json", {"status": "ok", "point_id": point})
    new = {"point_id": "0123456789ab", "settings": run.own[first].settings()}
    listed = {"name": "ending", "round": 1, "points": [{**new, "point_id": second}, new], "trials": []}
    (run.folder / "remedies").mkdir()
    write_json(run.folder / "remedies/round1.json", listed)
    with pytest.raises(SystemExit):
        run.conclude()
    assert "2 of 3 points ok\n  1 not run; the same command runs them\n" in capsys.readouterr().err
    (seen,) = json.loads(counts(capsys, "watch", "results", "--once", "--json"))["sweeps"]
    assert (seen["points"], seen["done"], seen["left"]) == (3, 2, 1)
    run.lock.close()  # as its process does when it ends
    assert counts(capsys, "retry", "sweep.yaml") == "0 of 3 points set aside\n"
    sweep = json.loads((run.folder / "sweep.json").read_text())
    assert dict(collect(sweep, Derived(run.folder / "derived"), [listed]))["points"][0].height == 3


@pytest.mark.slow
def test_a_misspelt_key_on_the_command_line_runs_nothing(tmp_path):
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    for key in ("prest", "presets"):
        done = snakemake(tmp_path, "points", "-n", "--config", f"{key}=night")
        assert done.returncode and f"--config {key}: unknown key; expected preset or container" in done.stderr, key
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("axes", "axis"))
    done = snakemake(tmp_path, "points", "-n")
    assert done.returncode and "axis: unknown key (did you mean 'axes'?)" in done.stderr, done.stderr
    (tmp_path / "sweep.yaml").unlink()
    done = snakemake(tmp_path, "points", "-n")
    assert done.returncode and "sweep.yaml" in done.stderr and "No such file" in done.stderr, done.stderr
