"""The faults of tests/cluster/faults.py where one job runs several real points (`batch_min` of the profile): a point in
flight may be run again, what was measured stays, and the others are run.

    python -m tests.cluster.batch_faults DIR --tries 3 [--only NAME ...]
"""

import json
import os
import signal
import time
from collections import Counter

import psutil

from tests.cluster import faults
from tests.cluster.faults import LAUNCHER, bring_back, corrupt_record, full_disk, stopped_points, two_drivers
from tests.cluster.trial import Outcome

POINTS, STEPS, BATCH_MIN = 4, 60, 15
SERVER = "nightsweep.jobs.rank.server"


def judge(one, process, again=0, **failed):
    """After the last run ended by itself: how many points failed for which reasons, at most how many were run twice.
    Records that are ok are of one attempt, or of two where the first one was lost."""
    said = process.communicate(timeout=400)[1]
    records = list(one.records().values())
    reasons = Counter(record["reason"] for record in records if record["status"] != "ok")
    repeated = sum((record["attempt"] or 1) > 1 for record in records)
    found = Outcome(lost=POINTS - len(records), twice=max(0, repeated - again), wrong=int(reasons != Counter(failed)))
    if found != Outcome():
        attempts = [record["attempt"] for record in records]
        found.notes.append(f"{one.folder}: {dict(reasons)}, attempts {attempts}: {said[-1500:]}")
    return found


def begun(one, local=False):
    driver = one.start(one.sweep(POINTS, STEPS), local)
    one.at_a_step(driver)
    return driver


def later(one, most=20):
    time.sleep(one.chance.uniform(0, most))


def newest(one, pattern):
    """The file of the point at work: those that have ended have another folder."""
    return max(one.folder.glob(f"results/*/points/*/timed.*/{pattern}"), key=lambda path: path.stat().st_mtime)


def kill_rank(one):
    os.kill(json.loads(newest(one, "rank0.pid.json").read_text())["pid"], signal.SIGKILL)


def kill_sampler(one):
    os.kill(one.chance.choice(json.loads(newest(one, "samplers-*.json").read_text())["pids"]), signal.SIGKILL)


def killed(kill, local=False, again=0, **failed):
    def fault(one):
        driver = begun(one, local)
        kill(one)
        if not local:
            return judge(one, driver, again, **failed)
        driver.communicate(timeout=400)
        return judge(one, one.start(one.sweep(POINTS, STEPS), local), again, **failed)

    return fault


def kill_step(one):
    """Of Slurm, the process that the server's step runs under."""
    server = one.process(SERVER)
    parents = [parent for parent in server.parents() if parent.name().startswith("slurmstepd")]
    (parents or [psutil.Process(server.ppid())])[0].kill()


def running_node(one):
    return next(row["nodes"] for row in one.cluster.jobs() if row["state"] == "RUNNING")


def node_off(one):
    driver = begun(one)
    later(one)
    node = running_node(one)
    one.cluster.power_off(node)
    one.cluster.down(node, "power")
    try:
        return judge(one, driver, again=1)
    finally:
        bring_back(one.cluster, node)


def killed_slurmd(one):
    driver = begun(one)
    node = running_node(one)
    one.cluster.kill_slurmd(node)
    one.cluster.down(node, "slurmd is gone")
    try:
        return judge(one, driver, again=POINTS)  # orphans may have begun what the new job runs
    finally:
        bring_back(one.cluster, node)


def killed_driver(one):
    driver = begun(one)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    return judge(one, one.start(one.sweep(POINTS, STEPS)))


def away(stop, start):
    def fault(one):
        driver = begun(one)
        getattr(one.cluster, stop)()
        time.sleep(one.chance.uniform(5, 20))
        getattr(one.cluster, start)()
        return judge(one, driver)

    return fault


def preempted(one):
    driver = begun(one)
    later(one, 8)
    node = running_node(one)
    options = ("--partition=urgent", f"--nodelist={node}", "--exclusive", "--output=/dev/null", "--wrap", "sleep 5")
    one.cluster.run("sbatch", *options)
    return judge(one, driver, again=1)


def scancelled(one):
    """What was measured stays; of the others the records say so."""
    driver = begun(one)
    later(one, 5)
    one.cluster.run("scancel", next(row["id"] for row in one.cluster.jobs() if row["state"] == "RUNNING"))
    driver.communicate(timeout=400)
    said = Counter(record["reason"] or record["status"] for record in one.records().values())
    good = said.keys() <= {"ok", "cancelled"} and said["cancelled"] and said.total() == POINTS
    return Outcome(wrong=not good, notes=[] if good else [f"{one.folder}: {dict(said)}"])


def hung_point(one):
    """One that takes too long has its reason; those after it are run."""
    sweep = one.sweep(POINTS, STEPS).replace("timeout_min: 10", "timeout_min: 1")
    slow = f"include: [{{seed: 1, timed_steps: 1000000}}]\nexclude: [{{seed: 1, timed_steps: {STEPS}}}]\n"
    return judge(one, one.start(sweep + slow), time_limit=1)


def short_job(one):
    """The job ends before its points do: what it does not come to is run by the same command."""
    driver = begun(one)
    job = next(row["id"] for row in one.cluster.jobs() if row["state"] == "RUNNING")
    one.cluster.run("scontrol", "update", f"jobid={job}", "timelimit=2")
    driver.communicate(timeout=400)
    return judge(one, one.start(one.sweep(POINTS, STEPS)), again=1)


BATCH_FAULTS = {
    "Ctrl-C twice, ranks at work": stopped_points(signal.SIGINT, local=False),
    "SIGTERM twice, ranks at work": stopped_points(signal.SIGTERM, local=False),
    "Ctrl-C twice, local profile": stopped_points(signal.SIGINT, local=True),
    "SIGTERM twice, local profile": stopped_points(signal.SIGTERM, local=True),
    "kill -9 of the driver": killed_driver,
    "kill -9 of the launcher": killed(lambda one: one.process(LAUNCHER).kill(), again=1),
    "kill -9 of the launcher, local profile": killed(lambda one: one.process(LAUNCHER).kill(), local=True, again=1),
    "kill -9 of a rank": killed(kill_rank, rank_killed=1),
    "kill -9 of a rank, local profile": killed(kill_rank, local=True, rank_killed=1),
    "kill -9 of a sampler": killed(kill_sampler),
    "kill -9 of the fork server": killed(lambda one: one.process(SERVER).kill(), again=1),
    "kill -9 of slurmstepd": killed(kill_step, again=1),
    "node off": node_off,
    "slurmd killed": killed_slurmd,
    "slurmctld killed": away("stop_controller", "start_controller"),
    "slurmdbd away": away("stop_slurmdbd", "start_slurmdbd"),
    "a point hangs": hung_point,
    "the job's time is over": short_job,
    "preemption": preempted,
    "scancel": scancelled,
    "two drivers": two_drivers,
    "corrupt record": corrupt_record,
    "disk full": full_disk,
}


def main():
    faults.run(BATCH_FAULTS, __doc__, batch_min=BATCH_MIN)


if __name__ == "__main__":
    main()
