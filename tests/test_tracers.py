"""Tracers: whether nsys works, what it is asked for, and Kineto where it fails. nsys is a shell script on the PATH."""

import dataclasses
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from jobs import launch, watch
from jobs.look import Look
from jobs.looks import Attempt
from jobs.point import complete
from jobs.sweep import SweepError, load
from jobs.telemetry import nsys

VERSION = "NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0"
LEAVES_A_FILE = 'while [ "$1" != -o ]; do shift; done; : > "$2"'
USAGE = "echo; echo 'usage: nsys profile [<args>]'; echo \"Try 'nsys profile --help' for more information.\"; exit 1"
# Like nsys' agent: a session of its own, which it takes a moment to get, and a command line with the test's folder.
AGENT = 'setsid tail -f "$0" > /dev/null 2>&1 &\nsleep 0.3\n'
HANGS = AGENT + "wait"
NANO = {"workload": "llm", "model": "llama-nano", "seq_len": 32, "micro_batch": 1, "ranks_per_node": 2}
QUICK = {"warmup_steps": 1, "timed_steps": 2, "traced_steps": 2}


def stand_in(tmp_path, monkeypatch, *, version=f"echo '{VERSION}'", profile=LEAVES_A_FILE, export=LEAVES_A_FILE):
    """A program nsys that does this for each of its commands, first on the PATH."""
    script = tmp_path / "bin/nsys"
    script.parent.mkdir()
    cases = {"--version": version, "profile": profile, "export": export}
    body = "".join(f"{name})\n{commands}\n;;\n" for name, commands in cases.items())
    script.write_text(f'#!/bin/sh\necho "$@" >> {script.parent}/calls\ncase "$1" in\n{body}esac\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return script


def left_behind(tmp_path):
    """Command lines of processes that name the test's folder; a killed one may take a moment to go."""
    for _ in range(20):
        lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
        found = [line for line in lines if f"{tmp_path}/" in line]
        if not found:
            break
        time.sleep(0.1)
    return found


def nano(**settings):
    return complete(NANO | QUICK | settings)


# --- whether nsys works


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
    choice = launch.choose_tracer(nano(), cuda=True)
    assert choice.tracer == "kineto"
    assert choice.why.endswith(why) and "\n" not in choice.why and "usage" not in choice.why


@pytest.mark.parametrize(
    ("behaviour", "name"), [("version", "--version"), ("profile", "profile"), ("export", "export")]
)
def test_an_nsys_that_hangs_is_given_up_with_all_its_processes(tmp_path, monkeypatch, behaviour, name):
    monkeypatch.setattr(nsys, "PROBE_TIMEOUT_S", 0.5)
    stand_in(tmp_path, monkeypatch, **{behaviour: HANGS})
    begin = time.monotonic()
    assert launch.choose_tracer(nano(), cuda=True) == launch.Choice("kineto", f"`nsys {name}` did not end within 0.5 s")
    assert time.monotonic() - begin < 5
    assert left_behind(tmp_path) == []


def test_an_nsys_that_works_is_chosen_on_gpus_only(tmp_path, monkeypatch):
    calls = stand_in(tmp_path, monkeypatch).with_name("calls")
    assert launch.choose_tracer(nano(), cuda=True) == launch.Choice("nsys", VERSION, VERSION)
    assert "--gpu-metrics-devices" not in calls.read_text()
    calls.unlink()
    assert launch.choose_tracer(nano(), cuda=False).tracer == "kineto"
    assert launch.choose_tracer(nano(tracer="kineto"), cuda=True).why == "the point asks for it"
    assert launch.choose_tracer(nano(traced_steps=0), cuda=True).tracer is None
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
    choice = launch.choose_tracer(nano(trace_preset="deep"), cuda=True)
    assert choice == launch.Choice("nsys", f"{VERSION}; no GPU metrics: {refusal}", VERSION, refusal)


def test_the_deep_preset_is_what_is_tried_for_it(tmp_path, monkeypatch):
    calls = stand_in(tmp_path, monkeypatch).with_name("calls")
    assert nsys.probe("deep") == nsys.Probe(True, VERSION, None)
    tried = [line for line in calls.read_text().splitlines() if line.startswith("profile")]
    assert "--python-backtrace=cuda" in tried[0] and "--gpu-metrics-devices=cuda-visible" in tried[1]


def test_ranks_are_told_that_gpu_metrics_cannot_be_had(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(launch, "choose_tracer", lambda *_: launch.Choice("nsys", "v; no GPU metrics: x", "v", "x"))
    monkeypatch.setattr(launch, "run_looks", lambda attempt, choice: (seen.append(attempt), ended(attempt, choice))[1])
    measure(tmp_path, nano())
    assert seen[0].environment[nsys.NO_GPU_METRICS_VARIABLE] == "1"


def ended(attempt, choice):
    """Looks that nothing ran for."""
    return {kind: launch.SKIPPED | {"status": "ok"} for kind in ("timed", "traced", "control")}, choice


# --- what nsys is asked for

COMMON = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none", "--force-overwrite=true"]


def test_the_light_preset_is_few_tables_and_no_cpu_sampling(tmp_path):
    light = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"]
    report = ["-o", str(tmp_path / "traced/trace-r1.nsys-rep")]
    assert nsys.profile_command(Look(tmp_path / "traced"), 1, nano()) == ["nsys", "profile", *light, *COMMON, *report]


def with_metrics(tmp_path, point):
    """Ranks that take GPU metrics."""
    commands = {rank: nsys.profile_command(Look(tmp_path), rank, point) for rank in range(point.world_size)}
    return [rank for rank, command in commands.items() if "--gpu-metrics-devices=cuda-visible" in command]


def test_the_deep_preset_takes_gpu_metrics_on_the_first_rank_of_a_node(tmp_path, monkeypatch):
    monkeypatch.delenv(nsys.NO_GPU_METRICS_VARIABLE, raising=False)
    deep = nano(trace_preset="deep", nodes=2)
    asked = {"--trace=cuda,nvtx,cublas,cudnn,osrt", "--sample=process-tree", "--cpuctxsw=process-tree"}
    asked |= {"--cudabacktrace=kernel,memory,sync", "--python-backtrace=cuda", "--cuda-memory-usage=true"}
    for rank in range(4):
        assert asked | set(COMMON) <= set(nsys.profile_command(Look(tmp_path), rank, deep))
    assert with_metrics(tmp_path, deep) == [0, 2]
    assert with_metrics(tmp_path, nano(nodes=2)) == []
    monkeypatch.setenv(nsys.NO_GPU_METRICS_VARIABLE, "1")
    assert with_metrics(tmp_path, deep) == []


# --- which ranks are traced, and what a sweep may ask for


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [("all", [0, 1, 2, 3, 4, 5]), ("first-per-node", [0, 3]), ("4", [4]), ("5,0", [0, 5]), ("1,2,3", [1, 2, 3])],
)
def test_ranks_that_are_traced(asked, ranks):
    point = nano(nodes=2, ranks_per_node=3, trace_ranks=asked)
    assert [rank for rank in range(6) if point.traces(rank)] == ranks


BASE = "name: s\nbase: {workload: image, model: resnet50}\n"
BAD_RANKS = "is not all, first-per-node or ranks with commas and without leading zeros (0,3)"
BROKEN = [
    (
        "include: [{ranks_per_node: 2, trace_ranks: '0,2'}]",
        "include[0].trace_ranks: rank 2 never comes: ranks go from 0 to 1 (1 point)",
    ),
    (
        "axes: {nodes: [1, 2], trace_ranks: [all, '1']}",
        "point(trace_ranks=1, nodes=1): rank 1 never comes: ranks go from 0 to 0 (1 point)",
    ),
    ("include: [{trace_ranks: some}]", f"include[0].trace_ranks: 'some' {BAD_RANKS}"),
    ("axes: {trace_ranks: [all, '0,']}", f"axes.trace_ranks[1]: '0,' {BAD_RANKS}"),
    ("axes: {trace_ranks: ['-1']}", f"axes.trace_ranks[0]: '-1' {BAD_RANKS}"),
    ("axes: {trace_ranks: ['01']}", f"axes.trace_ranks[0]: '01' {BAD_RANKS}"),
    ("include: [{trace_ranks: '0,00'}]", f"include[0].trace_ranks: '0,00' {BAD_RANKS}"),
    ("axes: {trace_ranks: ['\u0661']}", f"axes.trace_ranks[0]: '\u0661' {BAD_RANKS}"),
    ('axes: {trace_ranks: ["all\\n"]}', f"axes.trace_ranks[0]: 'all\\n' {BAD_RANKS}"),
    (
        "axes: {ranks_per_node: [2], trace_ranks: [all, '1,0,1']}",
        "axes.trace_ranks[1]: rank 1 is given more than once in 1,0,1 (1 point)",
    ),
    ("axes: {trace_ranks: [1]}", "axes.trace_ranks[0]: 1 is not a text"),
    ("axes: {trace_preset: [heavy]}", "axes.trace_preset[0]: 'heavy' is not one of light, deep"),
    (
        "include: [{trace_ranks: '0', traced_steps: 0}]",
        "include[0].trace_ranks: trace_ranks 0 has no effect: traced_steps is 0 (1 point)",
    ),
    (
        "include: [{trace_preset: [light, deep], traced_steps: 0}]",
        "include[0].trace_preset[1]: trace_preset deep has no effect: traced_steps is 0 (1 point)",
    ),
    (
        "include: [{keep_report: false, traced_steps: 0}]",
        "include[0].keep_report: keep_report false has no effect: traced_steps is 0 (1 point)",
    ),
    (
        "axes: {nvml_hz: [10, 20], device: [auto, cpu]}",
        "point(nvml_hz=20, device=cpu): nvml_hz 20 has no effect: device is cpu (1 point)",
    ),
    ("axes: {nvml_hz: [50, 51]}", "axes.nvml_hz[1]: 51 is more than 50"),
    ("axes: {nvml_hz: [-1]}", "axes.nvml_hz[0]: -1 is less than 0"),
    ("axes: {cost_pairs: [-1]}", "axes.cost_pairs[0]: -1 is less than 0"),
    ("alert: {below_percent: 101}", "alert.below_percent: 101 is more than 100"),
    ("alert: {below_percent: -1}", "alert.below_percent: -1 is less than 0"),
    ("alert: {for_s: 0}", "alert.for_s: 0 is less than 1"),
    ("alert: {for_s: a minute}", "alert.for_s: 'a minute' is not a finite number"),
    ("alert: {command: ''}", "alert.command: is empty"),
    ("alert: {command: [mail, me]}", "alert.command: ['mail', 'me'] is not a text"),
    ("alert: {below: 5}", "alert.below: unknown key (there are below_percent, for_s, command)"),
    ("alert: {for: 5}", "alert.for: unknown key (did you mean 'for_s'?)"),
    ("alert: 5", "alert: 5 is not a map"),
    ("presets: {night: {alert: {for_s: 0}}}", "presets.night.alert.for_s: 0 is less than 1"),
]


def sweep(tmp_path, text, preset=None):
    file = tmp_path / "sweep.yaml"
    file.write_text(BASE + text)
    return load(file, preset)


@pytest.mark.parametrize(("text", "expected"), BROKEN)
def test_a_broken_file_gives_one_line(tmp_path, text, expected):
    with pytest.raises(SweepError) as caught:
        sweep(tmp_path, text)
    assert list(caught.value.errors) == [expected]


def test_every_setting_that_a_point_without_trace_does_not_use_is_told(tmp_path):
    with pytest.raises(SweepError) as caught:
        sweep(
            tmp_path,
            "include: [{traced_steps: 0, tracer: kineto, trace_ranks: '0', trace_preset: deep, keep_report: false}]",
        )
    given = {"tracer": "kineto", "trace_ranks": "0", "trace_preset": "deep", "keep_report": "false"}
    assert list(caught.value.errors) == [
        f"include[0].{name}: {name} {value} has no effect: traced_steps is 0 (1 point)" for name, value in given.items()
    ]


def test_trace_settings_and_alerts_that_are_right_pass(tmp_path):
    text = "axes: {trace_ranks: [all, first-per-node, '0,1'], nvml_hz: [0, 10, 50]}\n"
    text += "alert: {below_percent: 20}\npresets: {night: {alert: {for_s: 5}, base: {ranks_per_node: 2}}}\n"
    found = sweep(tmp_path, text, "night")
    assert len(found.points) == 9
    assert dataclasses.astuple(found.alert) == (20, 5, None)


# --- real ranks, on the CPU


def measure(tmp_path, point):
    """Launch the point here; its record and folder."""
    folder = tmp_path / "points" / point.id
    folder.mkdir(parents=True)
    job = {"sweep": "t", "point_id": point.id, "settings": point.settings()}
    return launch.launch(folder, job, watch.Limits(120, 300), lambda: False), folder


def trace(folder, rank):
    return gzip.decompress((folder / f"traced/trace-r{rank}.json.gz").read_bytes()).decode()


def under_nsys(tmp_path, monkeypatch, point, profile):
    """Launch ranks that compute on the CPU as if nsys were to trace them; the record and its folder."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(launch, "choose_tracer", lambda *_: launch.Choice("nsys", "a stand-in", VERSION))
    calls = stand_in(tmp_path, monkeypatch, profile=profile).with_name("calls")
    record, folder = measure(tmp_path, point)
    ranks = [rank for rank in range(point.world_size) if point.traces(rank)]
    assert calls.read_text().count("-m jobs.worker") == len(ranks)
    assert sorted(path.name for path in folder.glob("traced/trace-*")) == [f"trace-r{r}.json.gz" for r in ranks]
    assert left_behind(tmp_path) == []
    return record, folder


def kineto_took_over(record, folder, words):
    """The record is of a point that is as good as any; it says how nsys failed."""
    assert (record["status"], record["reason"], record["failure"]) == ("ok", None, None)
    assert [record["looks"][kind]["status"] for kind in ("timed", "traced", "control")] == ["ok", "ok", "skipped"]
    assert record["tracer"]["used"] == "kineto"
    assert record["tracer"]["reason"].startswith("under nsys: ") and words in record["tracer"]["reason"]
    assert len((folder / "timed/steps-r0.jsonl").read_text().splitlines()) == 3
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["timed", "traced"]
    assert '"step 1"' in trace(folder, record["world_size"] - 1)


# The rank computes on the CPU, where it could not open nsys' capture range; like nsys' it has a session of its own.
RUNS_THE_RANK = 'while [ "$1" != -o ]; do shift; done; shift 2; NIGHTSWEEP_TRACER=none setsid "$@"'


@pytest.fixture(scope="module")
def without_report(tmp_path_factory):
    """A point whose rank (one, to save time) ran well under an nsys that left no report."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return under_nsys(tmp_path_factory.mktemp("without"), monkeypatch, nano(ranks_per_node=1), RUNS_THE_RANK)


@pytest.mark.slow
def test_where_nsys_leaves_no_report_kineto_traces_lightly(without_report):
    kineto_took_over(*without_report, "nsys left no report for rank 0")
    assert "python_function" not in trace(without_report[1], 0)


@pytest.fixture
def timed_before(monkeypatch, without_report):
    """The timed look is there already; under nsys a rank has four seconds for a sign of life."""
    record, measured = without_report
    run = Attempt.run

    def shorter(self, kind, tracer, blocks, **more):
        if kind == "timed":
            shutil.copytree(measured / "timed", self.folder / "timed")
            return {**record["looks"]["timed"], "failure": None}
        limits = watch.Limits(4, 60) if tracer == "nsys" else self.limits
        return run(dataclasses.replace(self, limits=limits), kind, tracer, blocks, **more)

    monkeypatch.setattr(Attempt, "run", shorter)


@pytest.mark.slow
def test_where_nsys_hangs_kineto_traces(tmp_path, monkeypatch, timed_before):
    record, folder = under_nsys(tmp_path, monkeypatch, nano(), HANGS)
    kineto_took_over(record, folder, "no rank moved for 4 s: no sign of life: rank 0, 1")


@pytest.mark.slow
def test_where_nsys_dies_kineto_traces_the_asked_rank_deep_with_stacks_shapes_and_memory(
    tmp_path, monkeypatch, timed_before
):
    profile = AGENT + "echo 'nsys: out of luck' >&2; exit 1"
    record, folder = under_nsys(tmp_path, monkeypatch, nano(trace_ranks="1", trace_preset="deep"), profile)
    kineto_took_over(record, folder, "rank 1 ended with code 1 before its first sign of life, without a traceback")
    events = json.loads(trace(folder, 1))["traceEvents"]
    assert any(event.get("cat") == "python_function" for event in events)
    assert any("Input Dims" in event.get("args", {}) for event in events)
    assert any(event["name"] == "[memory]" for event in events)


def test_a_look_that_was_stopped_under_nsys_is_not_taken_up_by_kineto(tmp_path, monkeypatch):
    ran = []

    def stopped(self, kind, tracer, blocks, **_):
        ran.append((kind, tracer))
        return launch.SKIPPED | {"status": "failed", "reason": "interrupted", "message": "told to stop"}

    monkeypatch.setattr(Attempt, "run", stopped)
    attempt = Attempt(tmp_path, 1, nano(), watch.Limits(1, 1), lambda: True)
    launch.traced_look(attempt, launch.Choice("nsys", "a stand-in"))
    assert ran == [("traced", "nsys")]


@pytest.mark.slow
def test_a_rank_under_nsys_shows_its_stack_and_leaves_nothing_behind(tmp_path, monkeypatch):
    """nsys gives the rank a session of its own, and would die of the signal that asks for stacks."""
    stand_in(tmp_path, monkeypatch, profile=AGENT + RUNS_THE_RANK)
    look = Look(tmp_path / "traced.1")
    look.folder.mkdir()
    look.point_file.write_text(json.dumps({"settings": nano(device="cpu").settings()}))
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(watch.free_port())}
    env = {**os.environ, **group, "RANK": "0", "LOCAL_RANK": "0", "NIGHTSWEEP_TRACER": "nsys"}
    supervisor = subprocess.Popen([sys.executable, "-m", "jobs.rank", str(look.folder)], env=env)
    try:
        wait_for(look.rank_file(0, "heartbeat"), "group")  # where it waits for a rank that never comes
        supervisor.send_signal(signal.SIGUSR1)
        wait_for(look.rank_file(0, "stacks.txt"), "jobs/worker.py")
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(10)
    finally:
        supervisor.kill()
    assert look.rank_file(0, "exit.json").exists()
    assert left_behind(tmp_path) == []


def wait_for(path, word):
    deadline = time.monotonic() + 30
    while not path.exists() or word not in path.read_text():
        assert time.monotonic() < deadline, f"{path.name} never said {word}"
        time.sleep(0.1)


# --- the export of reports


def reports(tmp_path, *ranks):
    for rank in ranks:
        (tmp_path / f"trace-r{rank}.nsys-rep").touch()
    return Look(tmp_path)


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
        ([0, 1], "exit 0", "nsys export of rank 1 left no file"),
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
