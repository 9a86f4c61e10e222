"""A point of a block that the job of another point runs: its record is there once that one's is.

    python -m nightsweep.jobs.launch.follow results/demo/points/<id> --leader results/demo/points/<id>

Whoever ends a block writes the record of the point that leads it last: the launcher, or the executor where the job was
lost.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.record import Record


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="nightsweep.jobs.launch.follow", description="See to the record of a block's point."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--leader", type=Path, required=True, help="folder of the point whose job runs the block")
    args = parser.parse_args()
    path = args.folder / "record.json"
    if read_json(path, Record) is None:
        print(f"{args.folder}: no record beside that of {args.leader.name}, which leads its block; the same command "
              "runs it again", file=sys.stderr)  # fmt: skip
        return 1
    path.touch()  # Snakemake compares its time with that of the leader's
    return 0


if __name__ == "__main__":
    sys.exit(main())
