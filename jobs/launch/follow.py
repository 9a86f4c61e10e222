"""A point of a block that the job of another point runs: its record is there once that one's is.

    python -m jobs.launch.follow results/demo/points/<id> --leader results/demo/points/<id> --sweep .../sweep.json

Where the job was lost, so is the point, for the same reason. Where the record alone is gone, that of the leader goes,
too: then the same command runs the block again, and what is measured in it stays.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jobs.launch.launch import MEASURED
from jobs.record.json_files import FormatError, load_json, read_json
from jobs.record.lost import Loss, lost_record
from jobs.record.record import Record, write_record
from jobs.sweep.rounds import PointList


def follow(folder: Path, leader: Path, listed: PointList) -> str | None:
    """See to the record of a point. What is wrong, in a line; None where it is there."""
    path = folder / "record.json"
    if read_json(path, Record) is not None:
        path.touch()  # Snakemake compares its time with that of the leader's
        return None
    measured = read_json(folder / MEASURED, Record)
    if measured is not None:
        write_record(path, measured)
        return None
    led = read_json(leader / "record.json", Record)
    if led is not None and led.started_at is None and led.reason is not None:  # lost: its launcher wrote none
        folder.mkdir(parents=True, exist_ok=True)
        loss = Loss(led.reason, f"with the first point of its block, {leader.name}: {led.message}")
        slurm_id = led.slurm.job_id if led.slurm else None
        write_record(path, lost_record(listed.job(folder.name), loss, led.attempt or 1, slurm_id))
        return None
    (leader / "record.json").unlink(missing_ok=True)
    return f"{folder}: no record beside that of {leader.name}, which leads its block; the same command runs it again"


def main() -> int:
    parser = argparse.ArgumentParser(prog="jobs.launch.follow", description="See to the record of a block's point.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--leader", type=Path, required=True, help="folder of the point whose job runs the block")
    parser.add_argument("--sweep", type=Path, required=True, help="file that holds the point")
    args = parser.parse_args()
    try:
        wrong = follow(args.folder, args.leader, load_json(args.sweep, PointList))
    except (FormatError, LookupError) as error:
        wrong = f"{args.sweep}: {error}"
    if wrong:
        print(wrong, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
