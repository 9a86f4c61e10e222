"""A process beside a run, until it is ended: `gpu` multiplies matrices on the GPU, `cpu` counts.

python -m tests.labelled.neighbours gpu
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

from nightsweep.jobs.host.processes import die_with_parent

FOREVER_S = 3600.0


def main() -> None:
    die_with_parent()
    if sys.argv[1] == "cpu":
        for _ in itertools.count():
            pass
    from nightsweep.jobs.telemetry.loads import Loads

    with tempfile.TemporaryDirectory() as folder:
        loads = Loads(Path(folder))
        print("ready", flush=True)
        loads.run("matmul", FOREVER_S)


if __name__ == "__main__":
    main()
