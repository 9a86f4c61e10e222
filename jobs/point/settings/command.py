"""Somebody's own training script, run as it is: the command, what starts its ranks, and what of it makes a point."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
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
        "Further options of the launcher, divided into words like the command.", "", only="command", maxLength=MOST_TEXT
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


def command_conflicts(p: Point) -> Iterator[Reason]:
    """Of the texts that are divided into words."""
    for name in ("command", "launcher_options", "python", "files"):
        try:
            words = shlex.split(getattr(p, name))
        except ValueError as error:
            yield Reason((name,), f"cannot be divided into words: {str(error).lower()}")
            return
        if name == "command" and not words:
            yield Reason((name,), "has no word")
            return
        program = PurePath(words[0]).name if name == "command" else ""
        if program in (*LAUNCHERS, "srun"):
            options = " (its options are launcher_options)" if program in LAUNCHERS else ""
            text = f"begins with {program}: give the script alone, and launcher: {program}{options}"
            yield Reason(("command", "launcher"), text)


def field_conflicts(p: Point) -> Iterator[Reason]:
    """Of the texts' fields, and of the axes that fill them."""
    known = template.names(p)
    for name in template.TEMPLATES:
        try:
            unknown = sorted(template.fields(getattr(p, name)) - known)
        except template.TemplateError as error:
            yield Reason((name,), str(error))
            break
        if unknown:
            there = ", ".join(sorted(known - set(SHARED))[:12])
            yield Reason((name,), f"{{{unknown[0]}}} is neither an axis nor a setting (there are {there})")
            break
    edits = [name for name, _ in p.variables if name.startswith(template.CONFIG)]
    if edits and not p.config_file:
        yield Reason((edits[0], "config_file"), "changes a file, and config_file names none")
    elif p.config_file and "config_file" not in template.fields_or_none(str(p.command)):
        yield Reason(("config_file", "command"), "is not read: the command has no {config_file}")
    axes = template.environment(p)
    twice = [(name, by) for by, variables in by_setting(p).items() for name in variables if name in axes]
    if twice:
        name, by = template.ENVIRONMENT + twice[0][0], twice[0][1]
        yield Reason((name, by), f"{name} is set by {by} too")


def switch_conflicts(p: Point) -> Iterator[Reason]:
    """Of what a script can be switched to."""
    if p.launcher in ("none", "srun") and p.launcher_options:
        yield Reason(("launcher_options", "launcher"), f"launcher {p.launcher} takes no options")
    if p.precision not in (None, "tf32", "bf16"):
        yield Reason(("precision",), f"a script can be switched to tf32 and bf16, not to {p.precision}")
    if p.layout not in (None, "nhwc"):
        yield Reason(("layout",), f"a script can be switched to nhwc, not to {p.layout}")
    if p.empty_cache:
        yield Reason(("empty_cache",), "a script can be kept from emptying the cache (false), not made to")
    if p.comm_hook == "topk":
        yield Reason(("comm_hook",), "a script can be switched to bf16, fp16 and powersgd, not to topk")
    if p.comm_hook == "none":
        yield Reason(("comm_hook",), "a script's own hook cannot be taken away")


CHECKS = (command_conflicts, field_conflicts, switch_conflicts)
