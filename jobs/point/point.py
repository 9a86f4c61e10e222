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

from nightsweep.jobs.point.settings import command
from nightsweep.jobs.point.settings.command import Command
from nightsweep.jobs.point.settings.compute import Compute
from nightsweep.jobs.point.settings.image import Image
from nightsweep.jobs.point.settings.job import Job
from nightsweep.jobs.point.settings.llm import Llm
from nightsweep.jobs.point.settings.loading import Loading
from nightsweep.jobs.point.settings.measuring import TRACED, Measuring
from nightsweep.jobs.point.settings.parallel import Parallel

ID_LENGTH = 12
Value = bool | int | float | str | None
"""Of a setting."""


@dataclass(frozen=True, kw_only=True)
class Point(Command, Measuring, Llm, Image, Loading, Compute, Parallel, Job):
    """One training job. A setting of another workload is None; `complete` fills this workload's defaults in.

    With workload command the settings of the built-in ones are None, too, although their types do not say so: all but
    those of jobs/point/settings/command.py. `variables`: names and values of the user's own axes, by name."""

    variables: tuple[tuple[str, Value], ...] = ()

    @functools.cached_property
    def id(self) -> str:
        """The first 12 hex digits of SHA-256 over the settings that differ from their defaults, as sorted JSON."""
        known = defaults(self.workload)
        content = {name: value for name, value in self.settings().items() if name not in known or value != known[name]}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]

    @property
    def world_size(self) -> int:
        """GPUs of the job, or shares of CPU: one a rank, but for strategy dp, whose one rank drives all of its node."""
        return self.nodes * self.ranks_per_node

    @property
    def processes_per_node(self) -> int:
        return 1 if self.strategy == "dp" or self.launcher == "none" else self.ranks_per_node

    @property
    def has_node_launcher(self) -> bool:
        """Whether one process a node starts the ranks there (jobs/rank/node_launcher.py)."""
        return self.launcher in command.LAUNCHERS

    @property
    def tasks_per_node(self) -> int:
        """Tasks to ask a scheduler for: its share of cores is a rank's."""
        return self.ranks_per_node if self.workload == "command" else self.processes_per_node

    @property
    def processes(self) -> int:
        """Ranks: the processes that `jobs/launch/launch.py` starts."""
        return self.nodes * self.processes_per_node

    @property
    def ranks(self) -> int:
        """All ranks, also those that a script starts itself."""
        return self.nodes if self.strategy == "dp" else self.world_size

    @property
    def ranks_per_batch(self) -> int:
        """Ranks, next to each other in number, that work on the same samples: those over which a model is split."""
        return self.world_size // self.replicas if self.strategy in ("tp", "pp") else self.tensor_parallel

    def samples(self, rank: int) -> int:
        """Samples of a micro-batch that count as this rank's. Of ranks that share them, they are the first one's."""
        if rank % self.ranks_per_batch:
            return 0
        return self.micro_batch * (self.ranks_per_node if self.strategy == "dp" else 1)

    def traced_ranks(self) -> list[int]:
        """Global ranks that are traced."""
        every, per_node = range(self.ranks), self.ranks // self.nodes
        if self.trace_ranks == "first-per-node":
            return list(every[::per_node])
        if self.trace_ranks == "auto":
            # One a node, for nodes differ most; and others evenly over the job, at each place of a node in turn.
            others = ((place * self.ranks // TRACED + place % per_node) % self.ranks for place in range(TRACED))
            return list(every) if self.ranks <= TRACED else sorted({*every[::per_node], *others})
        return [rank for rank in every if self.trace_ranks == "all" or str(rank) in self.trace_ranks.split(",")]

    def gpus_per_node(self) -> int:
        """GPUs to ask a scheduler for, none where ranks are to compute on the CPU."""
        return 0 if self.device == "cpu" else self.ranks_per_node

    def settings(self) -> dict[str, Any]:
        """All settings that apply to this workload, by name, and the user's own axes."""
        return {name: getattr(self, name) for name in applicable(self.workload)} | dict(self.variables)

    def value(self, name: str) -> Any:
        """That of a setting, or of an axis of the user's."""
        own = dict(self.variables)
        return own[name] if name in own else getattr(self, name, None)


FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Point) if f.metadata}
_TYPES: dict[str, Any] = typing.get_type_hints(Point)
_OF_SCRIPTS = {
    *command.SHARED,
    *command.SWITCHES,
    *(field.name for field in dataclasses.fields(Measuring) if field.name != "fault"),
}
"""Settings of the built-in workloads that those with workload command have, too."""
_FLOATS = {name for name, kind in _TYPES.items() if float in (kind, *typing.get_args(kind))}


@functools.cache
def applicable(workload: str) -> tuple[str, ...]:
    """Names of the settings that a point of this workload has."""
    if workload == "command":
        return tuple(name for name, f in FIELDS.items() if f.metadata["only"] == workload or name in _OF_SCRIPTS)
    return tuple(name for name, f in FIELDS.items() if f.metadata["only"] in (None, workload))


@functools.cache
def defaults(workload: str) -> dict[str, Any]:
    """Each applicable setting's default; settings without one (workload, model, command) are absent."""
    own = {name: FIELDS[name].metadata["default"] for name in applicable(workload)}
    if workload == "command":
        own |= dict.fromkeys(command.SWITCHES)
    return {name: value for name, value in own.items() if value is not dataclasses.MISSING}


def complete(settings: dict[str, Any]) -> Point:
    """A point from some settings, the rest at the workload's defaults. Whole-number floats become floats' own type.
    What is no setting of workload command is an axis of the user's."""
    workload = settings["workload"]
    values = defaults(workload) | settings
    if workload == "command":
        known = set(applicable(workload))
        own = tuple(sorted((name, value) for name, value in values.items() if name not in known))
        values = dict.fromkeys(FIELDS) | {name: values[name] for name in values if name in known}
        return Point(**values, variables=own)  # type: ignore[arg-type]
    for name in values.keys() & _FLOATS:
        values[name] = None if values[name] is None else float(values[name])
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
