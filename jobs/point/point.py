"""A point: the plain, frozen description of one training job of a sweep, and its id.

The classes of jobs/point/settings are the one source of what can be set; `docs/settings.md` is written from them.

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
from typing import Any, Literal

from jobs.point.settings.compute import Compute
from jobs.point.settings.image import Image
from jobs.point.settings.job import Job
from jobs.point.settings.llm import Llm
from jobs.point.settings.loading import Loading
from jobs.point.settings.measuring import Measuring
from jobs.point.settings.parallel import Parallel

ID_LENGTH = 12


@dataclass(frozen=True, kw_only=True)
class Point(Measuring, Llm, Image, Loading, Compute, Parallel, Job):
    """One training job. A setting of the other workload is None; `complete` fills this workload's defaults in."""

    @functools.cached_property
    def id(self) -> str:
        """The first 12 hex digits of SHA-256 over the settings that differ from their defaults, as sorted JSON."""
        known = defaults(self.workload)
        content = {name: value for name, value in self.settings().items() if value != known.get(name)}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]

    @property
    def world_size(self) -> int:
        """GPUs of the job, or shares of CPU: one a rank, but for strategy dp, whose one rank drives all of its node."""
        return self.nodes * self.ranks_per_node

    @property
    def processes_per_node(self) -> int:
        return 1 if self.strategy == "dp" else self.ranks_per_node

    @property
    def processes(self) -> int:
        """Ranks: the processes that `jobs/launch/launch.py` starts."""
        return self.nodes * self.processes_per_node

    @property
    def ranks_per_batch(self) -> int:
        """Ranks, next to each other in number, that work on the same samples: those over which a model is split."""
        return self.world_size // self.replicas if self.strategy in ("tp", "pp") else self.tensor_parallel

    def samples(self, rank: int) -> int:
        """Samples of a micro-batch that count as this rank's. Of ranks that share them, they are the first one's."""
        if rank % self.ranks_per_batch:
            return 0
        return self.micro_batch * (self.ranks_per_node if self.strategy == "dp" else 1)

    def traces(self, rank: int) -> bool:
        """Whether this global rank is traced."""
        if self.trace_ranks == "first-per-node":
            return rank % self.processes_per_node == 0
        return self.trace_ranks == "all" or str(rank) in self.trace_ranks.split(",")

    def gpus_per_node(self) -> int:
        """GPUs to ask a scheduler for, none where ranks are to compute on the CPU."""
        return 0 if self.device == "cpu" else self.ranks_per_node

    def settings(self) -> dict[str, Any]:
        """All settings that apply to this workload, by name."""
        return {name: getattr(self, name) for name in applicable(self.workload)}


FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Point)}
_TYPES: dict[str, Any] = typing.get_type_hints(Point)


_FLOATS = {name for name, kind in _TYPES.items() if float in (kind, *typing.get_args(kind))}


@functools.cache
def applicable(workload: str) -> tuple[str, ...]:
    """Names of the settings that a point of this workload has."""
    return tuple(name for name, f in FIELDS.items() if f.metadata["only"] in (None, workload))


@functools.cache
def defaults(workload: str) -> dict[str, Any]:
    """Each applicable setting's default; settings without one (workload, model) are absent."""
    own = {name: FIELDS[name].metadata["default"] for name in applicable(workload)}
    return {name: value for name, value in own.items() if value is not dataclasses.MISSING}


def complete(settings: dict[str, Any]) -> Point:
    """A point from some settings, the rest at the workload's defaults. Whole-number floats become floats' own type."""
    values = defaults(settings["workload"]) | settings
    for name in values.keys() & _FLOATS:
        values[name] = float(values[name])
    return Point(**values)


def setting_schema(name: str) -> dict[str, Any]:
    """JSON schema of one setting's value, from the field's type and metadata."""
    kind, field = _TYPES[name], FIELDS[name]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(a for a in typing.get_args(kind) if a is not type(None))
    if "enum" in field.metadata["schema"]:
        core: dict[str, Any] = {}
    elif typing.get_origin(kind) is Literal:
        core = {"enum": list(typing.get_args(kind))}
    else:
        core = {"type": {int: "integer", float: "number", bool: "boolean", str: "string"}[kind]}
    return {**core, **field.metadata["schema"], "description": field.metadata["text"]}
