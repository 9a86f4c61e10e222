"""What thousands of queued points cost: seconds to submit, calls of the scheduler a minute, files opened a second (by
strace, where there is one), memory of the driver.

    python -m tests.cluster.load DIR --points 10000 --driver submitit     # ours
    python -m tests.cluster.load DIR --points 10000 --driver slurm        # snakemake-executor-plugin-slurm
    python -m tests.cluster.load DIR --points 10000 --driver slurm-array  # likewise, in its array mode
    python -m tests.cluster.load DIR --points 50 --driver processes       # one waiting submitit process a point

The second and third need snakemake-executor-plugin-slurm 2.8 or later, which the environment leaves out: Snakemake
loads all plugins that are installed whenever it starts, and this one loads pandas.

The cluster's partition is down, so that all points stay in the queue; an array holds a thousand. Calls of Slurm's
commands are counted by wrappers that stand before them on the PATH.
"""

import argparse
import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.cluster.slurm import Cluster, Shape

ROOT = Path(__file__).parents[2]
LIMITS = ("MaxArraySize=1001", "MaxJobCount=30000", "AccountingStorageEnforce=limits,qos")
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "sinfo", "scancel", "sacctmgr")
WAITER = """
import submitit, sys
executor = submitit.SlurmExecutor(folder=sys.argv[1])
executor.update_parameters(time=5, cpus_per_task=1)
executor.submit(print, 1).result()
"""


def counted(cluster, folder):
    """The cluster's environment, with commands that note when they are called."""
    tools = folder / "tools"
    tools.mkdir()
    calls = folder / "calls"
    for name in COMMANDS:
        script = tools / name
        script.write_text(f'#!/bin/bash\necho "{name} $(date +%s.%N)" >> {calls}\nexec /usr/bin/{name} "$@"\n')
        script.chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{cluster.environment['PATH']}"
    return cluster.environment | {"PATH": path, "PYTHONPATH": str(ROOT)}, calls


def drivers(kind, points, folder, environment):
    """Start what submits the points; its processes."""
    if kind == "processes":
        command = [sys.executable, "-c", WAITER, str(folder / "jobs")]
        return [
            subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.DEVNULL) for _ in range(points)
        ]
    command = ["snakemake", "-s", str(ROOT / "tests/cluster/Snakefile"), "--directory", str(folder)]
    command += ["--executor", kind.split("-")[0], "--jobs", "unlimited", "--nolock", "--quiet", "all"]
    command += ["--latency-wait", "5", "--max-jobs-per-timespan", "100000/1s"]
    command += ["--scheduler", "greedy", "--scheduler-subsample", "1000"]
    command += ["--default-resources", "mem_mb=100", "cpus_per_task=1"]
    command += ["--slurm-array-jobs=all"] if kind == "slurm-array" else []
    command += ["--config", f"points={points}"]
    with (folder / "driver.log").open("w") as log:
        return [subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)]


def queued(cluster):
    return len(cluster.run("squeue", "-h", "-r", "-t", "PD", "-o", "%i").split())


def memory_mb(processes):
    """Resident memory of the drivers and of all that they have started, MiB."""
    family = [p for d in processes for p in (psutil.Process(d.pid), *psutil.Process(d.pid).children(recursive=True))]
    return sum(p.memory_info().rss for p in family) / 2**20


def opens_a_second(process, seconds=20):
    """Files that a process opens, while nothing happens in the queue; None without strace."""
    if shutil.which("strace") is None:
        return None
    command = ["timeout", "-s", "INT", str(seconds), "strace", "-f", "-c", "-e", "trace=open,openat", "-p"]
    told = subprocess.run([*command, str(process.pid)], capture_output=True, text=True).stderr
    calls = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+).* open(?:at)?$", told, re.MULTILINE)
    return round(sum(map(int, calls)) / seconds, 1)


def rates(calls, since, until):
    """Calls a minute in a span of time, by command."""
    found = collections.Counter()
    for name, at in re.findall(r"(\w+) ([\d.]+)\n", calls.read_text()):
        found[name] += since <= float(at) < until
    return {name: round(count * 60 / (until - since), 2) for name, count in found.items() if count}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--driver", choices=("submitit", "slurm", "slurm-array", "processes"), default="submitit")
    parser.add_argument("--limit", type=int, help="jobs that the QOS lets this user have in the queue")
    parser.add_argument("--watch-s", type=float, default=180)
    parser.add_argument("--settle-s", type=float, default=90, help="seconds after the last submission, not counted")
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    with Cluster(args.folder / "cluster", Shape(accounting=True, extra=LIMITS)) as cluster:
        expected = min(args.points, args.limit or args.points)
        if args.limit:
            cluster.run("sacctmgr", "-i", "modify", "qos", "normal", "set", f"MaxSubmitJobsPerUser={args.limit}")
        cluster.run("scontrol", "update", "partition=main", "state=down")
        environment, calls = counted(cluster, args.folder)
        began = time.time()
        processes = drivers(args.driver, args.points, args.folder, environment)
        while queued(cluster) < expected:
            assert any(p.poll() is None for p in processes), (args.folder / "driver.log").read_text()
            time.sleep(0.5)
        submitted = time.time() - began
        time.sleep(args.settle_s)
        since = time.time()
        time.sleep(args.watch_s)
        until, held = time.time(), memory_mb(processes)
        opened = opens_a_second(processes[0])
        for process in processes:
            process.send_signal(signal.SIGINT)
        told = time.time()
        while queued(cluster) and time.time() - told < 120:
            time.sleep(0.2)
        quiet = f"calls a minute {rates(calls, since, until)}; {opened} files opened a second; {held:.0f} MiB"
        rate = f"{submitted:.1f} s ({expected / submitted:.0f} a second)"
        print(
            f"{args.driver}: {expected} of {args.points} points in {rate}; "
            f"{quiet}; after Ctrl-C {queued(cluster)} queued {time.time() - told:.1f} s later",
            flush=True,
        )
        for process in processes:
            process.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
