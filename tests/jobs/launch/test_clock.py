"""A real launch whose host's wall clock is set an hour on, and two hours back, while its steps are timed."""

import json
import os
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from nightsweep.jobs.host import clock
from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.launch import watchdog
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import read_json, read_lines
from nightsweep.jobs.record.launch_files import HostSample, RankResult, StepLine
from nightsweep.jobs.record.record import Record

POINT = {
    "workload": "llm", "model": "llama-nano", "seq_len": 32, "micro_batch": 1, "device": "cpu", "ranks_per_node": 2,
    "warmup_steps": 1, "timed_steps": 80, "traced_steps": 2,
}  # fmt: skip

# Python imports it as it starts. Times of files stay those of the kernel.
SET_CLOCK = """
import os, pathlib, time

def wall(read, a_second):
    def shifted():
        try:
            return read() + int(pathlib.Path(os.environ["WALL_CLOCK_SET_BY"]).read_text()) * a_second
        except FileNotFoundError:
            return read()
    return shifted

time.time, time.time_ns = wall(time.time, 1), wall(time.time_ns, 10**9)
"""


def launch(tmp_path, *by_s):
    """Launch the point, and set the clock by so much, one after the other, when its steps are timed; its folder,
    and from when to when it took."""
    point, site, set_by = complete(POINT), tmp_path / "site", tmp_path / "set_by"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SET_CLOCK)
    sweep, folder = tmp_path / "sweep.json", tmp_path / "points" / point.id
    sweep.write_text(json.dumps({"name": "t", "points": [{"point_id": point.id, "settings": point.settings()}]}))
    limits = ["--stall-s", "100", "--timeout-s", "200"]
    command = [sys.executable, "-m", "nightsweep.jobs.launch.launch", str(folder), "--sweep", str(sweep), *limits]
    env = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "WALL_CLOCK_SET_BY": str(set_by)}
    began = time.time_ns()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    marks, set_at = folder / "timed.1/rank0.phases.jsonl", []
    while process.poll() is None and not set_at:
        if marks.exists() and '"timed"' in marks.read_text():
            for seconds in by_s:
                time.sleep(0.1)
                set_at.append(time.time_ns())
                (tmp_path / "new").write_text(str(seconds))
                (tmp_path / "new").rename(set_by)
        time.sleep(0.01)
    assert process.wait(240) == 0, process.stderr.read()
    window = read_json(folder / "timed/rank0.result.json", RankResult).window
    assert window.start_ns < set_at[0] < set_at[-1] < window.end_ns, "the clock was not set while steps were timed"
    return folder, (began, time.time_ns())


@pytest.mark.slow
def test_a_clock_that_is_set_moves_no_time_and_fails_nothing(tmp_path):
    folder, (began, ended) = launch(tmp_path, 3600, -3600)
    record = read_json(folder / "record.json", Record)
    assert (record.status, record.runs.traced.status) == ("ok", "ok")
    steps = [line for rank in (0, 1) for line in read_lines(folder / f"timed/steps-r{rank}.jsonl", StepLine)]
    (samples,) = (folder / "timed").glob("host-*.jsonl")
    taken = [sample.t_ns for sample in read_lines(samples, HostSample)]
    phases = [phase.start_ns for phase in record.phases]
    runs = [time for run in (record.runs.timed, record.runs.traced) for time in (run.started_ns, run.ended_ns)]
    # The launcher's process has begun by the kernel's count of 10 ms since the start of the machine.
    early = began - 1_000_000_000
    for times in (phases, runs, taken):
        assert times == sorted(times) and early < times[0] and times[-1] < ended
    assert all(early < step.start_ns <= step.end_ns < ended for step in steps)
    lasted_s = (ended - began) / 1e9
    assert 0 < record.wall_s < lasted_s
    assert max(later - earlier for earlier, later in pairwise(phases)) / 1e9 < lasted_s


def test_a_rank_moves_whose_files_are_older_than_what_was_written_before(tmp_path):
    """As they are on a clock that was set back."""
    (tmp_path / "rank0.log").touch()
    (tmp_path / "rank0.heartbeat").touch()
    before = watchdog.signs_of_life(RunFolder(tmp_path))
    assert watchdog.signs_of_life(RunFolder(tmp_path)) == before
    os.utime(tmp_path / "rank0.heartbeat", ns=(before[0] - 3600 * 10**9,) * 2)
    assert watchdog.signs_of_life(RunFolder(tmp_path)) != before


def test_processes_of_one_host_count_from_one_reading_and_a_new_launch_reads_again(monkeypatch):
    monkeypatch.setenv(clock.VARIABLE, "")
    clock.begin()
    ask = [sys.executable, "-c", "from nightsweep.jobs.host import clock; print(clock._ahead_ns())"]

    def asked():
        return int(subprocess.run(ask, capture_output=True, text=True, cwd=ROOT, check=True).stdout)

    shared = clock._ahead_ns()
    assert asked() == shared
    monkeypatch.setattr(time, "time_ns", lambda at=time.time_ns: at() + 3600 * 10**9)
    assert clock._ahead_ns() == shared
    monkeypatch.setenv(clock.VARIABLE, f"another-boot {shared + 7200 * 10**9}")
    assert abs(asked() - shared) < 10**9
    clock.begin()
    assert clock._ahead_ns() - shared == pytest.approx(3600 * 10**9, abs=10**8)
    assert asked() == clock._ahead_ns()
    clock._ahead_ns.cache_clear()
