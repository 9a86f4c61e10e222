"""The choice of a partition for each job, from a file of partitions with their limits."""

from types import SimpleNamespace

import pytest
from snakemake.common.tbdstring import TBDString
from snakemake_executor_plugin_submitit import partitions, request
from snakemake_executor_plugin_submitit.settings import ExecutorSettings

FILE = """
partitions:
  short: {max_runtime: 02:00:00, max_nodes: 1, max_mem_mb: 64000}
  long: {max_runtime: 5-00:00:00, max_threads: 32}
  gpu: {max_runtime: 2d12h, max_gpus_per_node: 8, max_gpu: 16}
"""


def settings(folder, text=FILE, **more):
    (folder / "partitions.yaml").write_text(text)
    return ExecutorSettings(partition_config=str(folder / "partitions.yaml"), **more)


@pytest.mark.parametrize(
    ("resources", "name"),
    [({"runtime": 120}, "short"), ({"runtime": 121}, "long"), ({"nodes": 2}, "long"), ({"mem_mb": 64001}, "long"),
     ({"gpus_per_node": 1}, "gpu"), ({"gpus_per_node": 8, "nodes": 2, "runtime": 3600}, "gpu"),
     ({"nodes": 2, "tasks_per_node": 4, "cpus_per_task": 9}, "gpu"),
     ({"runtime": 9999, "slurm_partition": "big"}, "big")],
)  # fmt: skip
def test_the_first_that_a_job_fits_into(tmp_path, resources, name):
    given = settings(tmp_path)
    assert partitions.place(request.from_job(resources, 1, given), given).partition == name


def test_a_job_that_fits_nowhere(tmp_path):
    given = settings(tmp_path)
    asked = request.from_job({"gpus_per_node": 8, "nodes": 4, "runtime": 600}, 1, given)
    with pytest.raises(partitions.NoFit) as caught:
        partitions.place(asked, given, "train")
    assert str(caught.value).endswith(
        "partitions.yaml: rule train asks for 4 nodes with 1 CPUs, 8 GPUs for 600 min, which no partition gives: "
        "short (max_gpu 0), long (max_gpu 0), gpu (max_gpu 16)"
    )


def test_all_jobs_are_looked_at_before_the_first_is_submitted(tmp_path):
    late, here, large = (
        SimpleNamespace(name="x", threads=1, is_local=local, resources={"runtime": runtime})
        for runtime, local in ((TBDString(), False), (9999, True), (9999, False))
    )
    partitions.check([late, here], settings(tmp_path))
    partitions.check([large], ExecutorSettings())
    with pytest.raises(partitions.NoFit, match="rule x asks for"):
        partitions.check([late, here, large], settings(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [("short: {}", "`partitions:` was expected"), ("partitions: [a, b]", "`partitions:` was expected"),
     ("a: [", "not YAML"), ("partitions: {short: {max_node: 1}}", "short: limits were expected, of max_runtime, "),
     ("partitions: {short: {max_nodes: two}}", "short: max_nodes: a whole number was expected, not 'two'"),
     ("partitions: {short: {max_runtime: 2 weeks}}", "short: max_runtime: a time such as 90")],
)  # fmt: skip
def test_a_file_that_is_not_what_it_should_be(tmp_path, text, message):
    with pytest.raises(ValueError, match=r"^submitit-partition-config: [^\n]*$") as caught:
        partitions.load(settings(tmp_path, text))
    assert message in str(caught.value)


def test_a_file_that_is_missing_or_not_alone(tmp_path):
    with pytest.raises(ValueError, match=r"none\.yaml: No such file"):
        partitions.load(ExecutorSettings(partition_config="none.yaml"))
    with pytest.raises(ValueError, match="submitit-partition: one of them"):
        partitions.load(settings(tmp_path, partition="gpu"))
