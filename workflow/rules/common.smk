# The sweep: read, checked and expanded before anything is planned.
import re
import shlex
import sys
import warnings
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod
from snakemake.sourcecache import LocalSourceFile

# Where the rules come from another repository (`module:` with github), Nightsweep itself must be installed.
if isinstance(workflow.current_basedir, LocalSourceFile):
    sys.path.insert(0, str(Path(workflow.current_basedir).parents[1]))
# Snakemake's own, where a default resource is of inputs that are still to be made.
warnings.filterwarnings("ignore", message="coroutine 'InputFiles")

from nightsweep.jobs.sweep import chunks
from nightsweep.jobs.sweep.sweep import SweepError, load
from nightsweep.jobs.sweep.batches import whole_minutes
from nightsweep.jobs.sweep import driver
from nightsweep.jobs.sweep.driver import Run

# A workflow that uses this one as a module gives it the sweep as its config; else the sweep is a file, whose errors have
# lines.
if __name__ is None:
    SOURCE = Path((workflow.configfiles or ["config/demo.yaml"])[-1])
else:
    SOURCE = {
        key: value
        for key, value in config.items()
        if key not in ("preset", "container")
    }

# What --config gives beside these would be ignored: the sweep is the file.
if __name__ is None and not workflow.remote_exec:
    for name in workflow.config_settings.config:
        if name not in ("preset", "container"):
            raise WorkflowError(
                f"--config {name}: unknown key; expected preset or container"
            )


def read_sweep():
    """The sweep; in a job on a node as its driver read it, whatever the file and its scripts are by now."""
    if workflow.remote_exec:  # its target is on the command line alone, so early
        named = re.findall(r"[:,]sweep=([^,\n]+)", "\n".join(sys.argv))
        if named and (found := driver.as_read(Path("results", named[0]))):
            return found
    try:
        return load(SOURCE, config.get("preset"))
    except SweepError as error:
        where = "the configuration" if __name__ is not None else str(SOURCE)
        if __name__ is None and not workflow.configfiles:
            where += " (--configfile names another)"
        raise WorkflowError(f"{where}:", *map(str, error.errors))


SWEEP = read_sweep()

IMAGE = str(config.get("container") or "")
if "://" not in IMAGE and not Path(IMAGE).exists():
    raise WorkflowError(
        f"--config container={IMAGE}: no such file; expected an image or its URL"
    )

# The Python that Snakemake runs under, so that nothing depends on what is first on the PATH; but the environment's own
# where Snakemake makes one (--sdm conda), and the image's (--sdm apptainer). A launcher calls srun, which no image has:
# it stays outside, and starts ranks with NIGHTSWEEP_PYTHON.
deployed = workflow.deployment_settings.deployment_method
LAUNCHER_PYTHON = (
    "python" if DeploymentMethod.CONDA in deployed else shlex.quote(sys.executable)
)
PYTHON = (
    "python" if IMAGE and DeploymentMethod.APPTAINER in deployed else LAUNCHER_PYTHON
)


container: IMAGE


ROOT = f"results/{SWEEP.name}"
# How long jobs may be that run several points: of the profile.
DEFAULTS = workflow.resource_settings.default_resources
BATCH_MIN = DEFAULTS["batch_min"].raw if DEFAULTS and "batch_min" in DEFAULTS else 0
try:
    RUN = Run(Path(ROOT), SWEEP, whole_minutes(BATCH_MIN))
except ValueError as error:
    raise WorkflowError(str(error))


def asked():
    """Whether this run is to try remedies. Without, what earlier runs tried is shown and nothing is measured for it."""
    return (
        workflow.dag_settings is not None
        and "remedies" in workflow.dag_settings.targets
    )


def through_repeats(number=SWEEP.repeat_rounds):
    """The sweep's points and the starts that its first rounds of repeats add, which must be planned for it."""
    for earlier in range(1, number + 1):
        checkpoints.repeat_round.get(
            sweep=SWEEP.name,
            precision=Path(SWEEP.design.precision.folder).name,
            round=earlier,
        )
    return RUN.started(number)


def derived(repeats=SWEEP.repeat_rounds, remedies=0):
    """The chunks of the sweep's points and of its first rounds, which must be planned for it. Without `remedies`, of
    those that were tried so far."""
    through_repeats(repeats)
    for earlier in range(1, (remedies or 0) + 1):
        checkpoints.remedy_round.get(sweep=SWEEP.name, round=earlier)
    return expand(f"{ROOT}/derived/{{chunk}}.json", chunk=RUN.chunks(repeats, remedies))


def tried():
    """How many rounds of remedies the tables are made of."""
    return SWEEP.remedy_rounds if asked() else None


def members(chunk):
    """The points of a chunk."""
    return RUN.chunks(remedies=tried())[chunk]


def listed_in(point):
    """The file that lists the point; by that its job is told."""
    try:
        return RUN.holder(point)
    except LookupError as error:
        raise WorkflowError(f"{error}: the sweep was edited after this job was sent")


wildcard_constraints:
    point="[0-9a-f]{12}",
    chunk="[^/]+-[0-9]{4}",
