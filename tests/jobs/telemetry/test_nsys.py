"""nsys, a shell script on the PATH here: whether it works, what it is asked for, and the export of its reports."""

import os
import stat
import subprocess
import sys
import time

import pytest

from nightsweep.jobs.launch.tracer_choice import Choice, choose_tracer
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.telemetry.trace import nsys
from tests.fakes.nsys import HANGS, LEAVES_A_FILE, VERSION, left_behind, nano, stand_in

USAGE = "echo; echo 'usage: nsys profile [<args>]'; echo \"Try 'nsys profile --help' for more information.\"; exit 1"

# --- whether it works


def test_without_nsys_the_probe_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nsys.probe() == nsys.Probe(False, "no nsys on the PATH")


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ({"version": "echo 'NVIDIA Nsight Systems version 2022.4.2'"}, "version 2022.4.2 is older than 2023.1"),
        ({"version": ":"}, "`nsys --version` says nothing"),
        ({"version": "exit 3"}, "`nsys --version` failed: no output"),
        ({"profile": f"echo starting; echo 'Error: no agent' >&2; ({USAGE}) >&2; exit 1"}, "failed: Error: no agent"),
        (
            {"profile": f"echo \"unrecognised option '--kill'\" >&2; ({USAGE}) >&2; exit 1"},
            "unrecognised option '--kill'",
        ),
        ({"profile": "echo one; echo 'the end' >&2; exit 1"}, "`nsys profile` failed: the end"),
        ({"profile": "kill -9 $$"}, "`nsys profile` failed: no output"),
        # the importer, which turns .qdstrm into .nsys-rep, is a program of its own
        (
            {"profile": LEAVES_A_FILE.replace('"$2"', '"${2%.nsys-rep}.qdstrm"')},
            "`nsys profile` left no report: is its importer whole?",
        ),
        ({"export": "echo 'Export error: no space' >&2; exit 1"}, "`nsys export` failed: Export error: no space"),
        ({"export": "exit 0"}, "`nsys export` left no file"),
    ],
)
def test_an_nsys_that_does_not_work_is_told_in_one_line_and_kineto_traces(tmp_path, monkeypatch, behaviour, why):
    stand_in(tmp_path, monkeypatch, **behaviour)
    choice = choose_tracer(nano(tracer="nsys"), cuda=True)
    assert choice.tracer == "kineto"
    assert choice.why.endswith(why) and "\n" not in choice.why and "usage" not in choice.why


@pytest.mark.parametrize(
    ("behaviour", "name"), [("version", "--version"), ("profile", "profile"), ("export", "export")]
)
def test_an_nsys_that_hangs_is_given_up_with_all_its_processes(tmp_path, monkeypatch, behaviour, name):
    monkeypatch.setattr(nsys, "PROBE_TIMEOUT_S", 0.5)
    stand_in(tmp_path, monkeypatch, **{behaviour: HANGS})
    begin = time.monotonic()
    assert choose_tracer(nano(tracer="nsys"), cuda=True) == Choice("kineto", f"`nsys {name}` did not end within 0.5 s")
    assert time.monotonic() - begin < 5
    assert left_behind(tmp_path) == []


def test_an_nsys_that_works_is_chosen_where_it_is_asked_for_and_on_gpus_only(tmp_path, monkeypatch):
    calls = stand_in(tmp_path, monkeypatch).with_name("calls")
    assert choose_tracer(nano(tracer="nsys"), cuda=True) == Choice("nsys", VERSION, VERSION)
    assert "--gpu-metrics-devices" not in calls.read_text()
    calls.unlink()
    assert choose_tracer(nano(tracer="nsys"), cuda=False).tracer == "kineto"
    assert choose_tracer(nano(tracer="kineto"), cuda=True).why == "the point asks for it"
    assert choose_tracer(nano(), cuda=True) == Choice("kineto", "in the start that was timed")
    assert choose_tracer(nano(traced_steps=0), cuda=True).tracer is None
    assert not calls.exists()


def test_the_oldest_nsys_is_2023_1(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, version="echo 'NVIDIA Nsight Systems version 2023.1.1.127'")
    assert nsys.probe().works


REFUSED = (
    'case "$*" in *--gpu-metrics-devices*)\n'
    f"(echo 'Illegal --gpu-metrics-devices argument.'; echo 'Insufficient privilege.'; {USAGE}) >&2; exit 1;;\n"
    f"esac\n{LEAVES_A_FILE}"
)


def test_the_deep_preset_goes_without_gpu_metrics_where_they_are_refused(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, profile=REFUSED)
    refusal = "`nsys profile` failed: Illegal --gpu-metrics-devices argument. Insufficient privilege."
    assert nsys.probe("deep") == nsys.Probe(True, VERSION, refusal)
    assert nsys.probe("light") == nsys.Probe(True, VERSION, None)
    choice = choose_tracer(nano(tracer="nsys", trace_preset="deep"), cuda=True)
    assert choice == Choice("nsys", f"{VERSION}; no GPU metrics: {refusal}", VERSION, refusal)


def test_the_deep_preset_is_what_is_tried_for_it(tmp_path, monkeypatch):
    calls = stand_in(tmp_path, monkeypatch).with_name("calls")
    assert nsys.probe("deep") == nsys.Probe(True, VERSION, None)
    tried = [line for line in calls.read_text().splitlines() if line.startswith("profile")]
    assert "--python-backtrace=cuda" in tried[0] and "--gpu-metrics-devices=cuda-visible" in tried[1]


# --- what it is asked for

COMMON = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none", "--force-overwrite=true"]


def test_the_light_preset_is_few_tables_and_no_cpu_sampling(tmp_path):
    light = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"]
    report = ["-o", str(tmp_path / "traced/trace-r1.nsys-rep")]
    asked = ["nsys", "profile", *light, *COMMON, *report]
    assert nsys.profile_command(RunFolder(tmp_path / "traced"), 1, nano())[: len(asked)] == asked


def test_what_a_rank_writes_under_nsys_is_as_closed_as_without(tmp_path):
    """A stand-in that does what nsys 2023.4 and 2025.3 do: the program begins with umask 0."""
    program = 'umask 0; while [ $1 != -o ]; do shift; done; shift 2; exec "$@"'
    before = os.umask(0o027)
    try:
        prefix = nsys.profile_command(RunFolder(tmp_path), 0, nano())
    finally:
        os.umask(before)
    rank = [sys.executable, "-c", "from pathlib import Path; Path('result').touch()"]
    subprocess.run(["sh", "-c", program, *prefix, *rank], cwd=tmp_path, check=True)
    assert stat.S_IMODE((tmp_path / "result").stat().st_mode) == 0o640


def with_metrics(tmp_path, point, **more):
    """Ranks that take GPU metrics."""
    commands = {
        rank: nsys.profile_command(RunFolder(tmp_path), rank, point, **more) for rank in range(point.world_size)
    }
    return [rank for rank, command in commands.items() if "--gpu-metrics-devices=cuda-visible" in command]


def test_the_deep_preset_takes_gpu_metrics_on_the_first_rank_of_a_node(tmp_path):
    deep = nano(trace_preset="deep", nodes=2)
    asked = {"--trace=cuda,nvtx,cublas,cudnn,osrt", "--sample=process-tree", "--cpuctxsw=process-tree"}
    asked |= {"--cudabacktrace=kernel,memory,sync", "--python-backtrace=cuda", "--cuda-memory-usage=true"}
    for rank in range(4):
        assert asked | set(COMMON) <= set(nsys.profile_command(RunFolder(tmp_path), rank, deep))
    assert with_metrics(tmp_path, deep) == [0, 2]
    assert with_metrics(tmp_path, nano(nodes=2)) == []
    assert with_metrics(tmp_path, deep, gpu_metrics=False) == []


# --- the export of reports


def reports(tmp_path, *ranks):
    for rank in ranks:
        (tmp_path / f"trace-r{rank}.nsys-rep").touch()
    return RunFolder(tmp_path)


def left(tmp_path):
    return sorted(path.name for path in tmp_path.glob("trace-*"))


@pytest.mark.parametrize("keep", [True, False])
def test_reports_are_kept_or_deleted_once_exported(tmp_path, monkeypatch, keep):
    stand_in(tmp_path, monkeypatch)
    assert nsys.export(reports(tmp_path, 0, 2), [0, 2], keep_report=keep) is None
    kept = ["trace-r0.nsys-rep", "trace-r2.nsys-rep"] if keep else []
    assert left(tmp_path) == sorted([*kept, "trace-r0.sqlite", "trace-r2.sqlite"])


@pytest.mark.parametrize(
    ("ranks", "of_rank_1", "why"),
    [
        ([0], ":", "nsys left no report for rank 1"),
        ([0, 1], "echo 'error: full' >&2; exit 1", "rank 1: `nsys export` failed: error: full"),
        ([0, 1], "exit 0", "rank 1: `nsys export` left no file"),
        ([0, 1], HANGS, "rank 1: `nsys export` did not end within 1 s"),
    ],
    ids=["no report", "fails", "no file", "hangs"],
)
def test_every_report_is_kept_where_one_was_not_exported(tmp_path, monkeypatch, ranks, of_rank_1, why):
    monkeypatch.setattr(nsys, "EXPORT_TIMEOUT_S", 1)
    stand_in(tmp_path, monkeypatch, export=f'case "$*" in *trace-r1*)\n{of_rank_1}\n;; esac\n{LEAVES_A_FILE}')
    assert nsys.export(reports(tmp_path, *ranks), [0, 1], keep_report=False) == why
    assert [name for name in left(tmp_path) if name.endswith("nsys-rep")] == [f"trace-r{r}.nsys-rep" for r in ranks]
    assert left_behind(tmp_path) == []
