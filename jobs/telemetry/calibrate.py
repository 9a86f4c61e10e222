"""Runs the telemetry of this machine against known loads, and keeps what it wrote:

    nightsweep calibrate FOLDER                   # measures, and tells what is found (analysis/tools/calibration.py)
    python -m jobs.telemetry.calibrate FOLDER     # measures only: on a node without polars; read FOLDER elsewhere

FOLDER then holds `steady/` and, where nsys works, `bursts/`: a run each, with the sampler's log, loads.jsonl and, in
bursts/, the nsys export trace-r0.sqlite.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jobs.host import gpus
from jobs.point.point import complete
from jobs.record.folder import RunFolder
from jobs.record.launch_files import Value
from jobs.sweep.order import Order
from jobs.telemetry.samplers import Started
from jobs.telemetry.trace import nsys

POINT: dict[str, Value] = {"workload": "image", "model": "mobilenet_v2", "traced_steps": 1}


def measure(folder: Path, load: str, hz: int, prefix: list[str]) -> int:
    """One load with the samplers beside it; its exit status."""
    run_folder = RunFolder(folder / load)
    run_folder.path.mkdir(parents=True)
    order = Order(settings=POINT | {"nvml_hz": hz})
    order.write(run_folder)
    samplers = Started(run_folder, order)
    try:
        command = [*prefix, sys.executable, "-m", "jobs.telemetry.loads", str(run_folder.path), load]
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
    why = run(Path(sys.argv[1]))
    if why:
        print(why, file=sys.stderr)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
