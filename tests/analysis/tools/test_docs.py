"""Pages that are written from the code are as the code has them now."""

import re

import pytest

from nightsweep.analysis.diagnosis.causes.rules import RULES
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tools import docs
from nightsweep.jobs.host.facts import ROOT


@pytest.mark.parametrize("name", docs.PAGES)
def test_the_page_is_fresh(name):
    assert (ROOT / "docs" / name).read_text() == docs.PAGES[name](), "run python -m nightsweep.analysis.tools.docs"


def test_rules_say_how_their_intervals_are_bounded():
    kinds, _, _ = docs.diagnosis().partition("## Thresholds")
    found = {row.split("`")[1]: row for row in kinds.splitlines() if row.startswith("| `")}
    bounded = {rule.kind for rule in RULES if rule.leaves_compute}
    assert bounded == {kind for kind, row in found.items() if "device that computes least" in row}
    assert {"h2d_pageable", "straggler"} < bounded


def test_the_picture_of_the_report_is_of_all_published_points():
    points = dataset.load_sets(sorted(ROOT.glob("data/h200-*/tables")))["points"]
    (told,) = re.findall(r"in three lines; (\d+) points", (ROOT / "README.md").read_text())
    assert int(told) == points.height
