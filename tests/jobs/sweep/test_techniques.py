"""Every technique is a switch with a pair of points, or says why it is not shown; the page tells what was measured."""

import polars as pl
import pytest

from nightsweep.analysis.tables import column
from nightsweep.analysis.tables import points as tables
from nightsweep.analysis.tools import techniques
from nightsweep.jobs.point.check import reasons
from nightsweep.jobs.sweep.sweep import load

SWEEP = load(techniques.SWEEP)
PAIRS = SWEEP.pairs


def test_every_topic_has_a_technique():
    """Bottlenecks of large-model training, and the seven causes of low utilisation."""
    assert {topic for pair in PAIRS for topic in pair.against} == {
        "interconnect", "mixed precision", "input pipeline", "memory", "data parallelism", "model parallelism",
        "pipeline parallelism", "insufficient parallelism", "data loading", "model hyperparameters",
        "memory management", "communication", "scheduling", "monitoring",
    }  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_pair_differs_in_the_switch_alone(pair):
    if pair.not_shown is None:
        without, with_it = pair.points()
        assert without.id != with_it.id and [*reasons(without), *reasons(with_it)] == []
        differing = {name for name in without.settings() if without.settings()[name] != with_it.settings()[name]}
        assert differing <= set(pair.having) | set(pair.without)
        assert {without.id, with_it.id} <= {point.id for point in SWEEP.points}


def points(*rows):
    return pl.DataFrame(list(rows), schema=column.schema(tables.POINTS))


def test_the_page_tells_ratios_and_failures():
    shown = {pair.name: pair for pair in PAIRS}
    without, with_it = shown["CUDA graphs"].points()
    failed = shown["flash attention"].points()[1]
    waiting = shown["TF32"].points()[1]
    base = {"status": "ok", "accelerator": "NVIDIA H200"}
    page = techniques.page(
        points(
            base | {"point_id": without.id, "samples_per_s": 100.0, "peak_memory_bytes": 10, "sample_j": 4.0},
            base | {"point_id": with_it.id, "samples_per_s": 400.0, "peak_memory_bytes": 12, "sample_j": 2.0},
            {"point_id": failed.id, "status": "failed", "reason": "gpu_out_of_memory"},
            {"point_id": waiting.id, "status": "not_run", "reason": "no_record"},
        ),
        PAIRS,
    )
    lines = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert "Measured on: NVIDIA H200." in page
    assert lines["CUDA graphs"].endswith("| 1, 1 | 0.25 | 1.20 | 0.50 |  |")
    assert lines["flash attention"].endswith(f"| 0, 0 | - | - | - | {failed.id}: gpu_out_of_memory |")
    assert lines["TF32"].endswith("| 0, 0 | - | - | - |  |")
    assert "not shown: " in lines["Multi-Instance GPU"]
    assert set(shown) <= set(lines)
