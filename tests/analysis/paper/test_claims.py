"""The claims of the paper on made-up tables: each is judged as these were made to tell."""

import math
import re

import polars as pl
import pytest
from PIL import Image

from nightsweep.analysis.paper.claims.__main__ import main, page
from nightsweep.analysis.paper.claims.claim import CONTRADICTED, INCONCLUSIVE, NOT_TESTED, SUPPORTED, Part, Verdict
from nightsweep.analysis.paper.claims.claims import CLAIMS, judge
from nightsweep.analysis.paper.claims.time_shares import where_time_goes
from nightsweep.analysis.report import sweep_page as report
from nightsweep.analysis.sweep import dataset, effect
from nightsweep.analysis.sweep.effect import Effect
from nightsweep.analysis.sweep.interval import CONFIDENCE
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables import points as schemas
from tests.analysis.paper import paper_tables
from tests.analysis.paper.paper_tables import EFFECTS, made_up

BY_ID = {claim.id: claim for claim in CLAIMS}
AGAINST = [
    ("C1", {"nhwc": 1.2}),
    ("C2", {"pinned": 1.1}),
    ("C2", {"pinned_many": 0.7}),
    ("C3", {"fp32": 1.1}),
    ("C3", {"fp16": 1.1}),
    ("C3", {"fp16_accuracy": -0.05}),
    ("C4", {"small_scaling": 0.9}),
    ("C5", {"dali": 1.1, "dali_far": 1.0}),
    ("C5", {"dali_far": 0.65}),
    ("C6", {"dpo": 0.9}),
    ("C7", {"qat": 1.5}),
    ("C8", {"qlora_memory": 1.1}),
    ("C8", {"qlora": 0.9}),
    ("C9", {"launches": 0.3}),
    ("C10", {"llm_scaling": 0.9}),
    ("C11", {"accuracy": 0.95}),
    ("C12", {"ddp_ds": 1.3}),
]


@pytest.fixture(scope="module")
def agreeing() -> dataset.Tables:
    return made_up()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_tables_made_to_agree_support(claim, agreeing):
    verdict = claim.verdict(agreeing)
    assert (verdict.status, verdict.sentence()) == (
        SUPPORTED,
        "Every part is on the claimed side with its whole interval.",
    )
    assert verdict.points
    assert set(verdict.points) <= set(agreeing["points"]["point_id"])


@pytest.fixture(scope="module")
def fewest() -> dataset.Tables:
    return made_up(preset="claims")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_the_fewest_points_decide_every_claim(claim, fewest):
    assert claim.verdict(fewest).status == SUPPORTED


@pytest.mark.parametrize(("name", "effects"), AGAINST, ids=lambda value: str(value))
def test_tables_made_to_differ_contradict(name, effects):
    verdict = BY_ID[name].verdict(made_up(**effects))
    assert verdict.status == verdict.chief.verdict == CONTRADICTED
    assert verdict.sentence().startswith("On the other side with the whole interval: ")


@pytest.mark.parametrize("repeats", [1, 2])
def test_nothing_is_decided_on_fewer_than_three_repeats(repeats):
    tables = made_up(repeats=repeats)
    # Neither three settings nor the traced twin of a point make a third repeat.
    for claim in CLAIMS:
        verdict = claim.verdict(tables)
        assert verdict.status == NOT_TESTED, claim.id
        assert {part.effect.n for part in verdict.parts} == {repeats}
    said = BY_ID["C8"].verdict(tables).sentence()
    assert f"memory lora / qlora: {repeats} repeat{'s' * (repeats > 1)} a side; effect seen 2.000" in said


def test_the_number_is_the_one_put_in_and_lies_in_its_interval(agreeing):
    found = BY_ID["C1"].verdict(agreeing).parts[0].effect
    assert found.value == pytest.approx(1 / EFFECTS["nhwc"])
    assert found.low < found.value < found.high
    assert found.high / found.low < 1.1


def test_interval_is_that_of_welch():
    # Against scipy's own: one block, so the Welch-Satterthwaite interval of a difference of means.
    from scipy import stats

    a, b = [1.0, 1.2, 1.4, 1.1], [0.8, 0.9, 0.7]
    sides = (1, effect.Side.from_values(a, "abcd")), (-1, effect.Side.from_values(b, "efg"))
    found = effect.mean([effect.Contrast(sides)])
    theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert found.chance(0) == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    ratio = found.exp()
    assert ratio.chance(1) == pytest.approx(found.chance(0))


def test_an_interval_with_both_sides_is_inconclusive(monkeypatch):
    monkeypatch.setattr(paper_tables, "NOISE", (-0.05, 0.0, 0.06))
    verdict = BY_ID["C1"].verdict(made_up(nhwc=1.0))
    assert verdict.status == INCONCLUSIVE
    assert verdict.parts[0].effect.low <= 1 <= verdict.parts[0].effect.high
    assert verdict.sentence() == "The interval has both sides: time nchw / nhwc."


def test_an_effect_that_is_shown_to_be_none_contradicts(monkeypatch):
    monkeypatch.setattr(paper_tables, "NOISE", (-0.004, 0.0, 0.003))
    verdict = BY_ID["C1"].verdict(made_up(nhwc=1.0))
    assert verdict.status == CONTRADICTED and verdict.parts[0].chance < 0.01
    assert verdict.sentence() == "No effect, to within 2%: time nchw / nhwc."


def test_what_chance_decides_among_many_parts_does_not_count(monkeypatch):
    """Parts with a p-value between 1 and 5 % beside some that are open."""
    monkeypatch.setattr(paper_tables, "NOISE", (-0.05, 0.0, 0.06))
    verdict, *others = judge(made_up(nhwc=0.95, pinned=0.99, pinned_many=0.99, qlora=1.01, llm_scaling=1.02))
    part = verdict.parts[0]
    assert part.alone == SUPPORTED and 0.01 < part.chance < 0.05 < part.corrected
    assert verdict.status == part.verdict == INCONCLUSIVE
    assert verdict.sentence() == "Not beyond chance after correction for the number of parts: time nchw / nhwc."
    status = {other.claim.id: other.status for other in others}
    assert all(status[name] == INCONCLUSIVE for name in ("C2", "C8", "C10"))
    assert all(status[name] == SUPPORTED for name in ("C3", "C4", "C6", "C7", "C9", "C11"))


def test_the_nearer_bound_decides_how_sure_a_contradicted_equality_is():
    """0.02 with an interval of 0.0105 to 0.0295, beyond a margin of 0.01 either way."""
    found = Effect(0.02, 0.0105, 0.0295, 5, 1, (), (0.02,), freedom=8.0)
    part = Part("difference", found, above=-0.01, below=0.01)
    assert part.verdict == CONTRADICTED and part.chance == found.chance(0.01) and 0.03 < part.chance < 0.05


def test_precision_without_both_formats_is_not_tested(agreeing):
    points = agreeing["points"].filter(pl.col("precision") != "fp16")
    parts = BY_ID["C3"].verdict(dataset.Tables({**agreeing.frames, "points": points})).parts
    assert any(part.what == "time fp32 / fp16" and part.verdict == NOT_TESTED for part in parts)


def test_points_that_differ_otherwise_are_not_compared(agreeing):
    images = agreeing["points"].filter(workload="image", layout="nhwc")
    other = agreeing["points"].filter(workload="image", layout="nchw", source="small")
    assert BY_ID["C1"].verdict(dataset.Tables({"points": images.vstack(other)})).parts[0].effect is None


def test_points_that_were_disturbed_are_left_out_and_counted(agreeing):
    """A repeat of each point with nhwc is made ten times as slow, and said to be disturbed."""
    claim, slow = BY_ID["C1"], (pl.col("repeat") == 0) & (pl.col("layout") == "nhwc")
    points = agreeing["points"].with_columns(step_ms_mean=pl.col("step_ms_mean") * pl.when(slow).then(10).otherwise(1))
    spoilt = dataset.Tables({**agreeing.frames, "points": points})
    marked = dataset.Tables({**agreeing.frames, "points": points.with_columns(disturbed=slow)})
    before, kept = claim.verdict(spoilt), claim.verdict(marked)
    assert before.left_out == 0 and kept.left_out == len(before.points) - len(kept.points) > 0
    assert not set(kept.points) & set(points.filter(slow)["point_id"])
    wrong, right, clean = (verdict.parts[0].effect.value for verdict in (before, kept, claim.verdict(agreeing)))
    assert wrong < 0.8 and right == pytest.approx(clean, rel=0.02) and "Left out as disturbed" not in page(agreeing)
    assert f"Left out as disturbed (docs/protocol.md): {kept.left_out} points." in page(marked)


def test_one_repeat_on_more_gpus_takes_no_claim_away(agreeing):
    """The most GPUs on which there are repeats enough are compared, not the most of any point."""
    four = agreeing["points"].filter(pl.col("ranks_per_node") == 4, pl.col("repeat") == 0)
    eight = four.with_columns(pl.lit(8, pl.Int64).alias("ranks_per_node"), point_id=pl.col("point_id") + "8")
    more = dataset.Tables({**agreeing.frames, "points": agreeing["points"].vstack(eight)})
    for claim in map(BY_ID.get, ("C2", "C4", "C10")):
        before, after = (
            [(part.what, part.verdict) for part in claim.verdict(tables).parts] for tables in (agreeing, more)
        )
        assert before == after and any("4" in what for what, _ in after)


def test_empty_tables_decide_nothing():
    for claim in CLAIMS:
        assert claim.verdict(dataset.Tables({})).status == NOT_TESTED
    assert page(dataset.Tables({})).count("| not tested |") == 12


def test_page_has_a_row_and_a_section_a_claim(agreeing, tmp_path):
    for name in ("points", "activities", "breakdown", "accuracy"):
        agreeing[name].write_parquet(tmp_path / f"{name}.parquet")
    main([str(tmp_path), "--out", str(tmp_path / "claims.md")])
    text = (tmp_path / "claims.md").read_text()
    assert text == page(agreeing)
    assert [line.split()[1] for line in text.splitlines() if line.startswith("| [C")] == [
        f"[{claim.id}](#{claim.id.lower()})" for claim in CLAIMS
    ]
    assert text.count("| NVIDIA H100 | supported |") == 12 and "- NVIDIA H100: " in text
    # the whole number, though its name has a comma
    assert f"| supported | {BY_ID['C9'].verdict(agreeing).parts[0].number()} | 3 |" in text
    assert not math.isnan(BY_ID["C1"].verdict(agreeing).parts[0].effect.low)


def test_sets_are_judged_together_and_kinds_of_gpu_apart(tmp_path, capsys):
    """Two sets that have the same ids, each with too few repeats, decide; of another kind of GPU only what that has."""
    few = made_up(repeats=2)
    there = pl.col("workload") == "image", pl.col("precision") == "fp32", pl.col("ranks_per_node") == 1
    other = few["points"].filter(*there).with_columns(accelerator=pl.lit("NVIDIA H200"))
    for name in ("one", "two", "three"):
        (tmp_path / name / "tables").mkdir(parents=True)
        for table in ("points", "activities", "breakdown", "accuracy"):
            rows = other if (name, table) == ("three", "points") else few[table]
            rows = rows.with_columns(started_at=pl.lit("2026-01-01T20:00:00Z")) if table == "points" else rows
            rows.write_parquet(tmp_path / name / f"tables/{table}.parquet")
    folders = [str(tmp_path / name / "tables") for name in ("one", "two", "three")]
    main([*folders, "--out", str(tmp_path / "claims.md")])
    text = (tmp_path / "claims.md").read_text()
    effect_of = BY_ID["C1"].verdict(few).parts[0].effect
    assert f"| NVIDIA H100 | supported | time nchw / nhwc: {effect_of.value:.3f} (" in text
    assert "| 4 |" in next(line for line in text.splitlines() if line.startswith("| [C1]"))
    assert "| NVIDIA H200 |" not in text and f"- NVIDIA H200: {other.height} points in `three`" in text
    points = [line for line in text.splitlines() if line.startswith("Points of ")]
    assert {line.split("`")[1] for line in points} == {"one", "two"}
    with pytest.raises(SystemExit):
        main([folders[0], folders[0]])
    assert "one/tables: another set is named one, too; expected each set once" in capsys.readouterr().err


def test_where_the_time_goes_is_told_of_each_side():
    points = [("a", "fp16", 2), ("b", "fp16", 3), ("c", "fp32", 2), ("d", "fp64", 2)]
    frame = pl.DataFrame(points, schema=["point_id", "precision", "traced_steps"], orient="row")
    parts = {"a": (50, 50), "b": (30, 70), "c": (90, 10)}
    counted = {"a": [1], "b": [1, 2], "c": [1]}  # of the traced steps the first does not count
    breakdown = [
        (id, 0, step, n // len(counted[id]), p)
        for id, both in parts.items()
        for step in counted[id]
        for n, p in zip(both, ("compute", "idle"), strict=True)
    ]
    kernels = [("a", 0, "compute", 10), ("b", 0, "compute", 18), ("b", 0, "copy", 99), ("c", 0, "compute", 6)]
    rows = {
        "points": frame,
        "breakdown": pl.DataFrame(breakdown, schema=["point_id", "rank", "step", "duration_ns", "part"], orient="row"),
        "activities": pl.DataFrame(kernels, schema=["point_id", "rank", "category", "count"], orient="row"),
    }
    tables = dataset.Tables({n: column.conform(f, schemas.TABLES[n]).collect() for n, f in rows.items()})
    rests_on = Effect(1.0, 1.0, 1.0, 3, 1, tuple("abcd"), (1.0,))
    told = where_time_goes(Verdict(BY_ID["C3"], (Part("time", rests_on, above=1),)), tables)
    assert told == {
        "precision fp16": "compute 40.0 %, idle 60.0 %, 10 kernels a step (2 points)",
        "precision fp32": "compute 90.0 %, idle 10.0 %, 6 kernels a step (1 point)",
    }
    assert where_time_goes(Verdict(BY_ID["C3"], ()), tables) == {}


def test_a_claim_that_fails_says_where_the_time_goes(tmp_path):
    differing = made_up(fp16=1.1)
    text = page(differing)
    section = text[text.index("## C3") : text.index("## C4")]
    assert "- precision fp16: compute" in section and "- precision fp64: compute" in section
    assert section.count("kernels a step") == 3
    assert "Where the time" not in page(made_up())
    assert "precision fp64: compute" in report.render(differing, tmp_path, [])


def test_efficiency_is_told_of_each_size(agreeing):
    parts = {part.what: part for part in BY_ID["C4"].verdict(agreeing).parts}
    small, large = (parts[f"efficiency at {px} px on 4 GPUs, fp16"].effect.value for px in (100, 500))
    assert large / small == pytest.approx(parts["efficiency at 500 px / at 100 px, fp16"].effect.value)
    assert small < large <= 1.05


def test_the_report_shows_the_papers_figures_and_claims(agreeing, tmp_path):
    Image.new("RGB", (4, 2)).save(tmp_path / "methods.png")
    shown = report.render(agreeing, tmp_path, [])
    assert len(re.findall("<figure(?![^>]*hidden)", shown)) == 1 and "Tuning methods: time and memory" in shown
    assert shown.count("<strong>supported</strong>") == 12
    assert 'id="claims"' not in report.render(dataset.Tables({}), tmp_path, [])


def test_no_tables_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert "points.parquet: no such file" in capsys.readouterr().err
