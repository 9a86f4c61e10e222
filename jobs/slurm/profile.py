"""A Snakemake profile, as far as it says what a point asks of Slurm."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from snakemake_executor_plugin_submitit.partitions import place
from snakemake_executor_plugin_submitit.request import Request, from_job
from snakemake_executor_plugin_submitit.settings import ExecutorSettings

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.sweep import batches, chunks

POINT, CHUNK = "point", "derive"
"""The rules whose jobs go to the cluster."""


@dataclass(frozen=True)
class Profile:
    """Settings of the executor, and resources by name: those of any job, and those of a point's or a chunk's alone."""

    settings: ExecutorSettings = field(default_factory=ExecutorSettings)
    defaults: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    of_chunks: dict[str, Any] = field(default_factory=dict)

    @property
    def batch_min(self) -> float:
        """How long jobs that run several points may be (jobs/sweep/batches.py). Raises ValueError."""
        return batches.whole_minutes(self.defaults.get("batch_min", 0))

    def request(self, point: Point, timeout_min: int) -> Request:
        """What the point's job asks for. Raises ValueError where a resource is not what it should be, or no partition
        takes the job."""
        own = {
            "nodes": point.nodes,
            "tasks_per_node": point.tasks_per_node,
            "gpus_per_node": point.gpus_per_node(),
            "runtime": timeout_min,
        }
        return place(from_job({**self.defaults, **own, **self.overrides}, 1, self.settings), self.settings)

    def chunk_request(self) -> Request:
        """What the job of a chunk (jobs/sweep/chunks.py) asks for. Raises ValueError likewise."""
        return place(from_job({**self.defaults, **chunks.RESOURCES, **self.of_chunks}, 1, self.settings), self.settings)


def read(path: Path) -> Profile:
    """The profile of a folder, or a file. Raises InputError."""
    file = path / "config.yaml" if path.is_dir() else path
    try:
        content = yaml.safe_load(file.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else "not YAML"
        raise InputError(f"{file}: {why}; a Snakemake profile was expected") from None
    if not isinstance(content, dict):
        raise InputError(f"{file}: a mapping was expected, as in profiles/slurm/config.yaml")
    known = {f.name for f in dataclasses.fields(ExecutorSettings)}
    given = {key.removeprefix("submitit-").replace("-", "_"): value for key, value in content.items()}
    settings = {key: given[key] for key in known & given.keys() if f"submitit-{key.replace('_', '-')}" in content}
    rules = _mapping(content.get("set-resources"), ":")
    return Profile(
        ExecutorSettings(**settings),
        _mapping(content.get("default-resources"), "="),
        _mapping(rules.get(POINT), "="),
        _mapping(rules.get(CHUNK), "="),
    )


def _mapping(given: Any, mark: str) -> dict[str, Any]:
    """A mapping, or Snakemake's other notation for it: a list of words NAME=VALUE, RULE:NAME=VALUE."""
    if isinstance(given, dict):
        return given
    found: dict[str, Any] = {}
    for word in given if isinstance(given, list) else [given] if given else []:
        name, _, value = str(word).partition(mark)
        if mark == ":":
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found
