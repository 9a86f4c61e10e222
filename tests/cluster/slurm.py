"""Starts and stops a real Slurm of several nodes on this one host, as root and without systemd, in seconds.

    with Cluster(Path("somewhere"), Shape(nodes=2)) as cluster:
        cluster.run("srun", "-N2", "hostname")

Each node is a slurmd with a hostname, an address, an /etc/hosts and an /etc/slurm of its own, from a UTS and a mount
namespace; its GPUs are made-up device nodes, unless real ones are asked for. All daemons run in the foreground as
children of this process. Written are DIR, a folder /tmp/ns-* for the sockets, which stop() removes, and /etc/slurm as
an empty folder where there is none.
"""

import atexit
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.config import Places, Shape, files, free_base_port
from tests.cluster.namespaces import kill_all, namespace, namespace_path
from tests.cluster.requirements import NAMESPACES, available, environment

__all__ = ["Cluster", "ClusterError", "Shape", "available"]

DEFAULT_SHAPE = Shape()
START_SECONDS = 60
NODE_SCRIPT = (
    'hostname "$0" && mount --bind "$1/hosts" /etc/hosts && mount --bind "$1" /etc/slurm && exec slurmd -D -N "$0"'
)


class ClusterError(RuntimeError):
    """The cluster did not start, or a Slurm command failed."""


class Cluster:
    """A Slurm cluster in a folder; use it with `with`, or start() and stop()."""

    def __init__(self, folder: Path, shape: Shape = DEFAULT_SHAPE) -> None:
        self.folder = folder.resolve()
        self.shape = shape
        self.environment = environment() | {"SLURM_CONF": str(self.folder / "etc/slurm.conf")}
        self._places: Places | None = None
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._namespaces: dict[str, list[int]] = {}
        self._deadline = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Starting

    def start(self) -> None:
        """Returns when all nodes are idle; after 60 s raises ClusterError with the last lines of the logs."""
        if self._places:
            raise ClusterError(f"already started: {self.folder}")
        self._deadline = time.monotonic() + START_SECONDS
        atexit.register(self.stop)
        try:
            places = self._prepare()
            self._start_munge(places)
            if self.shape.accounting:
                self._start_database(places)
                self._set_up_accounting()
            self._start_controller("-c")
            for node in self.shape.names:
                self.power_on(node)
            self._wait(lambda: set(self.states().values()) == {"idle"}, "idle nodes")
        except BaseException as error:
            logs = self._last_lines()
            self.stop()
            if isinstance(error, ClusterError | OSError | subprocess.SubprocessError):
                raise ClusterError(f"{error}\n{logs}") from error
            raise

    def _prepare(self) -> Places:
        short = Path(tempfile.mkdtemp(prefix="ns-", dir="/tmp"))
        short.chmod(0o755)  # munged refuses a socket that others could not reach
        self._places = Places(self.folder, short, free_base_port(self.shape.nodes + 4))
        for name in ("etc", "state", "log", "run", "dev"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for name in self.shape.names:
            (short / name).mkdir()
        for name, text in files(self.shape, self._places).items():
            path = self.folder / "etc" / name
            # slurmdbd refuses a file that others can read.
            path.touch(0o600 if name == "slurmdbd.conf" else 0o755 if name.endswith(".sh") else 0o644)
            path.write_text(text)
        for index in range(0 if self.shape.real else self.shape.gpus):
            if not (device := self._places.device(index)).is_char_device():
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        Path("/etc/slurm").mkdir(exist_ok=True)
        return self._places

    def _start_munge(self, places: Places) -> None:
        key = self.folder / "run/munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        options = {"key-file": key, "socket": places.munge}
        options |= {"pid-file": self.folder / "run/munged.pid", "seed-file": self.folder / "run/munge.seed"}
        self._spawn("munged", "munged", "--foreground", *(f"--{name}={value}" for name, value in options.items()))
        self._wait(places.munge.exists, "munged")

    def _start_database(self, places: Places) -> None:
        # As root, because user mysql may not enter the folders of pytest.
        data = ("--no-defaults", "--user=root", f"--datadir={self.folder / 'db'}")
        how = ("--auth-root-authentication-method=socket", "--skip-test-db", "--skip-name-resolve")
        self.run("mariadb-install-db", *data, *how, timeout=120)
        small = ("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0")
        pid = f"--pid-file={self.folder / 'run/mariadbd.pid'}"
        wait = "--innodb-lock-wait-timeout=900"
        self._spawn(
            "mariadbd", "mariadbd", *data, f"--socket={places.database}", pid, "--skip-networking", *small, wait
        )
        self._wait(places.database.exists, "mariadbd")

    def _set_up_accounting(self) -> None:
        self.start_slurmdbd()
        self.run("sacctmgr", "-i", "add", "cluster", "nightsweep")

    def _start_controller(self, *options: str) -> None:
        assert self._places
        port = self._places.base_port
        self._spawn("slurmctld", "slurmctld", "-D", *options)
        self._wait(lambda: _listens(port), "slurmctld")

    def _spawn(self, name: str, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            # A session of its own, so that it does not see the Ctrl-C meant for this process.
            daemon = subprocess.Popen(
                command,
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        self._daemons[name] = daemon
        return daemon

    def _wait(self, reached: Callable[[], bool], what: str) -> None:
        while not reached():
            if dead := [name for name, daemon in self._daemons.items() if daemon.poll() is not None]:
                raise ClusterError(f"waiting for {what}: ended: {', '.join(dead)}")
            if time.monotonic() > self._deadline:
                raise ClusterError(f"no {what} after {START_SECONDS} s")
            time.sleep(0.02)

    def _last_lines(self, count: int = 4) -> str:
        logs = [(path.name, path.read_text(errors="replace").splitlines()) for path in (self.folder / "log").glob("*")]
        return "\n".join(f"{name}: {line}" for name, lines in sorted(logs) for line in lines[-count:])

    # Stopping

    def stop(self) -> None:
        """Cancels all jobs and ends everything that the cluster started. Never raises; does nothing the second time."""
        atexit.unregister(self.stop)
        if self._places is None:
            return
        if "slurmctld" in self._daemons:
            self._cancel_jobs()
        for node in self.shape.names:
            with suppress(Exception):
                self.power_off(node)
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            with suppress(Exception):
                self._end(name, signal.SIGTERM)
        for folder in (self._places.short, self.folder / "db"):  # a database is 110 MB, and a start begins anew anyway
            shutil.rmtree(folder, ignore_errors=True)
        self._places = None

    def _cancel_jobs(self) -> None:
        """Gives jobs that end when told to, and the srun that wait for them, a moment to do so."""
        with suppress(Exception):
            self.run("scancel", "--me", timeout=5)
            end = time.monotonic() + 1
            while time.monotonic() < end and self.run("squeue", "--noheader", timeout=2):
                time.sleep(0.05)

    def _end(self, name: str, number: int) -> None:
        if daemon := self._daemons.pop(name, None):
            daemon.send_signal(number)
            try:
                daemon.wait(timeout=5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    # Using it

    def run(self, *command: str, check: bool = True, timeout: float = 30) -> str:
        """The standard output of a Slurm command; ClusterError if it fails and `check`, or when it takes too long."""
        try:
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, check=False, timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{' '.join(command)}: no end after {timeout} s") from error
        if check and done.returncode:
            raise ClusterError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}{done.stdout}")
        return done.stdout

    def states(self) -> dict[str, str]:
        """Each node's state; a mark such as * (does not answer) at its end."""
        lines = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def wait_for(self, node: str, state: str, timeout: float = 90) -> None:
        end = time.monotonic() + timeout
        while (now := self.states().get(node)) != state:
            if time.monotonic() > end:
                raise ClusterError(f"{node} is {now}, not {state}, after {timeout} s\n{self._last_lines()}")
            time.sleep(0.05)

    def jobs(self) -> list[dict[str, str]]:
        """Every job the controller remembers, one for each task of an array: id, state, nodes, reason."""
        lines = self.run("squeue", "--states=all", "--array", "--noheader", "--format=%i|%T|%N|%r").splitlines()
        return [dict(zip(("id", "state", "nodes", "reason"), line.split("|", 3), strict=True)) for line in lines]

    # Failures

    def power_off(self, node: str) -> None:
        """Kills the node's slurmd and everything that runs on the node, at once. The controller is not told."""
        self._end(f"slurmd.{node}", signal.SIGKILL)
        held = self._namespaces.pop(node, [])
        kill_all({os.fstat(descriptor).st_ino for descriptor in held})
        for descriptor in held:
            os.close(descriptor)

    def power_on(self, node: str) -> None:
        """Starts the node; it is idle a moment later: see wait_for()."""
        name = f"slurmd.{node}"
        if name in self._daemons and self._daemons[name].poll() is None:
            raise ClusterError(f"{node} is on already")
        daemon = self._spawn(name, *NAMESPACES, "sh", "-c", NODE_SCRIPT, node, str(self.folder / "etc"))
        self._deadline = time.monotonic() + START_SECONDS
        self._wait(lambda: namespace(daemon.pid) not in (None, namespace("self")), f"namespace of {node}")
        # Held open, so that its number goes to no other namespace while the node's processes may have to be found.
        self._namespaces.setdefault(node, []).append(os.open(namespace_path(daemon.pid), os.O_RDONLY))

    def kill_slurmd(self, node: str) -> None:
        """Kills the slurmd alone: its tasks run on as orphans."""
        self._end(f"slurmd.{node}", signal.SIGKILL)

    def down(self, node: str, reason: str) -> None:
        """Tells the controller now what it would notice by itself after SlurmdTimeout."""
        self.run("scontrol", "update", f"nodename={node}", "state=down", f"reason={reason}")

    def stop_controller(self, number: int = signal.SIGTERM) -> None:
        self._end("slurmctld", number)

    def start_controller(self) -> None:
        self._deadline = time.monotonic() + START_SECONDS
        self._start_controller()

    def stop_slurmdbd(self) -> None:
        self._end("slurmdbd", signal.SIGKILL)

    def lose_end(self, job: str) -> None:
        """Has the database say that a job still runs, as where the controller could not tell its end: for good, since
        the controller tells it more than once."""
        assert self._places
        lost = "NEW.{0} = IF(OLD.id_job = {1}, {2}, NEW.{0})"
        change = (
            "CREATE OR REPLACE TRIGGER lost BEFORE UPDATE ON nightsweep_job_table FOR EACH ROW SET "
            f"{lost.format('state', job, 1)}, {lost.format('time_end', job, 0)};"
            f"UPDATE nightsweep_job_table SET state = 1, time_end = 0 WHERE id_job = {job}"
        )
        self.run("mariadb", f"--socket={self._places.database}", "slurm_acct_db", f"--execute={change}")

    def start_slurmdbd(self) -> None:
        assert self._places
        places = self._places
        self._deadline = time.monotonic() + START_SECONDS
        self._spawn("slurmdbd", "slurmdbd", "-D", MYSQL_UNIX_PORT=str(places.database))
        self._wait(lambda: _listens(places.dbd_port), "slurmdbd")


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
