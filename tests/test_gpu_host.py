"""A night on a bare GPU machine: the sweep of chosen points."""

from pathlib import Path

import pytest
import yaml

from jobs import sweep
from tests.cluster.slurm import Shape
from tests.gpu_host import choose

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["paper-image", "paper-llm"])
def test_chosen_points_keep_their_ids(tmp_path, name):
    points = sweep.load(ROOT / f"config/{name}.yaml", "hour").points
    chosen = [*points[::7], *(choose.further(point, 3) for point in points[::11])]
    (tmp_path / "chosen.yaml").write_text(yaml.safe_dump(choose.of(chosen)))
    found = sweep.load(tmp_path / "chosen.yaml").points
    assert 1 < len(found) < 2 * len(points)
    assert {point.id for point in found} == {point.id for point in chosen}


def test_a_cluster_on_real_gpus_has_one_node():
    with pytest.raises(ValueError, match="2 nodes with real GPUs"):
        Shape(nodes=2, real=True)
