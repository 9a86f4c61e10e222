"""Whether a rank that is forked in a job of many points measures what a new Python measures.

    python3 -m tests.gpu_host.equivalence measure OUT --seconds 500 [--device cpu]
    python3 -m tests.gpu_host.equivalence tell OUT/pairs-*.jsonl ...

Pairs of ranks of four points: one is a new Python, as that of a point which runs alone; the other is forked by a
server that forked those of the points before it, as in a batch. Both are alive at the same time and take turns of some
steps on the GPU (baton.py) and on the same two cores, which nothing else runs on. All GPUs are used, each with its
share of the cores. While a pair has the GPU, the next new Pythons import what they need, and wait.

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
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import mean, median, pvariance
from typing import Any

from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.launch import watchdog
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.point import plan
from nightsweep.jobs.point.point import Point, complete
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import read_json, read_lines
from nightsweep.jobs.record.launch_files import RankResult, StepLine
from nightsweep.jobs.sweep.order import Order
from tests.gpu_host import baton
from tests.gpu_host.baton import SIDES, Turns
from tests.labelled.ahead import GO_VARIABLE

SITE = Path(__file__).parent / "site"
CORES_VARIABLE = "NIGHTSWEEP_TEST_CORES"
AHEAD = 2
BOUND = math.log(1.01)
LIMITS = watchdog.Limits(120, 300)
_COMMON = {"traced_steps": 0, "warmup_steps": 5, "strategy": "ddp"}
_ON_DEVICE = {"loader": "device", "loader_workers": 0, "pin_memory": False}


@dataclass(frozen=True)
class Case:
    """A point, and its turns: how many steps each, and how many of them lead in."""

    settings: dict[str, Any]
    steps: int
    lead: int


CASES = {
    "launch-bound": Case(
        {"workload": "llm", "model": "llama-160m", "precision": "bf16", "optimizer_kernels": "fused", "seq_len": 128,
         "micro_batch": 1, "timed_steps": 100}, steps=5, lead=1),
    "GPU-bound": Case(
        {"workload": "image", "model": "resnet50", "image_size": 224, "micro_batch": 256, "precision": "bf16",
         "layout": "nhwc", "timed_steps": 24} | _ON_DEVICE, steps=6, lead=1),
    "loader-bound": Case(  # decoding is the same work each time; new memory for large batches is not
        {"workload": "image", "model": "mobilenet_v2", "image_size": 500, "micro_batch": 32, "precision": "bf16",
         "source": "jpeg", "pixels": "uint8", "loader_workers": 1, "across_epochs": True, "timed_steps": 32},
        steps=8, lead=4),
    "compiled": Case(
        {"workload": "image", "model": "vit_s", "image_size": 224, "micro_batch": 384, "precision": "bf16",
         "compile": "default", "timed_steps": 24} | _ON_DEVICE, steps=6, lead=1),
}  # fmt: skip
ROUND = ("launch-bound", "GPU-bound", "loader-bound", "launch-bound", "compiled")
"""What the host decides varies most, so it comes twice, once with either side first."""
ON_CPU = {
    "llama-160m": {"model": "llama-nano", "seq_len": 32, "micro_batch": 2, "precision": "fp32",
                   "optimizer_kernels": "default"},
    "vit_s": {"image_size": 32, "micro_batch": 4, "precision": "fp32", "loader": "torch"},
    "resnet50": {"model": "mobilenet_v2", "image_size": 32, "micro_batch": 4, "precision": "fp32", "loader": "torch"},
    "mobilenet_v2": {"image_size": 32, "micro_batch": 4, "precision": "fp32"},
}  # fmt: skip


def point(case: str, device: str) -> Point:
    settings = _COMMON | CASES[case].settings | {"device": device}
    if device == "cpu":
        settings |= ON_CPU[settings["model"]] | {"timed_steps": 2 * CASES[case].steps}
    return complete(settings)


def schedule(cases: Sequence[str] = ROUND) -> Iterator[tuple[int, str, str]]:
    """Number, case and the side that begins, of each pair, without end."""
    for number in count():
        place = number % len(cases)
        yield number, cases[place], SIDES[(number // len(cases) + place) % 2]


class Rank:
    """A side of a pair; the start of a new Python waits until it is let go."""

    def __init__(self, pair: Path, side: str, asked: Point, servers: Servers | None) -> None:
        self.folder, self.go = RunFolder(pair / side / "timed"), pair / f"{side}.go"
        self.folder.path.mkdir(parents=True)
        order = Order(settings=asked.settings(), blocks=plan.timed_blocks(asked))
        self.ranks = watchdog.Ranks(self.folder, order, LIMITS, {} if servers else {GO_VARIABLE: str(self.go)}, servers)

    def watch(self, failed: threading.Event) -> None:
        """Let it go, and see it end; `failed` is set where it ends badly, and ends it where the other one has."""
        self.go.touch()
        self.ranks.started = time.time()
        self.outcome = self.ranks.watch(failed.is_set)
        if self.outcome.reason:
            failed.set()


def measure_on(gpu: int, out: Path, device: str, seconds: float, cases: Sequence[str]) -> None:
    """All pairs on one GPU, until the time is over; what has begun is finished."""
    end, work = time.monotonic() + seconds, Path(f"/tmp/equivalence/gpu{gpu}")
    shutil.rmtree(work, ignore_errors=True)
    endless, ahead = schedule(cases), deque[tuple[int, str, str, Rank]]()
    with Servers() as servers, (out / f"pairs-gpu{gpu}.jsonl").open("a") as sink:
        while time.monotonic() < end:
            while len(ahead) <= AHEAD:
                number, case, first = next(endless)
                ahead.append((number, case, first, laid_out(work / str(number), case, first, device)))
            number, case, first, new = ahead.popleft()
            began = time.monotonic()
            sides = {"new": new, "forked": Rank(work / str(number), "forked", point(case, device), servers)}
            failed = threading.Event()
            watchers = [threading.Thread(target=side.watch, args=(failed,)) for side in sides.values()]
            for watcher in watchers:
                watcher.start()
            for watcher in watchers:
                watcher.join()
            line = {"gpu": gpu, "number": number, "case": case, "first": first, "s": time.monotonic() - began}
            if failed.is_set():
                line |= {"failed": " / ".join(f"{name}: {side.outcome.message}" for name, side in sides.items())}
            else:
                line |= {name: result(side.folder) for name, side in sides.items()}
            sink.write(json.dumps(line) + "\n")
            sink.flush()
            shutil.rmtree(work / str(number))
        for *_, new in ahead:
            new.ranks.end()


def laid_out(pair: Path, case: str, first: str, device: str) -> Rank:
    """The folder of a pair, and its new Python, which loads and waits."""
    cores = map(int, os.environ.get(CORES_VARIABLE, "").split())
    core, loader_core = next(cores, None), next(cores, None)
    turns = Turns(first=first, steps=CASES[case].steps, lead=CASES[case].lead, core=core, loader_core=loader_core)
    baton.prepare(pair, turns)
    return Rank(pair, "new", point(case, device), None)


def result(folder: RunFolder) -> dict[str, Any]:
    """What is compared of a side: the time of a step in each slice, ms; memory; losses."""
    known = read_json(folder.rank_file(0, "result.json"), RankResult)
    return {
        "slices": json.loads((folder.path / baton.FILE).read_text()),
        "allocated": known and known.peak_allocated_bytes,
        "reserved": known and known.peak_reserved_bytes,
        "losses": [line.loss for line in read_lines(folder.steps(0), StepLine)],
    }


def ratio(pair: dict[str, Any]) -> float:
    """Logarithm of forked / new of a pair: the median over slices that follow each other."""
    both = zip(pair["forked"]["slices"], pair["new"]["slices"], strict=True)
    return median(math.log(forked / new) for forked, new in both)


def measure(out: Path, device: str, seconds: float, cases: Sequence[str]) -> None:
    """A process a GPU, each with its share of the cores."""
    import torch

    gpus = max(1, torch.cuda.device_count() if device == "cuda" else 0)
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // gpus
    out.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    processes = []
    for gpu in range(gpus):
        own = cores[gpu * share : (gpu + 1) * share]
        kept = kept_cores(own)
        others = sorted(set(own) - {core for one in kept for core in siblings(one)})
        command = ["taskset", "-c", ",".join(map(str, others)), sys.executable, "-m", "tests.gpu_host.equivalence"]
        command += ["on", str(gpu), str(out), device, str(seconds), *cases]
        environment = os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": str(gpu)}
        environment[CORES_VARIABLE] = " ".join(map(str, kept))
        processes.append(subprocess.Popen(command, env=environment))
    for process in processes:
        process.wait()


def kept_cores(own: Sequence[int]) -> list[int]:
    """Two of these CPUs that are no siblings, for ranks and their loaders alone; none where there are few."""
    first = own[-1]
    rest = [core for core in own if core not in siblings(first)]
    return [first, rest[-1]] if len(own) >= 8 else []


def siblings(core: int) -> set[int]:
    """The CPUs that share a core with this one, and itself."""
    text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    ends = [part.split("-") for part in text.strip().split(",")]
    return {cpu for first, *last in ends for cpu in range(int(first), int((last or [first])[0]) + 1)}


@dataclass(frozen=True)
class Effect:
    """Of forking on the logarithm of time: its mean, half of its 90 % interval, standard deviation of a pair."""

    mean: float
    half: float
    deviation: float


def crossover(groups: Sequence[Sequence[float]]) -> Effect:
    """From the logarithms of pairs in which one side began, and of those in which the other did: which comes second may
    have an effect of its own, so it is the mean of both groups' means, and the deviation that within them (a crossover
    design of two periods; Jones and Kenward, Design and Analysis of Cross-Over Trials)."""
    from scipy.special import stdtrit

    free = sum(len(group) - 1 for group in groups)
    squares = sum(len(group) * pvariance(group) for group in groups)
    deviation = math.sqrt(squares / free)
    error = deviation * math.sqrt(sum(1 / len(group) for group in groups)) / len(groups)
    return Effect(sum(map(mean, groups)) / len(groups), float(stdtrit(free, 0.95)) * error, deviation)


def tell(files: Sequence[Path]) -> None:
    """A row a case: how many pairs, the ratio forked / new and its 90 % interval, and whether that lies within 1 %;
    then how many pairs have equal memory and losses, beside pairs of new Pythons among themselves, and how often either
    side had each peak of memory, in MB above the lowest."""
    pairs = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for pair in pairs:
        if "failed" in pair:
            print(f"failed: {pair['case']}: {pair['failed']}")
    for case in CASES:
        good = [pair for pair in pairs if pair["case"] == case and "failed" not in pair]
        groups = [[ratio(pair) for pair in good if pair["first"] == side] for side in SIDES]
        if min(map(len, groups)) < 2:
            continue
        effect = crossover(groups)
        low, high = effect.mean - effect.half, effect.mean + effect.half
        within = "equivalent" if low > -BOUND and high < BOUND else "not shown"
        print(
            f"{case:13} {len(good):3} pairs  {math.exp(effect.mean):.4f} ({math.exp(low):.4f} to {math.exp(high):.4f})"
            f"  {within:10}  sd of a pair {100 * effect.deviation:.2f} %"
            f"  a step {median(median(pair['new']['slices']) for pair in good):.2f} ms"
            f"  a pair {median(pair['s'] for pair in good):.1f} s"
        )
        for name in ("allocated", "reserved", "losses"):
            equal = sum(pair["forked"][name] == pair["new"][name] for pair in good)
            among = [one["new"][name] == other["new"][name] for one, other in zip(good[::2], good[1::2], strict=False)]
            new = f"new among new {sum(among)} of {len(among)}"
            print(f"{case:13} {name:10} equal in {equal} of {len(good)} pairs; {new}{levels(good, name)}")


def levels(pairs: Sequence[dict[str, Any]], name: str) -> str:
    """How often either side had each peak of memory."""
    if name == "losses":
        return ""
    lowest = min(pair[side][name] for pair in pairs for side in SIDES)
    found = {side: Counter(round((pair[side][name] - lowest) / 1e6) for pair in pairs) for side in SIDES}
    told = (f"{side} " + " ".join(f"{n}x{peak}" for peak, n in sorted(f.items())) for side, f in found.items())
    return "; MB above the lowest: " + ", ".join(told)


def main() -> None:
    if sys.argv[1:2] == ["on"]:
        measure_on(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], float(sys.argv[5]), sys.argv[6:])
        return
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu_host.equivalence", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--seconds", type=float, required=True)
    measuring.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    measuring.add_argument("--cases", nargs="+", choices=CASES, default=ROUND, metavar="CASE", help="of a round")
    commands.add_parser("tell").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "measure":
        measure(options.out, options.device, options.seconds, options.cases)
    else:
        tell(options.files)


if __name__ == "__main__":
    main()
