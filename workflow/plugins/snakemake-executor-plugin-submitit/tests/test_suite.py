"""Snakemake's own suite for executor plugins, and a workflow of somebody else: on the Slurm that SLURM_CONF names, or
else as processes of this machine."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from snakemake.common.tests import TestWorkflowsLocalStorageBase
from snakemake_executor_plugin_submitit import ExecutorSettings, executor

pytestmark = pytest.mark.slow
CLUSTER = "slurm" if "SLURM_CONF" in os.environ else "local"


class TestOfficial(TestWorkflowsLocalStorageBase):
    __test__ = True

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch):
        monkeypatch.setattr(executor, "TICK_S", 0.2)
        monkeypatch.setattr(executor, "FIRST_QUERY_S", 1.0)

    def get_executor(self):
        return "submitit"

    def get_executor_settings(self):
        return ExecutorSettings(cluster=CLUSTER, poll_s=1)


@pytest.mark.skipif(CLUSTER == "local", reason="no SLURM_CONF")
def test_a_workflow_that_knows_nothing_of_the_executor(tmp_path):
    shutil.copy(Path(__file__).with_name("tutorial") / "Snakefile", tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/genome").write_text("ACGTTGCATTAG\n")
    for sample, reads in {"A": "CGTT\nATTA\n", "B": "TGCA\n"}.items():
        (tmp_path / f"data/{sample}.reads").write_text(reads)
    command = [
        str(Path(sys.executable).with_name("snakemake")),
        "--executor",
        "submitit",
        "--jobs",
        "10",
        "--retries",
        "1",
    ]
    done = subprocess.run(
        [*command, "--submitit-poll-s", "2"], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls/all.txt").read_text().split() == ["ATTA", "CGTT", "TGCA"]
    assert not (tmp_path / "calls/all.txt").stat().st_mode & stat.S_IWUSR and not (tmp_path / "mapped/A.map").exists()
    assert "submitted 2 jobs" in done.stderr and done.stderr.count("submitted 1 job: ") == 2, done.stderr
    (failed,) = re.findall(r"external_jobid: (\d+)", done.stderr)
    shown = subprocess.run(["scontrol", "show", "job", failed], capture_output=True, text=True, check=True).stdout
    assert "JobState=FAILED " in shown and "ExitCode=1:0" in shown, shown
