"""What a job asks of the scheduler. Jobs that ask for the same go into one array."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from snakemake_executor_plugin_submitit.settings import ExecutorSettings

RESOURCES = (
    "nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_mb", "mem_mb_per_gpu", "runtime", "exclusive",
    "slurm_partition", "slurm_account", "qos", "constraint", "slurm_exclude", "slurm_extra",
)  # fmt: skip
"""Of a job. mem_mb_per_gpu: where there is no mem_mb, times the GPUs of a node; runtime: minutes; exclusive: 0 or 1."""


@dataclass(frozen=True)
class Request:
    """Resources of one job; sizes are per node unless the name says otherwise."""

    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    gpus_per_node: int = 0
    mem_mb: int | None = None
    runtime_min: int = 60
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    exclusive: bool = False
    extra: tuple[tuple[str, str | bool], ...] = ()
    setup: tuple[str, ...] = ()

    def avoid(self, nodes: list[str]) -> Request:
        """The same, on other nodes."""
        return replace(self, exclude=",".join([*filter(None, [self.exclude]), *nodes]) or None)

    def parameters(self) -> dict[str, Any]:
        """As submitit's SlurmExecutor names them.

        Slurm must not requeue: the executor submits again itself, away from the bad node and a bounded number of
        times. submitit always asks for a warning signal, which would reach the ranks and not the batch step; SIGCONT
        to the batch shell harms nobody.
        """
        given = {
            "nodes": self.nodes,
            "ntasks_per_node": self.tasks_per_node,
            "cpus_per_task": self.cpus_per_task,
            "gpus_per_node": self.gpus_per_node or None,
            "mem": f"{self.mem_mb}M" if self.mem_mb else None,
            "time": self.runtime_min,
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "exclude": self.exclude,
            "exclusive": self.exclusive or None,
            "setup": list(self.setup) or None,
        }
        additional = {"no-requeue": True, "signal": "B:CONT@30", **dict(self.extra)}
        return {k: v for k, v in given.items() if v is not None} | {"additional_parameters": additional}

    def options(self) -> list[str]:
        """The same as sbatch's own options."""
        words = self.parameters()
        words |= words.pop("additional_parameters")
        words.pop("setup", None)
        return [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in words.items()]

    def __str__(self) -> str:
        """Its size, for the screen."""
        node = [f"{self.tasks_per_node * self.cpus_per_task} CPUs"]
        node += [f"{self.gpus_per_node} GPU{'s' if self.gpus_per_node > 1 else ''}"] if self.gpus_per_node else []
        node += [f"{self.mem_mb / 1000:g} GB"] if self.mem_mb else []
        return f"{self.nodes} node{'s' if self.nodes > 1 else ''} with {', '.join(node)} for {self.runtime_min} min"


def parse_options(options: str) -> tuple[tuple[str, str | bool], ...]:
    """sbatch options as (name, value): `--mail-type=END --nice=10`. Raises ValueError for anything else."""
    found: list[tuple[str, str | bool]] = []
    for word in shlex.split(options):
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise ValueError(f"submitit-extra: {word!r} is not an option of the form --name or --name=value")
        found.append((name, value if equals else True))
    return tuple(found)


def from_job(resources: Mapping[str, Any], threads: int, settings: ExecutorSettings) -> Request:
    """The request of a job with these Snakemake resources (RESOURCES); what they do not say, the settings do. Raises
    ValueError."""

    def number(name: str, default: int) -> int:
        value = resources.get(name)
        try:
            return default if value is None else int(value)
        except (TypeError, ValueError):
            raise ValueError(f"{name}: a whole number was expected, not {value!r}") from None

    def text(name: str, default: str | None) -> str | None:
        return str(resources[name]) if resources.get(name) else default

    extra = dict(parse_options(settings.extra or "")) | dict(parse_options(text("slurm_extra", None) or ""))
    if settings.reservation:
        extra.setdefault("reservation", settings.reservation)
    setup = [line for line in (settings.setup or "").splitlines() if line.strip()]
    gpus = number("gpus_per_node", 0)
    memory = number("mem_mb", 0) or number("mem_mb_per_gpu", 0) * gpus
    return Request(
        nodes=number("nodes", 1),
        tasks_per_node=number("tasks_per_node", 1),
        cpus_per_task=number("cpus_per_task", threads),
        gpus_per_node=gpus,
        mem_mb=memory or None,
        runtime_min=number("runtime", 60),
        partition=text("slurm_partition", settings.partition),
        account=text("slurm_account", settings.account),
        qos=text("qos", settings.qos),
        constraint=text("constraint", settings.constraint),
        exclude=text("slurm_exclude", settings.exclude),
        exclusive=bool(number("exclusive", settings.exclusive)),
        extra=tuple(sorted(extra.items())),
        setup=tuple(setup),
    )
