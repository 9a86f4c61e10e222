"""A Snakemake profile, as far as it says what a point asks of Slurm."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from snakemake_executor_plugin_submitit.partitions import place
from snakemake_executor_plugin_submitit.request import RESOURCES, Request, from_job
from snakemake_executor_plugin_submitit.settings import ExecutorSettings

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.sweep import batches, chunks

POINT, CHUNK = "point", "derive"
"""The rules whose jobs go to the cluster."""
SNAKEMAKE = {"mem_mb": 1000}
"""Snakemake's default resources for a job without input."""


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

    def misspelt(self) -> list[tuple[str, str]]:
        """Resources that nothing reads, whose names are close to that of one that is read: both names."""
        read = [*RESOURCES, "batch_min"]
        names = {**self.defaults, **self.overrides, **self.of_chunks}.keys() - set(read)
        close = ((name, difflib.get_close_matches(name, read, 1, 0.8)) for name in sorted(names))
        return [(name, found[0]) for name, found in close if found]

    def request(self, point: Point, timeout_min: int) -> Request:
        """What the point's job asks for. Raises ValueError where a resource is not what it should be, or no partition
        takes the job."""
        own = {
            "nodes": point.nodes,
            "tasks_per_node": point.tasks_per_node,
            "gpus_per_node": point.gpus_per_node(),
            "runtime": timeout_min,
        }
        return place(from_job({**SNAKEMAKE, **self.defaults, **own, **self.overrides}, 1, self.settings), self.settings)

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
    known = {f"submitit-{f.name.replace('_', '-')}": f.name for f in dataclasses.fields(ExecutorSettings)}
    for key in content:
        if str(key).startswith("submitit-") and key not in known:
            close = difflib.get_close_matches(key, known, 1)
            raise InputError(f"{file}: {key}: unknown option" + (f" (did you mean {close[0]!r}?)" if close else ""))
    settings = {known[key]: value for key, value in content.items() if key in known}
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
