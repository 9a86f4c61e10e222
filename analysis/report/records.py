"""What the folders of points add to the tables: where it ran and with which software, and the end of a log.

Published copies have records but no logs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_Record = dict[str, Any]

LOGS_BYTES = 1_000_000
"""Of all logs in a page."""
LOG_BYTES = 8_000
"""Of one point's at most."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True)
class Log:
    """The end of a file, whose path is relative to the point's folder."""

    file: str
    text: str


def read(folder: Path | None) -> list[_Record]:
    """record.json of every point that has one that can be read."""
    records = []
    for file in sorted(folder.glob("*/record.json")) if folder else []:
        try:
            record = json.loads(file.read_text())
        except (OSError, ValueError):  # a record cut by a full disk; the table of points says not_run for it
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def logs(folder: Path | None, found: list[_Record]) -> dict[str, Log]:
    """By point, the end of the log of the rank that failed first, else of rank 0's in the last look that was made."""
    if folder is None or not found:
        return {}
    most = min(LOG_BYTES, LOGS_BYTES // len(found))
    named = {record["point_id"]: _log_file(folder, record) for record in found if record.get("point_id")}
    return {
        point: Log(str(file.relative_to(folder / point)), tail(file, most)) for point, file in named.items() if file
    }


def _log_file(folder: Path, record: Mapping[str, Any]) -> Path | None:
    failure, point = record.get("failure") or {}, folder / record["point_id"]
    looks = [failure["look"]] if failure.get("look") else ["traced", "timed"]
    names = [f"rank{failure.get('rank') or 0}.log", "launch.log"]
    files = (point / look / name for look in looks for name in names)
    return next((file for file in files if file.is_file() and file.stat().st_size), None)


def tail(file: Path, most: int) -> str:
    """The last whole lines of a text file, at most so many bytes of it, as a terminal would show them."""
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - most))
        text = stream.read().decode(errors="replace")
    if size > most:
        text = text.partition("\n")[2] or text
    # A progress bar writes its line again after each carriage return.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in _ESCAPES.sub("", text).split("\n")]
    return "\n".join(lines).rstrip()


def _host(host: Mapping[str, Any]) -> str:
    gpus = Counter(gpu.get("name") for gpu in host.get("gpus") or [])
    words = [
        f"{host.get('cpu_model') or 'CPU not recorded'}, {host.get('cpu_cores')} cores",
        f"{(host.get('memory_bytes') or 0) / 2**30:.0f} GiB" if host.get("memory_bytes") else "",
        *(f"{count} x {name}" for name, count in sorted(gpus.items(), key=str)),
        f"driver {host['driver']}" if host.get("driver") else "",
        f"kernel {host['kernel']}" if host.get("kernel") else "",
    ]
    return f"{host.get('hostname')}: " + "; ".join(word for word in words if word)


def _software(software: Mapping[str, Any]) -> list[tuple[str, str]]:
    dirty = {True: "with uncommitted changes", False: "clean", None: "state not recorded"}[software.get("git_dirty")]
    told = [("git commit", f"{software.get('git_commit') or 'not recorded'} ({dirty})")]
    told += [(name, str(software[name])) for name in ("python", "cuda", "nccl", "nsys") if software.get(name)]
    packages = software.get("packages") or {}
    return [*told, *((f"package {name}", str(version)) for name, version in sorted(packages.items()))]


def environment(record: _Record) -> list[tuple[str, str]]:
    """What a point ran with and on: (fact, value)."""
    told = _software(record.get("software") or {})
    return told + [("host", _host(host)) for host in record.get("hosts") or []]


def provenance(records: list[_Record]) -> list[dict[str, Any]]:
    """What it ran on and with: each fact with every value that it had, and on how many points."""
    facts: dict[str, Counter[str]] = {}
    for record in records:
        for name, value in environment(record):
            facts.setdefault(name, Counter())[value] += 1
    shown = [{"name": n, "values": sorted(v.items())} for n, v in facts.items()]
    starts = sorted(r["started_at"] for r in records if r.get("started_at"))
    ends = sorted(r["ended_at"] for r in records if r.get("ended_at"))
    if starts and ends:
        shown.append({"name": "dates", "values": [(f"{starts[0]} to {ends[-1]}", len(records))]})
    return shown
