"""Checks an unknown Slurm cluster from its login node before a sweep is run there.

    nightsweep doctor --profile profiles/slurm --configfile config/demo.yaml --nodes 2 --folder results

Asks Slurm what it is (cluster.py), compares what a sweep will ask for with that (plan.py), then sends a small probe to
some nodes (nodes.py; probe.py runs there, visits.py judges its answers). Each finding is one line; the exit status is 1
when one of them is a FAIL. Nothing is left behind.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

from nightsweep.jobs.slurm.doctor import cluster, nodes, plan
from nightsweep.jobs.slurm.doctor.findings import FAIL, Finding, fail, ok, warn
from nightsweep.jobs.slurm.profile import Profile
from nightsweep.jobs.sweep.sweep import Sweep

EXECUTOR = "snakemake_executor_plugin_submitit"


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the operator means to use."""

    folder: Path
    partition: str | None = None
    account: str | None = None
    nodes: int = 2
    profile: Profile = field(default_factory=Profile)
    sweep: Sweep | None = None


def examine(wish: Wish) -> Iterator[Finding]:
    """The findings, each as soon as it is known; a check whose ground is missing is left out."""
    yield from (findings := cluster.commands())
    if has_failure(findings):
        return
    yield from executor()
    yield from inside(os.environ)
    yield from (findings := cluster.controller())
    if has_failure(findings):
        return
    yield from cluster.settings()
    account = wish.account or wish.profile.settings.account
    partition, findings = cluster.partition(wish.partition or wish.profile.settings.partition)
    yield from findings
    if partition is None:
        return
    yield from (findings := cluster.rehearsal(partition, account))
    if wish.sweep is not None:
        yield from plan.examine(wish.sweep, wish.profile, partition)
    if not has_failure(findings):
        yield from nodes.examine(partition, account, wish.nodes, wish.folder)


def has_failure(findings: list[Finding]) -> bool:
    return any(finding.level == FAIL for finding in findings)


def executor() -> list[Finding]:
    """What brings the points to Slurm."""
    findings = []
    try:
        importlib.import_module(EXECUTOR)
        findings.append(ok("executor", f"executor plugin {EXECUTOR}"))
    except Exception as error:  # whatever a half installed package raises
        findings.append(warn("executor", f"executor plugin: {error}; `snakemake --executor submitit` will not work"))
    try:
        findings.append(ok("submitit", f"submitit {importlib.metadata.version('submitit')}"))
    except importlib.metadata.PackageNotFoundError:
        findings.append(fail("submitit", "submitit: not installed"))
    return findings


def inside(environment: Mapping[str, str]) -> list[Finding]:
    """Whether the driver would run inside a job."""
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return [ok("driver", "driver: outside of any job")]
    return [warn("driver", f"driver: inside job {job}; a sweep started here ends with that job")]


def report(wish: Wish, as_json: bool) -> int:
    """Print the findings; the exit status."""
    found = []
    for finding in examine(wish):
        found.append(finding)
        if not as_json:
            print(finding, flush=True)  # at once: the probe may wait a minute for nodes
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=2))
    return int(has_failure(found))
