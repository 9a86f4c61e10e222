"""How fast the built-in workloads are beside the plain loop of a careful user: one GPU, both compiled, both in bf16.

    python -m tests.bench.plain_loops OUT [--jobs resnet,llama] [--repeats 4] [--seconds 500]
    python -m tests.bench.plain_loops OUT --tell

Both sides are points, so that they are timed alike: the plain loops (torchvision's ResNet-50, transformers' Llama) as
scripts. They run in turns, A B B A, for a machine may be slower at one time than at another. Nothing begins after the
seconds; what OUT has is not run again. The batch is the same, and lies on the GPU; SIDES has what the built-in side does
otherwise.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.point.point import Point, complete
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.record.raw_files import measured_record
from nightsweep.jobs.sweep import code

HERE = Path(__file__).parent
BASE: dict[str, Any] = {"device": "cuda", "warmup_steps": 5, "timed_steps": 30, "traced_steps": 0}
RESNET: dict[str, Any] = {
    "workload": "image",
    "model": "resnet50",
    "image_size": 224,
    "micro_batch": 512,
    "precision": "bf16_pure",
    "layout": "nhwc",
    "compile": "default",
    "cudnn_benchmark": True,
    "optimizer": "sgd",
    "optimizer_kernels": "fused",
    "learning_rate": 0.01,
    "loader": "device",
    "source": "small",
    "space_to_depth": True,
}
LLAMA: dict[str, Any] = {
    "workload": "llm",
    "model": "llama-8b",
    "method": "full",
    "seq_len": 4096,
    "micro_batch": 2,
    "precision": "bf16_pure",
    "compile": "default",
    "attention": "cudnn",
    "optimizer": "adamw",
    "optimizer_kernels": "fused",
    "learning_rate": 1e-5,
    "loss_chunks": 4,
    "timed_steps": 12,
}
PLAIN: dict[str, Any] = {"workload": "command", "launcher": "none", "workdir": str(HERE)}
SIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "resnet": (PLAIN | {"command": "resnet.py"}, RESNET),
    "llama": (PLAIN | {"command": "llama.py", "timed_steps": 12}, LLAMA),
    "float8": (LLAMA, LLAMA | {"float8": "tensorwise"}),
}
"""Of each job what is the reference, and what is compared with it."""


def points(job: str, repeats: int) -> list[Point]:
    """In turns that swap."""
    sides = [BASE | side for side in SIDES[job]]
    turns = (side | {"repeat": n} for n in range(repeats) for side in (sides if n % 2 == 0 else sides[::-1]))
    return [code.with_code(complete(settings)) for settings in turns]


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


def tell(out: Path, jobs: list[str], repeats: int) -> None:
    """A line for each job: how long a step of the second side takes over one of the first."""
    import polars as pl

    from nightsweep.analysis.sweep import precision

    tool, have = "nightsweep.analysis.tools", [path.name for path in (out / "points").iterdir()]
    derive = [f"{tool}.derive", str(out), "--chunk", "0", "--points", *have]
    collect = [
        f"{tool}.collect",
        str(out / "sweep.json"),
        "--derived",
        str(out / "derived"),
        "--out",
        str(out / "tables"),
    ]
    for command in (derive, collect):
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True)
    table = pl.read_parquet(out / "tables/points.parquet").filter(pl.col("status") == "ok")
    means = dict(table.select("point_id", "step_ms_mean").iter_rows())
    for job in jobs:
        sides: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for n, point in enumerate(points(job, repeats)):
            side = n % 2 if point.repeat % 2 == 0 else 1 - n % 2
            if point.id in means:
                sides[side][point.repeat] = means[point.id]
        listed = " against ".join(", ".join(f"{ms:.1f}" for ms in side.values()) for side in sides)
        if (found := precision.ratio(*sides)) is None:
            print(f"{job}: {listed} ms; no pair")
            continue
        low, high = found.interval
        known = f" ({1 / high:.3f} to {1 / low:.3f})" if low else ""
        print(f"{job}: {listed} ms; {1 / found.value:.3f} times as fast{known}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.plain_loops", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", default="resnet,llama")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--tell", action="store_true", help="measure nothing")
    args = parser.parse_args()
    out, jobs = args.out.resolve(), args.jobs.split(",")
    if not args.tell:
        measure(out, jobs, args.repeats, args.seconds)
    tell(out, jobs, args.repeats)


if __name__ == "__main__":
    main()
