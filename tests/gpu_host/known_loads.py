"""Runs the telemetry of this machine against known loads, and keeps what it wrote:

    python -m tests.gpu_host.known_loads FOLDER     # measures: on a GPU machine, which needs no polars
    python -m tests.gpu_host.calibration FOLDER     # says what is found, there or elsewhere

FOLDER then holds `steady/` and, where nsys works, `bursts/`: a run each, with the sampler's log, loads.jsonl and, in
bursts/, the nsys export trace-r0.sqlite.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from nightsweep.jobs.host import gpus
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.launch_files import Value
from nightsweep.jobs.sweep.order import Order
from nightsweep.jobs.telemetry.samplers import Started
from nightsweep.jobs.telemetry.trace import nsys

POINT: dict[str, Value] = {"workload": "image", "model": "mobilenet_v2", "traced_steps": 1}


def measure(folder: Path, load: str, hz: int, prefix: list[str]) -> int:
    """One load with the samplers beside it; its exit status."""
    run_folder = RunFolder(folder / load)
    run_folder.path.mkdir(parents=True)
    order = Order(settings=POINT | {"nvml_hz": hz})
    order.write(run_folder)
    samplers = Started(run_folder, order)
    try:
        command = [*prefix, sys.executable, "-m", "tests.gpu_host.loads", str(run_folder.path), load]
        with run_folder.log.open("ab") as log:
            return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
    finally:
        samplers.end()


def run(folder: Path, hz: int = 10, with_nsys: bool = True) -> str | None:
    """All loads; why it could not be done, or None."""
    works, why = gpus.probe()
    if not works:
        return why
    if folder.exists() and any(folder.iterdir()):
        return f"{folder}: is not empty; a new folder was expected"
    if measure(folder, "steady", hz, []):
        return f"{folder}: the loads failed; see {folder / 'steady/launch.log'}"
    found = nsys.probe()
    if not with_nsys or not found.works:
        print(f"no bursts under nsys: {found.text}", file=sys.stderr)
        return None
    run_folder = RunFolder(folder / "bursts")
    prefix = nsys.profile_command(run_folder, 0, complete(POINT))
    if measure(folder, "bursts", hz, prefix):
        return f"{folder}: the bursts failed; see {run_folder.log}"
    return nsys.export(run_folder, [0], keep_report=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_host.known_loads", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder for what is measured, new or empty")
    parser.add_argument("--hz", type=int, default=10, choices=range(1, 51), metavar="N", help="sampling rate (10)")
    parser.add_argument("--no-nsys", action="store_true", help="leave out the bursts under Nsight Systems")
    args = parser.parse_args()
    why = run(args.folder, args.hz, with_nsys=not args.no_nsys)
    if why:
        print(why, file=sys.stderr)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
