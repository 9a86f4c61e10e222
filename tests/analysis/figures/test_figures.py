"""Every figure on a small made-up sweep, on empty tables, and twice over."""

import subprocess
import sys

import polars as pl
import pytest

from nightsweep.analysis.figures import captions, causes, loss, roofline, setting_effects, style, timeline
from nightsweep.analysis.paper.families import FAMILIES
from nightsweep.analysis.sweep import dataset, short_labels
from nightsweep.analysis.tools.cli import main as command
from nightsweep.analysis.tools.draw import main
from nightsweep.jobs.point import point as settings
from tests.analysis.figures.made_up import made_up, texts, write


@pytest.fixture(scope="module")
def sweep() -> dataset.Tables:
    return made_up()


def test_figures_to_print_are_written_in_both_widths_and_repeat_to_the_byte(sweep, tmp_path):
    """Those for which the points have what it takes: no counters, methods and loaders."""
    folder = write(sweep, tmp_path / "tables")
    for out, names in (("a", FAMILIES), ("b", ("setting_effects", "traced_steps", "loss"))):
        main([*names, "--tables", str(folder), "--out", str(tmp_path / out)])
    files = {str(file.relative_to(tmp_path / "a")) for file in (tmp_path / "a").rglob("*.*")}
    drawn = ("setting_effects", "switches", "scaling", "traced_steps", "causes", "held_time", "timeline")
    expected = {f"{name}{end}" for name in drawn for end in (".pdf", ".png", ".rst", "-column.pdf", "-column.png")}
    others = ("remedies", "failures", "loss", "sampler")
    assert files == expected | {f"supplement/{name}.{end}" for name in others for end in ("pdf", "png", "rst")}
    for file in (tmp_path / "b").rglob("*.*"):
        assert file.read_bytes() == (tmp_path / "a" / file.relative_to(tmp_path / "b")).read_bytes(), file


def test_tables_that_changed_since_are_drawn_anew(sweep, tmp_path):
    drawn = []
    for kept in (sweep["points"], sweep["points"].head(1)):
        write(dataset.Tables({**sweep.frames, "points": kept}), tmp_path)
        main(["held_time", "--tables", str(tmp_path), "--out", str(tmp_path / "out")])
        drawn.append((tmp_path / "out/held_time.png").read_bytes())
    assert drawn[0] != drawn[1]


def test_a_figure_that_cannot_be_drawn_keeps_no_other_from_it(sweep, tmp_path, capsys):
    odd = sweep["points"].with_columns(topology=pl.lit("GPU0 of a driver that says it otherwise\nGPU1"))
    folder = write(dataset.Tables({"points": odd}), tmp_path / "tables")
    names = ["--tables", str(folder), "--out", str(tmp_path / "out")]
    words = [sys.executable, "-m", "nightsweep.analysis.tools.draw", "topology", "setting_effects", *names]
    said = subprocess.run(words, capture_output=True, text=True)
    assert said.returncode == 1
    assert (tmp_path / "out/setting_effects.png").exists() and not list(tmp_path.rglob("topology*"))
    told = "topology: could not be drawn: ValueError: topology: expected a matrix as nvidia-smi topo -m draws it, got"
    assert told in said.stdout and "Traceback" in said.stderr
    main(["--keep-going", "topology", *names])
    assert command(["figures", str(tmp_path), "--out", str(tmp_path / "again")]) == 2
    assert told in (tmp_path / "again/left-out.txt").read_text()
    assert told in capsys.readouterr().err
    page = (tmp_path / "again/report.html").read_text()
    assert "topology: could not be drawn" in page and 'class="aside" open><summary>Figures left out' in page


@pytest.mark.parametrize("family", FAMILIES)
def test_empty_tables_give_one_sentence(family, tmp_path):
    figure = FAMILIES[family].draw(dataset.Tables({}))
    assert not figure.axes
    assert len(figure.texts) == 1
    assert figure.texts[0].get_text().endswith(".")
    style.save(figure, tmp_path / family)
    assert "n = 0" in captions.caption(FAMILIES[family], dataset.Tables({}))


def test_what_only_disturbed_points_would_show_is_said(sweep):
    disturbed = dataset.Tables({**sweep.frames, "points": sweep["points"].with_columns(disturbed=True)})
    (text,) = FAMILIES["setting_effects"].draw(disturbed).texts
    assert text.get_text().endswith("Points that were disturbed do not count.")
    (text,) = FAMILIES["setting_effects"].draw(disturbed.own.of_point("none")).texts
    assert text.get_text() == FAMILIES["setting_effects"].missing


def test_labels_name_only_what_varies(sweep):
    labels = set(dataset.with_config(sweep["points"])["config"])
    assert "1 rank/node, bf16" in labels
    assert "2 ranks/node, zero2" in labels
    assert not any("micro_batch" in label for label in labels)


def test_precisions_stand_in_their_own_order(sweep):
    image = dataset.with_config(sweep["points"]).filter(pl.col("workload") == "image")
    assert image.unique("config_order").sort("config_order")["precision"].to_list() == ["fp32", "bf16"] * 2


def test_energy_over_time_is_power(sweep):
    tokens = pl.when(workload="llm").then(pl.col("samples_per_s") * pl.col("seq_len"))
    joules = pl.lit(300.0) * pl.col("world_size")
    rows = sweep["points"].with_columns(tokens_per_s=tokens, energy_j=joules, sample_j=joules / pl.col("samples_per_s"))
    measured = dataset.Tables({"points": rows.with_columns(token_j=joules / pl.col("tokens_per_s"))})
    found = roofline.energy_points(measured)
    assert found["unit"].unique().sort().to_list() == ["sample", "token"]
    assert (found["energy_mj"] / found["gpu_ms"]).to_list() == pytest.approx([300] * found.height)
    token = found.filter(pl.col("unit") == "token").join(rows, on="point_id").row(0, named=True)
    assert token["gpu_ms"] == pytest.approx(token["step_ms_median"] / token["micro_batch"] / 128)
    assert "100 W" in texts(roofline.FAMILY.draw(measured))
    assert roofline.energy_points(sweep).is_empty()


def test_recoverable_time_is_by_kind_over_the_time_of_all_diagnosed_points(sweep):
    """2 s of GPU time a point, of 24 points that are ok."""
    shares = {kind: (points, share * 24) for _, kind, points, share in causes.recoverable(sweep).iter_rows()}
    launches = sum(0.02 * (1 + repeat) for repeat in (0, 1, 2)) * 2
    assert shares == {
        "tensor_cores_unused": (12, pytest.approx(3.6)),
        "exposed_communication": (12, pytest.approx(1.2)),
        "low_occupancy": (12, pytest.approx(0.6)),
        "launch_bound": (6, pytest.approx(launches)),
    }
    bars, trials = causes.FAMILY.draw(sweep).axes
    assert bars.get_yticklabels()[0].get_text() == "tensor cores unused"
    points = [line.get_xydata()[0].tolist() for line in trials.lines if line.get_marker() not in ("", "None")]
    assert sorted(points) == [pytest.approx([35, -5]), pytest.approx([35, 40])]


def test_the_timeline_shows_what_there_is_most_to_win_back_of_and_how_long_it_waits(sweep):
    point = timeline.choose_point(sweep)
    assert (point["world_size"], point["precision"], point["kind"]) == (2, "fp32", "tensor_cores_unused")
    events = sweep["timeline"].filter(pl.col("point_id") == point["point_id"])
    # from the last kernel of a step's backward pass to the next step's copy: the optimizer, 2 ms, data
    ends = [(row["end_ns"] - row["start_ns"]) / 1e6 for row in timeline.waits(events).to_dicts()]
    assert ends == [pytest.approx(23)] * 2
    shown = texts(FAMILIES["timeline"].draw(sweep))
    assert shown.count("idle, 23 ms") == 2 and "largest finding: tensor_cores_unused, 30.0 % of the step" in shown


def test_all_ok_is_said(sweep):
    points = sweep["points"].filter(pl.col("status") == "ok")
    assert f"All {points.height} points of the sweep itself are ok." in texts(
        FAMILIES["failures"].draw(dataset.Tables({"points": points}))
    )
    assert "3 not run" in texts(FAMILIES["failures"].draw(sweep))


def test_timeline_takes_the_point_of_most_ranks(sweep):
    figure = FAMILIES["timeline"].draw(sweep)
    assert len(figure.axes) == 1
    assert "rank 1 communication" in texts(figure)


def test_the_roofline_is_of_what_memory_moved_while_timed_steps_ran():
    """200 TFLOP/s of an H200 whose memory interface is busy a quarter of the time: 200e12 / (0.25 x 4.8e12)."""
    point = settings.complete({"workload": "llm", "model": "llama-nano", "precision": "bf16"})
    row = {"point_id": point.id, **point.settings(), "status": "ok", "accelerator": "NVIDIA H200", "world_size": 2}
    row |= {"flops_per_step": 40 * 10**12, "step_ms_mean": 100.0, "peak_flops_per_s": 989.4e12, "mfu_percent": 20.2}
    tables = dataset.Tables({"points": pl.DataFrame([row | {"dram_active_percent": 25.0}])})
    (placed,) = roofline.roofline_points(tables).to_dicts()
    assert placed["flops_per_s"] == pytest.approx(200e12) and placed["intensity"] == pytest.approx(200 / 1.2)
    shown = texts(FAMILIES["roofline"].draw(tables))
    assert "bf16: 989" in shown and "4.8 TB/s" in shown
    peak = roofline.peaks.peak_of(placed["accelerator"]).flops_per_s["fp8"]
    float8 = tables["points"].with_columns(float8=pl.lit("rowwise"), peak_flops_per_s=pl.lit(peak))
    shown = texts(FAMILIES["roofline"].draw(dataset.Tables({**tables.frames, "points": float8})))
    assert "fp8: 1979" in shown and "bf16" not in shown


def test_remedies_are_shown_before_and_after_to_the_same_scale(sweep):
    figure = FAMILIES["remedies"].draw(sweep)
    assert len(figure.axes) == 4
    said = texts(figure)
    assert (
        "with bf16: 3.6 ms per sample; predicted saving 35.0 %, measured 40.0 %" in said and "measured -5.0 %" in said
    )
    for before, after in (figure.axes[:2], figure.axes[2:]):
        assert before.get_xlim() == after.get_xlim()
    assert "n = 1" in captions.caption(FAMILIES["remedies"], sweep)


def test_a_caption_states_n_and_hardware_and_has_a_table_of_settings(sweep):
    shown, reading, rows = captions.parts(FAMILIES["traced_steps"], sweep)
    for part in ("n = 3", "AMD EPYC 9654"):
        assert part in shown
    assert "mean" in reading.lower()
    table = {row[0]: row[1:] for row in rows}
    assert table["setting"] == ["image", "llm"] and table["micro_batch"] == ["16", "4"]
    assert table["seq_len"] == ["", "128"] and table["strategy"] == ["ddp_ds", ""]
    caption = captions.caption(FAMILIES["traced_steps"], sweep)
    assert ".. csv-table:: Settings" in caption and "   micro_batch,16,4\n" in caption


def test_labels_are_short_and_tell_configurations_apart(sweep):
    """Of four settings that vary, one always goes with another; the most common value is unsaid."""
    image = sweep["points"].filter(pl.col("workload") == "image")
    few = short_labels.add_labels(image, dataset.ASIDE)
    assert set(few["label"]) == {f"{n} rank{'s' * (n > 1)}/node, {p}" for n in (1, 2) for p in ("fp32", "bf16")}
    odd = pl.int_range(pl.len()) % 4 == 0
    many = image.with_columns(
        compile=pl.when(pl.lit("bf16") == "precision").then(pl.lit("default")).otherwise(pl.lit("none")),
        micro_batch=pl.when(odd).then(32).otherwise(16),
        image_size=pl.when(pl.int_range(pl.len()) % 3 == 0).then(100).otherwise(224),
    )
    found = short_labels.add_labels(many, dataset.ASIDE)
    assert found.select(dataset.varying(many)).n_unique() == found["label"].n_unique()
    assert not found["label"].str.contains("compile|micro_batch 16|224").any() and "base" in set(found["label"])
    trained = many.with_columns(method=pl.when(precision="bf16").then(pl.lit("lora")).otherwise(pl.lit("full")))
    told = short_labels.add_labels(trained, dataset.ASIDE).select(
        "method", has=pl.col("label").str.contains("lora|full")
    )
    assert (
        told.filter("has")["method"].unique().len() == 1
        and told["has"].sum() in trained["method"].value_counts()["count"]
    )
    named = short_labels.add_labels(many, dataset.ASIDE, always="precision")["label"]
    assert named.str.contains("fp32|bf16").all() and not named.str.contains("micro_batch 16|224").any()


def test_effects_of_settings_are_ratios_to_the_most_common_value(sweep):
    found = setting_effects.effects(sweep).filter(quantity="sample_ms", model="resnet50", setting="precision")
    assert found["base"].unique().to_list() == ["fp32"] and found["value"].unique().to_list() == ["bf16"]
    assert found["ratio"].to_list() == pytest.approx([0.6] * 2) and found["n"].to_list() == [3, 3]
    # Twice the samples in the same step: half the time of a sample.
    twice = pl.when(precision="bf16").then(2).otherwise(1) * pl.lit(32)
    larger = dataset.Tables({"points": sweep["points"].with_columns(samples_per_step=twice)})
    of_samples = setting_effects.effects(larger).filter(quantity="sample_ms", model="resnet50", setting="precision")
    assert of_samples["ratio"].to_list() == pytest.approx([0.3] * 2)
    for unknown in (pl.lit(0), pl.when(precision="bf16").then(2).otherwise(None)):  # then steps are compared
        some = dataset.Tables({"points": sweep["points"].with_columns(samples_per_step=unknown.cast(pl.Int64))})
        of_steps = setting_effects.effects(some).filter(quantity="sample_ms", model="resnet50", setting="precision")
        assert of_steps["ratio"].to_list() == pytest.approx([0.6] * 2)
    alone = dataset.Tables({"points": sweep["points"].head(1)})
    assert setting_effects.effects(alone).is_empty() and setting_effects.FAMILY.points(alone).is_empty()


def test_disturbed_points_are_crossed_and_counted_and_have_no_effects(sweep):
    joules = pl.col("world_size") * 300.0
    points = sweep["points"].with_columns(
        disturbed=pl.col("repeat") == 0, energy_j=joules, sample_j=joules / pl.col("samples_per_s")
    )
    tables = dataset.Tables({**sweep.frames, "points": points})
    marked = FAMILIES["roofline"].draw(tables)
    crosses = [len(line.get_xdata()) for axes in marked.axes for line in axes.lines if line.get_marker() == "x"]
    count = points.filter(pl.col("disturbed"), pl.col("step_ms_median").is_not_null(), workload="image").height
    assert sum(crosses) == count > 0
    assert f"{count} points were disturbed" in captions.caption(FAMILIES["roofline"], tables)
    assert "disturbed" not in captions.caption(FAMILIES["traced_steps"], sweep)
    assert setting_effects.effects(tables)["n"].to_list() == [2] * setting_effects.effects(sweep).height


def test_captions_of_figures_without_medians_say_that_disturbed_points_count(sweep):
    points = sweep["points"].with_columns(disturbed=pl.col("repeat") == 0)
    tables = dataset.Tables({**sweep.frames, "points": points})
    for name in ("held_time", "causes", "loss"):
        said = captions.caption(FAMILIES[name], tables)
        assert "were disturbed: they count here" in said and "medians" not in said


def test_captions_describe_the_panels_that_are_drawn(sweep):
    untried = dataset.Tables({name: frame for name, frame in sweep.frames.items() if name != "remedies"})
    for tables, count in ((sweep, 2), (untried, 1)):
        assert len(causes.FAMILY.draw(tables).axes) == count
        assert ("remedies that were tried" in captions.caption(causes.FAMILY, tables)) == (count == 2)
    assert len(FAMILIES["traced_steps"].draw(sweep).axes) == 1
    assert "API calls" not in captions.caption(FAMILIES["traced_steps"], sweep)


def test_the_line_of_a_loss_ends_where_a_rank_s_is_not_finite(sweep):
    two = sweep["points"].filter(workload="image", strategy="ddp_ds", world_size=2)["point_id"]
    away = pl.col("point_id").is_in(two.implode()) & (pl.col("rank") == 1) & (pl.col("step") >= 20)
    for bad in (float("nan"), float("inf")):
        steps = sweep["steps"].with_columns(loss=pl.when(away).then(bad).otherwise("loss"))
        found = loss.curves(dataset.Tables({**sweep.frames, "steps": steps}))
        ends = found.group_by("config_order", "workload").agg(pl.col("step").filter(pl.col("mean").is_finite()).max())
        assert sorted(ends["step"]) == [19, 19, *[24] * (ends.height - 2)]
        assert found.filter(pl.col("mean").is_nan())["most"].is_nan().all()


def test_lines_of_one_colour_are_told_apart():
    """As many as there are pairs of a marker and dashes."""
    count = len(style.MARKERS) * len(style.DASHES)
    looks = {(look["marker"], look["linestyle"]) for look in (style.line(n, "#000000") for n in range(count))}
    assert len(looks) == count
