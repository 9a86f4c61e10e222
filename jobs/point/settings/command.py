"""Somebody's own training script, run as it is: the command, what starts its ranks, and what of it makes a point."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from nightsweep.jobs.point import template
from nightsweep.jobs.point.environment import by_setting
from nightsweep.jobs.point.reason import Reason
from nightsweep.jobs.point.settings.field import MOST_PATH, MOST_TEXT, ON_GPU, setting

if TYPE_CHECKING:
    from nightsweep.jobs.point.point import Point

SWITCHES = (
    "precision",
    "layout",
    "compile",
    "optimizer_kernels",
    "cudnn_benchmark",
    "allocator",
    "cpu_threads",
    "empty_cache",
    "loader_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "release_unlocked",
    "non_blocking",
    "ddp_bucket_mb",
    "ddp_bucket_view",
    "ddp_static_graph",
    "comm_hook",
)
"""Settings of the built-in workloads that jobs/hook/switches.py can impose on a script. Of a point with workload
command they are None as long as the script decides."""
SHARED = ("workload", "repeat", "nodes", "ranks_per_node", "device", "seed")
"""Settings of a job that mean the same to a script."""
LAUNCHERS = ("torchrun", "deepspeed", "accelerate")
"""Launchers that start the ranks of a node themselves."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """Settings of workload command; None in others."""

    command: str | None = setting(
        "The script and its arguments, as a list or as one text that is divided into words as a shell would do it; no "
        "shell runs it. {name} is the value of the axis, or of the setting, of that name; {out} a folder for what the "
        "script writes, which is deleted after the run; {config_file} the edited copy. {{ and }} are braces.",
        only="command",
        minLength=1,
        maxLength=MOST_TEXT,
    )
    launcher: Literal["torchrun", "deepspeed", "accelerate", "srun", "none"] | None = setting(
        "What starts the script's ranks: torchrun, DeepSpeed's or Accelerate's launcher on each node; srun: a process "
        "a rank, started by srun or, outside of Slurm, directly; none: the command once a node, which starts its ranks "
        "itself.",
        "torchrun",
        only="command",
    )
    launcher_options: str | None = setting(
        "Further options of the launcher, divided into words like the command.",
        "",
        only="command",
        maxLength=MOST_TEXT,
    )
    python: str | None = setting(
        "Command that starts the script's Python, such as /opt/env/bin/python; empty: the one that runs Nightsweep.",
        "",
        only="command",
        maxLength=MOST_PATH,
    )
    workdir: str | None = setting(
        "Folder that the script runs in, seen from where Snakemake is started.",
        ".",
        only="command",
        minLength=1,
        maxLength=MOST_PATH,
    )
    config_file: str | None = setting(
        "A YAML, JSON or TOML file that the script reads, seen from workdir. Axes named config.KEY.KEY change it in a "
        "copy, whose path is {config_file} in the command.",
        "",
        only="command",
        maxLength=MOST_PATH,
    )
    files: str | None = setting(
        "Files, seen from workdir, whose content makes another point beside the script's and config_file's: words such "
        "as model.py and src/*.py.",
        "",
        only="command",
        maxLength=MOST_TEXT,
    )
    version: str | None = setting(
        "What else makes another point: any text, such as a container's digest; git: the commit, and the changes "
        "since, of the repository that holds workdir.",
        "",
        only="command",
        maxLength=MOST_TEXT,
    )
    code: str | None = setting(
        "Hash of the script, of config_file, files and version; made when a sweep is read.",
        "",
        only="command",
        maxLength=64,
    )
    run_to_end: bool | None = setting(
        "Let the script run to its own end; else it is ended after its last measured step.", False, only="command"
    )
    no_sync: bool | None = setting(
        "DDP averages gradients in the last of a step's backward passes alone. Null: as the script has it.",
        None,
        only="command",
        needs=[ON_GPU],
    )


def words_of_command(p: Point) -> Reason | None:
    for name in ("command", "launcher_options", "python", "files"):
        try:
            found = shlex.split(getattr(p, name))
        except ValueError as error:
            return Reason((name,), f"cannot be divided into words: {str(error).lower()}")
        if name == "command" and not found:
            return Reason((name,), "has no word")
    return None


def launched_twice(p: Point) -> Reason | None:
    try:
        first = shlex.split(str(p.command))[:1]
    except ValueError:
        return None  # words_of_command says why
    name = PurePath(first[0]).name if first else ""
    if name in (*LAUNCHERS, "srun"):
        options = " (its options are launcher_options)" if name in LAUNCHERS else ""
        return Reason(
            ("command", "launcher"), f"begins with {name}: give the script alone, and launcher: {name}{options}"
        )
    return None


def fields_of_command(p: Point) -> Reason | None:
    known = template.names(p)
    for name in template.TEMPLATES:
        try:
            unknown = sorted(template.fields(getattr(p, name)) - known)
        except template.TemplateError as error:
            return Reason((name,), str(error))
        if unknown:
            return Reason((name,), f"{{{unknown[0]}}} is neither an axis nor a setting (there are {_some(known)})")
    return None


def _some(names: set[str]) -> str:
    own = sorted(names - set(SHARED))
    return ", ".join(own[:12])


def edited_file(p: Point) -> Reason | None:
    edits = [name for name, _ in p.variables if name.startswith(template.CONFIG)]
    if edits and not p.config_file:
        return Reason((edits[0], "config_file"), "changes a file, and config_file names none")
    if p.config_file and "config_file" not in template.fields_or_none(str(p.command)):
        return Reason(("config_file", "command"), "is not read: the command has no {config_file}")
    return None


def variable_of_a_setting(p: Point) -> Reason | None:
    axes = template.environment(p)
    for setting_, variables in by_setting(p).items():
        twice = next((name for name in variables if name in axes), None)
        if twice:
            text = f"{template.ENVIRONMENT}{twice} is set by {setting_} too"
            return Reason((template.ENVIRONMENT + twice, setting_), text)
    return None


def launched_alone(p: Point) -> Reason | None:
    if p.launcher in ("none", "srun") and p.launcher_options:
        return Reason(("launcher_options", "launcher"), f"launcher {p.launcher} takes no options")
    return None


def switched_precision(p: Point) -> Reason | None:
    if p.precision not in (None, "tf32", "bf16"):
        return Reason(("precision",), f"a script can be switched to tf32 and bf16, not to {p.precision}")
    return None


def switched_layout(p: Point) -> Reason | None:
    if p.layout not in (None, "nhwc"):
        return Reason(("layout",), f"a script can be switched to nhwc, not to {p.layout}")
    return None


def switched_cache(p: Point) -> Reason | None:
    if p.empty_cache:
        return Reason(("empty_cache",), "a script can be kept from emptying the cache (false), not made to")
    return None


def switched_hook(p: Point) -> Reason | None:
    if p.comm_hook == "topk":
        return Reason(("comm_hook",), "a script can be switched to bf16, fp16 and powersgd, not to topk")
    if p.comm_hook == "none":
        return Reason(("comm_hook",), "a script's own hook cannot be taken away")
    return None


CHECKS = (
    words_of_command,
    launched_twice,
    fields_of_command,
    edited_file,
    variable_of_a_setting,
    launched_alone,
    switched_precision,
    switched_layout,
    switched_cache,
    switched_hook,
)
