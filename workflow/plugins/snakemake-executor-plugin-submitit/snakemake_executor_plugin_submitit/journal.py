"""What was submitted, on disk, so that a driver that was killed finds its jobs again.

One folder a driver: `.snakemake/submitit/<number>-<name>/` with journal.jsonl and submitit's own files. An intention is
written before sbatch is called and its answer after: a driver killed in between finds the array by its job name. One
that stops says so before it cancels, and after: where it was killed in between, the next one cancels.

A driver's number is larger than those of all that wrote before it came. Clocks could not tell which of two was first:
they may have run on different login nodes.

submitit's files are pickles, which jobs and drivers run: the folders are their user's alone, and those of earlier
drivers are not read where they are not.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
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
    cluster: str = ""

    def is_written(self) -> bool:
        """Whether all its outputs are there."""
        return all(Path(output).exists() for output in self.key.splitlines())


class Journal:
    """The journal of this driver, and the reading of earlier ones."""

    def __init__(self, root: Path, cluster: str = "") -> None:
        self.root, self.cluster = root, cluster
        self.cut = False
        self.stopped: set[str] = set()
        """Names of arrays that an earlier driver began to cancel, and that may still run."""

    @functools.cached_property
    def folder(self) -> Path:
        """That of this driver, from its first event on: by then, no other one is at work on the same jobs."""
        number = 1 + max(map(_number, self.root.glob("*/journal.jsonl")), default=0)
        return (self.root / f"{number}-{uuid.uuid4().hex[:12]}").absolute()

    def intend(self, name: str, keys: list[str], losses: list[int]) -> None:
        self._write({"event": "intend", "name": name, "keys": keys, "losses": losses, "cluster": self.cluster})

    def accept(self, name: str, ids: list[str]) -> None:
        self._write({"event": "accept", "name": name, "ids": ids})

    def refuse(self, name: str) -> None:
        self._write({"event": "refuse", "name": name})

    def end(self, key: str, name: str) -> None:
        """The end is known of the job with this key in the array of this name, empty for one that is to be sent again:
        no later driver needs to look for it."""
        self._write({"event": "end", "key": key, "name": name})

    def stop(self, names: Iterable[str]) -> None:
        """Arrays of these names are about to be cancelled: no later driver is to take their jobs over."""
        self._write({"event": "stop", "names": sorted(names), "cluster": self.cluster})

    def cancelled(self, names: Iterable[str]) -> None:
        """They are."""
        self._write({"event": "cancelled", "names": sorted(names)})
        self.stopped = self.stopped - set(names)

    def _write(self, event: dict[str, Any]) -> None:
        for folder in (self.root, self.folder):
            folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            if folder.stat().st_uid == os.geteuid():
                folder.chmod(PRIVATE)
            _check_private(folder)
        begin, self.cut = "\n" if self.cut else "", True  # where a full disk takes a part of the line
        line = f"{begin}{json.dumps(event)}\n"
        with (self.folder / "journal.jsonl").open("a") as sink:
            sink.write(line)
        self.cut = False

    def load_unfinished(self) -> dict[str, Entry]:
        """Jobs of earlier drivers whose end nobody saw, by key.

        Drivers take over jobs of one another, so their journals are read as one, in the order of their numbers; and old
        ones are removed only when no job of any is open. Drivers at work at the same time, which may have the same
        number, have no jobs of one another but those that had ended before. Raises NotPrivate where others could have
        changed one.
        """
        paths = sorted(self.root.glob("*/journal.jsonl"), key=lambda path: (_number(path), path.stat().st_mtime))
        found, stopped = _replay([(event, path.parent) for path in paths for event in _read(path)])
        self.stopped = {name for name, cluster in stopped.items() if cluster == self.cluster}
        if not found and not stopped:
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


def _number(journal: Path) -> int:
    """That of its driver; 0 of one that had none."""
    number, dash, _ = journal.parent.name.partition("-")
    return int(number) if dash and number.isdecimal() else 0


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a journal; without a line within which its driver was killed."""
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _replay(events: list[tuple[dict[str, Any], Path]]) -> tuple[dict[str, Entry], dict[str, str]]:
    intended: dict[str, tuple[dict[str, Any], Path]] = {}
    entries: dict[str, Entry] = {}
    stopped: dict[str, str] = {}
    for event, folder in events:
        if event["event"] == "stop":
            stopped |= dict.fromkeys(event["names"], event.get("cluster", ""))
            entries = {key: entry for key, entry in entries.items() if entry.name not in stopped}
            continue
        if event["event"] == "cancelled":
            stopped = {name: where for name, where in stopped.items() if name not in event["names"]}
            continue
        if event["event"] == "end":
            entry = entries.get(event["key"])
            # a driver with a larger number may have seen the end of an earlier array before this one was sent
            if entry is not None and (event.get("name") or entry.name) == entry.name:
                del entries[event["key"]]
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
    return entries, stopped


def _entries(folder: Path, event: dict[str, Any], ids: list[str] | None) -> dict[str, Entry]:
    keys, cluster = event["keys"], event.get("cluster", "")
    return {
        key: Entry(key, event["name"], folder, i, len(keys), ids[i] if ids else None, event["losses"][i], cluster)
        for i, key in enumerate(keys)
    }
