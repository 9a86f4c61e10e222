"""What every fault of tests/cluster/faults.py works with: points that sleep, real points, and how they are judged."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.jobs.slurm.sleep_run import Driver
from tests.jobs.slurm.sweep_run import BASE, ROOT, SCRIPT, STEPS, start

POINTS = 8
"""Points that sleep: twice as many as there are nodes."""
REAL = f"""
name: night
base: {{{BASE}, timed_steps: 100, traced_steps: 0, ranks_per_node: 2}}
axes: {{seed: SEEDS}}
resources: {{timeout_min: 10}}
"""
SCRIPTS = REAL.replace(BASE, SCRIPT).replace(", ranks_per_node: 2", "")
ACTIVE = ("RUNNING", "PENDING", "COMPLETING")


@dataclass
class Outcome:
    """Points of a fault's tries that went wrong; `notes` say how."""

    lost: int = 0
    twice: int = 0
    wrong: int = 0
    notes: list[str] = field(default_factory=list)

    def __add__(self, other):
        sums = (self.lost + other.lost, self.twice + other.twice, self.wrong + other.wrong)
        return Outcome(*sums, self.notes + other.notes)


class Trial:
    """The folder, the cluster and the chance that a fault works with, and what to do there. `batch_min`: as a profile
    has it, for real points. `real`: the sweep of these. `points`: how many sleep."""

    def __init__(self, cluster, folder, chance, disk=None, batch_min=0, real=REAL, points=POINTS):
        self.cluster, self.folder, self.chance, self.disk = cluster, folder, chance, disk
        self.batch_min, self.real, self.points = batch_min, real, points
        folder.mkdir(parents=True)

    # Points that sleep, one a node at a time

    def sleepers(self, seconds=4, *more, points=None, runtime=5):
        alone = ("--set-resources", "point:cpus_per_task=10")
        return Driver(self.cluster, self.folder, points or self.points, seconds, 1, runtime, *alone, *more)

    def busy(self, driver):
        """Until some run; then a moment more."""
        driver.until(lambda: len(driver.running()) >= 2)
        time.sleep(self.chance.uniform(0, 3))

    def judge(self, driver, expected=()):
        expected, found = dict(expected), Outcome()
        for number in range(len(driver.points)):
            record, ends = driver.record(number), len(driver.notes(number, "end"))
            said = record and (record["reason"] or record["status"])
            found.lost += record is None
            found.twice += ends > 1
            found.wrong += record is not None and said != expected.get(number, "ok")
            if said != expected.get(number, "ok") or ends > 1:
                found.notes.append(f"{self.folder}: point {number}: {said}, {ends} ends")
        return found

    # Real points

    def sweep(self, seeds, steps=100):
        return self.real.replace("SEEDS", str(list(range(seeds)))).replace("timed_steps: 100", f"timed_steps: {steps}")

    def start(self, sweep, local=False, group=None):
        """`group`: the memory cgroup to run in."""
        if not local:
            return start(self.cluster, self.folder, sweep, "points", batch_min=self.batch_min)
        (self.folder / "sweep.yaml").write_text(sweep)
        (self.folder / "steps.py").write_text(STEPS)
        command = [str(Path(sys.executable).with_name("snakemake")), "points", "-s", str(ROOT / "Snakefile")]
        command += ["--profile", str(ROOT / "profiles/local"), "--configfile", "sweep.yaml"]
        command += ["--default-resources", f"batch_min={self.batch_min}"]
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        if group is not None:
            command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"', *command]
        return subprocess.Popen(
            command, cwd=self.folder, env=own, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def records(self):
        found = self.folder.glob("results/*/points/*/record.json")
        return {path.parent.name: json.loads(path.read_text()) for path in found}

    def judge_real(self, process, points, before=(), expected="ok", attempts=None):
        """After the last run ended by itself; `before`: records that were seen earlier; `attempts`: which one a record
        must be of, so that harm that did not reach the point is no success."""
        said = process.communicate(timeout=400)[1]
        now = self.records()
        found = Outcome(lost=points - len(now))
        for point, record in now.items():
            status = record["reason"] or record["status"]
            found.wrong += status != expected
            found.twice += dict(before).get(point, record) != record
            found.wrong += attempts not in (None, record["attempt"])
            if status != expected or attempts not in (None, record["attempt"]):
                found.notes.append(
                    f"{self.folder}: {point}: {status}: {record['message']}, {record['attempt']} attempts"
                )
        if len(now) < points:
            found.notes.append(f"{self.folder}: {said[-1500:]}")
        return found

    def at_a_step(self, process):
        """Until a rank trains."""
        deadline = time.monotonic() + 180
        beats = "results/*/points/*/timed.*/rank0.heartbeat"
        while not any("step" in path.read_text() for path in self.folder.glob(beats)):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        time.sleep(self.chance.uniform(0, 1))

    def process(self, *modules):
        """One of these modules itself, not a shell around it, at work in this folder."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cwd() == str(self.folder) and process.cmdline()[1:3] in [["-m", name] for name in modules]:
                    return process
        raise LookupError(modules)

    def no_jobs(self):
        deadline = time.monotonic() + 200
        while [row for row in self.cluster.jobs() if row["state"] in ACTIVE]:
            assert time.monotonic() < deadline
            time.sleep(0.3)


@contextmanager
def small_disk(disk):
    """Mounted before the nodes, which see no later mount."""
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
