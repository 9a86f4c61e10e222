"""How fast the built-in workloads are beside the plain loop of a careful user, on one GPU, both compiled and in bf16.
`float8` is Llama in float8 beside itself in bf16.

    python -m tests.bench.plain_loops OUT [--jobs resnet,llama] [--repeats 4] [--seconds 500]
    python -m tests.bench.plain_loops.tell OUT

Both sides are points, so that they are timed alike: the plain loops (torchvision's ResNet-50, transformers' Llama,
peft's LoRA) as scripts. They run in turns, A B B A, for a machine may be slower at one time than at another. Nothing
begins after the seconds; what OUT has is not run again. The batch is the same, and lies on the GPU; sides.py has what
the built-in side does otherwise. The second line needs no GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.record.raw_files import measured_record
from nightsweep.jobs.sweep import code
from tests.bench.plain_loops.sides import points


def measure(out: Path, jobs: list[str], repeats: int, seconds: float) -> None:
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    every = {job: points(job, repeats) for job in jobs}
    listed = {point.id: {"point_id": point.id, "settings": point.settings()} for own in every.values() for point in own}
    files = code.files_of([point for own in every.values() for point in own])
    write_json(out / "sweep.json", {"name": "plain-loops", "points": list(listed.values()), "files": files})
    for point in (own[n] for n in range(2 * repeats) for own in every.values()):
        folder = out / "points" / point.id
        if measured_record(folder) is None and time.monotonic() - begun < seconds:
            command = [sys.executable, "-m", "nightsweep.jobs.launch.launch", str(folder)]
            subprocess.run([*command, "--sweep", str(out / "sweep.json")], cwd=ROOT, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.plain_loops", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", default="resnet,llama", help="with commas between them: resnet, llama, lora, float8")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=500)
    args = parser.parse_args()
    measure(args.out.resolve(), args.jobs.split(","), args.repeats, args.seconds)


if __name__ == "__main__":
    main()
