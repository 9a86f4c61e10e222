"""Faults of a night, each tried on a real Slurm: what is lost, measured twice, or given a wrong reason.

    python -m tests.cluster.faults DIR --tries 5 [--only NAME ...]

A fault takes a Trial, does its harm at a random moment, and repeats the same command until it ends by itself; the
result is what the points' records say then, against what they should. Points that only sleep note each start and end;
real ones are two ranks of a small model, and a record that was once ok must never change.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.cluster.slurm import Cluster, Shape
from tests.cluster.trial import Outcome, Trial, small_disk


def stopped_driver(number, group=False):
    def fault(one):
        driver = one.sleepers()
        driver.until(lambda: "submitted" in driver.log.read_text())
        time.sleep(one.chance.uniform(0, 12))
        (os.killpg if group else os.kill)(driver.process.pid, number)
        driver.process.wait(60)
        again = one.sleepers()
        again.finish()
        return one.judge(again)

    return fault


def stopped_points(number, local):
    """Ranks and launchers are stopped with the driver, wherever they are."""

    def fault(one):
        sweep, before, stopped = one.sweep(3), {}, 0
        for _ in range(2):
            driver = one.start(sweep, local)
            with suppress(subprocess.TimeoutExpired):
                driver.wait(one.chance.uniform(3, 25))
            if driver.poll() is None:  # on a quick host all may have ended by then
                stopped += 1
                if local:
                    os.killpg(driver.pid, number)  # as a terminal does
                else:
                    driver.send_signal(number)
            driver.communicate(timeout=200)
            one.no_jobs()
            for record in one.records().values():
                if record["status"] != "ok":
                    return Outcome(wrong=1, notes=[f"{one.folder}: {record['reason']} after a stop"])
            if not one.records().items() >= before.items():
                return Outcome(twice=1, notes=[f"{one.folder}: a good record changed"])
            before = one.records()
        if not stopped:
            return Outcome(wrong=1, notes=[f"{one.folder}: all had ended before either stop"])
        return one.judge_real(one.start(sweep, local), 3, before.items())

    return fault


def killed(*modules, expected="ok", attempts=1, local=False):
    def fault(one):
        sweep = one.sweep(1, 250)
        driver = one.start(sweep, local)
        one.at_a_step(driver)
        one.process(*modules).kill()
        if not local:
            return one.judge_real(driver, 1, expected=expected, attempts=attempts)
        driver.communicate(timeout=400)
        return one.judge_real(one.start(sweep, local), 1, expected=expected, attempts=attempts)

    return fault


def killed_local_driver(one):
    """Its launcher runs on, and the next one waits for it."""
    driver = one.start(one.sweep(2, 250), local=True)
    one.at_a_step(driver)
    driver.kill()
    driver.wait()
    return one.judge_real(one.start(one.sweep(2, 250), local=True), 2)


def killed_slurmstepd(one):
    driver = one.start(one.sweep(1, 250))
    one.at_a_step(driver)
    one.process("nightsweep.jobs.rank.supervisor").parent().kill()
    return one.judge_real(driver, 1, attempts=2)


def killed_slurmd(one):
    """The controller gives the node up while ranks run on as orphans."""
    driver = one.start(one.sweep(1, 400))
    one.at_a_step(driver)
    node = next(row["nodes"] for row in one.cluster.jobs() if row["state"] == "RUNNING")
    one.cluster.kill_slurmd(node)
    one.cluster.down(node, "slurmd is gone")
    try:
        return one.judge_real(driver, 1)
    finally:
        bring_back(one.cluster, node)


def bring_back(cluster, node):
    cluster.power_off(node)
    cluster.power_on(node)
    cluster.wait_for(node, "idle")


def node_off(when):
    def fault(one):
        node = one.chance.choice(one.cluster.shape.names)
        if when == "starting":
            one.cluster.power_off(node)  # Slurm still takes it for idle
        if when == "queued":
            one.cluster.power_off(node)
            one.cluster.down(node, "power")
        driver = one.sleepers()
        if when == "running":
            one.busy(driver)
            one.cluster.power_off(node)
        if when != "queued":
            time.sleep(one.chance.uniform(0, 8))
            one.cluster.down(node, "power")
        try:
            driver.finish()
        finally:
            bring_back(one.cluster, node)
        return one.judge(driver)

    return fault


def controller_killed(one):
    driver = one.sleepers()
    time.sleep(one.chance.uniform(2, 10))
    one.cluster.stop_controller(signal.SIGKILL)
    time.sleep(one.chance.uniform(5, 20))
    one.cluster.start_controller()
    driver.finish()
    return one.judge(driver)


def slurmdbd_away(one):
    driver = one.sleepers()
    time.sleep(one.chance.uniform(2, 10))
    one.cluster.stop_slurmdbd()
    time.sleep(one.chance.uniform(5, 20))
    one.cluster.start_slurmdbd()
    driver.finish()
    return one.judge(driver)


def time_limit(one):
    driver = one.sleepers(300, points=1, runtime=1)
    driver.finish()
    return one.judge(driver, {0: "time_limit"})


def preempted(one):
    driver = one.sleepers(8)
    one.busy(driver)
    node = one.chance.choice(driver.running())["nodes"]
    options = ("--partition=urgent", f"--nodelist={node}", "--exclusive", "--output=/dev/null", "--wrap", "sleep 5")
    one.cluster.run("sbatch", *options)
    said = driver.finish()  # not the points' notes: a job may be preempted before it writes one
    again = "is lost (preempted: " in said
    return one.judge(driver) + Outcome(wrong=not again, notes=[] if again else [said])


def scancelled(one):
    """By a person: its record says so, and the others are not touched."""
    driver = one.sleepers(8)
    one.busy(driver)
    job = one.chance.choice(driver.running())["id"]
    one.cluster.run("scancel", job)
    driver.finish()
    cancelled = [n for n in range(one.points) if driver.record(n)["reason"] == "cancelled"]
    return one.judge(driver, dict.fromkeys(cancelled[:1], "cancelled")) + Outcome(wrong=not cancelled)


def two_drivers(one):
    first = one.start(one.sweep(3))
    one.at_a_step(first)
    second = one.start(one.sweep(3))
    said = second.communicate(timeout=100)[1]
    found = one.judge_real(first, 3)
    if second.returncode == 0 or "another Nightsweep is at work" not in said:
        found += Outcome(wrong=1, notes=[said])
    return found


def corrupt_record(one):
    """Half a record is no result: the run says so, and retry has the point measured anew or its copy put back."""
    one.start(one.sweep(2, 5)).communicate(timeout=400)
    before = one.records()
    path = one.folder / f"results/night/points/{one.chance.choice(list(before))}/record.json"
    path.write_text(path.read_text()[:200])
    said = one.start(one.sweep(2, 5)).communicate(timeout=400)[1]
    command = [sys.executable, "-m", "nightsweep.analysis.tools.cli", "retry", "sweep.yaml"]
    retried = subprocess.run(command, cwd=one.folder, capture_output=True, text=True)
    found = one.judge_real(one.start(one.sweep(2, 5)), 2, before.items())
    if "cannot be read" not in said or "1 of 2 points set aside" not in retried.stdout:
        found += Outcome(wrong=1, notes=[said, retried.stdout + retried.stderr])
    return found


def full_disk(one):
    (one.folder / "results").symlink_to(one.disk)
    for old in one.disk.iterdir():
        shutil.rmtree(old)
    filler = one.disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(one.disk).free - one.chance.choice((0, 40_000, 60_000, 100_000))))
    said = one.start(one.sweep(2, 5)).communicate(timeout=400)[1]
    full = "no space left" in said.lower()
    filler.unlink()
    found = one.judge_real(one.start(one.sweep(2, 5)), 2)
    return found + Outcome(wrong=not full, notes=[] if full else [said])


def out_of_memory(one):
    """The kernel kills a rank that takes more than its cgroup may."""
    group = Path("/sys/fs/cgroup/memory/nightsweep-faults")
    group.mkdir(exist_ok=True)
    (group / "memory.limit_in_bytes").write_text("1500M")
    sweep = (
        one.sweep(1).replace("ranks_per_node: 2", "ranks_per_node: 1").replace("micro_batch: 2", "micro_batch: 8192")
    )
    try:
        return one.judge_real(one.start(sweep, True, group), 1, expected="host_out_of_memory")
    finally:
        group.rmdir()


LAUNCHER, RANK = "nightsweep.jobs.launch.launch", "nightsweep.jobs.rank.worker"
SAMPLERS = ("nightsweep.jobs.telemetry.gpu.sampler", "nightsweep.jobs.telemetry.host_sampler")
FAULTS = {
    "Ctrl-C, points asleep": stopped_driver(signal.SIGINT, group=True),
    "SIGTERM, points asleep": stopped_driver(signal.SIGTERM),
    "Ctrl-C twice, ranks at work": stopped_points(signal.SIGINT, local=False),
    "SIGTERM twice, ranks at work": stopped_points(signal.SIGTERM, local=False),
    "Ctrl-C twice, local profile": stopped_points(signal.SIGINT, local=True),
    "SIGTERM twice, local profile": stopped_points(signal.SIGTERM, local=True),
    "kill -9 of the driver": stopped_driver(signal.SIGKILL, group=True),
    "kill -9 of the driver, local profile": killed_local_driver,
    "kill -9 of the launcher": killed(LAUNCHER, attempts=2),
    "kill -9 of the launcher, local profile": killed(LAUNCHER, attempts=2, local=True),
    "kill -9 of a rank": killed(RANK, expected="rank_killed"),
    "kill -9 of a rank, local profile": killed(RANK, expected="rank_killed", local=True),
    "kill -9 of a sampler": killed(*SAMPLERS),
    "kill -9 of slurmstepd": killed_slurmstepd,
    "node off, jobs queued": node_off("queued"),
    "node off, jobs starting": node_off("starting"),
    "node off, jobs running": node_off("running"),
    "slurmd killed": killed_slurmd,
    "slurmctld killed": controller_killed,
    "slurmdbd away": slurmdbd_away,
    "time limit": time_limit,
    "preemption": preempted,
    "scancel": scancelled,
    "two drivers": two_drivers,
    "corrupt record": corrupt_record,
    "disk full": full_disk,
    "host out of memory (cgroup)": out_of_memory,
}


def run(faults, doc, batch_min=0):
    """Try faults as the command line says, and print a table."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(faults), metavar="NAME")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance, folder = random.Random(args.seed), args.folder.resolve()
    print("| fault | tries | lost | measured twice | wrong reason |\n|---|---|---|---|---|", flush=True)
    notes = []
    shape = Shape(nodes=4, gpus=4, accounting=True)
    with small_disk(folder / "disk"), Cluster(folder / "cluster", shape) as cluster:
        for number, name in enumerate(args.only):
            total = Outcome()
            for k in range(args.tries):
                total += faults[name](Trial(cluster, folder / f"{number}.{k}", chance, folder / "disk", batch_min))
            print(f"| {name} | {args.tries} | {total.lost} | {total.twice} | {total.wrong} |", flush=True)
            notes += total.notes
        print("\n".join(notes), flush=True)
    os._exit(bool(notes))


if __name__ == "__main__":
    run(FAULTS, __doc__)
