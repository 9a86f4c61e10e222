"""Points that only sleep on their nodes: python -m tests.cluster.sleep SECONDS PART FOLDER...

Of several, runs at most PART of those that are not done, and writes the first one's record last, as jobs/launch does.
One with a file `fails` fails, one with `hangs` never ends, and one with `dies` takes this process with it. Notes the
start and the end of each beside its record, so that a test can count them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from nightsweep.jobs.launch.held import Held
from nightsweep.jobs.record.raw_files import MEASURED

RECORD = json.dumps({"status": "ok", "reason": None, "message": None})


def measure(folder: Path, seconds: str) -> None:
    def note(word: str) -> None:
        with (folder / "notes").open("a") as sink:
            sink.write(f"{word} {os.environ.get('SLURM_JOB_ID', 'here')}\n")

    folder.mkdir(parents=True, exist_ok=True)
    note("start")
    Held().begin(folder)
    if (folder / "dies").exists():
        sys.exit(1)
    if (folder / "hangs").exists():
        seconds = "10000"
    if float(seconds):
        nodes = os.environ["SLURM_JOB_NUM_NODES"]
        subprocess.run(["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "sleep", seconds], check=True)
    note("end")
    if (folder / "fails").exists():
        (folder / "record.json").write_text(json.dumps({"status": "failed", "reason": "rank_exception"}))
    else:
        (folder / MEASURED).write_text(RECORD)


def is_done(folder: Path) -> bool:
    return any((folder / name).exists() for name in (MEASURED, "record.json"))


def main() -> None:
    seconds, part, folders = sys.argv[1], int(sys.argv[2]), [Path(word) for word in sys.argv[3:]]
    due = [folder for folder in folders if len(folders) == 1 or not is_done(folder)]
    for folder in due[:part]:
        measure(folder, seconds)
    for folder in reversed(folders):
        if (folder / MEASURED).exists():
            (folder / "record.json").write_bytes((folder / MEASURED).read_bytes())


if __name__ == "__main__":
    main()
