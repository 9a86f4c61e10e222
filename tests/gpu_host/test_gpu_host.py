"""A night on a bare GPU machine: the sweep of chosen points."""

import subprocess
from pathlib import Path

import pytest
import yaml

from nightsweep.jobs.sweep import sweep
from tests.cluster.config import Places, Shape, files, task_prolog
from tests.gpu_host import choose

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["paper-image", "paper-llm"])
def test_chosen_points_keep_their_ids(tmp_path, name):
    points = sweep.load(ROOT / f"config/{name}.yaml", "hour").points
    chosen = [*points[::7], *(choose.further(point, 3) for point in points[::11])]
    (tmp_path / "chosen.yaml").write_text(yaml.safe_dump(choose.of(chosen, "chosen")))
    found = sweep.load(tmp_path / "chosen.yaml").points
    assert 1 < len(found) < 2 * len(points)
    assert {point.id for point in found} == {point.id for point in chosen}


def test_nodes_share_the_real_gpus(tmp_path):
    texts = files(Shape(nodes=2, gpus=2, real=True), Places(tmp_path, tmp_path, 20000))
    assert [line.split()[0::3] for line in texts["gres.conf"].splitlines()] == [
        ["NodeName=n1", "File=/dev/nvidia[0-1]"],
        ["NodeName=n2", "File=/dev/nvidia[2-3]"],
    ]
    assert f"TaskProlog={tmp_path}/etc/task_prolog.sh" in texts["slurm.conf"].splitlines()


@pytest.mark.parametrize(
    ("node", "given", "said"),
    [("n1", "0,1", "0,1"), ("n2", "0,1", "2,3"), ("n3", "1", "5"), ("n2", "", None)],
)
def test_a_task_sees_its_own_nodes_gpus(node, given, said):
    variables = {"SLURMD_NODENAME": node, "CUDA_VISIBLE_DEVICES": given}
    script = task_prolog(Shape(nodes=3, gpus=2, real=True))
    done = subprocess.run(["sh", "-c", script], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == (f"export CUDA_VISIBLE_DEVICES={said}\n" if said else "")
