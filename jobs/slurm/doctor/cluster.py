"""What Slurm says of itself: version, settings, partitions and nodes, and whether it would take a job.

Functions that judge take the text that a command printed, so that the text of another cluster can be judged as well.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence

from snakemake_executor_plugin_submitit.query import Answer, has_accounting, last_line, parse_config, whole

from nightsweep.jobs.slurm.doctor.findings import Finding, arguments, ask, fail, ok, warn

COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "sinfo")
OLDEST = (20, 11)
KILL_WAIT_S = 10  # a launcher that is asked to stop has this long to leave its record
USABLE = ("idle", "mixed", "allocated", "completing", "reserved", "planned")
POWER_SAVING = ("power_down", "powering_down", "powered_down", "powering_up")
SINFO = ("sinfo", "-h", "-N", "-o", "%P|%N|%T|%c|%m|%G")
PREEMPTION = {
    "REQUEUE": "a preempted job is requeued, its point starts again",
    "CANCEL": "a preempted job is gone, its point has to be run again",
    "SUSPEND": "a preempted job stands still, and the step times of its point are wrong",
    "GANG": "jobs take turns on a node, and step times are wrong",
}


@dataclasses.dataclass(frozen=True)
class Node:
    """A node in one partition, as sinfo tells it."""

    name: str
    state: str
    cpus: int
    memory_mb: int
    gpus: tuple[tuple[str, int], ...]

    @property
    def gpu_count(self) -> int:
        return sum(number for _, number in self.gpus)

    @property
    def usable(self) -> bool:
        # A trailing "*" says that the node does not answer; other marks tell of power saving.
        return not self.state.endswith("*") and self.state.rstrip("~#!%$@^-+") in USABLE + POWER_SAVING


@dataclasses.dataclass(frozen=True)
class Partition:
    name: str
    nodes: tuple[Node, ...]

    @property
    def gpus(self) -> bool:
        return any(node.gpus for node in self.nodes)

    @property
    def usable(self) -> list[Node]:
        """The nodes that could run a job now or after others; where there are GPUs, those that have some."""
        return [node for node in self.nodes if node.usable and bool(node.gpus) >= self.gpus]


def commands() -> list[Finding]:
    """Whether the commands are here, and their version."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if len(missing) == len(COMMANDS):
        return [fail("slurm", "slurm: none of its commands is on the PATH; is this a login node of a Slurm cluster?")]
    if missing:
        return [fail("slurm", f"slurm: {', '.join(missing)} not on the PATH")]
    return [judge_version(ask("sbatch", "--version").out)]


def judge_version(text: str) -> Finding:
    """Judge `sbatch --version`."""
    found = re.search(r"(\d+)\.(\d+)\S*", text)
    if not found:
        return warn("slurm", f"slurm: version unknown: {last_line(text) or 'no answer'}")
    if (int(found[1]), int(found[2])) < OLDEST:
        return warn("slurm", f"slurm {found[0]}: older than {OLDEST[0]}.{OLDEST[1]}, with which nothing was tried")
    return ok("slurm", f"slurm {found[0]}")


def controller() -> list[Finding]:
    """Whether the controller, or its backup, answers."""
    return [judge_controller(ask("scontrol", "ping"))]


def judge_controller(answer: Answer) -> Finding:
    if re.search(r"\bis UP\b|/UP\b", answer.out):  # older versions print "are UP/DOWN", primary first
        return ok("controller", "controller answers")
    down = [line for line in answer.out.splitlines() if "DOWN" in line]
    return fail("controller", f"controller does not answer: {down[0].strip() if down else answer.complaint}")


def settings() -> list[Finding]:
    """The cluster's settings that matter to a sweep."""
    answer = ask("scontrol", "show", "config")
    if answer.status:
        return [warn("config", f"settings unknown: {answer.complaint}")]
    config = parse_config(answer.out)
    accounts = has_accounting(config)
    sacct = ask("sacct", "-n", "-X", "-S", "now-1minutes") if accounts else None
    return [judge_accounting(config, sacct), *judge_times(config), judge_preemption(config)]


def judge_accounting(config: Mapping[str, str], sacct: Answer | None) -> Finding:
    """Judge where the states of ended jobs can be read."""
    age = whole(config, "MinJobAge")
    known = "unknown" if age is None else f"{age} s"
    instead = f"states come from squeue, which forgets jobs after MinJobAge ({known})"
    if sacct is None:
        return warn("accounting", f"accounting: off; {instead}")
    if sacct.status:
        return warn("accounting", f"accounting: on, but sacct does not answer ({sacct.complaint}); {instead}")
    return ok("accounting", "accounting: on, sacct answers")


def judge_times(config: Mapping[str, str]) -> list[Finding]:
    findings = []
    array, wait = whole(config, "MaxArraySize"), whole(config, "KillWait")
    if array is not None:
        text = f"MaxArraySize {array}"
        # An array of size n has the indices 0 to n-1, so 0 and 1 forbid arrays.
        findings.append(fail("array", f"{text}: no job arrays here") if array < 2 else ok("array", text))
    if wait is not None:
        text = f"KillWait {wait} s"
        short = warn("kill_wait", f"{text}: a launcher that is stopped has less than {KILL_WAIT_S} s for its record")
        findings.append(short if wait < KILL_WAIT_S else ok("kill_wait", text))
    return findings


def judge_preemption(config: Mapping[str, str]) -> Finding:
    """Judge the cluster's PreemptMode; a partition may have its own."""
    mode_set = config.get("PreemptMode", "unknown")
    kind = config.get("PreemptType", "preempt/none")
    reasons = [PREEMPTION[mode] for mode in re.split(r"[,\s]+", mode_set.upper()) if mode in PREEMPTION]
    if not reasons or (kind in ("preempt/none", "(null)") and "GANG" not in mode_set.upper()):
        return ok("preemption", "preemption: off")
    text = f"preemption {mode_set}: {'; '.join(reasons)}"
    return ok("preemption", text) if mode_set.upper() == "REQUEUE" else warn("preemption", text)


def partition(asked: str | None) -> tuple[Partition | None, list[Finding]]:
    """The partition that jobs would go to, and what there is to say of it."""
    answer = ask(*SINFO)
    if answer.status:
        return None, [fail("partition", f"partitions unknown: {answer.complaint}")]
    return judge_partition(answer.out, asked)


def judge_partition(text: str, asked: str | None) -> tuple[Partition | None, list[Finding]]:
    """Judge the lines of SINFO."""
    table: dict[str, list[Node]] = {}
    default = None
    for line in text.splitlines():
        name, _, rest = line.partition("|")
        default = name[:-1] if name.endswith("*") else default
        table.setdefault(name.removesuffix("*"), []).extend(parse_node(rest))
    names = ", ".join(table) or "none"
    chosen = asked or default
    if chosen is None:
        return None, [fail("partition", f"partition: no default here; choose one with --partition (there is {names})")]
    if chosen not in table:
        return None, [fail("partition", f"partition {chosen}: not here, or not for this user (there is {names})")]
    found = Partition(chosen, tuple(table[chosen]))
    origin = "asked for" if asked else "the default"
    others = f"; others: {', '.join(name for name in table if name != chosen)}" if len(table) > 1 else ""
    return found, [ok("partition", f"partition {chosen}: {origin}{others}"), *node_findings(found)]


def parse_node(text: str) -> list[Node]:
    """name|state|cpus|memory|gres, as one node, or none where a cell is not what it should be."""
    cells = [cell.strip() for cell in text.split("|")]
    numbers = [re.match(r"\d+", cell) for cell in cells[2:4]]
    if len(cells) < 5 or not all(numbers):
        return []
    cpus, memory_mb = (int(found[0]) if found else 0 for found in numbers)
    return [Node(cells[0], cells[1].lower(), cpus, memory_mb, parse_gpus("|".join(cells[4:])))]


def parse_gpus(gres: str) -> tuple[tuple[str, int], ...]:
    """The GPUs in a gres list such as gpu:a100:4(S:0-1),shard:8, as (type, number)."""
    bare = re.sub(r"\([^)]*\)", "", gres)
    found = [re.fullmatch(r"gpu(?::([^:]+))??(?::(\d+))?", part.strip()) for part in bare.split(",")]
    counts = [(match[1] or "gpu", int(match[2] or 1)) for match in found if match]
    return tuple((kind, number) for kind, number in counts if number)


def node_findings(found: Partition) -> list[Finding]:
    """Judge the nodes of a partition: states, GPUs, CPUs and memory."""
    states = Counter(node.state for node in found.nodes)
    summary = f"nodes: {len(found.nodes)}: " + ", ".join(f"{number} {state}" for state, number in states.most_common())
    states_finding = ok("nodes", summary)
    if not found.usable:
        states_finding = fail("nodes", f"{summary}; none of them can run a job")
    elif any(not node.usable for node in found.nodes):
        states_finding = warn("nodes", summary)
    cpus, memory = _range([n.cpus for n in found.nodes]), _range([round(n.memory_mb / 1024) for n in found.nodes])
    return [states_finding, gpu_finding(found), ok("node_size", f"each node: {cpus} CPUs, {memory} GiB of memory")]


def gpu_finding(found: Partition) -> Finding:
    kinds = Counter(", ".join(f"{number} {kind}" for kind, number in node.gpus) or "none" for node in found.nodes)
    if set(kinds) <= {"none"}:
        return warn("gpus", f"GPUs: no node of {found.name} has one (by its gres)")
    if len(kinds) == 1:
        return ok("gpus", f"GPUs: {next(iter(kinds))} a node")
    differences = "; ".join(f"{number} nodes with {kind}" for kind, number in kinds.most_common())
    return warn("gpus", f"GPUs differ: {differences}; points on unlike nodes cannot be compared")


def _range(values: Sequence[int]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return str(low) if low == high else f"{low} to {high}"


def rehearsal(where: Partition, account: str | None) -> list[Finding]:
    """Whether sbatch would take a job of one node, without submitting it."""
    options = arguments(where.name, account, where.gpus)
    answer = ask("sbatch", "--test-only", "--nodes=1", "--ntasks=1", "--time=2", *options, "--wrap", "true")
    if answer.status:
        return [fail("sbatch", f"sbatch --test-only {' '.join(options)}: {answer.complaint}")]
    return [ok("sbatch", f"sbatch takes a job ({last_line(answer.err).removeprefix('sbatch: ')})")]
