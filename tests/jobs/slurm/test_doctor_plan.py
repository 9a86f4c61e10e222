"""nightsweep doctor: a sweep under a profile, against the limits of a cluster."""

import subprocess
from pathlib import Path

import pytest
import yaml
from snakemake_executor_plugin_submitit import refusal
from snakemake_executor_plugin_submitit.query import Answer
from snakemake_executor_plugin_submitit.request import Request

from nightsweep.analysis.tools.cli import main
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.slurm import profile
from nightsweep.jobs.slurm.doctor import plan
from nightsweep.jobs.slurm.doctor.cluster import Node, Partition
from nightsweep.jobs.slurm.point_jobs import PointJobs

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "number"), [("00:30:00", 30), ("7-00:00:00", 10080), ("UNLIMITED", None), ("", None), ("00:01:30", 1.5)]
)
def test_times_of_slurm(text, number):
    assert plan.minutes(text) == number


def test_what_a_profile_asks_for(tmp_path):
    (tmp_path / "config.yaml").write_text(
        "submitit-partition: gpu\nsubmitit-array-size: 10\n"
        "default-resources: [mem_mb=0, mem_mb_per_gpu=1000, cpus_per_task=3]\n"
        "set-resources: ['point:slurm_account=me', 'other:slurm_account=you']\n"
    )
    found = profile.read(tmp_path)
    point = complete({"workload": "llm", "model": "llama-nano", "nodes": 2, "ranks_per_node": 4})
    asked = found.request(point, 20)
    assert asked == Request(
        nodes=2, tasks_per_node=4, cpus_per_task=3, gpus_per_node=4, mem_mb=4000, runtime_min=20, partition="gpu",
        account="me",
    )  # fmt: skip
    assert str(asked) == "2 nodes with 12 CPUs, 4 GPUs, 4 GB for 20 min"
    assert {"--nodes=2", "--mem=4000M", "--no-requeue", "--account=me"} <= set(asked.options())
    assert found.settings.array_size == 10
    shipped = profile.read(ROOT / "profiles/slurm")
    assert shipped.batch_min == 15
    shipped = shipped.request(point, 20)
    assert shipped.mem_mb == 4 * 32000 and shipped.cpus_per_task == 8


def test_what_a_profile_asks_for_a_chunk(tmp_path):
    chunk = profile.read(ROOT / "profiles/slurm").chunk_request()
    assert (chunk.gpus_per_node, chunk.mem_mb, chunk.exclusive) == (0, 8000, False)
    (tmp_path / "config.yaml").write_text(
        "submitit-partition: gpu\nsubmitit-exclusive: true\n"
        "set-resources: {derive: {slurm_partition: cpu, mem_mb: 64000}, point: {slurm_partition: big}}\n"
    )
    chunk = profile.read(tmp_path).chunk_request()
    assert (chunk.partition, chunk.mem_mb, chunk.cpus_per_task, chunk.exclusive) == ("cpu", 64000, 8, False)


def test_profiles_that_are_none(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("[")
    for path in (tmp_path, tmp_path / "none"):
        assert main(["doctor", "--profile", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "a Snakemake profile was expected" in lines[0] and "No such file" in lines[1]


def test_the_shipped_profile_asks_for_the_same_through_snakemake(tmp_path):
    """Snakemake's default resources must not hide those of the profile."""
    given = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())["default-resources"]
    words = [f"{name}={value}" for name, value in given.items()]
    (tmp_path / "Snakefile").write_text(
        "from pathlib import Path\nfrom snakemake_executor_plugin_submitit.request import from_job\n"
        "from snakemake_executor_plugin_submitit.settings import ExecutorSettings\n"
        "rule point:\n    output: 'asked'\n    resources: gpus_per_node=2\n"
        "    run: Path(output[0]).write_text(str(from_job(resources, 1, ExecutorSettings()).mem_mb))\n"
    )
    command = ["snakemake", "-c1", "-s", "Snakefile", "--default-resources", *words, "--", "asked"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "asked").read_text() == "64000"
    (tmp_path / "config.yaml").write_text("default-resources: {mem_mb_per_gpu: 32000}")
    point = complete({"workload": "llm", "model": "llama-nano", "ranks_per_node": 2})
    assert profile.read(tmp_path).request(point, 20).mem_mb == 1000
    assert profile.read(ROOT / "profiles/slurm").request(point, 20).mem_mb == 64000


def test_a_misspelt_option_of_the_executor(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("submitit-partitionn: gpu")
    assert main(["doctor", "--profile", str(tmp_path)]) == 2
    line = "submitit-partitionn: unknown option (did you mean 'submitit-partition'?)"
    assert capsys.readouterr().err.splitlines() == [f"nightsweep doctor: {tmp_path / 'config.yaml'}: {line}"]


def test_what_a_number_should_have_been(tmp_path):
    (tmp_path / "config.yaml").write_text("default-resources: {cpus_per_task: eight}")
    with pytest.raises(ValueError, match=r"^cpus_per_task: a whole number was expected, not 'eight'$"):
        profile.read(tmp_path).request(complete({"workload": "llm", "model": "llama-nano"}), 20)


def test_resources_that_nothing_reads(tmp_path):
    (tmp_path / "config.yaml").write_text("default-resources: {cpus_per_tasks: 8, licences: 2, mem_mb: 100}")
    assert profile.read(tmp_path).misspelt() == [("cpus_per_tasks", "cpus_per_task")]
    assert profile.read(ROOT / "profiles/slurm").misspelt() == []


def test_limits_of_numbers_and_times():
    qos = ({"Name": "normal", "MaxSubmitJobsPU": "20", "MaxWall": "00:30:00"}, {"Name": "long", "MaxWall": ""})
    own = ({"Account": "a", "DefaultQOS": "", "MaxSubmit": "90"}, {"Account": "b", "DefaultQOS": "", "MaxSubmit": "5"})
    limits = plan.Limits(qos, own)
    request = Request(account="a", runtime_min=45)
    (wall,) = plan.judge_walls([request], limits)
    assert wall.level == "FAIL" and "QOS normal gives 30 at most" in wall.text and "timeout_min" in wall.text
    numbers = list(plan.judge_numbers({request: 50}, limits, {"MaxArraySize": "11", "MaxJobCount": "40"}, 1000))
    assert [f.level for f in numbers] == ["ok", "warn", "warn"]
    assert numbers[0].text == "50 jobs in 5 arrays"
    assert numbers[1].text.startswith("QOS normal lets 20 jobs") and "holds 40 jobs" in numbers[2].text
    free = Request(account="a", qos="long")
    assert [f.level for f in plan.judge_numbers({free: 50}, limits, {}, 1000)] == ["ok"]
    assert not list(plan.judge_walls([free], limits))


def test_where_no_node_has_a_gpu_the_cpu_is_advised(monkeypatch):
    """By the driver, whose jobs are refused, and by doctor, which also counts the GPUs that there are."""
    said = "Invalid generic resource (gres) specification"
    driver = refusal.advised(said, PointJobs.places)
    assert "`ranks_per_node` of the sweep, or its `device` to cpu" in driver and "`submitit-partition`" in driver
    monkeypatch.setattr(plan, "ask", lambda *words: Answer(1, "", f"sbatch: error: {said}\n"))
    for name, begin in ((None, said), ("cpu", "2 GPUs asked for, 0 there")):
        where = Partition(name, (Node("c1", "idle", 64, 256_000, ()),) if name else ())
        (finding,) = plan.judge_request(Request(gpus_per_node=2), "1 job", where)
        assert finding.level == "FAIL" and begin in finding.text and "its `device` to cpu" in finding.text


def test_a_sweep_is_compared_under_a_profile(tmp_path, capsys):
    """Without one its points would be judged by what no run asks for."""
    assert main(["doctor", "--configfile", str(ROOT / "config/demo.yaml")]) == 2
    assert "--profile" in capsys.readouterr().err
