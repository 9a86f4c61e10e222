"""The load of a whole host: what is read from /proc, and what comes of two readings."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.record.launch_files import RankProcess
from nightsweep.jobs.telemetry import host_load, host_sampler

STAT = "cpu  {user} 100 2000 {idle} 300 40 60 {steal} 500 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n"
PRESSURE = "some avg10=2.57 avg60=18.32 total={some}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n"


def write_proc(folder, user=1000, idle=5000, steal=10, stalled=1_000_000):
    (folder / "pressure").mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(STAT.format(user=user, idle=idle, steal=steal))
    (folder / "loadavg").write_text("0.20 0.18 0.12 3/80 11206\n")
    for name in host_load.RESOURCES:
        (folder / "pressure" / name).write_text(PRESSURE.format(some=stalled, full=7))


def test_two_readings_make_shares_of_all_cores_and_of_time(tmp_path):
    write_proc(tmp_path)
    first = replace(host_load.read_counts(tmp_path), at_s=10.0)
    write_proc(tmp_path, user=1060, idle=5036, steal=14, stalled=1_125_000)
    last = replace(host_load.read_counts(tmp_path), at_s=10.5)
    load = host_load.load_between(first, last)
    assert (load.busy_percent, load.steal_percent) == (60.0, 6.25)  # of 100 ticks, and of 64 that there was work in
    assert load.stalled_percent == {"cpu": 25.0, "io": 25.0, "memory": 25.0}  # 0.125 s of 0.5 s, of `some`
    assert last.runnable == 3


def test_nothing_is_stolen_of_an_idle_host(tmp_path):
    write_proc(tmp_path)
    first = host_load.read_counts(tmp_path)
    write_proc(tmp_path, idle=5100)
    assert host_load.load_between(first, host_load.read_counts(tmp_path)).steal_percent == 0.0


def test_what_a_kernel_does_not_count_is_null(tmp_path):
    counts = host_load.read_counts(tmp_path / "nothing")
    load = host_load.load_between(counts, counts)
    assert (load.busy_percent, load.steal_percent, counts.runnable) == (None, None, None)
    assert set(load.stalled_percent.values()) == {None}
    write_proc(tmp_path)
    still = host_load.read_counts(tmp_path)  # a sandbox shows numbers that never move
    assert host_load.load_between(still, replace(still, at_s=still.at_s + 1)).busy_percent is None


@pytest.mark.parametrize("ours", [True, False])
def test_a_busy_process_is_the_jobs_own_or_another(ours, tmp_path):
    if host_load.read_counts().total_s is None:
        pytest.skip("this kernel does not count the time of its cores")
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        write_json(
            tmp_path / "rank0.pid.json",
            RankProcess(rank=0, host=socket.gethostname(), pid=burner.pid if ours else os.getpid()),
        )
        reader = host_sampler.HostReader(RunFolder(tmp_path))
        if not ours:  # else this process' child would be the job's
            reader.processes = list
        reader.read()
        time.sleep(1.0)
        sample = reader.read()
    finally:
        burner.kill()
        burner.wait()
    if sample.other_cpu_percent is None:
        pytest.skip("this kernel's times of cores do not move")
    own = sample.cpu_percent / os.cpu_count()
    assert (own > 5) == ours
    if not ours:
        assert sample.other_cpu_percent > 20 / os.cpu_count()


def test_others_are_all_but_the_job():
    assert host_sampler.other_percent(None, 100) is None
    assert host_sampler.other_percent(50.0, 100.0 * os.cpu_count() / 4) == 25.0
    assert host_sampler.other_percent(1.0, 200.0 * os.cpu_count()) == 0.0


def test_a_reading_of_the_load_costs_little():
    host_load.read_counts()
    begin = time.process_time()
    for _ in range(200):
        host_load.read_counts()
    assert (time.process_time() - begin) / 200 < 0.004  # twice a second: below 1 % of a core
