"""What the folders of points add to the tables: where it ran and with which software, and the end of a log.

Published copies have records but no logs.
"""

from __future__ import annotations

import contextlib
import re
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightsweep.jobs.host.facts import Host, Software
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.raw_files import ARCHIVE
from nightsweep.jobs.record.record import Failure, Record

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


def read(folder: Path | None) -> list[Record]:
    """record.json of every point that has one that can be read; of another the table of points says not_run."""
    files = sorted(folder.glob("*/record.json")) if folder else []
    return [record for file in files if (record := read_json(file, Record)) is not None]


def logs(folder: Path | None, found: list[Record]) -> dict[str, Log]:
    """By point, the end of the log of the rank that failed first, else of rank 0's in the last run that was made."""
    if folder is None or not found:
        return {}
    most = min(LOG_BYTES, LOGS_BYTES // len(found))
    named = ((record.point_id, _log(folder / record.point_id, record, most)) for record in found if record.point_id)
    return {point: log for point, log in named if log is not None}


def _log(point: Path, record: Record, most: int) -> Log | None:
    failure = record.failure or Failure()
    # Of one start the timed run has the logs.
    runs = [failure.run, "timed"] if failure.run else ["traced", "timed"]
    names = [f"{run}/{name}" for run in runs for name in (f"rank{failure.rank or 0}.log", "launch.log")]
    with contextlib.suppress(zipfile.BadZipFile, zlib.error, EOFError, OSError):  # the table of points says so
        archive = point / ARCHIVE
        files = [(zipfile.Path(archive) if archive.exists() else point) / name for name in names]
        texts = ((name, tail(file, most)) for name, file in zip(names, files, strict=True) if file.is_file())
        return next((Log(name, text) for name, text in texts if text), None)
    return None


def tail(file: Path | zipfile.Path, most: int) -> str:
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


def _host(host: Host) -> str:
    gpus = Counter(gpu.name for gpu in host.gpus)
    words = [
        f"{host.cpu_model or 'CPU not recorded'}, {host.cpu_cores} cores",
        f"{host.memory_bytes / 2**30:.0f} GiB" if host.memory_bytes else "",
        *(f"{count} x {name}" for name, count in sorted(gpus.items(), key=str)),
        f"driver {host.driver}" if host.driver else "",
        f"kernel {host.kernel}" if host.kernel else "",
    ]
    return f"{host.hostname}: " + "; ".join(word for word in words if word)


def _software(software: Software) -> list[tuple[str, str]]:
    dirty = {True: "with uncommitted changes", False: "clean", None: "state not recorded"}[software.git_dirty]
    versions = {"python": software.python, "cuda": software.cuda, "nccl": software.nccl, "nsys": software.nsys}
    return [
        ("git commit", f"{software.git_commit or 'not recorded'} ({dirty})"),
        *((name, version) for name, version in versions.items() if version),
        *((f"package {name}", str(version)) for name, version in sorted(software.packages.items())),
    ]


def environment(record: Record) -> list[tuple[str, str]]:
    """What a point ran with and on: (fact, value)."""
    return _software(record.software) + [("host", _host(host)) for host in record.hosts]


def provenance(records: list[Record]) -> list[dict[str, Any]]:
    """What it ran on and with: each fact with every value that it had, and on how many points."""
    facts: dict[str, Counter[str]] = {}
    for record in records:
        for name, value in environment(record):
            facts.setdefault(name, Counter())[value] += 1
    shown = [{"name": n, "values": sorted(v.items())} for n, v in facts.items()]
    starts = sorted(r.started_at for r in records if r.started_at)
    ends = sorted(r.ended_at for r in records if r.ended_at)
    if starts and ends:
        shown.append({"name": "dates", "values": [(f"{starts[0]} to {ends[-1]}", len(records))]})
    return shown
