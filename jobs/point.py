"""A point: the plain, frozen description of one training job of a sweep, and its id.

This file is the one source of what can be set. The JSON schema in `workflow/schemas/` and the settings table in
`docs/settings.md` are written from it:

    python -m jobs.point            # rewrite both

A point's id is a hash of its content, so the same point is the same folder today and next year. Two rules keep that
true when settings are added: a setting that stands at its default is not hashed, and a default never changes its
meaning (new behaviour is a new setting, whose default is the old behaviour).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Workload = Literal["image", "llm"]
Strategy = Literal["ddp", "ddp_ds", "fsdp2", "zero1", "zero2", "zero3"]
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]

IMAGE_MODELS = ("mobilenet_v2", "resnet50", "vit_s")
LLM_MODELS = ("llama-nano", "llama-160m", "llama-1b", "llama-3b", "llama-8b")
Model = Literal["mobilenet_v2", "resnet50", "vit_s", "llama-nano", "llama-160m", "llama-1b", "llama-3b", "llama-8b"]

FAULT_PATTERN = r"^(exception|kill|nan|hang)@rank\d+:step\d+$"
# A rank has one spelling, 1 and not 01: `Point.traces` compares texts. `$` alone would let the end of a line pass.
TRACE_RANKS_PATTERN = r"^(all|first-per-node|(0|[1-9][0-9]*)(,(0|[1-9][0-9]*))*)$(?!\n)"
ID_LENGTH = 12


def setting(text: str, default: Any = dataclasses.MISSING, *, only: Workload | None = None, **schema: Any) -> Any:
    """A field with its text, the workload it is for (None: all) and extra JSON schema keywords."""
    return dataclasses.field(default=default, metadata={"text": text, "only": only, "schema": schema})


@dataclass(frozen=True, kw_only=True)
class Point:
    """One training job. A setting of the other workload is None; `complete` fills this workload's defaults in."""

    workload: Workload = setting("What is trained.")
    model: Model = setting("The network; see docs/workloads.md for sizes.")
    repeat: int = setting("Number of this repetition, from 0. Moves the seed.", 0, minimum=0)

    nodes: int = setting("Nodes of the job. More than one needs Slurm.", 1, minimum=1)
    ranks_per_node: int = setting("Ranks on each node: one GPU each, or one CPU process each.", 1, minimum=1)
    device: Literal["auto", "cpu", "cuda"] = setting("Where ranks compute. auto: GPUs where there are any.", "auto")

    strategy: Strategy = setting(
        "How ranks share the work: ddp (each rank walks the whole data set), ddp_ds (DDP with DistributedSampler), "
        "fsdp2, DeepSpeed ZeRO stages. All but ddp shard the data.",
        "ddp_ds",
    )
    precision: Precision = setting(
        "Arithmetic of the step. fp64, fp32 and tf32 are whole-model; bf16 and fp16 are mixed: trained weights and "
        "optimizer state stay fp32. fp32 turns TF32 off for convolutions too.",
        "fp32",
    )
    micro_batch: int = setting("Samples of one forward pass of one rank.", 32, minimum=1)
    grad_accum: int = setting("Forward and backward passes before each optimizer step.", 1, minimum=1)
    optimizer: Literal["adamw", "sgd"] = setting("Optimizer.", "adamw")
    learning_rate: float = setting("Constant learning rate.", 1e-3, exclusiveMinimum=0)
    seed: int = setting("Seed of weights and data order; the repeat is added to it.", 0, minimum=0)

    data: str = setting(
        "builtin, or a folder: MNIST idx files (image), UTF-8 text files (llm). builtin is scikit-learn's handwritten "
        "digits (image) and the text of Python's language reference (llm).",
        "builtin",
        minLength=1,
    )
    loader_workers: int = setting("DataLoader worker processes of a rank; 0 loads in the rank itself.", 0, minimum=0)
    prefetch_factor: int = setting("Batches that each loader worker prepares ahead.", 2, minimum=1)
    pin_memory: bool = setting("Copy batches to the GPU from page-locked memory.", False)
    numa: Literal["none", "near", "far"] = setting(
        "CPUs of a rank: as the scheduler gives them, or bound to those near its GPU, or far from it.", "none"
    )
    non_blocking: bool = setting("Let the copy to the GPU run behind the launching thread.", False)

    image_size: int | None = setting(
        "Edge of the square image that the network sees, px.", None, only="image", minimum=32
    )
    layout: Literal["nchw", "nhwc"] | None = setting(
        "Memory layout of images and convolution weights.", None, only="image"
    )
    resize_on: Literal["worker", "device"] | None = setting(
        "Where the small source image is enlarged: by the loading process, or by the device after the copy.",
        None,
        only="image",
    )

    method: Literal["full", "lora"] | None = setting("What is trained of the model.", None, only="llm")
    seq_len: int | None = setting("Tokens of a sequence.", None, only="llm", minimum=8)
    lora_rank: int | None = setting("Rank of the LoRA adapters; alpha is twice the rank.", None, only="llm", minimum=1)
    activation_checkpointing: bool | None = setting(
        "Recompute each layer's activations in the backward pass.", None, only="llm"
    )

    warmup_steps: int = setting("Optimizer steps before each window.", 5, minimum=1)
    timed_steps: int = setting("Optimizer steps of the timed window, which no profiler sees.", 20, minimum=2)
    traced_steps: int = setting("Optimizer steps of the traced window, in a second start; 0: no trace.", 3, minimum=0)
    tracer: Literal["auto", "nsys", "kineto"] = setting(
        "auto: Nsight Systems where it works and there is a GPU, the PyTorch profiler (Kineto) otherwise.", "auto"
    )
    trace_ranks: str = setting(
        "Ranks that are traced: all, first-per-node, or global ranks with commas.",
        "all",
        pattern=TRACE_RANKS_PATTERN,
    )
    trace_preset: Literal["light", "deep"] = setting(
        "light: kernels, copies, API calls and ranges. deep: also memory use, backtraces and, on the first rank of a "
        "node under nsys, GPU metrics; disturbs the step more.",
        "light",
    )
    keep_report: bool = setting("Keep nsys' own report (.nsys-rep) beside its export.", True)
    nvml_hz: int = setting("Rate at which the GPUs are sampled, Hz; 0: not at all.", 10, minimum=0, maximum=50)
    cost_pairs: int = setting(
        "Control of what the measuring costs: so many pairs of starts, without and with the tracer, after the two "
        "looks; 0: none.",
        0,
        minimum=0,
    )
    fault: str | None = setting(
        "A failure made on purpose, to see that it is told rightly: KIND@rankR:stepS, KIND one of exception, kill, "
        "nan, hang.",
        None,
        pattern=FAULT_PATTERN,
    )

    @property
    def id(self) -> str:
        """The first 12 hex digits of SHA-256 over the settings that differ from their defaults, as sorted JSON."""
        content = {k: v for k, v in self.settings().items() if v != defaults(self.workload).get(k)}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def traces(self, rank: int) -> bool:
        """Whether this global rank is traced."""
        if self.trace_ranks == "first-per-node":
            return rank % self.ranks_per_node == 0
        return self.trace_ranks == "all" or str(rank) in self.trace_ranks.split(",")

    def gpus_per_node(self) -> int:
        """GPUs to ask a scheduler for: one a rank, none where ranks are to compute on the CPU."""
        return 0 if self.device == "cpu" else self.ranks_per_node

    def settings(self) -> dict[str, Any]:
        """All settings that apply to this workload, by name."""
        return {name: getattr(self, name) for name in applicable(self.workload)}


WORKLOAD_DEFAULTS: dict[Workload, dict[str, Any]] = {
    "image": {"image_size": 224, "layout": "nchw", "resize_on": "worker"},
    "llm": {"method": "full", "seq_len": 512, "lora_rank": 8, "activation_checkpointing": False},
}

FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Point)}
_TYPES: dict[str, Any] = typing.get_type_hints(Point)


@functools.cache
def applicable(workload: Workload) -> tuple[str, ...]:
    """Names of the settings that a point of this workload has."""
    return tuple(name for name, f in FIELDS.items() if f.metadata["only"] in (None, workload))


@functools.cache
def defaults(workload: Workload) -> dict[str, Any]:
    """Each applicable setting's default; settings without one (workload, model) are absent."""
    own = {n: FIELDS[n].default for n in applicable(workload) if FIELDS[n].default is not dataclasses.MISSING}
    return own | WORKLOAD_DEFAULTS[workload]


def complete(settings: dict[str, Any]) -> Point:
    """A point from some settings, the rest at the workload's defaults. Whole-number floats become floats' own type."""
    values = defaults(settings["workload"]) | settings
    values["learning_rate"] = float(values["learning_rate"])
    return Point(**values)


def setting_schema(name: str) -> dict[str, Any]:
    """JSON schema of one setting's value, from the field's type and metadata."""
    kind, field = _TYPES[name], FIELDS[name]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(a for a in typing.get_args(kind) if a is not type(None))
    if typing.get_origin(kind) is Literal:
        core: dict[str, Any] = {"enum": list(typing.get_args(kind))}
    else:
        core = {"type": {int: "integer", float: "number", bool: "boolean", str: "string"}[kind]}
    return {**core, **field.metadata["schema"], "description": field.metadata["text"]}


def schema() -> dict[str, Any]:
    """JSON schema of a point."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "point",
        "description": "One training job. Written from jobs/point.py by `python -m jobs.point`; do not edit.",
        "type": "object",
        "additionalProperties": False,
        "required": ["workload", "model"],
        "properties": {name: setting_schema(name) for name in FIELDS},
    }


def settings_page() -> str:
    """docs/settings.md: every setting with its values, default and text."""
    rows = []
    for name, field in FIELDS.items():
        spec = setting_schema(name)
        values = ", ".join(map(str, spec["enum"])) if "enum" in spec else spec["type"]
        only = field.metadata["only"]
        default = WORKLOAD_DEFAULTS[only][name] if only else field.default
        shown = (
            "required" if default is dataclasses.MISSING else "" if default is None else json.dumps(default).strip('"')
        )
        rows.append(f"| `{name}` | {only or 'all'} | {values} | {shown} | {field.metadata['text']} |")
    head = (
        "# Settings of a point\n\nWritten from `jobs/point.py` by `python -m jobs.point`; do not edit. Each can stand in "  # noqa: E501
        "`base`, as a list in `axes`, and in `include` and `exclude` of a sweep.\n\n"
        "| setting | workload | values | default | meaning |\n|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def main() -> None:
    root = Path(__file__).parent.parent
    (root / "workflow/schemas/point.schema.json").write_text(json.dumps(schema(), indent=2) + "\n")
    (root / "docs/settings.md").write_text(settings_page())


if __name__ == "__main__":
    main()
