"""Which partition a job goes to: the first in a file (`submitit-partition-config`) that the job fits into.

    partitions:
      short: {max_runtime: 2h, max_nodes: 1}
      gpu: {max_runtime: 2-00:00:00, max_gpus_per_node: 8}
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
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
"""The limits that a partition may have, and the size of a job that each is compared with."""


class NoFit(ValueError):
    """No partition takes the job; the text says which limit of each is in its way."""


@dataclass(frozen=True)
class Partition:
    name: str
    limits: Mapping[str, float]

    def obstacle(self, asked: Request) -> str:
        """The first limit that such a job exceeds; empty where it fits."""
        return next((f"{key} {limit:g}" for key, limit in self.limits.items() if _SIZES[key](asked) > limit), "")


def place(asked: Request, settings: ExecutorSettings) -> Request:
    """The request with its partition. Raises NoFit, and ValueError for a file that is not what it should be."""
    candidates = () if asked.partition else load(settings)
    obstacles = {}
    for one in candidates:
        obstacles[one.name] = one.obstacle(asked)
        if not obstacles[one.name]:
            return replace(asked, partition=one.name)
    if obstacles:
        why = ", ".join(f"{name} ({limit})" for name, limit in obstacles.items())
        raise NoFit(f"{KEY}: {settings.partition_config}: no partition takes a job of {asked}: {why}")
    return asked


def check(jobs: Iterable[Any], settings: ExecutorSettings) -> None:
    """Find a partition for all jobs that are known, before any is submitted. Raises as `place` does."""
    if not load(settings):
        return
    for job in jobs:
        if job.is_local:
            continue
        try:
            asked = request.from_job(job.resources, job.threads, settings)
        except ValueError:  # a resource that depends on files which are yet to be made
            continue
        place_job(job, asked, settings)


def place_job(job: Any, asked: Request, settings: ExecutorSettings) -> Request:
    """`place` for a job of Snakemake's, whose rule an error names."""
    try:
        return place(asked, settings)
    except NoFit as error:
        raise NoFit(f"rule {job.name}: {error}") from None


def load(settings: ExecutorSettings) -> tuple[Partition, ...]:
    """The partitions of the file; none where none is set. Raises ValueError."""
    if settings.partition_config is None:
        return ()
    if settings.partition:
        raise ValueError(f"{KEY} and submitit-partition: one of them was expected, not both")
    return _read(settings.partition_config)


@functools.cache
def _read(file: str) -> tuple[Partition, ...]:
    try:
        # As text alone: YAML takes 12:00:00 for a number, of seconds.
        content = yaml.load(Path(file).read_text(), yaml.BaseLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{KEY}: {file}: {getattr(error, 'strerror', None) or 'not YAML'}") from None
    listed = content.get("partitions") if isinstance(content, dict) else None
    if not listed or not isinstance(listed, dict):
        raise ValueError(f"{KEY}: {file}: `partitions:` was expected, a mapping of names to limits")
    return tuple(Partition(name, _limits(f"{KEY}: {file}: {name}", given or {})) for name, given in listed.items())


def _limits(where: str, given: Any) -> dict[str, float]:
    if not isinstance(given, dict) or given.keys() - _SIZES.keys():
        raise ValueError(f"{where}: limits were expected, of {', '.join(_SIZES)}")
    limits: dict[str, float] = {}
    for key, value in given.items():
        try:
            limits[key] = _minutes(value) if key == "max_runtime" else int(value)
        except (TypeError, ValueError):
            kind = "a time such as 90 (minutes), 2d12h or 2-12:00:00" if key == "max_runtime" else "a whole number"
            raise ValueError(f"{where}: {key}: {kind} was expected, not {value!r}") from None
    # As in snakemake-executor-plugin-slurm: a partition has GPUs where it says so.
    return limits if "max_gpus_per_node" in limits else {"max_gpu": 0.0, **limits}


def _minutes(text: str) -> float:
    """A time as Slurm writes it, or as Snakemake does."""
    if re.fullmatch(r"(\d+[dhms])+", text):
        return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", text))
    return parse_minutes(text)
