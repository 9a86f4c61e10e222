"""submitit's local executor behind the same plugin: each job a process of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import submitit

from snakemake_executor_plugin_submitit.refusal import Refused
from snakemake_executor_plugin_submitit.request import Request
from snakemake_executor_plugin_submitit.scheduler import State


class Local:
    """Processes of this machine as if they were a cluster. They end with their driver's cancel, not with its death."""

    accounting = False
    cluster = "local"
    largest_array = 1000

    def __init__(self) -> None:
        self.jobs: dict[str, submitit.Job[int]] = {}

    def submit(self, folder: Path, name: str, request: Request, commands: list[str], parallel: int) -> list[str]:
        if request.nodes > 1:
            raise Refused(f"the job asks for {request.nodes} nodes and this machine is one")
        executor = submitit.LocalExecutor(folder=folder)
        executor.update_parameters(timeout_min=request.runtime_min, gpus_per_node=request.gpus_per_node)
        jobs = executor.map_array(subprocess.call, [["bash", "-c", command] for command in commands])
        self.jobs |= {job.job_id: job for job in jobs}
        return [job.job_id for job in jobs]

    def find(self, name: str, size: int) -> list[str] | None:
        return None

    def states(self, ids: Iterable[str]) -> dict[str, State]:
        names = {"RUNNING": "RUNNING", "FINISHED": "COMPLETED"}
        return {i: State(names.get(self.jobs[i].state, "FAILED")) for i in ids if i in self.jobs}

    def most_nodes(self, partition: str | None) -> int:
        return 1

    def bad_nodes(self, nodes: str) -> list[str]:
        return []

    def cancel(self, ids: Iterable[str], names: Iterable[str]) -> None:
        for job_id in ids:
            if job_id in self.jobs:
                self.jobs[job_id].cancel()
