"""Counts of FLOPs, kept: repeats of a configuration, its other ranks and later points read what was counted once.

A count takes a second or more, and while it lasts the rank holds its GPU. It lies in the cache folder
(jobs/host/cache.py), in flops/KEY.json. The key is a hash of all that a count depends on: the settings, the libraries
and the source files that the model and the count are made of, and a checkpoint's configuration.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from nightsweep.jobs.host import cache
from nightsweep.jobs.host.facts import package_versions
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.point.settings.loading import Loading
from nightsweep.jobs.point.settings.measuring import Measuring
from nightsweep.jobs.point.settings.parallel import Parallel
from nightsweep.jobs.rank import flops
from nightsweep.jobs.rank.flops import MicroBatch
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.launch_files import Flops

WITHOUT_EFFECT = {
    *(field.name for group in (Loading, Measuring, Parallel) for field in dataclasses.fields(group)),
    *(
        "seed",
        "repeat",
        "nodes",
        "ranks_per_node",
        "device",
        "grad_accum",
        "optimizer",
        "learning_rate",
        "weight_decay",
    ),
    *("checkpoint_steps", "checkpoint_async", "augment"),
    *("loader", "source", "resize_on", "pixels", "dali_on", "layout", "epochs", "target_accuracy"),
}
"""Settings that the passes of a micro-batch do not depend on. A setting that is not here makes another count."""
JOBS = Path(__file__).parents[1]
LIBRARIES = ("torch", "transformers", "peft")
SOURCES = ("rank/flops.py", "point/llama.py", "workloads/**/*.py")
"""Files in jobs/ that build models and count."""
PATIENCE_S = 20.0
"""How long a rank waits for another one's count, s: longer than a count takes, so that only one that hangs is left."""


def count(point: Point, beat: Callable[[], None] = lambda: None) -> Flops:
    """FLOPs of one optimizer step of one rank, as `flops.count` has them. `beat` is called while another one counts."""
    return flops.count(point, functools.partial(read_or_count, beat=beat))


def read_or_count(point: Point, beat: Callable[[], None]) -> MicroBatch:
    """FLOPs of one micro-batch of a point as `flops.by_its_products` makes it. Where the cache folder cannot be used
    they are counted all the same; a count that fails is not kept."""
    file = entry(point)
    if file is None:
        return flops.count_micro_batch(point)
    if found := read_json(file, MicroBatch):
        return found
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            held.enter_context(cache.locked(file, beat, PATIENCE_S))
        if found := read_json(file, MicroBatch):
            return found
        found = flops.count_micro_batch(point)
        with contextlib.suppress(OSError):
            write_json(file, found)
    return found


def entry(point: Point) -> Path | None:
    """The file of a count, whose folder is there; None where it cannot be made."""
    name = f"{key(point)}.json"
    try:
        folder = cache.folder() / "flops"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder / name


def key(point: Point) -> str:
    """A name for what the count of a micro-batch depends on, in 16 hex digits."""
    settings = {name: value for name, value in point.settings().items() if name not in WITHOUT_EFFECT}
    checkpoint = None
    if point.weights not in (None, "random"):
        checkpoint = Path(point.weights, "config.json").read_text()
    content = [settings, package_versions(LIBRARIES), source_hash(), checkpoint]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def source_hash(jobs: Path = JOBS) -> str:
    """A hash of SOURCES in this folder."""
    found = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(jobs.glob(pattern)):
            found.update(str(path.relative_to(jobs)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()
