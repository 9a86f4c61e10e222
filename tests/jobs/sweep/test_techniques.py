"""Every technique is a switch with a pair of points, or says why it is not shown; the page tells what was measured."""

from pathlib import Path

import polars as pl
import pytest

from analysis.tables import column
from analysis.tables import points as tables
from analysis.tools import techniques
from jobs.point.constraints.check import reasons
from jobs.point.point import FIELDS
from jobs.sweep.techniques import TECHNIQUES, TOPICS, text

ROOT = Path(__file__).parents[3]


def test_the_sweep_is_fresh():
    assert (ROOT / "config/techniques.yaml").read_text() == text()


def test_every_topic_has_a_technique():
    assert {topic for technique in TECHNIQUES for topic in technique.topics} == set(TOPICS)
    assert len({technique.name for technique in TECHNIQUES}) == len(TECHNIQUES)


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.name)
def test_a_pair_differs_in_the_switch_alone(technique):
    assert set(technique.on) | set(technique.off) <= set(FIELDS)
    if technique.missing is None:
        without, with_it = technique.points()
        assert without.id != with_it.id and [*reasons(without), *reasons(with_it)] == []
        differing = {name for name in without.settings() if without.settings()[name] != with_it.settings()[name]}
        assert differing <= set(technique.on) | set(technique.off)


def points(*rows):
    return pl.DataFrame(list(rows), schema=column.schema(tables.POINTS))


def test_the_page_tells_ratios_and_failures():
    shown = {technique.name: technique for technique in TECHNIQUES}
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
        )
    )
    lines = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert "Measured on: NVIDIA H200." in page
    assert lines["CUDA graphs"].endswith("| 1, 1 | 0.25 | 1.20 | 0.50 |  |")
    assert lines["flash attention"].endswith(f"| 0, 0 | - | - | - | {failed.id}: gpu_out_of_memory |")
    assert lines["TF32"].endswith("| 0, 0 | - | - | - |  |")
    assert "not shown: " in lines["Multi-Instance GPU"]
    assert set(shown) <= set(lines)
