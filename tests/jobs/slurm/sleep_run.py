"""Snakemake on points that only sleep, on a Slurm of the tests."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


class Driver:
    """One run of Snakemake on points that sleep."""

    def __init__(self, cluster, folder, points, seconds=0, nodes=1, runtime=5, *more):
        self.cluster, self.folder, self.points = cluster, folder, [f"{number:012x}" for number in range(points)]
        results = folder / "results/sleep"
        results.mkdir(parents=True, exist_ok=True)
        settings = {"workload": "image", "model": "mobilenet_v2"}
        listed = [{"point_id": point, "settings": settings} for point in self.points]
        (results / "sweep.json").write_text(json.dumps({"name": "sleep", "points": listed}))
        command = ["snakemake", "-s", str(ROOT / "tests/cluster/Snakefile"), "--directory", str(folder)]
        command += ["--profile", str(ROOT / "profiles/slurm"), "--logger", "nightsweep"]
        command += ["--default-resources", "mem_mb=100", "cpus_per_task=1", "--latency-wait", "5"]
        command += ["--submitit-poll-s", "5"]
        command += ["--config", f"points={points}", f"seconds={seconds}", f"nodes={nodes}", f"runtime={runtime}", *more]
        self.log = folder / "driver.log"
        path = f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"
        with self.log.open("a") as sink:
            self.process = subprocess.Popen(
                command, env=cluster.environment | {"PATH": path}, stdout=sink, stderr=sink, start_new_session=True
            )

    def point(self, number):
        return self.folder / "results/sleep/points" / self.points[number]

    def record(self, number):
        path = self.point(number) / "record.json"
        return json.loads(path.read_text()) if path.exists() else None

    def notes(self, number, word):
        path = self.point(number) / "notes"
        return (
            [line.split()[1] for line in path.read_text().splitlines() if line.startswith(word)]
            if path.exists()
            else []
        )

    def until(self, reached, timeout=180, fast=False):
        end = time.monotonic() + timeout
        while not reached():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.005 if fast else 0.2)

    def running(self):
        return [row for row in self.cluster.jobs() if row["state"] == "RUNNING"]

    def finish(self, timeout=300, status=0):
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            pytest.fail(self.log.read_text())
        assert self.process.returncode == status, self.log.read_text()
        return self.log.read_text()
