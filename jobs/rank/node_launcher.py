"""Starts the ranks of one node through the launcher that the user's script is started with:

    python -m nightsweep.jobs.rank.node_launcher POINT/timed

The launcher starts supervisors (jobs/rank/supervisor.py) in place of the script, and each of these the script, so that
a rank leaves the same evidence whoever starts it.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from nightsweep.jobs.host import clock
from nightsweep.jobs.host.processes import die_with_parent, end_with_parent
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.rank.script import python
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.sweep.order import read_order


def launcher(point: Point, node: int, address: str, port: str) -> list[str]:
    """The launcher's command on this node, up to the program that each rank is."""
    options = shlex.split(str(point.launcher_options))
    match point.launcher:
        case "torchrun":
            shape = [f"--nnodes={point.nodes}", f"--nproc-per-node={point.ranks_per_node}", f"--node-rank={node}"]
            place = [f"--master-addr={address}", f"--master-port={port}"]
            return ["-m", "torch.distributed.run", *shape, *place, *options, "--no-python"]
        case "deepspeed":
            # What its `deepspeed` starts on each node. The supervisor says --local_rank to the script.
            ranks = list(range(point.ranks_per_node))
            world = {f"node{number}": ranks for number in range(point.nodes)}
            coded = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
            place = [f"--node_rank={node}", f"--master_addr={address}", f"--master_port={port}"]
            own = [option for option in options if option != "--no_local_rank"]
            shape = [f"--world_info={coded}", *place, *own, "--no_local_rank", "--no_python"]
            return ["-m", "deepspeed.launcher.launch", *shape]
        case _:
            ranks_in_all = point.nodes * point.ranks_per_node
            shape = [f"--num_machines={point.nodes}", f"--num_processes={ranks_in_all}", f"--machine_rank={node}"]
            place = [f"--main_process_ip={address}", f"--main_process_port={port}"]
            kind = ["--cpu"] if point.device == "cpu" else ["--multi_gpu"] if ranks_in_all > 1 else []
            if any(option.startswith(KINDS) for option in options):
                kind = []
            return ["-m", "accelerate.commands.launch", *shape, *place, *kind, *options, "--no_python"]


KINDS = ("--cpu", "--multi", "--tpu", "--use_", "--use-", "--config_file", "--config-file")
"""Options that say to `accelerate launch` of which kind a run is; it takes one, and that of a file only without one."""


def main() -> int:
    end_with_parent()
    clock.join()
    run_folder = RunFolder(Path(sys.argv[1]))
    point = read_order(run_folder).point()
    node = int(os.environ.get("SLURM_NODEID", "0")) if point.nodes > 1 else 0
    address, port = (os.environ.pop(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    program = [sys.executable, "-m", "nightsweep.jobs.rank.supervisor", str(run_folder.path)]
    command = [*python(point), *launcher(point, node, address, port), *program]
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # the launcher's to say
        os.environ.pop(name, None)
    process = subprocess.Popen(command, stdout=sys.stderr, preexec_fn=die_with_parent)  # which is the run's log

    def hand_on(number: int, _: Any) -> None:
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
