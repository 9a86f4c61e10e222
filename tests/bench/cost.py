"""What a command costs: seconds, seconds of cores, memory, and the files that it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

LOOK_S = 0.1


@dataclass(frozen=True)
class Cost:
    """Seconds, those of all cores together, and the largest resident memory of the driver and of all its processes,
    MB. Where others work on the machine, the cores' seconds tell more than the seconds."""

    seconds: float
    core_s: float
    driver_mb: float
    all_mb: float


class Meter:
    """A command under way, and what it has cost so far: itself and all that it started. `environment`: all of it; by
    default this process's own."""

    def __init__(
        self, command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log, self.began = log, time.monotonic()
        self.driver = self.every = 0
        self.cores: dict[int, float] = {}
        own = os.environ if environment is None else environment
        path = f"{Path(sys.executable).parent}:{own['PATH']}"
        with log.open("a") as sink:
            self.process = psutil.Popen(
                [*command], cwd=folder, stdout=sink, stderr=subprocess.STDOUT, env={**own, "PATH": path}
            )

    def look(self) -> bool:
        """Note what it has cost; whether it still runs."""
        if self.process.poll() is not None:
            return False
        try:
            found = list(family(self.process))
        except psutil.NoSuchProcess:
            return False
        self.cores |= {pid: max(self.cores.get(pid, 0.0), seconds) for pid, seconds, _ in found}
        self.driver = max(self.driver, found[0][2])
        self.every = max(self.every, sum(size for _, _, size in found))
        return True

    def cost(self) -> Cost:
        return Cost(time.monotonic() - self.began, sum(self.cores.values()), self.driver / 1e6, self.every / 1e6)

    def finish(self) -> Cost:
        """Wait until it ends, which it must do well."""
        while self.look():
            time.sleep(LOOK_S)
        if self.process.wait():
            self.fail()
        return self.cost()

    def fail(self) -> None:
        """End this program with the last words of the command."""
        sys.exit(f"{' '.join(self.process.args)}: {self.log.read_text()[-2000:]}")


def family(process: psutil.Process) -> Iterator[tuple[int, float, int]]:
    """Id, seconds of cores so far and resident bytes of a process and of all that it started."""
    for one in (process, *process.children(recursive=True)):
        try:
            with one.oneshot():
                yield one.pid, sum(one.cpu_times()[:2]), one.memory_info().rss
        except psutil.NoSuchProcess:
            yield one.pid, 0.0, 0


def files_and_bytes(folder: Path) -> tuple[int, int]:
    """How many files are in a folder, and their bytes."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def head() -> str:
    """What stands over the lines."""
    return f"{'points':>9} {'':16} {'time':>10} {'of cores':>10} {'driver':>8} {'all':>11} {'on disk then':>15}"


def line(size: str, name: str, found: Cost, folder: Path) -> str:
    """A row: the cost, and the files that are in a folder then."""
    count, total = files_and_bytes(folder)
    return (
        f"{size:>9} {name:16} {found.seconds:8.1f} s {found.core_s:8.1f} s {found.driver_mb:8,.0f}"
        f" {found.all_mb:8,.0f} MB {count:9,} files {total / 1e6:8,.1f} MB"
    )
