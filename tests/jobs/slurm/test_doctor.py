"""nightsweep doctor: what it makes of the text of other clusters, and a real one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from snakemake_executor_plugin_submitit.query import Answer, ask, environment

from nightsweep.analysis.tools.cli import main
from nightsweep.jobs.slurm.doctor import cluster as slurm
from nightsweep.jobs.slurm.doctor import doctor, nodes, probe, visits

ROOT = Path(__file__).parents[3]
GIB = 1 << 30

CONFIG_WITH = """Configuration data as of 2024-05-03T10:11:12
AccountingStorageBackupHost = (null)
AccountingStorageEnforce = associations,limits,qos
AccountingStorageHost   = slurmdb1
AccountingStorageType   = accounting_storage/slurmdbd
KillWait                = 30 sec
MaxArraySize            = 1001
MinJobAge               = 300 sec
PreemptMode             = REQUEUE
PreemptType             = preempt/qos
SLURM_VERSION           = 23.11.6

Slurmctld(primary) at mgmt1 is UP
"""
CONFIG_WITHOUT = """AccountingStorageType   = (null)
KillWait                = 5 sec
MaxArraySize            = 1
MinJobAge               = 300 sec
PreemptMode             = GANG,SUSPEND
PreemptType             = preempt/partition_prio
"""
PLAN = """
name: plan
base: {workload: llm, model: llama-nano, micro_batch: 2}
axes: {ranks_per_node: [1, 8], seed: [1, 2]}
resources: {timeout_min: 30}
"""
SINFO_MIXED = """cpu*|c001|idle|64|257000|(null)
cpu*|c002|down*|64|257000|(null)
gpu|g001|mixed|128|1031000|gpu:a100:4(S:0-1),shard:16
gpu|g002|allocated|128|1031000|gpu:a100:8(S:0,2-3)
gpu|g003|idle~|128|515000|(null)
old|o001|drained|16|64000|gpu:2
"""


def levels(findings):
    return {finding.check: finding.level for finding in findings}


def text_of(findings, check):
    return next(finding.text for finding in findings if finding.check == check)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("slurm-wlm 22.05.8\n", "ok    slurm 22.05.8"),
        ("slurm 24.05.0-0rc1\n", "ok    slurm 24.05.0-0rc1"),
        ("slurm 20.02.7\n", "warn  slurm 20.02.7: older than 20.11, with which nothing was tried"),
        ("", "warn  slurm: version unknown: no answer"),
    ],
)
def test_version(text, line):
    assert str(slurm.judge_version(text)) == line


@pytest.mark.parametrize(
    ("out", "level"),
    [
        ("Slurmctld(primary) at m1 is DOWN\nSlurmctld(backup) at m2 is UP\n", "ok"),
        ("Slurmctld(primary) at m1 is DOWN\n******\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n******\n", "FAIL"),
        ("", "FAIL"),
    ],
)
def test_controller(out, level):
    finding = slurm.judge_controller(Answer(0, out, ""))
    assert finding.level == level
    assert "RESTORE" not in finding.text


def test_settings_with_accounting():
    config = slurm.parse_config(CONFIG_WITH)
    assert slurm.has_accounting(config)
    assert slurm.judge_accounting(config, Answer(0, "", "")).level == "ok"
    dead = slurm.judge_accounting(config, Answer(1, "", "sacct: error: Connection refused\n"))
    assert (dead.level, "Connection refused" in dead.text) == ("warn", True)
    assert levels([*slurm.judge_times(config), slurm.judge_preemption(config)]) == {
        "array": "ok", "kill_wait": "ok", "preemption": "ok"
    }  # fmt: skip


def test_settings_without_accounting():
    config = slurm.parse_config(CONFIG_WITHOUT)
    assert not slurm.has_accounting(config)
    line = "warn  accounting: off; states come from squeue, which forgets jobs after MinJobAge (300 s)"
    assert str(slurm.judge_accounting(config, None)) == line
    assert levels([*slurm.judge_times(config), slurm.judge_preemption(config)]) == {
        "array": "FAIL", "kill_wait": "warn", "preemption": "warn"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", ()),
        ("gpu:4", (("gpu", 4),)),
        ("gpu", (("gpu", 1),)),
        ("gpu:h200", (("h200", 1),)),
        ("gpu:h200:4", (("h200", 4),)),
        ("craynetwork:4,gpu:a100:3(S:0,2-3),shard:12", (("a100", 3),)),
        ("gpu:a100:2(S:0),gpu:1g.10gb:7(S:1)", (("a100", 2), ("1g.10gb", 7))),
        ("gpu:0", ()),
    ],
)
def test_gres(gres, gpus):
    assert slurm.parse_gpus(gres) == gpus


def test_partitions():
    chosen, findings = slurm.judge_partition(SINFO_MIXED, None)
    assert (chosen.name, [node.name for node in chosen.usable]) == ("cpu", ["c001"])
    assert levels(findings) == {"partition": "ok", "nodes": "warn", "gpus": "warn", "node_size": "ok"}
    assert text_of(findings, "partition") == "partition cpu: the default; others: gpu, old"

    chosen, findings = slurm.judge_partition(SINFO_MIXED, "gpu")
    assert [node.name for node in chosen.usable] == ["g001", "g002"]  # a powered down node without a GPU is left out
    assert "1 nodes with 8 a100" in text_of(findings, "gpus")

    _, findings = slurm.judge_partition(SINFO_MIXED, "old")
    assert levels(findings)["nodes"] == "FAIL"


def test_partitions_that_are_not_there():
    assert slurm.judge_partition(SINFO_MIXED, "nope")[1][0].level == "FAIL"
    assert "--partition" in slurm.judge_partition(SINFO_MIXED.replace("*|", "|"), None)[1][0].text
    assert slurm.judge_partition("", None)[0] is None


def printed(**changes):
    """What the probe prints on a good node, by `srun --label`."""
    parts = {
        "files": {"seen_s": 0.02, "lead_ms": 12.0},
        "limits": {
            "python": sys.version.split()[0], "free_bytes": 100 * GIB, "temporary": "/tmp",
            "temporary_free_bytes": 50 * GIB, "shm_bytes": 8 * GIB, "open_files": 65536,
        },
        "torch": {"version": "2.13.0", "cuda": "13.0", "gpus": 1},
        "nvml": {"answers": True, "text": "4 GPUs", "driver": "580.1", "gpm": True},
        "nsys": {"answers": True, "text": "NVIDIA Nsight Systems version 2025.5"},
        "ranks": {"forked": True, "text": "ready"},
    }  # fmt: skip
    parts |= changes
    return "".join(json.dumps({name: part}) + "\n" for name, part in parts.items() if part is not None)


def labelled(*texts):
    lines = [f"{t}: {line}" for t, text in enumerate(texts) for line in [f'{{"host": "n{t + 1}"}}', *text.splitlines()]]
    return "\n".join(lines) + "\n"


def judged(text, backs=None, count=1, gpus=True):
    return visits.judge(text, {0: 8.0, 1: 8.0} if backs is None else backs, count, Path("/data"), gpus)


def test_good_nodes_in_one_line_each():
    findings = judged(labelled("module load: done\n" + printed(), printed()), count=2)
    assert set(levels(findings).values()) == {"ok"}
    assert text_of(findings, "torch") == "n1, n2: torch 2.13.0 (CUDA 13.0) sees 1 GPU"
    assert text_of(findings, "files") == "n1, n2: sees /data after 20 ms, to the login node and back in 20 ms"
    assert findings[-1].text == "clocks of the nodes within 20 ms of one another"


@pytest.mark.parametrize(
    ("files", "back_ms", "check", "line"),
    [
        ({"seen_s": None, "sees_parent": False}, None, "files", "FAIL  n1: cannot see /data (shared file system?)"),
        ({"seen_s": None, "sees_parent": True}, None, "files", "FAIL  n1: does not see in /data what"),
        ({"seen_s": 0.1, "lead_ms": 1.0}, None, "files", "FAIL  n1: what it writes in /data is not seen"),
        ({"seen_s": 0.1, "lead_ms": 3.0}, 9000.0, "files", "warn  n1: sees /data after 100 ms, to the login node"),
        ({"seen_s": 0.1, "lead_ms": 3.0}, 9000.0, "clock", "warn  n1: clock within 9000 ms of the login node's; the"),
        ({"seen_s": 0.1, "lead_ms": 5020.0}, -5000.0, "clock", "warn  n1: clock at least 5000 ms ahead of"),
        ({"seen_s": 0.1, "lead_ms": 5020.0}, -5000.0, "files", "ok    n1: sees /data after 100 ms, to the login node"),
        ({"seen_s": 0.1, "lead_ms": -700.0}, 720.0, "clock", "warn  n1: clock at least 700 ms behind"),
        ({"error": "OSError: stale"}, None, "files", "FAIL  n1: files: OSError: stale"),
        (None, None, "files", "FAIL  n1: files: the probe ended before it answered."),
    ],
)  # fmt: skip
def test_shared_folder_and_clock(files, back_ms, check, line):
    findings = judged(labelled(printed(files=files)), {} if back_ms is None else {0: back_ms})
    assert str(next(f for f in findings if f.check == check)).startswith(line)


def test_nodes_that_lack_something():
    limits = {
        "python": "3.9.1", "free_bytes": GIB, "temporary": "/tmp", "temporary_free_bytes": GIB // 2,
        "shm_bytes": 64 << 20, "open_files": 1024,
    }  # fmt: skip
    none = {"answers": False, "text": "no nsys on the PATH"}
    torch = {"version": "2.13.0", "cuda": None, "gpus": 0}
    ranks = {"forked": False, "text": "ModuleNotFoundError: No module named 'scipy.sparse'"}
    text = labelled(printed(limits=limits, nsys=none, nvml=none, torch=torch, ranks=ranks))
    found = levels(judged(text))
    for check in ("python", "space", "shm", "open_files", "nsys", "nvml", "ranks"):
        assert found[check] == "warn", check
    assert text_of(judged(text), "ranks").endswith(
        "so each start of a point imports anew: ModuleNotFoundError: No module named 'scipy.sparse'"
    )
    assert found["torch"] == "FAIL"
    assert levels(judged(text, gpus=False))["torch"] == "ok"
    assert levels(judged(labelled(printed(torch={"error": "ModuleNotFoundError: torch"}))))["torch"] == "FAIL"


def test_nodes_that_do_not_run_the_probe():
    without = "0: python3: 1: exec: /x/python3: not found\nsrun: error: n1: task 0: Exited with exit code 127\n"
    assert [f.level for f in judged(labelled("") + without)] == ["FAIL"]
    late = judged(labelled(printed()) + "srun: error: Application launch failed: no route\n", count=2)
    assert str(late[-1]) == "FAIL  probe: started on 1 of 2 nodes: srun: error: Application launch failed: no route"
    busy = judged("srun: job 4 queued\nsrun: error: Unable to allocate resources: Requested nodes are busy\n", count=2)
    assert levels(busy) == {"probe": "warn"}
    assert levels(judged("srun: error: Unable to allocate resources: Invalid account\n")) == {"probe": "FAIL"}


def test_probe_and_login_node_through_a_real_folder(tmp_path):
    """The probe as a plain process, in place of srun."""
    nodes.stamp(tmp_path / "stamp", create=True)
    (tmp_path / "token").touch()
    told = "tell('files', lambda: files(pathlib.Path(sys.argv[1])))"
    code = f"import sys, pathlib; from nightsweep.jobs.slurm.doctor.probe import *; {told}"
    shell = ["sh", "-c", '"$0" -c "$1" "$2" | sed "s/^/0: /"', sys.executable, code, str(tmp_path)]
    text, backs = nodes.send(shell, tmp_path)
    part = visits.parse(text)[0].parts["files"]
    assert part["seen_s"] < 5
    assert visits.clock(part, backs[0]).text.startswith("clock within")


def test_the_probe_tells_whether_ranks_can_be_forked(tmp_path, monkeypatch):
    assert probe.ranks_part()["forked"]
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['transformers'] = None\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    found = probe.ranks_part()
    assert not found["forked"] and "transformers" in found["text"]


def test_probe_in_a_folder_that_is_not_there(tmp_path):
    assert probe.files(tmp_path / "none" / "scratch") == {"sees_parent": False, "seen_s": None}


def test_commands_that_hang_or_are_missing():
    assert ask("sleep", "30", timeout_s=0.1).complaint == "`sleep 30` did not answer within 0.1 s"
    assert ask("no-such-command").status == 127


def test_a_job_is_no_step_of_the_drivers_own():
    own = {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "1", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "HOME": "/h"}
    ours = {"SLURM_BITSTR_LEN": "0"}
    assert environment(own) == ours | {"SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "HOME": "/h"}
    assert environment({"SLURM_ACCOUNT": "a"}) == ours | {"SLURM_ACCOUNT": "a"}
    assert doctor.inside(own)[0].level == "warn"


def test_no_slurm(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("FAIL  slurm: none of its commands is on the PATH")
    assert main(["doctor", "--json"]) == 1
    assert [entry["level"] for entry in json.loads(capsys.readouterr().out)] == ["FAIL"]


@pytest.mark.parametrize("body", ["exit 1", "echo slurm 23.02.1", "echo '|||||'; exit 0"])
def test_strange_commands_leave_no_traceback(monkeypatch, capsys, tmp_path, body):
    for name in slurm.COMMANDS:
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor", "--folder", str(tmp_path)]) == 1
    assert "FAIL  controller does not answer" in capsys.readouterr().out


@pytest.mark.slow
def test_a_real_cluster(tmp_path):
    cluster = pytest.importorskip("tests.cluster.slurm")
    if why := cluster.available():
        pytest.skip(str(why))
    (tmp_path / "sweep.yaml").write_text(PLAN)
    (tmp_path / "profile.yaml").write_text("executor: submitit\n")
    with cluster.Cluster(tmp_path / "cluster", cluster.Shape(nodes=2)) as running:
        running.run("scontrol", "update", "partition=main", "maxtime=10")
        command = [sys.executable, "-m", "nightsweep.analysis.tools.cli", "doctor", "--json", "--folder", str(tmp_path)]
        command += ["--configfile", str(tmp_path / "sweep.yaml"), "--profile", str(tmp_path / "profile.yaml")]
        environment = {**os.environ, **running.environment}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    findings = json.loads(done.stdout)
    failed = {finding["check"] for finding in findings if finding["level"] == "FAIL"}
    assert failed <= {"torch", "plan"} and done.returncode == bool(failed)  # the cluster's GPUs are made up
    hook, *planned = [finding for finding in findings if finding["check"] == "plan"]
    assert hook["level"] == "warn" and "lost points get no record" in hook["text"]
    assert [finding["level"] for finding in planned] == ["ok", "FAIL", "FAIL", "ok", "FAIL", "ok", "ok"], planned
    assert "the partition gives 10 min at most" in planned[1]["text"]
    assert "8 GPUs asked for, 4 there" in planned[2]["text"] and planned[6]["text"] == "4 jobs in 2 arrays"
    assert "at most (change `set-resources: derive` in the profile)" in planned[4]["text"]
    assert planned[5]["text"] == "the sweep leaves about 88 files and 0.085 GB"
    texts = " ".join(finding["text"] for finding in findings if finding["check"] == "files")
    assert texts.count("to the login node and back") == 2 or "n1, n2" in texts
    assert not list(tmp_path.glob(".nightsweep-doctor-*"))
