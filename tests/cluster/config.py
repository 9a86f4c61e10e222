"""The configuration files of a test cluster, as texts: slurm.conf, gres.conf, slurmdbd.conf and the nodes' /etc/hosts.

Nothing here starts or writes anything: tests/cluster/slurm.py does.
"""

import random
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """Size of a cluster. An `extra` line KEY=... replaces that key's line, except NodeName and PartitionName. Where
    `real`, the nodes have the first GPUs of this host, `gpus` each."""

    nodes: int = 4
    gpus: int = 4
    real: bool = False
    cpus: int = 16
    memory_mb: int = 8000
    accounting: bool = False
    extra: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [f"n{k}" for k in range(1, self.nodes + 1)]


@dataclass(frozen=True)
class Places:
    """Where a cluster keeps its files. `short` holds all UNIX sockets: their paths are limited to 107 bytes."""

    folder: Path
    short: Path
    base_port: int

    @property
    def munge(self) -> Path:
        return self.short / "munge"

    @property
    def database(self) -> Path:
        return self.short / "db"

    @property
    def dbd_port(self) -> int:
        return self.base_port + 2

    def device(self, index: int | str) -> Path:
        return self.folder / "dev" / f"nvidia{index}"

    @property
    def task_prolog(self) -> Path:
        return self.folder / "etc/task_prolog.sh"


def free_base_port(count: int) -> int:
    """A port such that it and the next count - 1 are free; below the kernel's ephemeral ports, and drawn by lot so that
    clusters that start at the same time rarely meet."""
    for _ in range(200):
        base = random.randrange(15000, 32000 - count)
        with ExitStack() as held:
            try:
                for port in range(base, base + count):
                    held.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
        return base
    raise OSError(f"no {count} free ports in a row")


def slurm_conf(shape: Shape, places: Places) -> str:
    lines = [*_controller(places), *_scheduling(), *_accounting(shape, places)]
    if shape.gpus:
        lines.append("GresTypes=gpu")
    if shape.real:
        lines.append(f"TaskProlog={places.task_prolog}")
    lines += [*_nodes(shape, places), *_partitions(shape)]
    for line in shape.extra:
        key = line.partition("=")[0].strip().lower()
        if key not in ("nodename", "partitionname"):
            lines = [old for old in lines if old.partition("=")[0].lower() != key]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _controller(places: Places) -> list[str]:
    folder, short, base = places.folder, places.short, places.base_port
    return [
        "ClusterName=nightsweep",
        f"SlurmctldHost={socket.gethostname().partition('.')[0]}(127.0.0.1)",
        f"SlurmctldPort={base}",
        f"SlurmdPort={base + 1}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        # A requeued job waits for cred_expire before it may start again: 120 s unless told.
        f"AuthInfo=socket={places.munge},cred_expire=5",
        f"StateSaveLocation={folder}/state",
        # slurmstepd makes its sockets in the spool folder.
        f"SlurmdSpoolDir={short}/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd.%n.pid",
        f"SlurmdLogFile={folder}/log/slurmd.%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=5",
        "PropagateResourceLimits=NONE",
        "MailProg=/bin/true",
    ]


def _scheduling() -> list[str]:
    return [
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        # Nodes claim CPUs and memory which this host does not have.
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "SlurmctldTimeout=30",
        "SlurmdTimeout=15",
        "KillWait=5",
        "MinJobAge=600",
        "MaxArraySize=10001",
        "JobRequeue=1",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=5,sched_min_interval=0,bf_interval=1",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
    ]


def _accounting(shape: Shape, places: Places) -> list[str]:
    if not shape.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={places.dbd_port}",
        # Without it the clients of slurmdbd look for munge's socket in /run.
        f"AccountingStoragePass={places.munge}",
        *(["AccountingStorageTRES=gres/gpu"] if shape.gpus else []),
    ]


def _nodes(shape: Shape, places: Places) -> list[str]:
    gres = f" Gres=gpu:h200:{shape.gpus}" if shape.gpus else ""
    size = f"CPUs={shape.cpus} RealMemory={shape.memory_mb}{gres}"
    return [
        f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.{10 + k} Port={places.base_port + 2 + k} {size}"
        for k, name in enumerate(shape.names, 1)
    ]


def _partitions(shape: Shape) -> list[str]:
    common = f"Nodes={','.join(shape.names)} MaxTime=INFINITE DefMemPerCPU=100 State=UP"
    return [
        f"PartitionName=main {common} Default=YES PriorityTier=1",
        f"PartitionName=urgent {common} PriorityTier=10",
    ]


def gres_conf(shape: Shape, places: Places) -> str:
    """Slurm sets CUDA_VISIBLE_DEVICES only for GPUs that have a device node each."""
    if not shape.gpus:
        return ""
    if not shape.real:
        return _gpus(",".join(shape.names), str(places.device("")), 0, shape.gpus)
    return "".join(_gpus(name, "/dev/nvidia", k * shape.gpus, shape.gpus) for k, name in enumerate(shape.names))


def _gpus(nodes: str, device: str, first: int, count: int) -> str:
    return f"NodeName={nodes} Name=gpu Type=h200 File={device}[{first}-{first + count - 1}]\n"


def task_prolog(shape: Shape) -> str:
    """What Slurm runs before each task of srun. Without cgroups that hide the other nodes' GPUs, Slurm counts each
    node's GPUs from 0, but on this one host a GPU's index is another one on each node."""
    return f"""#!/bin/sh
first=$(( (${{SLURMD_NODENAME#n}} - 1) * {shape.gpus} ))
for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do list="$list,$((gpu + first))"; done
[ -z "$list" ] || echo "export CUDA_VISIBLE_DEVICES=${{list#,}}"
"""


def slurmdbd_conf(places: Places) -> str:
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={places.munge}",
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={places.dbd_port}",
        "SlurmUser=root",
        f"PidFile={places.folder}/run/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        # MariaDB knows root by the owner of the process at the other end of its socket: no password.
        "StorageUser=root",
        "StorageLoc=slurm_acct_db",
        "CommitDelay=0",
    ]
    return "\n".join(lines) + "\n"


def hosts(shape: Shape) -> str:
    """This host's names, with those of the nodes put first."""
    own = [f"127.0.0.{10 + k} {name}" for k, name in enumerate(shape.names, 1)]
    others = [line for line in Path("/etc/hosts").read_text().splitlines() if not set(line.split()) & set(shape.names)]
    return "\n".join([*own, *others]) + "\n"


def files(shape: Shape, places: Places) -> dict[str, str]:
    """Every file of the cluster's etc folder by its name. Without systemd and D-Bus cgroup/v2 would stop slurmd."""
    texts = {
        "slurm.conf": slurm_conf(shape, places),
        "gres.conf": gres_conf(shape, places),
        "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "plugstack.conf": "",
        "hosts": hosts(shape),
        "task_prolog.sh": task_prolog(shape),
    }
    return texts | ({"slurmdbd.conf": slurmdbd_conf(places)} if shape.accounting else {})
