"""Sweep files: what they expand to, and the one line that each mistake gives."""

# ruff: noqa: E501 (a file and its one line stand as they are written)

import json
from pathlib import Path

import pytest

from nightsweep.jobs.sweep.estimate import estimate
from nightsweep.jobs.sweep.sweep import SweepError, load
from tests.effort import effort

BASE = "name: s\nbase: {workload: image, model: resnet50}\n"
LLM = "name: s\nbase: {workload: llm, model: llama-1b}\n"


def sweep(tmp_path, text, preset=None):
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    return load(file, preset)


def errors(tmp_path, text, preset=None):
    with pytest.raises(SweepError) as caught:
        sweep(tmp_path, text, preset)
    return list(caught.value.errors)


BROKEN = [
    (
        BASE + "axes: {precision: [fp32, bf16, fp12]}",
        "axes.precision[2]: 'fp12' is not one of fp64, fp32, tf32, bf16, fp16, bf16_pure (did you mean 'fp32'?)",
    ),
    (BASE + "axes: {precison: [fp32]}", "axes.precison: unknown setting (did you mean 'precision'?)"),
    (BASE + "axes: {device: [gpu]}", "axes.device[0]: 'gpu' is not one of auto, cpu, cuda (did you mean 'cuda'?)"),
    (BASE + "axis: {precision: [fp32]}", "axis: unknown key (did you mean 'axes'?)"),
    (BASE + "axes: {precision: fp32}", "axes.precision: 'fp32' is not a list"),
    (BASE + "axes: {nodes: []}", "axes.nodes: is empty"),
    (BASE + "axes: {nodes: [1, 0]}", "axes.nodes[1]: 0 is less than 1"),
    (BASE + "axes: {nodes: [2.0]}", "axes.nodes[0]: 2.0 is not an integer"),
    (BASE + "axes: {repeat: [0, 1]}", "axes.repeat: is counted by the top key 'repeats'"),
    (BASE + "axes: {pin_memory: [1]}", "axes.pin_memory[0]: 1 is not true or false"),
    (BASE + "axes: {learning_rate: [1e-3, .nan]}", "axes.learning_rate[1]: nan is not a finite number"),
    (BASE + "axes: {seq_len: [128]}", "axes.seq_len: is a setting of llm, given for image (1 point)"),
    (
        BASE + "axes: {fault: [crash@rank0:step1]}",
        "axes.fault[0]: 'crash@rank0:step1' is not KIND@rankR:stepS with KIND one of exception, kill, nan, hang",
    ),
    (BASE + "axes: {fault: ['kill@rank1:step1']}", "axes.fault[0]: rank 1 never fails: ranks go from 0 to 0 (1 point)"),
    (
        BASE + "axes: {fault: ['kill@rank0:step27', 'kill@rank0:step28']}",
        "axes.fault[1]: step 28 never comes: steps go from 0 to 27 (1 point)",
    ),
    (
        BASE + "axes: {fault: ['kill@rank0:step25'], tracer: [kineto]}",
        "axes.fault[0]: step 25 never comes: steps go from 0 to 24 (1 point)",
    ),
    (
        BASE + "axes: {strategy: [ddp, zero2], precision: [fp32, fp64], grad_accum: [1, 2]}",
        "point(strategy=zero2, precision=fp64): zero2 with fp64: DeepSpeed trains in fp32, bf16 and fp16 only (2 points)",
    ),
    (
        BASE + "axes: {precision: [fp32, tf32]}\ninclude: [{precision: tf32, device: cpu}]",
        "include[0].precision: tf32 is arithmetic of GPUs; device is cpu (1 point)",
    ),
    (
        BASE + "include: [{device: cpu, pin_memory: true}]",
        "include[0].pin_memory: pin_memory true has no effect: device is cpu (1 point)",
    ),
    (
        BASE + "include: [{pin_memory: true}, {non_blocking: true}]",
        "include[1].non_blocking: non_blocking true has no effect: pin_memory is false (1 point)",
    ),
    (
        BASE + "include: [{device: cpu, tracer: [kineto, nsys]}]",
        "include[0].tracer[1]: nsys traces GPUs; device is cpu (1 point)",
    ),
    (
        BASE + "include: [{tracer: nsys, traced_steps: 0}]",
        "include[0].tracer: tracer nsys has no effect: traced_steps is 0 (1 point)",
    ),
    (
        BASE + "include: [{prefetch_factor: 4}]",
        "include[0].prefetch_factor: prefetch_factor 4 has no effect: loader_workers is 0 (1 point)",
    ),
    (
        BASE + "include: [{model: vit_s, image_size: [64, 100]}]",
        "include[0].image_size[1]: 100 is not a multiple of 16, as vit_s needs (1 point)",
    ),
    (
        BASE + "include: [{model: llama-1b}]",
        "include[0].model: 'llama-1b' is no image model (there are mobilenet_v2, resnet50, vit_s) (1 point)",
    ),
    (BASE + "include: [{}]", "include[0]: is empty"),
    (BASE + "exclude: [{precision: bf16}]", "exclude[0]: matches no point"),
    (BASE + "exclude: [{precision: fp32}]", "exclude: no point is left"),
    (BASE + "repeats: 0", "repeats: 0 is less than 1"),
    (BASE + "resources: {timeout: 5}", "resources.timeout: unknown key (did you mean 'timeout_min'?)"),
    (BASE + "presets: {night: {repeets: 2}}", "presets.night.repeets: unknown key (did you mean 'repeats'?)"),
    (
        BASE + "axes: {seed: &a [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], nodes: [1, 2]}\nrepeats: 9999",
        "file: 199980 points are more than 100000",
    ),
    (LLM + "include: [{lora_rank: 16}]", "include[0].lora_rank: lora_rank 16 has no effect: method is full (1 point)"),
    (
        LLM + "axes: {model: [llama-nano, llama-1b], seq_len: [512, 2048]}",
        "point(seq_len=2048, model=llama-nano): 2048 is more than 1024, the most of llama-nano (1 point)",
    ),
    (
        "name: s\nbase: {workload: llm, model: llama-1b, seq_len: 16384}",
        "base.seq_len: 16384 is more than 8192, the most of llama-1b (1 point)",
    ),
    (
        "name: s\nbase: {workload: llm}",
        "base.model: is required (one of mobilenet_v2, resnet50, vit_s, llama-nano, llama-160m, llama-1b, llama-3b, llama-8b)",
    ),
    ("name: s\nbase: {model: resnet50}", "base.workload: is required (one of image, llm, command)"),
    (
        "name: My Sweep\nbase: {workload: image, model: resnet50}",
        "name: 'My Sweep' is not made of a-z, 0-9, _ and -, starting with a letter or digit",
    ),
    ("base: {workload: image, model: resnet50}", "name: is required"),
    ("name: s\nbase:\n  nodes: 1\n  nodes: 2\n", "line 4: bad YAML: key 'nodes' is given twice (first in line 3)"),
    ("name: s\nbase: {nodes: 1\naxes: {}\n", "line 3: bad YAML: did not find expected ',' or '}'"),
    ("- name: s", "file: [{'name': 's'}] is not a map with name, base, axes, ..."),
    ("", "file: is empty"),
    ("name: s\nbase: {data: 2026-13-45}", "file: bad YAML: month must be in 1..12"),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN)
def test_broken_file_gives_one_line(tmp_path, text, expected):
    assert errors(tmp_path, text) == [expected]


def test_all_errors_at_once(tmp_path):
    text = "name: s\nbase: {nodes: 0, modle: resnet50}\naxes: {precision: [fp12], seed: [x]}\nrepeats: no"
    assert {line.split(": ")[0] for line in errors(tmp_path, text)} == {
        "base.modle",
        "base.nodes",
        "axes.seed[0]",
        "axes.precision[0]",
        "repeats",
    }


def test_all_cross_errors_at_once(tmp_path):
    text = BASE + "include: [{non_blocking: true}, {prefetch_factor: 4, model: llama-1b}]\nexclude: [{nodes: 3}]"
    assert len(errors(tmp_path, text)) == 4


def test_axes_multiply_include_stands_on_base(tmp_path):
    text = BASE + "axes: {precision: [fp32, bf16], nodes: [1, 2]}\ninclude: [{nodes: [4, 8], grad_accum: 2}]"
    points = sweep(tmp_path, text).points
    assert [(p.precision, p.nodes, p.grad_accum) for p in points] == [
        ("fp32", 1, 1),
        ("fp32", 2, 1),
        ("bf16", 1, 1),
        ("bf16", 2, 1),
        ("fp32", 4, 2),
        ("fp32", 8, 2),
    ]


def test_base_alone_is_one_point(tmp_path):
    assert len(sweep(tmp_path, BASE).points) == 1


def test_duplicates_are_one_point(tmp_path):
    text = BASE + "axes: {seed: [0, 1, 0], learning_rate: [1e-3, 0.001]}\ninclude: [{seed: 1, image_size: 224}]"
    assert [p.seed for p in sweep(tmp_path, text).points] == [0, 1]


def test_repeats(tmp_path):
    points = sweep(tmp_path, BASE + "axes: {nodes: [1, 2]}\nrepeats: 3\nexclude: [{nodes: 2, repeat: [1, 2]}]").points
    assert [(p.nodes, p.repeat) for p in points] == [(1, 0), (1, 1), (1, 2), (2, 0)]


def test_exclude_drops_what_would_be_refused(tmp_path):
    text = BASE + "axes: {strategy: [ddp, zero1, zero3], precision: [fp32, fp64]}\n"
    assert len(sweep(tmp_path, text + "exclude: [{strategy: [zero1, zero3], precision: fp64}]").points) == 4


def test_base_holds_both_workloads(tmp_path):
    text = BASE.replace("}", ", image_size: 64, seq_len: 128}") + "axes: {nodes: [1]}\n"
    image, llm = sweep(tmp_path, text + "include: [{workload: llm, model: llama-nano}]").points
    assert (image.image_size, image.seq_len) == (64, None)
    assert (llm.image_size, llm.seq_len) == (None, 128)


def test_float_without_dot(tmp_path):
    assert sweep(tmp_path, BASE + "axes: {learning_rate: [1e-2]}").points[0].learning_rate == 0.01


def test_preset_is_merged_key_by_key(tmp_path):
    text = BASE + (
        "axes: {nodes: [1, 2], precision: [fp32, bf16]}\nresources: {timeout_min: 9}\n"
        "presets: {one: {base: {model: vit_s}, axes: {nodes: [4]}, repeats: 2, resources: {stall_s: 7}}}"
    )
    assert len(sweep(tmp_path, text).points) == 4
    small = sweep(tmp_path, text, "one")
    assert {(p.model, p.nodes) for p in small.points} == {("vit_s", 4)}
    assert len(small.points) == 4
    assert (small.resources.timeout_min, small.resources.stall_s) == (9, 7)


def test_preset_errors_name_the_preset(tmp_path):
    text = BASE + "presets: {one: {axes: {model: [resnet50, llama-1b]}}}"
    assert errors(tmp_path, text, "two") == ["presets.two: no such preset (there are one)"]
    line = "presets.one.axes.model[1]: 'llama-1b' is no image model (there are mobilenet_v2, resnet50, vit_s) (1 point)"
    assert errors(tmp_path, text, "one") == [line]


def test_merge_keys_are_not_duplicates(tmp_path):
    text = "name: s\nbase: &b {workload: image, model: resnet50}\ninclude: [{<<: *b, model: vit_s}]"
    assert [p.model for p in sweep(tmp_path, text).points] == ["vit_s"]


def test_ten_thousand_points_in_time(tmp_path):
    text = BASE + f"axes: {{seed: {list(range(100))}, nodes: {list(range(1, 21))}, micro_batch: [1, 2, 4, 8, 16]}}"
    found = []
    assert effort(lambda: found.append({p.id for p in sweep(tmp_path, text).points}), 200) <= 200
    assert len(found[0]) == 10_000


def test_estimate_of_a_known_point(tmp_path):
    cost = estimate(sweep(tmp_path, BASE + "axes: {nodes: [2], ranks_per_node: [4]}").points)
    # 32 images * 3 * 2 * 4.1e9 / 6.7e12 per s = 0.117 s a step; 5, 20 and 3 steps; 25 s for the start; 8 GPUs.
    assert cost.gpu_hours == pytest.approx(8 * (25 + 28 * 0.1175) / 3600, rel=1e-3)
    assert cost.disk_bytes == 1e6 + 1.5e6 * 8 * 3


def test_estimate_of_a_point_that_is_traced_in_a_second_start(tmp_path):
    text = BASE + "axes: {nodes: [2], ranks_per_node: [4], tracer: [nsys]}"
    cost = estimate(sweep(tmp_path, text).points)  # 25 and 8 steps, each after 25 s
    assert cost.gpu_hours == pytest.approx(8 * (50 + 33 * 0.1175) / 3600, rel=1e-3)


@pytest.mark.parametrize(
    ("ranks", "trace", "files"),  # counted after runs on the CPU: raw, trace tables, log, chunk
    [
        (1, "traced_steps: 0", 4 + 1 + 18),
        (3, "traced_steps: 0", 4 + 1 + 18),
        (1, "traced_steps: 2", 5 + 32 + 1 + 18),
        (2, "traced_steps: 2", 6 + 32 + 1 + 18),
        (2, "traced_steps: 2, tracer: kineto", 6 + 32 + 1 + 18),
    ],
)
def test_files_of_a_point(tmp_path, ranks, trace, files):
    text = f"name: s\nbase: {{workload: llm, model: llama-nano, device: cpu, strategy: ddp, {trace}}}\n"
    assert estimate(sweep(tmp_path, text + f"axes: {{ranks_per_node: [{ranks}]}}").points).files == files


def test_a_sweep_without_a_file(tmp_path):
    content = {"name": "s", "base": {"workload": "llm", "model": "llama-nano"}, "axes": {"seed": [1, 2]}}
    (tmp_path / "s.yaml").write_text(json.dumps(content))
    assert load(content) == load(tmp_path / "s.yaml")
    with pytest.raises(SweepError, match=r"axes\.sed: unknown setting"):
        load(content | {"axes": {"sed": [1]}})


@pytest.mark.parametrize("file", sorted((Path(__file__).parents[3] / "config").glob("*.yaml")), ids=lambda f: f.name)
def test_shipped_configs_expand(file):
    assert load(file).points
