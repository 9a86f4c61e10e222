"""Makes what tests/labelled/pairs.py left small enough to be kept, with nothing in it that tells where it ran.

    python -m tests.labelled.store_scripts OUT tests/data/scripts --images DIR

Of each run: record.json, its steps and results, and of its traces what analysis/readers/kineto reads. Each
run is diagnosed before and after: where the causes are not the same, nothing of it is kept and the exit status is 1.
Shares may differ a little, since times of the host are rounded (packed.py).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from nightsweep.analysis.tools.publish.anonymizer import Anonymizer
from nightsweep.analysis.tools.publish.identity import Identity
from tests.labelled import packed
from tests.labelled.score import diagnose
from tests.labelled.store import KINDS

CHANGE = 0.025
"""Of a share, at most, where the causes count as the same."""
EMPTY = ("launcher_options", "config_file", "files", "version", "python")


def store_point(job: tuple[Path, Path, Path, Anonymizer]) -> str | None:
    """Keep a run; what is wrong with it, or None."""
    source, target, images, anonymizer = job
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    record = json.loads((source / "record.json").read_text())
    command = record["settings"]["command"].replace(str(images), "images")
    record = anonymizer.tree(record, KINDS)
    record["settings"] |= dict.fromkeys(EMPTY, "") | {"command": command, "workdir": "."}
    (target / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    for path in sorted(source.glob("*/rank*.result.json")):
        goal = target / path.relative_to(source)
        goal.parent.mkdir(exist_ok=True)
        goal.write_text(json.dumps(anonymizer.tree(json.loads(path.read_text()), KINDS), indent=1) + "\n")
    for path in sorted(source.glob("*/steps-r*.jsonl")):
        goal = (target / path.relative_to(source)).with_name(f"{path.name}.gz")
        goal.parent.mkdir(exist_ok=True)
        goal.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    for path in sorted(source.glob("traced/trace-r*.json.gz")):
        goal = target / "traced" / f"{path.name.removesuffix('.json.gz')}.xz"
        goal.write_bytes(packed.pack(gzip.decompress(path.read_bytes())))
    with tempfile.TemporaryDirectory() as scratch:
        again = packed.unpacked(target, Path(scratch))
        before, after = (diagnose((folder, False))["causes"] for folder in (source, again))
    firsts = [(found[0]["kind"], found[0]["rank"]) if found else None for found in (before, after)]
    told, then = ({cause["kind"]: cause["share"] for cause in reversed(found)} for found in (before, after))
    changes = {kind: then.get(kind, 0.0) - told.get(kind, 0.0) for kind in told.keys() | then.keys()}
    if firsts[0] == firsts[1] and all(abs(change) < CHANGE for change in changes.values()):
        return None
    shutil.rmtree(target)
    return f"{source.name}: {firsts[0]} became {firsts[1]}; shares changed by {changes}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.labelled.store_scripts", description="Keep the runs of OUT, small.")
    parser.add_argument("out", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--images", type=Path, required=True, help="the folder that commands name")
    args = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = "1"
    identity = Identity.of_sweep(args.out)
    anonymizer = Anonymizer(identity.hosts, identity.uuids)
    jobs = [
        (path, args.target / path.name, args.images, anonymizer) for path in sorted((args.out / "points").iterdir())
    ]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        wrong = [problem for problem in pool.map(store_point, jobs) if problem]
    for problem in wrong:
        print(problem, file=sys.stderr)
    size = sum(path.stat().st_size for path in args.target.rglob("*") if path.is_file())
    print(f"{len(jobs) - len(wrong)} of {len(jobs)} runs, {size / 1e6:.1f} MB")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
