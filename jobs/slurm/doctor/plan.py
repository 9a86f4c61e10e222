"""What the points of a sweep will ask for under a profile, compared with what this cluster gives."""

from __future__ import annotations

import getpass
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from snakemake_executor_plugin_submitit.query import last_line, parse_config, parse_minutes, whole
from snakemake_executor_plugin_submitit.refusal import TooMany, advised, change, error_of
from snakemake_executor_plugin_submitit.request import Request
from snakemake_executor_plugin_submitit.waiting import count

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.slurm.doctor.cluster import Partition
from nightsweep.jobs.slurm.doctor.findings import Finding, ask, fail, ok, warn
from nightsweep.jobs.slurm.point_jobs import PointJobs
from nightsweep.jobs.slurm.profile import CHUNK, Profile
from nightsweep.jobs.sweep import batches, design
from nightsweep.jobs.sweep.estimate import estimate
from nightsweep.jobs.sweep.sweep import Sweep

QOS = ("Name", "MaxSubmitJobsPU", "MaxSubmitJobsPA", "GrpSubmit", "MaxWall", "GrpWall")
ASSOCIATION = ("Account", "Partition", "MaxSubmit", "GrpSubmit", "MaxWall", "DefaultQOS")
Row = Mapping[str, str]
HOOK = f"{PointJobs.__module__}:{PointJobs.__name__}"


@dataclass(frozen=True)
class Limits:
    """Limits of this user: rows of sacctmgr for the quality of service and for the associations."""

    qos: tuple[Row, ...] = ()
    associations: tuple[Row, ...] = ()

    def of(self, request: Request) -> list[tuple[str, Row]]:
        """Those that hold for a request, each with its name."""
        own = [row for row in self.associations if request.account in (None, row["Account"])]
        wanted = {request.qos} if request.qos else {row["DefaultQOS"] for row in own} - {""} or {"normal"}
        return [(f"QOS {row['Name']}", row) for row in self.qos if row["Name"] in wanted] + [
            (f"account {row['Account']}", row) for row in own
        ]


def examine(sweep: Sweep, profile: Profile, where: Partition) -> Iterator[Finding]:
    """One finding or more for each kind of point."""
    if profile.settings.hook != HOOK:
        yield warn(
            "plan",
            f"profile: `submitit-hook: {HOOK}` was expected; without it no run begins, for lost points get no record",
        )
    for name, meant in profile.misspelt():
        yield warn("plan", f"profile: nothing reads the resource {name} (did you mean {meant!r}?)")
    try:
        asked = Counter(profile.request(point, minutes) for point, minutes in _jobs(sweep, profile.batch_min))
        chunk = profile.chunk_request()
    except ValueError as error:
        yield fail("plan", f"profile: {error}")
        return
    config = parse_config(ask("scontrol", "show", "config").out)
    limits = Limits()
    if config.get("AccountingStorageEnforce", "none") not in ("none", "(null)"):
        limits = Limits(_rows(QOS, "qos"), _rows(ASSOCIATION, "associations", f"user={getpass.getuser()}"))
    for request, jobs in asked.items():
        yield from judge_request(request, count(jobs), where)
    yield from judge_request(chunk, "tables and diagnoses, in jobs", where, CHUNK)
    yield from judge_walls([*asked, chunk], limits)
    cost = estimate(sweep.points)
    gigabytes = cost.disk_bytes / 1e9
    size = f"{gigabytes:.2g}" if gigabytes < 10 else f"{gigabytes:,.0f}"
    yield ok("plan", f"the sweep leaves about {cost.files:,} files and {size} GB")
    yield from judge_numbers(asked, limits, config, profile.settings.array_size)


def _jobs(sweep: Sweep, batch_min: float) -> list[tuple[Point, int]]:
    """The points that have a job, and its minutes: the one that leads a block or batch runs all of it."""
    queues = design.led(batches.batches(sweep.points, sweep.pairs, sweep.design, batch_min), lambda _: False)
    led = design.leaders(queues)
    each = sweep.resources.timeout_min
    return [(p, batches.minutes(queues.get(p.id, (p,)), each, batch_min)) for p in sweep.points if p.id not in led]


def judge_request(request: Request, jobs: str, where: Partition, rule: str = "") -> Iterator[Finding]:
    """Whether sbatch takes these jobs, and whether the partition would run them. `rule`: whose resources are to be
    changed where it does not; without, those of the points."""

    def cure(key: str) -> str:
        return f"`set-resources: {rule}` in the profile" if rule else change(key, PointJobs.places)

    what = f"{jobs} of {request}"
    answer = ask("sbatch", "--test-only", *request.options(), "--wrap", "true")
    if answer.status:
        error = error_of(answer.err or answer.out)
        said = _too_large(request, where, cure) or advised(
            str(error).removeprefix("allocation failure: "), PointJobs.places
        )
        # How many jobs there may be at a time is judged below, and the queue may be full just now.
        yield (warn if isinstance(error, TooMany) else fail)("plan", f"{what}: {said}")
        return
    yield ok("plan", f"{what}: {last_line(answer.err).removeprefix('sbatch: ')}")
    shown = ask("scontrol", "-o", "show", "partition", request.partition or where.name).out
    fields = dict(re.findall(r"(\w+)=(\S+)", shown))
    longest, widest = minutes(fields.get("MaxTime", "")), whole(fields, "MaxNodes")
    if longest is not None and request.runtime_min > longest:
        yield fail("plan", f"{what}: the partition gives {longest:g} min at most (change {cure('time limit')})")
    if widest is not None and request.nodes > widest:
        yield fail("plan", f"{what}: the partition gives {widest} nodes at most (change {cure('nodelimit')})")


def _too_large(request: Request, where: Partition, cure: Callable[[str], str]) -> str:
    """What no node has, and what to change; empty where that is not the reason."""
    if where.name != (request.partition or where.name) or not where.usable:
        return ""
    cpus, tasks = request.cpus_per_task, request.tasks_per_node
    sizes = (
        (f"{tasks} x {cpus} CPUs", tasks * cpus, max(n.cpus for n in where.usable), "cpu"),
        (f"{request.mem_mb} MB of memory", request.mem_mb or 0, max(n.memory_mb for n in where.usable), "memory"),
        (f"{request.gpus_per_node} GPUs", request.gpus_per_node, max(n.gpu_count for n in where.usable), "gpu"),
        (f"{request.nodes} nodes", request.nodes, len(where.usable), "nodelimit"),
    )
    return "; ".join(
        f"{words} asked for, {there} there (change {cure(key)})" for words, asked, there, key in sizes if asked > there
    )


def judge_walls(asked: Iterable[Request], limits: Limits) -> Iterator[Finding]:
    """Whether a time limit is longer than this user may have; sbatch takes such jobs, and they wait for ever."""
    found = {
        (request.runtime_min, name, row.get("MaxWall", "")) for request in asked for name, row in limits.of(request)
    }
    for runtime_min, name, text in sorted(found):
        longest = minutes(text)
        if longest is not None and runtime_min > longest:
            cure = PointJobs.places["runtime"]
            yield fail("plan", f"{runtime_min} min asked for, {name} gives {longest:g} at most (change {cure})")


def judge_numbers(
    asked: Mapping[Request, int], limits: Limits, config: Mapping[str, str], array_size: int
) -> Iterator[Finding]:
    """How many of the jobs may be in the queue at a time."""
    largest = max(1, min(array_size, (whole(config, "MaxArraySize") or 1001) - 1))
    arrays = sum(math.ceil(jobs / largest) for jobs in asked.values())
    yield ok("plan", f"{count(sum(asked.values()))} in {arrays} array{'s' if arrays > 1 else ''}")
    rest = "the others wait in the driver"
    held = {
        (name, key, int(row[key])): None
        for request in asked
        for name, row in limits.of(request)
        for key in ("MaxSubmitJobsPU", "MaxSubmitJobsPA", "MaxSubmit", "GrpSubmit")
        if row.get(key, "").isdigit()
    }
    least = min(held, key=lambda limit: limit[2], default=None)
    if least and least[2] < sum(asked.values()):
        name, key, number = least
        yield warn("plan", f"{name} lets {number} jobs into the queue at a time ({key}); {rest}")
    most = whole(config, "MaxJobCount")
    if most is not None and sum(asked.values()) > most:
        yield warn("plan", f"the controller holds {most} jobs of all users (MaxJobCount); {rest}")


def _rows(names: tuple[str, ...], what: str, *conditions: str) -> tuple[Row, ...]:
    """What sacctmgr says; nothing where it does not answer."""
    out = ask("sacctmgr", "-n", "-P", "show", what, *conditions, f"format={','.join(names)}").out
    return tuple(dict(zip(names, line.split("|"), strict=False)) for line in out.splitlines() if line)


def minutes(text: str) -> float | None:
    """A time of Slurm's ([days-]hours:minutes:seconds) in minutes; None where it is unlimited or not given."""
    try:
        return parse_minutes(text)
    except ValueError:
        return None
