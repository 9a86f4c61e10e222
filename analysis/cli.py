"""The command `nightsweep`.

nightsweep check config/demo.yaml --preset smoke --list
nightsweep doctor --partition gpu --nodes 2
nightsweep retry config/demo.yaml
nightsweep watch results
nightsweep publish results/demo --out demo-public

Exit status: 0 done, 1 the doctor found what will not work, or publish a secret, 2 the sweep or command line is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import live_view
from analysis.live import LiveError
from jobs import doctor, verdict
from jobs.estimate import NOTE, Estimate, estimate
from jobs.point import Point
from jobs.sweep import Sweep, SweepError, load

EXIT_WRONG = 2
EXIT_PIPE = 141  # what a shell gives for a program ended by SIGPIPE


def parser() -> argparse.ArgumentParser:
    """The command line. A subcommand is a function `(arguments) -> exit status` set as `run`."""
    top = argparse.ArgumentParser(prog="nightsweep", description="Sweeps of multi-GPU training jobs.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    check_ = commands.add_parser("check", help="check a sweep and tell its size, before anything runs")
    check_.add_argument("config", type=Path, metavar="CONFIG", help="sweep file, such as config/demo.yaml")
    check_.add_argument("--preset", metavar="P", help="preset of the file to lay over it")
    check_.add_argument("--list", action="store_true", help="list the points: id and the settings that vary")
    check_.add_argument("--json", action="store_true", help="print JSON")
    check_.set_defaults(run=check)
    doctor_ = commands.add_parser("doctor", help="check this Slurm cluster, before a sweep runs on it")
    doctor_.add_argument("--folder", type=Path, metavar="DIR", help="where results go (results, or this folder)")
    doctor_.add_argument("--partition", metavar="NAME", help="partition of the jobs (the cluster's default)")
    doctor_.add_argument("--account", metavar="NAME", help="account of the jobs")
    doctor_.add_argument("--nodes", type=int, default=2, metavar="N", help="nodes to probe at most (2)")
    doctor_.add_argument("--json", action="store_true", help="print JSON")
    doctor_.set_defaults(run=examine)
    retry_ = commands.add_parser("retry", help="let the next run measure points again that were lost or cancelled")
    retry_.add_argument("config", type=Path, metavar="CONFIG", help="sweep file")
    retry_.add_argument("--preset", metavar="P", help="preset of the file to lay over it")
    retry_.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="results folder (results)")
    retry_.set_defaults(run=retry)
    watch_ = commands.add_parser("watch", help="look at a sweep while it runs: points, GPUs, what needs a person")
    watch_.add_argument("results", type=Path, metavar="RESULTS", help="results folder, or results/SWEEP")
    watch_.add_argument("--once", action="store_true", help="look once, and end")
    watch_.add_argument("--json", action="store_true", help="print JSON: a document, or one a line without --once")
    watch_.add_argument("--interval", type=seconds, default=2.0, metavar="S", help="seconds between looks (2)")
    watch_.set_defaults(run=watch)
    publish_ = commands.add_parser("publish", help="copy results for the web, without who ran them and where")
    publish_.add_argument("sweep", type=Path, metavar="RESULTS/SWEEP", help="folder of the sweep's results")
    publish_.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write, new or empty")
    publish_.add_argument("--traces", action="store_true", help="traces too")
    publish_.set_defaults(run=publish)
    return top


def seconds(text: str) -> float:
    """A time between two looks, as the command line gives it."""
    value = float(text)
    if not 0.1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 86400")
    return value


def watch(arguments: argparse.Namespace) -> int:
    """`nightsweep watch`."""
    try:
        return live_view.follow(arguments.results, arguments.once, arguments.json, arguments.interval)
    except LiveError as error:
        print(f"nightsweep watch: {error}", file=sys.stderr)
        return EXIT_WRONG


def publish(arguments: argparse.Namespace) -> int:
    """`nightsweep publish`."""
    from analysis import publish as publishing  # it draws: what it imports takes a second

    return publishing.publish(arguments.sweep, arguments.out, arguments.traces)


def retry(arguments: argparse.Namespace) -> int:
    """`nightsweep retry`: set aside the records of points that say nothing about the points themselves."""
    try:
        sweep = load(arguments.config, arguments.preset)
    except SweepError as error:
        return refuse(arguments.config, error)
    points = arguments.results / sweep.name / "points"
    reasons = {point.id: verdict.set_aside(points / point.id) for point in sweep.points}
    found = {point: reason for point, reason in reasons.items() if reason}
    for point, reason in found.items():
        print(f"{point} {reason}")
    print(f"{counted(len(found), 'point')} set aside; run the sweep again to measure")
    return 0


def refuse(config: Path, error: SweepError) -> int:
    for line in error.errors:
        print(f"{config}: {line}", file=sys.stderr)
    return EXIT_WRONG


def check(arguments: argparse.Namespace) -> int:
    """`nightsweep check`."""
    try:
        sweep = load(arguments.config, arguments.preset)
    except SweepError as error:
        return refuse(arguments.config, error)
    cost = estimate(sweep.points)
    if arguments.json:
        print(json.dumps(as_json(sweep, cost, arguments.list), indent=2))
    else:
        print("\n".join(summary(sweep, cost) + (listing(sweep) if arguments.list else [])))
    return 0


def examine(arguments: argparse.Namespace) -> int:
    """`nightsweep doctor`."""
    folder = arguments.folder or doctor.default_folder()
    wish = doctor.Wish(folder, arguments.partition, arguments.account, arguments.nodes)
    return doctor.report(wish, arguments.json)


def summary(sweep: Sweep, cost: Estimate) -> list[str]:
    """The size of a sweep in lines of text."""
    title = sweep.name + (f", preset {sweep.preset}" if sweep.preset else "")
    largest = cost.shapes[0]
    lines = [
        f"{title}: {counted(len(sweep.points), 'point')}",
        f"largest: {largest.nodes} x {largest.ranks_per_node} (nodes x ranks), {counted(largest.gpus, 'GPU')}",
    ]
    for s in cost.shapes:
        lines.append(
            f"  {s.nodes} x {s.ranks_per_node}: {counted(s.points, 'point')} of {counted(s.gpus, 'GPU')}, "
            f"{counted(s.points * s.gpus, 'GPU')} in all, {s.gpu_hours:.3g} GPU-hours"
        )
    lines.append(
        f"estimate: {cost.gpu_hours:.3g} GPU-hours, {cost.wall_hours:.3g} h one point after another, "
        f"{size(cost.disk_bytes)} of disk"
    )
    return [*lines, f"  ({NOTE})"]


def listing(sweep: Sweep) -> list[str]:
    """One line for each point: id and the settings that vary."""
    names = sweep.varying()
    return ["", *(f"{point.id}  {_told(point, names)}".rstrip() for point in sweep.points)]


def _told(point: Point, names: Sequence[str]) -> str:
    settings = point.settings()
    return " ".join(f"{name}={settings[name]}" for name in names if name in settings)


def as_json(sweep: Sweep, cost: Estimate, points: bool) -> dict[str, Any]:
    """The same as data; the points only where asked for."""
    shapes = [{**dataclasses.asdict(s), "gpus": s.gpus, "gpus_in_all": s.points * s.gpus} for s in cost.shapes]
    content: dict[str, Any] = {
        "name": sweep.name,
        "preset": sweep.preset,
        "points": len(sweep.points),
        "resources": dataclasses.asdict(sweep.resources),
        "shapes": shapes,
        "estimate": {
            "gpu_hours": cost.gpu_hours,
            "wall_hours": cost.wall_hours,
            "disk_bytes": cost.disk_bytes,
            "note": NOTE,
        },
    }
    if points:
        content["list"] = [{"id": p.id, "settings": p.settings()} for p in sweep.points]
    return content


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def size(number: float) -> str:
    """Bytes in words, decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # `nightsweep check --list | head`: the reader is gone, and Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    return status


if __name__ == "__main__":
    sys.exit(main())
