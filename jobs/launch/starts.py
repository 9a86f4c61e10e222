"""How the processes of ranks come to be: forked from a server on each node (jobs/rank/server.py), which lasts from
point to point, or each a new Python, where a rank needs one.

Both are started by srun in an allocation, else on this machine.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from nightsweep.jobs.host.processes import end_with_parent
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.rank.request import Request
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.slurm import allocation

POLL_S = 0.05
NEWS_S = 0.01
"""Between looks at servers that keep saying something, or whose output has ended."""
END_S = 20.0
"""For servers, and what else started ranks, once these have ended or been killed."""
OF_ONE_START = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
"""Variables that nothing reads before a rank joins the others; all else a library may read when it is loaded."""


class Fresh:
    """Each a new Python. `commands`: with the variables of each."""

    def __init__(
        self, run_folder: RunFolder, commands: Sequence[tuple[list[str], dict[str, str]]], environment: dict[str, str]
    ) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            with run_folder.log.open("ab") as log:
                for command, own in commands:
                    every = {**environment, **own}
                    self.processes.append(subprocess.Popen(command, env=every, stderr=log, preexec_fn=end_with_parent))
        except OSError:
            self.send(signal.SIGTERM)
            self.wait()
            raise

    def alive(self) -> bool:
        return any(process.poll() is None for process in self.processes)

    def send(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def wait(self) -> None:
        """Until all have ended, by themselves or, where that takes too long, by force."""
        for number in (signal.SIGTERM, signal.SIGKILL):  # srun ends its step at the first, and leaves it at the second
            deadline = time.monotonic() + END_S
            while self.alive() and time.monotonic() < deadline:
                self.pause(POLL_S)
            self.send(number)
        for process in self.processes:
            process.wait()

    def pause(self, seconds: float) -> None:
        """Let so much time pass, or less where there is news of them."""
        time.sleep(seconds)


class Forked:
    """Ranks that the servers of the nodes have forked."""

    def __init__(self, servers: Servers, run_folder: RunFolder, nodes: int) -> None:
        self.servers, self.run_folder, self.nodes = servers, run_folder, nodes

    def alive(self) -> bool:
        self.servers.listen(self.run_folder)
        return self.servers.ended < self.nodes and self.servers.running()

    def send(self, number: int) -> None:
        self.servers.ask(Request(signal=number))

    def wait(self) -> None:
        """Until all have ended; where a node's server does not say so in time, or is gone, until all servers have."""
        deadline = time.monotonic() + END_S
        while self.alive() and time.monotonic() < deadline:
            self.pause(POLL_S)
        if self.alive():
            self.servers.close()

    def pause(self, seconds: float) -> None:
        self.servers.pause(seconds)


class Servers:
    """The servers of a launcher, one a node: started with the first ranks that are forked, and again where their
    variables or nodes are not those that ranks need. `fork`: false: ranks are new Pythons, as where no rank can be
    forked here."""

    def __init__(self, *, fork: bool = True) -> None:
        self.fork = fork
        self.process: subprocess.Popen[bytes] | None = None
        self.given: tuple[int, dict[str, str]] | None = None
        self.ended = 0

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, run_folder: RunFolder, point: Point, environment: Mapping[str, str]) -> Forked:
        lasting = {name: value for name, value in environment.items() if name not in OF_ONE_START}
        if not self.running() or self.given != (point.nodes, lasting):
            self.close()
            self._start(point, lasting)
        self.ended = 0
        run_folder.log.touch()
        own = {name: value for name, value in environment.items() if name in OF_ONE_START}
        self.ask(Request(folder=str(run_folder.path.absolute()), ranks=point.processes_per_node, environment=own))
        return Forked(self, run_folder, point.nodes)

    def _start(self, point: Point, environment: dict[str, str]) -> None:
        command = [*allocation.python(), "-m", "nightsweep.jobs.rank.server"]
        if allocation.inside():
            command = allocation.srun(point, command, tasks=1)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            preexec_fn=end_with_parent,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.given, self.told, self.said, self.is_ready = (point.nodes, environment), 0, b"", False

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ask(self, request: Request) -> None:
        """Hand a request to all servers; lost where they have ended."""
        assert self.process is not None and self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(msgspec.json.encode(request) + b"\n")
            self.process.stdin.flush()

    def listen(self, run_folder: RunFolder) -> None:
        """Take in on how many nodes all ranks of the start have ended. What servers and srun print goes to the run's
        log."""
        if self.process is None or self.process.stdout is None:  # closed: all of it is taken in
            return
        over = not self.running()
        *lines, self.said = (self.said + (self.process.stdout.read() or b"")).split(b"\n")
        self.is_ready = self.is_ready or b"ready" in lines
        self.fork = self.fork and (self.is_ready or not over)
        self.ended += sum(line.startswith(b"ended ") for line in lines)
        size = os.fstat(self.log.fileno()).st_size
        if size > self.told:
            text = os.pread(self.log.fileno(), size - self.told, self.told)
            self.told = size
            with suppress(OSError), run_folder.log.open("ab") as sink:  # ranks are to end on a full disk, too
                sink.write(text)

    def pause(self, seconds: float) -> None:
        """Until a server says something, at most so long."""
        if not self.running() or self.process is None or self.process.stdout is None:
            time.sleep(seconds)
        else:
            select.select([self.process.stdout], [], [], seconds)
            time.sleep(NEWS_S)

    def close(self) -> None:
        """End the servers, and what ranks of theirs still run."""
        if self.process is None:
            return
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
        self.process = None
