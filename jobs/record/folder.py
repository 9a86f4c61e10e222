"""One look at a point: the files of its folder, and the small JSON files that its processes leave there."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORD_SCHEMA = 1


@dataclass(frozen=True)
class Look:
    """Paths of one look, `results/<sweep>/points/<id>/<kind>/`, kind timed, traced or, of the control, cost-*. While
    its ranks run it is `<kind>.<attempt>/`, so that ranks which outlive a lost node write nowhere near those of the
    next attempt."""

    folder: Path

    @property
    def kind(self) -> str:
        return self.folder.name.partition(".")[0]

    def settle(self) -> Look:
        """Give the folder its lasting name, in place of an earlier one."""
        final = Look(self.folder.with_name(self.kind))
        shutil.rmtree(final.folder, ignore_errors=True)
        self.folder.rename(final.folder)
        return final

    @property
    def point_file(self) -> Path:
        return self.folder.parent / "point.json"

    @property
    def log(self) -> Path:
        return self.folder / "launch.log"

    def rank_file(self, rank: int, name: str) -> Path:
        return self.folder / f"rank{rank}.{name}"

    def steps(self, rank: int) -> Path:
        return self.folder / f"steps-r{rank}.jsonl"

    @property
    def accuracy(self) -> Path:
        return self.folder / "accuracy.jsonl"

    def trace(self, rank: int, suffix: str) -> Path:
        return self.folder / f"trace-r{rank}.{suffix}"

    def host(self, name: str) -> Path:
        return self.folder / f"facts-{name}.json"

    def host_samples(self, host: str) -> Path:
        return self.folder / f"host-{host}.jsonl"

    def nvml(self, host: str) -> Path:
        return self.folder / f"nvml-{host}.arrow"

    def live(self, host: str) -> Path:
        return self.folder / f"live-{host}.json"

    def events(self, host: str) -> Path:
        return self.folder / f"events-{host}.jsonl"

    def samplers(self, host: str) -> Path:
        return self.folder / f"samplers-{host}.json"


def utc_now() -> str:
    """The time as records have it: ISO 8601, UTC, to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def write_json(path: Path, content: Any) -> None:
    """Write at once or not at all: a reader never sees half a file."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content, indent=1) + "\n")
    scratch.replace(path)


def read_json(path: Path) -> Any:
    """The file's content, or None where there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
