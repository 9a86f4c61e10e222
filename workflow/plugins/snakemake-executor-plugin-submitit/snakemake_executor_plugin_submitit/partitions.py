"""Which partition a job goes to: the first of a file (`submitit-partition-config`) whose limits it keeps.

partitions:
  short: {max_runtime: 2h, max_nodes: 1}
  gpu: {max_runtime: 2-00:00:00, max_gpus_per_node: 8}
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from snakemake_executor_plugin_submitit import request
from snakemake_executor_plugin_submitit.query import parse_minutes
from snakemake_executor_plugin_submitit.request import Request
from snakemake_executor_plugin_submitit.settings import ExecutorSettings

KEY = "submitit-partition-config"
_UNITS = {"d": 1440.0, "h": 60.0, "m": 1.0, "s": 1 / 60}
_SIZES: Mapping[str, Callable[[Request], float]] = {
    "max_runtime": lambda job: job.runtime_min,
    "max_nodes": lambda job: job.nodes,
    "max_tasks": lambda job: job.nodes * job.tasks_per_node,
    "max_tasks_per_node": lambda job: job.tasks_per_node,
    "max_cpus_per_task": lambda job: job.cpus_per_task,
    "max_threads": lambda job: job.tasks_per_node * job.cpus_per_task,
    "max_mem_mb": lambda job: job.mem_mb or 0,
    "max_gpu": lambda job: job.nodes * job.gpus_per_node,
    "max_gpus_per_node": lambda job: job.gpus_per_node,
}
"""The limits that a partition may have, and the size of a job that each holds for."""


class NoFit(ValueError):
    """No partition takes the job; the text says which limit of each is in its way."""


def place(asked: Request, settings: ExecutorSettings, rule: str = "") -> Request:
    """The request with its partition. Raises NoFit, and ValueError for a file that is not what it should be."""
    obstacles = []
    for name, limits in ({} if asked.partition else load(settings)).items():
        exceeded = next((f"{key} {limit:g}" for key, limit in limits.items() if _SIZES[key](asked) > limit), None)
        if exceeded is None:
            return replace(asked, partition=name)
        obstacles.append(f"{name} ({exceeded})")
    if obstacles:
        wish = f"{f'rule {rule}' if rule else 'a job'} asks for {asked}"
        raise NoFit(f"{KEY}: {settings.partition_config}: {wish}, which no partition gives: {', '.join(obstacles)}")
    return asked


def check(jobs: Iterable[Any], settings: ExecutorSettings) -> None:
    """Find a partition for all jobs that are known, before any is submitted. Raises as `place` does."""
    for job in jobs if load(settings) else ():
        try:
            asked = request.from_job(job.resources, job.threads, settings)
        except (TypeError, ValueError):  # a resource that depends on files which are yet to be made
            continue
        if not job.is_local:
            place(asked, settings, job.name)


def load(settings: ExecutorSettings) -> Mapping[str, Mapping[str, float]]:
    """The limits of each partition of the file; nothing where none is set. Raises ValueError."""
    if settings.partition_config and settings.partition:
        raise ValueError(f"{KEY} and submitit-partition: one of them was expected, not both")
    return _read(settings.partition_config) if settings.partition_config else {}


@functools.cache
def _read(file: str) -> dict[str, dict[str, float]]:
    try:
        # As text alone: YAML takes 12:00:00 for a number, of seconds.
        content = yaml.load(Path(file).read_text(), yaml.BaseLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{KEY}: {file}: {getattr(error, 'strerror', None) or 'not YAML'}") from None
    listed = content.get("partitions") if isinstance(content, dict) else None
    if not listed or not isinstance(listed, dict):
        raise ValueError(f"{KEY}: {file}: `partitions:` was expected, a mapping of names to limits")
    return {name: _limits(f"{KEY}: {file}: {name}", given or {}) for name, given in listed.items()}


def _limits(where: str, given: Any) -> dict[str, float]:
    if not isinstance(given, dict) or given.keys() - _SIZES.keys():
        raise ValueError(f"{where}: limits were expected, of {', '.join(_SIZES)}")
    # As in snakemake-executor-plugin-slurm: a partition has GPUs where it says so.
    limits: dict[str, float] = {} if "max_gpus_per_node" in given else {"max_gpu": 0}
    for key, value in given.items():
        try:
            limits[key] = _minutes(value) if key == "max_runtime" else int(value)
        except (TypeError, ValueError):
            kind = "a time such as 90 (minutes), 2d12h or 2-12:00:00" if key == "max_runtime" else "a whole number"
            raise ValueError(f"{where}: {key}: {kind} was expected, not {value!r}") from None
    return limits


def _minutes(text: str) -> float:
    """A time as Slurm writes it, or as Snakemake does."""
    if re.fullmatch(r"(\d+[dhms])+", text):
        return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", text))
    return parse_minutes(text)
