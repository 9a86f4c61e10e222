"""Launches labelled scripts as they are slow under nsys, as a sweep does: points with a timed and a traced run.

    python -m tests.labelled.under_nsys OUT --peers DIR --images DIR --names a,b [--gpus 2] [--seconds 300]

OUT/NAME is the point. Scripts of one rank run side by side, one on each GPU. Where the host has `nsys analyze`, what
its rules say of the trace is OUT/NAME/analyze.txt.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from nightsweep.jobs.sweep import code
from tests.labelled import scripts
from tests.labelled.scripts import ScriptRun

LIMIT_S = 180


def launch(run: ScriptRun, gpus: list[int], args: argparse.Namespace) -> str:
    """Launch a point; what came of it, in a line."""
    point = dataclasses.replace(run.point("slow", args.peers, args.images), tracer="nsys", timed_steps=10)
    settings = code.with_code(point).settings()
    folder, listed = args.out / run.name, args.out / f"{run.name}.sweep.json"
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text(json.dumps({"name": "labelled", "points": [{"point_id": run.name, "settings": settings}]}))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    command = [
        sys.executable,
        "-m",
        "nightsweep.jobs.launch.launch",
        str(folder),
        "--sweep",
        str(listed),
        "--timeout-s",
        str(LIMIT_S),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    for report in folder.glob("traced/*.nsys-rep"):
        if shutil.which("nsys"):
            told = subprocess.run(["nsys", "analyze", str(report)], capture_output=True, text=True)
            (folder / "analyze.txt").write_text(told.stdout + told.stderr)
    return (done.stdout.strip() or done.stderr.strip()[-300:]).replace("\n", " ")


def work(gpus: list[int], waiting: queue.SimpleQueue[ScriptRun], args: argparse.Namespace) -> None:
    """One after the other on these GPUs, until none is left or time is over."""
    while time.monotonic() < args.until:
        try:
            run = waiting.get_nowait()
        except queue.Empty:
            return
        begun = time.monotonic()
        print(f"{launch(run, gpus, args)} ({time.monotonic() - begun:.0f} s)", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.labelled.under_nsys", description="Launch scripts under nsys.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--peers", type=Path, required=True, help="folder with the repositories of others")
    parser.add_argument("--images", type=Path, required=True, help="folder of pictures (scripts/make_data.py)")
    parser.add_argument("--names", required=True, help="these runs, with commas between them")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no launch after so long")
    args = parser.parse_args()
    args.until = time.monotonic() + args.seconds
    named = [run for run in scripts.load() if run.name in args.names.split(",")]
    for ranks in sorted({run.ranks for run in named}, reverse=True):
        waiting: queue.SimpleQueue[ScriptRun] = queue.SimpleQueue()
        for run in named:
            if run.ranks == ranks:
                waiting.put(run)
        sets = [list(range(at, at + ranks)) for at in range(0, max(1, args.gpus - ranks + 1), ranks)]
        threads = [threading.Thread(target=work, args=(gpus, waiting, args)) for gpus in sets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
