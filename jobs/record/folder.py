"""The folder of one run of the ranks: where each of its files lies."""

from __future__ import annotations

import datetime
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..host import clock

KEPT = ".untraced"
"""The folder of an attempt that lacks its trace alone, while another one is made (untraced.py)."""


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run, `results/<sweep>/points/<id>/<kind>/`, kind timed, traced or, of the control, cost-*. While
    its ranks run it is `<kind>.<attempt>/`, so that ranks which outlive a lost node write nowhere near those of the
    next attempt."""

    path: Path

    @property
    def kind(self) -> str:
        return self.path.name.partition(".")[0]

    def settle(self) -> RunFolder:
        """Give the folder its lasting name, in place of an earlier one."""
        final = RunFolder(self.path.with_name(self.kind))
        shutil.rmtree(final.path, ignore_errors=True)
        self.path.rename(final.path)
        return final

    @property
    def traced(self) -> RunFolder:
        """The folder of the traced run in the same start: beside that of the timed one; its own where it is one."""
        return RunFolder(self.path.with_name(self.path.name.replace(self.kind, "traced", 1)))

    @property
    def order(self) -> Path:
        return self.path / "run.json"

    @property
    def log(self) -> Path:
        return self.path / "launch.log"

    def read_log(self) -> str:
        """The launcher's log; empty where there is none."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def rank_file(self, rank: int, name: str) -> Path:
        return self.path / f"rank{rank}.{name}"

    def steps(self, rank: int) -> Path:
        return self.path / f"steps-r{rank}.jsonl"

    @property
    def accuracy(self) -> Path:
        return self.path / "accuracy.jsonl"

    def trace(self, rank: int, suffix: str) -> Path:
        return self.path / f"trace-r{rank}.{suffix}"

    def host(self, name: str) -> Path:
        return self.path / f"facts-{name}.json"

    def host_samples(self, host: str) -> Path:
        return self.path / f"host-{host}.jsonl"

    def nvml(self, host: str) -> Path:
        return self.path / f"nvml-{host}.arrow"

    def live(self, host: str) -> Path:
        return self.path / f"live-{host}.json"

    def events(self, host: str) -> Path:
        return self.path / f"events-{host}.jsonl"

    def samplers(self, host: str) -> Path:
        return self.path / f"samplers-{host}.json"


def utc_now() -> str:
    """The time as records have it: ISO 8601, UTC, to the millisecond."""
    return datetime.datetime.fromtimestamp(clock.now_ns() / 1e9, datetime.UTC).isoformat(timespec="milliseconds")


def utc_ns(text: str) -> int:
    """Such a time as a number: UTC, ns."""
    return round(datetime.datetime.fromisoformat(text).timestamp() * 1000) * 1_000_000
