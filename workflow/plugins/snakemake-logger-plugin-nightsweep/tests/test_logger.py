"""The logger on a workflow that knows nothing of it, and what a hook changes."""

import io
import logging
import subprocess
import sys
from logging.handlers import QueueListener
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_logger_plugin_nightsweep import LogHandler, hook
from snakemake_logger_plugin_nightsweep import progress as progress_module
from snakemake_logger_plugin_nightsweep.progress import Progress

RULES = """
rule all:
    input: expand("made.{n}", n=["good", "bad"])

rule make:
    output: "made.{n}"
    log: "logs/{n}.log"
    shell: "(echo begun; echo the reason; echo) > {log}; test {wildcards.n} = good && touch {output}"
"""

STOPPED = """
rule make:
    output: "made"
    shell: "kill -INT $(cat {}); sleep 1; touch made"
"""


@pytest.mark.slow
def test_jobs_are_counted_and_the_last_line_of_a_failed_ones_log_is_on_the_screen(tmp_path):
    (tmp_path / "Snakefile").write_text(RULES)
    command = [Path(sys.executable).with_name("snakemake"), "--cores", "1", "--logger", "nightsweep", "--keep-going"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "logs/bad.log: the reason\n" in done.stderr
    assert "job make good ok\n1/3 jobs done, 0 failed, 2 left\n" in done.stderr, done.stderr


def test_an_executor_s_reason_is_told_without_snakemake_s_hint(capsys):
    record = logging.makeLogRecord({"msg": "Error in rule make, jobid: 1", "event": LogEvent.JOB_ERROR, "jobid": 1})
    record.rule_msg = "host_out_of_memory: Slurm ended it. For further error details see the cluster/cloud log."
    LogHandler(SimpleNamespace(dryrun=False), None).emit(record)
    assert capsys.readouterr().err == "Error in rule make, jobid: 1\nhost_out_of_memory: Slurm ended it\n"


@pytest.mark.slow
def test_a_driver_that_is_stopped_alone_says_what_becomes_of_jobs(tmp_path):
    """A job of this machine does not hear a signal that its driver alone gets, and is waited for."""
    (tmp_path / "Snakefile").write_text(STOPPED.format(tmp_path / "driver"))
    command = [Path(sys.executable).with_name("snakemake"), "--cores", "1", "--logger", "nightsweep"]
    driver = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    (tmp_path / "driver").write_text(str(driver.pid))
    said = driver.communicate(timeout=60)[1]
    assert driver.returncode and (tmp_path / "made").exists()
    assert "stopping, as was asked: jobs of a cluster are called off, jobs of this machine end first\n" in said, said


class Weighed(hook.Hook):
    """Pieces, of which some have a flaw."""

    noun = "piece"

    def name(self, rule, wildcards):
        return wildcards["n"]

    def outcome(self, wildcards):
        return wildcards["n"] != "b", "weighed" if wildcards["n"] != "b" else "too light"


def test_a_hook_says_what_is_counted_and_how_it_ended():
    progress = Progress(Weighed(), total=2, sink=io.StringIO())
    for job, name in enumerate("ab"):
        progress.start(job, "make", {"n": name})
    progress.finish(1)
    progress.finish(0)
    lines = progress.sink.getvalue().splitlines()
    assert lines == ["piece b too light", "piece a weighed", "2/2 pieces done, 1 failed, 0 left"]
    progress.line("\x1b[31mred")
    assert progress.sink.getvalue().endswith("?[31mred\n")


def test_when_the_run_will_end_is_told_by_jobs_that_took_a_time_of_their_own(monkeypatch):
    """One is taken over from an earlier run at once; the next takes 100 s, and so will the other two."""
    clock = SimpleNamespace(now=1e9)
    monkeypatch.setattr(progress_module.time, "time", lambda: clock.now)
    progress = Progress(Weighed(), total=4, sink=io.StringIO(), began=clock.now)
    for job, seconds in enumerate((1, 100)):
        progress.start(job, "make", {"n": "a"})
        clock.now += seconds
        progress.finish(job)
    first, second = (line for line in progress.sink.getvalue().splitlines() if "done" in line)
    ends = progress_module.time.strftime("%a %H:%M", progress_module.time.localtime(clock.now + 202))
    assert first == "1/4 pieces done, 0 failed, 3 left" and second.endswith(f"2 left, until about {ends}")


class Packed(Weighed):
    def covers(self, wildcards):
        return 4


def test_jobs_whose_work_another_did_take_no_time(monkeypatch):
    """Of eight, four are done with the first, after 100 s; so will the others be."""
    clock = SimpleNamespace(now=1e9)
    monkeypatch.setattr(progress_module.time, "time", lambda: clock.now)
    progress = Progress(Packed(), total=8, sink=io.StringIO(), began=clock.now)
    progress.start(0, "make", {"n": "a"})
    clock.now += 100
    progress.finish(0)
    ends = progress_module.time.strftime("%a %H:%M", progress_module.time.localtime(clock.now + 100))
    assert progress.text() == f"1/8 pieces done, 0 failed, 7 left, until about {ends}"
    progress.total = 4
    assert progress.text() == "1/4 pieces done, 0 failed, 3 left"


class Breaking(hook.Hook):
    def outcome(self, wildcards):
        raise OSError("its file cannot be read")


def test_a_line_that_cannot_be_told_does_not_keep_those_after_it_from_being(capsys, monkeypatch):
    """Snakemake has a thread tell them, which one exception ends."""
    monkeypatch.setattr(hook, "load", lambda name: Breaking())
    handler = LogHandler(SimpleNamespace(dryrun=False), None)
    records = Queue()
    listener = QueueListener(records, handler)
    listener.start()
    begun = {"event": LogEvent.JOB_INFO, "rule_name": "r", "jobid": 1, "wildcards": {}}
    for event in begun, {"event": LogEvent.JOB_FINISHED, "job_id": 1}, {"msg": "the end", "levelno": logging.WARNING}:
        records.put(logging.makeLogRecord(event))
    listener.stop()
    assert "its file cannot be read" in (said := capsys.readouterr().err) and said.endswith("the end\n")


@pytest.mark.parametrize("name", ["no.module:Hook", "os:missing", "os:getcwd"])
def test_a_hook_that_is_none_is_refused_in_a_line(name):
    with pytest.raises(ValueError, match=rf"^logger-nightsweep-hook: {name}: [^\n]*$"):
        hook.load(name)
