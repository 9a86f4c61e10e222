"""What was submitted, on disk, so that a driver that was killed finds its jobs again.

One folder a driver: `.snakemake/submitit/<name>/` with journal.jsonl and submitit's own files. An intention is written
before sbatch is called and its answer after: a driver killed in between finds the array by its job name.

submitit's files are pickles, which jobs and drivers run: the folders are their user's alone, and those of earlier
drivers are not read where they are not.
"""

from __future__ import annotations

import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.host import private
from jobs.record.json_files import json_line, read_lines

KEEP_S = 7 * 86400
"""How long journals and logs of batch steps stay."""


@dataclass(frozen=True)
class Entry:
    """A submitted job: its array's name and folder, its place in it, and its id where sbatch's answer is known."""

    key: str
    name: str
    folder: Path
    index: int
    size: int
    job_id: str | None
    losses: int

    def is_written(self) -> bool:
        """Whether all its outputs are there."""
        return all(Path(output).exists() for output in self.key.splitlines())


class Journal:
    """The journal of this driver, and the reading of earlier ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = (root / uuid.uuid4().hex[:12]).absolute()

    def intend(self, name: str, keys: list[str], losses: list[int]) -> None:
        self._write({"event": "intend", "name": name, "keys": keys, "losses": losses})

    def accept(self, name: str, ids: list[str]) -> None:
        self._write({"event": "accept", "name": name, "ids": ids})

    def refuse(self, name: str) -> None:
        self._write({"event": "refuse", "name": name})

    def end(self, key: str) -> None:
        """The job's end is known: no later driver needs to look for it."""
        self._write({"event": "end", "key": key})

    def _write(self, event: dict[str, Any]) -> None:
        for folder in (self.root, self.folder):
            private.make(folder)
        with (self.folder / "journal.jsonl").open("a") as sink:
            sink.write(json_line({"t_ns": time.time_ns(), **event}))

    def load_unfinished(self) -> dict[str, Entry]:
        """Jobs of earlier drivers whose end nobody saw, by key.

        Drivers take over jobs of one another, so their journals are read as one, in the order of time; and old ones
        are removed only when no job of any is open. Raises NotPrivate where others could have changed one.
        """
        paths = [p for p in self.root.glob("*/journal.jsonl") if p.parent != self.folder]
        events = sorted(((e, p.parent) for p in paths for e in read_lines(p, dict)), key=lambda pair: pair[0]["t_ns"])
        found = _replay(events)
        if not found:
            for path in paths:
                if time.time() - path.stat().st_mtime > KEEP_S:
                    shutil.rmtree(path.parent, ignore_errors=True)
        for folder in {folder for entry in found.values() for folder in (entry.folder.parent, entry.folder)}:
            if folder.exists():
                private.check(folder)
        return found


def _replay(events: list[tuple[dict[str, Any], Path]]) -> dict[str, Entry]:
    intended: dict[str, tuple[dict[str, Any], Path]] = {}
    entries: dict[str, Entry] = {}
    for event, folder in events:
        if event["event"] == "end":
            entries.pop(event["key"], None)
            continue
        name = event["name"]
        if event["event"] == "intend":
            intended[name] = (event, folder)
        if event["event"] == "refuse":
            for key in intended[name][0]["keys"]:
                entries.pop(key, None)
        else:
            entries |= _entries(intended[name][1] / name, intended[name][0], event.get("ids"))
    return entries


def _entries(folder: Path, event: dict[str, Any], ids: list[str] | None) -> dict[str, Entry]:
    keys = event["keys"]
    return {
        key: Entry(key, event["name"], folder, i, len(keys), ids[i] if ids else None, event["losses"][i])
        for i, key in enumerate(keys)
    }
