"""Supervisors of scripts: one that is stopped or fails at an awkward moment, and what several ranks conclude."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank.script import conclude, drop_whole_runs
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.launch_files import RankError, RankExit, RankResult, Window
from nightsweep.jobs.sweep.order import Order

SCRIPT = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)"
STOPPED = """
prepare = script.prepare
def stopped(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    return prepare(*given)
script.prepare = stopped
"""
NO_COPY = f"""
def full(*given):
    raise OSError({errno.ENOSPC}, "No space left on device"FILE)
script.prepare = full
"""
FULL_DISK = f"""
import pathlib, time
def full(path, content):
    while not pathlib.Path(sys.argv[2], "pid").exists():
        time.sleep(0.01)
    raise OSError({errno.ENOSPC}, "No space left on device")
supervisor.write_json = full
"""


def supervise(tmp_path, trouble):
    """A supervisor that has this trouble; its exit status, and its run's folder."""
    (tmp_path / "script.py").write_text(SCRIPT)
    settings = {"workload": "command", "command": "script.py", "launcher": "none", "workdir": str(tmp_path)}
    folder = RunFolder(tmp_path / "timed.1")
    folder.path.mkdir()
    Order(settings=complete(settings | {"device": "cpu"}).settings(), samplers=False).write(folder)
    code = "import os, signal, sys\nfrom nightsweep.jobs.rank import script, supervisor\n"
    words = [sys.executable, "-c", f"{code}{trouble}\nsys.exit(supervisor.main())", str(folder.path), str(tmp_path)]
    return subprocess.run(words, capture_output=True, timeout=50).returncode, folder


def test_a_signal_that_comes_before_the_script_is_started_stops_it(tmp_path):
    status, folder = supervise(tmp_path, STOPPED)
    found = read_json(folder.rank_file(0, "exit.json"), RankExit)
    assert (status, found.stopped, found.signal) == (1, True, signal.SIGTERM)


@pytest.mark.parametrize(
    ("file", "message"),
    [(', "train.yaml"', "train.yaml: No space left on device"), ("", "[Errno 28] No space left on device")],
    ids=["as it is made", "as it is written"],
)
def test_a_script_whose_files_cannot_be_written_leaves_the_reason(tmp_path, file, message):
    status, folder = supervise(tmp_path, NO_COPY.replace("FILE", file))
    found = read_json(folder.rank_file(0, "error.json"), RankError)
    assert (found.reason, found.message) == ("disk_full", message)
    assert status == 1 and read_json(folder.rank_file(0, "exit.json"), RankExit).exit_code == 1


def test_a_rank_whose_first_sign_cannot_be_written_leaves_the_reason(tmp_path):
    status, folder = supervise(tmp_path, NO_COPY.replace("FILE", "").replace("script.prepare", "script.first_sign"))
    assert status == 1 and read_json(folder.rank_file(0, "error.json"), RankError).reason == "disk_full"


def test_the_script_ends_with_a_supervisor_that_fails(tmp_path):
    status, _ = supervise(tmp_path, FULL_DISK)
    assert status == 1
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(pid, 0)
            time.sleep(0.05)


def test_which_rank_ends_first_does_not_decide_what_is_timed(tmp_path):
    """A rank that has no steps of its own, beside one that has, was timed as a whole where it ended first."""
    folder, window = RunFolder(tmp_path), Window(start_ns=1, end_ns=9)
    for rank in (1, 2):
        conclude(folder, rank, 0, window, stopped=False)
    write_json(folder.rank_file(0, "result.json"), RankResult(rank=0, step_source="optimizer"))
    drop_whole_runs(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.result.json"]
    conclude(RunFolder(tmp_path), 1, 0, window, stopped=False)
    folder.rank_file(0, "result.json").unlink()
    drop_whole_runs(folder)
    assert folder.steps(1).exists() and folder.rank_file(1, "result.json").exists()
