# The sweep: read, checked and expanded before anything is planned.
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, workflow.basedir)

from jobs import rounds
from jobs.sweep import SweepError, load
from jobs.workflow import Run

SWEEP_FILE = Path((workflow.configfiles or ["config/demo.yaml"])[-1])

try:
    SWEEP = load(SWEEP_FILE, config.get("preset"))
except SweepError as error:
    raise WorkflowError(str(error))

ROOT = f"results/{SWEEP.name}"
POINTS = {point.id: point for point in SWEEP.points}

RUN = Run(Path(ROOT), SWEEP)


wildcard_constraints:
    point="[0-9a-f]{12}",
