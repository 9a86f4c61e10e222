"""A sweep of real points through Snakemake on a Slurm of the tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BASE = "workload: llm, model: llama-nano, seq_len: 32, micro_batch: 2, device: cpu, warmup_steps: 1"
SCRIPT = 'workload: command, command: "steps.py {seed}", launcher: none, workdir: ., device: cpu, warmup_steps: 1'
STEPS = """
import time
import nightsweep
while True:
    time.sleep(0.03)
    nightsweep.step()
"""
"""The script of SCRIPT, for tests that are not about models: its steps last long and use no core."""


def start(cluster, folder, sweep, *more, batch_min=0):
    (folder / "sweep.yaml").write_text(sweep)
    (folder / "steps.py").write_text(STEPS)
    command = ["snakemake", *more, "-s", str(ROOT / "Snakefile"), "--directory", str(folder), "--profile"]
    command += [str(ROOT / "profiles/slurm"), "--configfile", "sweep.yaml", "--latency-wait", "10"]
    command += ["--default-resources", "mem_mb=1000", "cpus_per_task=1", "gpus_per_node=1", f"batch_min={batch_min}"]
    command += ["--submitit-poll-s", "5"]
    environment = cluster.environment | {"PATH": f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process, status=0):
    """What it says. `status`: 1 where a point is not ok."""
    try:
        _, errors = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(process.communicate()[1])
    assert process.returncode == status, errors
    return errors
