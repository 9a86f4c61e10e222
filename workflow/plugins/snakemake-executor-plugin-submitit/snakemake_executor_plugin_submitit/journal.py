"""What was submitted, on disk, so that a driver that was killed finds its jobs again.

One folder a driver: `.snakemake/submitit/<name>/` with journal.jsonl and submitit's own files. An intention is written
before sbatch is called and its answer after: a driver killed in between finds the array by its job name.

submitit's files are pickles, which jobs and drivers run: the folders are their user's alone, and those of earlier
drivers are not read where they are not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRIVATE = 0o700
KEEP_S = 7 * 86400
"""How long journals and logs of batch steps stay."""


class NotPrivate(Exception):
    """Says in one line which folder others may write to."""


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
            folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            if folder.stat().st_uid == os.geteuid():
                folder.chmod(PRIVATE)
            _check_private(folder)
        with (self.folder / "journal.jsonl").open("a") as sink:
            sink.write(json.dumps({"t_ns": time.time_ns(), **event}) + "\n")

    def load_unfinished(self) -> dict[str, Entry]:
        """Jobs of earlier drivers whose end nobody saw, by key.

        Drivers take over jobs of one another, so their journals are read as one, in the order of time; and old ones
        are removed only when no job of any is open. Raises NotPrivate where others could have changed one.
        """
        paths = [p for p in self.root.glob("*/journal.jsonl") if p.parent != self.folder]
        events = sorted(((t_ns, e, p.parent) for p in paths for t_ns, e in _read(p)), key=lambda event: event[0])
        found = _replay([(event, folder) for _, event, folder in events])
        if not found:
            for path in paths:
                if time.time() - path.stat().st_mtime > KEEP_S:
                    shutil.rmtree(path.parent, ignore_errors=True)
        for folder in {folder for entry in found.values() for folder in (entry.folder.parent, entry.folder)}:
            if folder.exists():
                _check_private(folder)
        return found


def _check_private(folder: Path) -> None:
    """Raise NotPrivate where somebody else may write to the folder."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise NotPrivate(f"{folder}: is of user {found.st_uid}, who could have code run in your name; remove it")
    if found.st_mode & 0o022:
        how = "remove it, or, where you trust them, `chmod go-w` it"
        raise NotPrivate(f"{folder}: others may write to it, and could have code run in your name; {how}")


def _read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events of a journal and their times, in its order though the clock was set back; without a line within which
    its driver was killed."""
    latest = 0
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            latest = max(latest, event["t_ns"])
            yield latest, event


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
        if name not in intended:  # a full disk cut that line
            continue
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
