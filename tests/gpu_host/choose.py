"""A sweep of some of another's points, for a night that is too short for all.

    python -m tests.gpu_host.choose config/paper-llm.yaml --name a --points 00797fa51362,... > kit/sweeps/a.yaml

Its points have the ids that they have there. Without --points: those that --not-in, a table of points, has not. With
--from-repeat 3 they are further repeats of them: 3, 4, 5 in place of 0, 1, 2.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from nightsweep.jobs.point.point import Point, complete
from nightsweep.jobs.sweep import sweep


def of(points: list[Point], name: str) -> dict[str, Any]:
    """The sweep file's content: an entry for each set of settings, less the repeats that are not wanted."""
    sets: dict[str, tuple[dict[str, Any], set[int]]] = {}
    for point in points:
        settings = point.settings()
        repeat = settings.pop("repeat")
        sets.setdefault(complete(settings | {"repeat": 0}).id, (settings, set()))[1].add(repeat)
    repeats = 1 + max(repeat for _, wanted in sets.values() for repeat in wanted)
    exclude = [
        {name: value for name, value in settings.items() if value is not None} | {"repeat": other}
        for settings, wanted in sets.values()
        if (other := [n for n in range(repeats) if n not in wanted])
    ]
    content = {"name": name, "repeats": repeats, "include": [_named(settings) for settings, _ in sets.values()]}
    return content | ({"exclude": exclude} if exclude else {})


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that say more than their defaults."""
    plain = complete({name: settings[name] for name in ("workload", "model")}).settings()
    needed = {name: value for name, value in settings.items() if value != plain[name]}
    return {"workload": settings["workload"], "model": settings["model"]} | needed


def further(point: Point, repeats: int) -> Point:
    """The same point so many repeats later."""
    return complete(point.settings() | {"repeat": point.repeat + repeats})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_host.choose", description=__doc__)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--name", required=True, help="of the new sweep, another than those that run beside it")
    parser.add_argument("--preset")
    parser.add_argument("--points", help="ids, with commas between them")
    parser.add_argument("--not-in", type=Path, help="a points.parquet")
    parser.add_argument("--from-repeat", type=int, default=0)
    parser.add_argument("--gpus", type=int, help="only points of so many: one count a sweep leaves none idle")
    options = parser.parse_args()
    listed = (further(point, options.from_repeat) for point in sweep.load(options.sweep, options.preset).points)
    there = {point.id: point for point in listed}
    wanted = options.points.split(",") if options.points else list(there)
    if unknown := [name for name in wanted if name not in there]:
        parser.error(f"{options.sweep} has no point {', '.join(unknown)}")
    known = set(pl.read_parquet(options.not_in)["point_id"]) if options.not_in else set()
    points = [there[name] for name in wanted if name not in known and options.gpus in (None, there[name].world_size)]
    if not points:
        parser.error("no point is left")
    yaml.safe_dump(of(points, options.name), sys.stdout, sort_keys=False, width=120)
    print(f"{len(points)} points", file=sys.stderr)


if __name__ == "__main__":
    main()
