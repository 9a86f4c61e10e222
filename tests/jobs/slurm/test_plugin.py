"""Snakemake's suite for executor plugins and a workflow that is not ours, on a real Slurm."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.slurm import Cluster, Shape, available

SUITE = Path(__file__).parents[3] / "workflow/plugins/snakemake-executor-plugin-submitit/tests/test_suite.py"


@pytest.mark.slow
def test_the_plugins_own_suite(tmp_path):
    if why := available():
        pytest.skip(why)
    with Cluster(tmp_path / "cluster", Shape(nodes=2, gpus=0)) as cluster:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(SUITE)]
        done = subprocess.run(
            [*command, f"--basetemp={tmp_path / 'suite'}"], env=cluster.environment, capture_output=True, text=True
        )
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
