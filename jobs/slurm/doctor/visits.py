"""Judges what the probe printed on the nodes; parse() tells what `srun --label` mixed."""

from __future__ import annotations

import dataclasses
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_submitit.query import last_line

from nightsweep.jobs.record.json_files import parse_json
from nightsweep.jobs.slurm.doctor.findings import FAIL, WARN, Finding, fail, ok, warn

QUEUE_S = 60
SEEN_S = 60
SLOW_MS = 5000
CLOCK_MS = 100
GIB = 1 << 30
FREE_BYTES, TEMPORARY_BYTES, SHM_BYTES, OPEN_FILES = 10 * GIB, GIB, GIB, 4096
BUSY = re.compile(r"nodes are busy|immediate|temporarily", re.IGNORECASE)

Part = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Visit:
    """What came from the probe on one node."""

    host: str
    parts: dict[str, Part]
    words: str  # its last line that was no part


def parse(text: str) -> dict[int, Visit]:
    """What `srun --label` printed, by task; other lines of a node are its complaints, or chatter of its prologue."""
    visits: dict[int, Visit] = {}
    for line in text.splitlines():
        found = re.match(r"\s*(\d+): ?(.*)", line)
        if not found:
            continue
        task, words = int(found[1]), found[2].strip()
        visit = visits.setdefault(task, Visit(f"task {task}", {}, ""))
        content = as_part(words)
        if content is None:
            visits[task] = dataclasses.replace(visit, words=words or visit.words)
        elif "host" in content:
            visits[task] = dataclasses.replace(visit, host=str(content["host"]))
        else:
            visit.parts.update(content)
    return visits


def as_part(words: str) -> dict[str, Any] | None:
    content = parse_json(words, dict[str, Any])
    if content is None or "host" in content or all(isinstance(part, dict) for part in content.values()):
        return content
    return None


def judge(text: str, backs: dict[int, float], count: int, folder: Path, gpus: bool) -> list[Finding]:
    """The findings from what srun printed; like ones of several nodes in one line."""
    visits = parse(text)
    complaint = last_line("\n".join(line for line in text.splitlines() if line.startswith("srun: error"))) or "no word"
    if not visits and BUSY.search(complaint):
        return [warn("probe", f"probe: no {count} nodes were free within {QUEUE_S} s, so nodes were not looked at")]
    if not visits:
        return [fail("probe", f"probe: srun failed: {complaint}")]
    grouped: dict[Finding, list[str]] = {}
    for task, visit in sorted(visits.items()):
        for finding in judge_node(visit, backs.get(task), folder, gpus):
            grouped.setdefault(finding, []).append(visit.host)
    order = list(dict.fromkeys(finding.check for finding in grouped))
    findings = [dataclasses.replace(f, text=f"{', '.join(hosts)}: {f.text}") for f, hosts in grouped.items()]
    findings.sort(key=lambda finding: order.index(finding.check))
    if len(visits) < count:
        findings.append(fail("probe", f"probe: started on {len(visits)} of {count} nodes: {complaint}"))
    leads = {task: visit.parts.get("files", {}).get("lead_ms") for task, visit in visits.items()}
    return findings + agreement([(-backs[t], lead) for t, lead in leads.items() if t in backs and lead is not None])


def judge_node(visit: Visit, back_ms: float | None, folder: Path, gpus: bool) -> list[Finding]:
    if not visit.parts:
        return [fail("python", f"cannot run {sys.executable} (shared file system?): {visit.words or 'no word'}")]
    judges: dict[str, tuple[str, Callable[[Part], list[Finding]]]] = {
        "files": (FAIL, lambda part: files(part, back_ms, folder)),
        "limits": (WARN, lambda part: limits(part, folder)),
        "torch": (FAIL, lambda part: torch_part(part, gpus)),
        "nvml": (WARN, nvml_part),
        "nsys": (WARN, nsys_part),
        "ranks": (WARN, ranks_part),
    }
    findings = []
    for name, (level, judged) in judges.items():
        part = visit.parts.get(name, {"error": f"the probe ended before it answered. {visit.words}".strip()})
        findings += [Finding(level, name, f"{name}: {part['error']}")] if "error" in part else judged(part)
    return findings


def files(part: Part, back_ms: float | None, folder: Path) -> list[Finding]:
    """Judge the shared folder, and the clock that was read through it."""
    if part["seen_s"] is None and not part["sees_parent"]:
        return [fail("files", f"cannot see {folder} (shared file system?)")]
    if part["seen_s"] is None:
        return [fail("files", f"does not see in {folder} what the login node writes there, in {SEEN_S} s")]
    if back_ms is None:
        return [fail("files", f"what it writes in {folder} is not seen by the login node in {SEEN_S} s")]
    # The clocks' difference is in both, with opposite signs.
    there_ms, round_ms = part["seen_s"] * 1e3, part["lead_ms"] + back_ms
    text = f"sees {folder} after {there_ms:.0f} ms, to the login node and back in {round_ms:.0f} ms"
    slow = max(there_ms, round_ms) > SLOW_MS
    return [warn("files", f"{text}: slow") if slow else ok("files", text), clock(part, back_ms)]


def clock(part: Part, back_ms: float) -> Finding:
    low, high = -back_ms, part["lead_ms"]
    if low > CLOCK_MS:
        return warn("clock", f"clock at least {low:.0f} ms ahead of the login node's")
    if high < -CLOCK_MS:
        return warn("clock", f"clock at least {-high:.0f} ms behind the login node's")
    text = f"clock within {max(-low, high):.0f} ms of the login node's"
    if max(-low, high) > CLOCK_MS:
        return warn("clock", f"{text}; the shared folder is too slow to tell more")
    return ok("clock", text)


def agreement(bounds: list[tuple[float, float]]) -> list[Finding]:
    """How far the clocks of the nodes may be from one another. `bounds`: between which values, in ms, each is ahead of
    the login node's."""
    if len(bounds) < 2:
        return []
    apart = max(a[1] - b[0] for i, a in enumerate(bounds) for j, b in enumerate(bounds) if i != j)
    text = f"clocks of the nodes within {apart:.0f} ms of one another"
    return [warn("clock", text) if apart > 2 * CLOCK_MS else ok("clock", text)]


def limits(part: Part, folder: Path) -> list[Finding]:
    own = platform.python_version()
    python = f"Python {part['python']}"
    findings = [ok("python", python) if part["python"] == own else warn("python", f"{python}, {own} on the login node")]
    if part["free_bytes"] is not None:
        findings.append(judge_minimum("space", f"free in {folder}", part["free_bytes"], FREE_BYTES, "for traces"))
    temporary = f"free in {part['temporary']} (TMPDIR)"
    findings.append(judge_minimum("space", temporary, part["temporary_free_bytes"], TEMPORARY_BYTES, "for nsys"))
    findings.append(judge_minimum("shm", "in /dev/shm", part["shm_bytes"], SHM_BYTES, "for loader workers"))
    number = part["open_files"]
    text = "no limit of open files" if number < 0 else f"{number} open files at most (nofile)"
    few = 0 <= number < OPEN_FILES
    return [*findings, warn("open_files", f"{text}: few for loader workers") if few else ok("open_files", text)]


def judge_minimum(check: str, where: str, number: int, least: int, purpose: str) -> Finding:
    text = f"{number / GIB:.1f} GiB {where}"
    return ok(check, text) if number >= least else warn(check, f"{text}: little {purpose}")


def torch_part(part: Part, gpus: bool) -> list[Finding]:
    build = f"torch {part['version']} ({'CUDA ' + part['cuda'] if part['cuda'] else 'built without CUDA'})"
    if part["gpus"]:
        return [ok("torch", f"{build} sees {part['gpus']} GPU{'s' if part['gpus'] > 1 else ''}")]
    if gpus:
        return [fail("torch", f"{build} sees no GPU, though Slurm gave it one: points would run on the CPU")]
    return [ok("torch", f"{build}, no GPU")]


def nvml_part(part: Part) -> list[Finding]:
    if not part["answers"]:
        return [warn("nvml", f"{part['text']}; no samples of GPUs")]
    findings = [ok("nvml", f"NVML answers: {part['text']}, driver {part['driver']}")]
    without = warn("gpm", "GPM not supported: no SM activity in the samples")
    return [*findings, ok("gpm", "GPM supported") if part["gpm"] else without]


def nsys_part(part: Part) -> list[Finding]:
    if part["answers"]:
        return [ok("nsys", f"nsys works: {part['text']}")]
    return [warn("nsys", f"nsys does not work ({part['text']}): where `tracer: nsys` asks for it, Kineto traces")]


def ranks_part(part: Part) -> list[Finding]:
    if part["forked"]:
        return [ok("ranks", "ranks are forked from a process that has imported what they need")]
    return [warn("ranks", f"ranks cannot be forked, so each start of a point imports anew: {part['text']}")]
