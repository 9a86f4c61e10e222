"""Whether a rank that is forked in a job of many points measures what a new Python measures.

    python3 -m tests.gpu_host.equivalence measure OUT --seconds 500 [--device cpu]
    python3 -m tests.gpu_host.equivalence tell OUT/starts-*.jsonl ...

Pairs of starts of four points, in turns that swap: one side is a new Python, as a point that runs alone is; the other
is forked by a server that forked the points before it, as in a batch. All GPUs are used at the same time, each with its
share of the cores. While one start has the GPU, the next new Python imports what it needs, and waits.

Equivalent are times whose ratio is, by two one-sided tests at 5 %, within 1 % of 1: the 90 % interval lies within.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from statistics import median, stdev
from typing import Any

from jobs.host.facts import ROOT
from jobs.launch import watchdog
from jobs.launch.starts import Servers
from jobs.point import plan
from jobs.point.point import Point, complete
from jobs.record.folder import RunFolder
from jobs.record.json_files import read_json, read_lines
from jobs.record.launch_files import RankResult, StepLine
from jobs.sweep.order import Order
from tests.gpu_host.core_speed import CORE_VARIABLE, FILE
from tests.labelled.ahead import GO_VARIABLE

SITE = Path(__file__).parent / "site"
LOOK_AHEAD = 3
BOUND = math.log(1.01)
LIMITS = watchdog.Limits(120, 300)
_COMMON = {"traced_steps": 0, "warmup_steps": 5, "strategy": "ddp"}
_LLAMA = {"workload": "llm", "model": "llama-160m", "precision": "bf16", "optimizer_kernels": "fused"}
CASES: dict[str, dict[str, Any]] = {
    "launch-bound": _LLAMA | {"seq_len": 128, "micro_batch": 1, "timed_steps": 80},
    "GPU-bound": {"workload": "image", "model": "resnet50", "image_size": 224, "micro_batch": 256, "precision": "bf16",
                  "layout": "nhwc", "loader": "device", "loader_workers": 0, "pin_memory": False, "timed_steps": 20},
    "loader-bound": {"workload": "image", "model": "mobilenet_v2", "image_size": 300, "micro_batch": 32,
                     "precision": "bf16", "loader_workers": 1, "across_epochs": True, "timed_steps": 20},
    "compiled": {"workload": "image", "model": "vit_s", "image_size": 224, "micro_batch": 512, "precision": "bf16",
                 "loader": "device", "loader_workers": 0, "pin_memory": False, "compile": "default", "timed_steps": 20},
}  # fmt: skip
ON_CPU = {
    "llama-160m": {"model": "llama-nano", "seq_len": 32, "micro_batch": 2, "precision": "fp32",
                   "optimizer_kernels": "default"},
    "vit_s": {"image_size": 32, "micro_batch": 4, "precision": "fp32", "loader": "torch"},
    "resnet50": {"model": "mobilenet_v2", "image_size": 32, "micro_batch": 4, "precision": "fp32", "loader": "torch"},
    "mobilenet_v2": {"image_size": 32, "micro_batch": 4, "precision": "fp32"},
}  # fmt: skip


def point(case: str, device: str) -> Point:
    settings = _COMMON | CASES[case] | {"device": device}
    return complete(settings | ON_CPU[settings["model"]] | {"timed_steps": 5} if device == "cpu" else settings)


def schedule() -> Iterator[tuple[int, str, str]]:
    """Pair, case and side of each start, without end."""
    for pair in count():
        for place, case in enumerate(CASES):
            sides = ("new", "forked") if (pair + place) % 2 == 0 else ("forked", "new")
            yield from ((pair, case, side) for side in sides)


class New:
    """A start as a new Python that waits for its turn."""

    def __init__(self, folder: RunFolder, order: Order) -> None:
        self.go = folder.path.with_suffix(".go")
        self.go.unlink(missing_ok=True)
        self.ranks = watchdog.Ranks(folder, order, LIMITS, {GO_VARIABLE: str(self.go)}, None)

    def watch(self) -> watchdog.Outcome:
        self.go.touch()
        self.ranks.started = time.time()
        return self.ranks.watch(lambda: False)


def measure_on(gpu: int, out: Path, device: str, seconds: float) -> None:
    """All starts on one GPU, until the time is over."""
    end, work = time.monotonic() + seconds, Path(f"/tmp/equivalence/gpu{gpu}")
    shutil.rmtree(work, ignore_errors=True)
    waiting: dict[int, New] = {}
    starts: list[tuple[int, str, str]] = []
    endless = schedule()
    with Servers() as servers, (out / f"starts-gpu{gpu}.jsonl").open("a") as sink:
        for number in count():
            if time.monotonic() > end:
                break
            starts += islice(endless, number + LOOK_AHEAD - len(starts))
            for later in range(number, number + LOOK_AHEAD):
                if starts[later][2] == "new" and later not in waiting:
                    waiting[later] = New(*folder_of(work, later, starts[later][1], device))
            pair, case, side = starts[number]
            began = time.monotonic()
            if side == "new":
                folder = waiting[number].ranks.run_folder
                outcome = waiting.pop(number).watch()
                waiting = {later: new for later, new in waiting.items() if later > number}
            else:
                folder, order = folder_of(work, number, case, device)
                outcome = watchdog.Ranks(folder, order, LIMITS, {}, servers).watch(lambda: False)
            line = {"gpu": gpu, "pair": pair, "case": case, "side": side, "s": time.monotonic() - began}
            line |= {"failed": outcome.message} if outcome.reason else result(folder)
            sink.write(json.dumps(line) + "\n")
            sink.flush()
            shutil.rmtree(folder.path)
        for new in waiting.values():
            new.ranks.end()


def folder_of(work: Path, number: int, case: str, device: str) -> tuple[RunFolder, Order]:
    folder = RunFolder(work / str(number) / "timed")
    folder.path.mkdir(parents=True)
    asked = point(case, device)
    return folder, Order(settings=asked.settings(), blocks=plan.timed_blocks(asked))


def result(folder: RunFolder) -> dict[str, Any]:
    """What is compared of a start: the median timed step, ms; that over the core's speed beside it; memory; losses."""
    lines = list(read_lines(folder.steps(0), StepLine))
    timed = [line for line in lines if line.phase == "timed"]
    spans = [(line.device_ns or (line.end_ns or 0) - (line.start_ns or 0)) / 1e6 for line in timed]
    pieces = json.loads((folder.path / FILE).read_text())[-len(timed) :]
    known = read_json(folder.rank_file(0, "result.json"), RankResult)
    return {
        "step_ms": median(spans),
        "in_pieces": median(span / piece * 1e6 for span, piece in zip(spans, pieces, strict=True)),
        "piece_ms": median(pieces) / 1e6,
        "allocated": known and known.peak_allocated_bytes,
        "reserved": known and known.peak_reserved_bytes,
        "losses": [line.loss for line in lines],
    }


def measure(out: Path, device: str, seconds: float) -> None:
    """A process a GPU, each with its share of the cores."""
    import torch

    gpus = max(1, torch.cuda.device_count() if device == "cuda" else 0)
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // gpus
    out.mkdir(parents=True, exist_ok=True)
    paths = [str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    processes = []
    for gpu in range(gpus):
        own = cores[gpu * share : (gpu + 1) * share]
        core = own[-1]
        if len(own) > 2:
            own = [other for other in own if other not in siblings(core)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": str(gpu)}
        environment[CORE_VARIABLE] = str(core)
        command = ["taskset", "-c", ",".join(map(str, own)), sys.executable, "-m", "tests.gpu_host.equivalence", "on"]
        command += [str(gpu), str(out), device, str(seconds)]
        processes.append(subprocess.Popen(command, env=environment))
    for process in processes:
        process.wait()


def siblings(core: int) -> set[int]:
    """The CPUs that share a core with this one, and itself."""
    text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    ends = [part.split("-") for part in text.strip().split(",")]
    return {cpu for first, *last in ends for cpu in range(int(first), int((last or [first])[0]) + 1)}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and ends of its 90 % interval."""
    from scipy.special import stdtrit

    mean = sum(values) / len(values)
    half = float(stdtrit(len(values) - 1, 0.95)) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def tell(files: Sequence[Path]) -> None:
    """A row a case and quantity: how many pairs, the ratio forked / new and its 90 % interval, and whether that lies
    within 1 %; then how many pairs have equal memory and losses, beside pairs of new Pythons among themselves."""
    starts = [json.loads(line) | {"file": str(file)} for file in files for line in file.read_text().splitlines()]
    for start in starts:
        if "failed" in start:
            print(f"failed: {start['case']} {start['side']}: {start['failed']}")
    good = [start for start in starts if "failed" not in start]
    for case in CASES:
        by = {
            side: {(s["file"], s["gpu"], s["pair"]): s for s in good if (s["case"], s["side"]) == (case, side)}
            for side in ("new", "forked")
        }
        pairs = [(by["forked"][key], by["new"][key]) for key in by["forked"].keys() & by["new"].keys()]
        if len(pairs) < 2:
            continue
        for name in ("step_ms", "in_pieces"):
            logs = [math.log(forked[name] / new[name]) for forked, new in pairs]
            mean, low, high = interval(logs)
            within = "equivalent" if low > -BOUND and high < BOUND else "not shown"
            spread = 100 * stdev(logs) / math.sqrt(2)
            print(
                f"{case:13} {name:10} {len(pairs):3} pairs  {math.exp(mean):.4f} ({math.exp(low):.4f} to"
                f" {math.exp(high):.4f})  {within:10}  sd of a start {spread:.1f} %"
                f"  median {median(new[name] for _, new in pairs):.2f}"
            )
        own = sorted(by["new"].items())
        among = [(one, other) for (_, one), (_, other) in zip(own[::2], own[1::2], strict=False)]
        for name in ("allocated", "reserved", "losses"):
            equal = sum(forked[name] == new[name] for forked, new in pairs)
            equal_new = sum(one[name] == other[name] for one, other in among)
            print(
                f"{case:13} {name:10} equal in {equal} of {len(pairs)} pairs; new among new {equal_new} of {len(among)}"
            )
        seconds = {side: median(start["s"] for start in by[side].values()) for side in by}
        print(f"{case:13} seconds    forked {seconds['forked']:.1f}, new (after its imports) {seconds['new']:.1f}")


def main() -> None:
    if sys.argv[1:2] == ["on"]:
        measure_on(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu_host.equivalence", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--seconds", type=float, required=True)
    measuring.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    commands.add_parser("tell").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "measure":
        measure(options.out, options.device, options.seconds)
    else:
        tell(options.files)


if __name__ == "__main__":
    main()
