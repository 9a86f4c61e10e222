"""A point that only sleeps on its nodes: python -m tests.cluster.sleep RECORD SECONDS

Notes its start and its end beside the record, so that a test can count them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    record, seconds = Path(sys.argv[1]), sys.argv[2]
    notes = record.with_name("notes")

    def note(word: str) -> None:
        with notes.open("a") as sink:
            sink.write(f"{word} {os.environ.get('SLURM_JOB_ID', 'here')}\n")

    record.parent.mkdir(parents=True, exist_ok=True)
    note("start")
    if float(seconds):
        nodes = os.environ["SLURM_JOB_NUM_NODES"]
        subprocess.run(["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "sleep", seconds], check=True)
    note("end")
    record.write_text(json.dumps({"status": "ok", "reason": None, "message": None}))


if __name__ == "__main__":
    main()
