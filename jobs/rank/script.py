"""A rank that is somebody's own script: its command and environment, and what its end says.

jobs/hook, which Python loads into the script by itself, leaves steps and results; what it could not is made up for
here.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from nightsweep.jobs import hook
from nightsweep.jobs.hook.claim import was_contested
from nightsweep.jobs.hook.install import RANK_VARIABLE, RUN_VARIABLE
from nightsweep.jobs.point import config_file, template
from nightsweep.jobs.point.environment import environment as environment_of_settings
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.failures import reason_of_text
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.heartbeat import Heartbeat, place
from nightsweep.jobs.record.json_files import json_line, read_json, write_json
from nightsweep.jobs.record.launch_files import TOO_FEW, WHOLE_RUN, RankError, RankResult, StepLine, Window
from nightsweep.jobs.record.point_folder import by_rank

SITE = Path(hook.__file__).with_name("site")
"""The folder that brings the hook into a Python which has it on its path."""
OUT = "out"
"""The folder of a run for what its scripts write."""


@dataclass(frozen=True)
class Start:
    """How the script is started."""

    command: list[str]
    environment: dict[str, str]
    workdir: Path


def prepare(run_folder: RunFolder, point: Point, rank: int) -> Start:
    """The start of this rank's script, from a run's folder with an absolute path. Raises ConfigError
    (jobs/point/config_file.py)."""
    out = run_folder.path / OUT
    out.mkdir(exist_ok=True)
    known = template.values(point) | {"out": out, "config_file": edit_config(run_folder, point, rank)}
    own = template.words(str(point.command), known)
    if point.launcher == "deepspeed" and "--no_local_rank" not in shlex.split(str(point.launcher_options)):
        own.insert(2 if own[0] == "-m" else 1, f"--local_rank={os.environ['LOCAL_RANK']}")
    if own[0].endswith(".py") or own[0] == "-m":
        own = [*python(point), "-u", *own]
    return Start(own, environment(run_folder, point, rank), Path(str(point.workdir)))


def python(point: Point) -> list[str]:
    """The command that starts the script's Python."""
    return shlex.split(str(point.python)) or [sys.executable]


def environment(run_folder: RunFolder, point: Point, rank: int) -> dict[str, str]:
    """The script's variables: those of its launcher, the hook's, and what the point sets."""
    own = dict(os.environ)
    if point.launcher == "none":
        # It starts its ranks itself, and would take these for one of them.
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            own.pop(name, None)
    set_by_point = template.environment(point)
    paths = [str(SITE), *filter(None, [set_by_point.pop("PYTHONPATH", None) or os.environ.get("PYTHONPATH")])]
    return {
        **own,
        RUN_VARIABLE: str(run_folder.path),
        RANK_VARIABLE: str(rank),
        **({"CUDA_VISIBLE_DEVICES": ""} if point.device == "cpu" else {}),
        **environment_of_settings(point),
        **set_by_point,
        "PYTHONPATH": os.pathsep.join(paths),
    }


def edit_config(run_folder: RunFolder, point: Point, rank: int) -> Path | None:
    """A copy of the point's config_file with the values of its axes, for this rank; None where there is none. Raises
    ConfigError."""
    if not point.config_file:
        return None
    source = Path(str(point.workdir), point.config_file)
    copy = run_folder.path / f"rank{rank}.{source.name}"
    copy.write_text(config_file.edited(source, template.config_edits(point)))
    return copy


class Few(Struct, frozen=True, kw_only=True):
    """rankR.few.json: the steps that were found, of a script that ended before they were enough, or of which no more
    could be watched (`why`)."""

    steps: int = 0
    source: str | None = None
    why: str | None = None


class Raised(Struct, frozen=True, kw_only=True):
    """rankR.exception.json: what ended a script, by jobs/hook/install.py."""

    kind: str
    message: str = ""
    errno: int | None = None
    step: int | None = None


def conclude(run_folder: RunFolder, rank: int, code: int, window: Window, *, stopped: bool) -> None:
    """After the script has ended: why it failed, or, where it was not possible to find its steps, the whole of it as
    one; of one that was stopped, there is no whole."""
    raised = read_json(run_folder.rank_file(rank, "exception.json"), Raised)
    if code and raised is not None:
        reason, message = reason_of_text(raised.kind, raised.message, raised.errno)
        error = RankError(reason=reason, message=message, phase=place(run_folder, rank), step=raised.step)
        write_json(run_folder.rank_file(rank, "error.json"), error)
    if code == 0 and not stopped and not run_folder.rank_file(rank, "result.json").exists():
        few = read_json(run_folder.rank_file(rank, "few.json"), Few)
        found = f"the script's {few.steps} {TOO_FEW}" if few else "no steps were found in the script"
        if few is None and has_begun(run_folder, rank):
            found = "the script ended before its steps were enough, and not as Python ends (os._exit)"
        if was_contested(run_folder, rank):
            found = f"several processes trained as rank {rank}, and the steps of the first were too few"
        if not run_folder.rank_file(rank, "stacks.txt").exists():  # which the hook opens
            found = "no Python with Nightsweep's hook ran (none did, PYTHONPATH was replaced, or it had -E, -I or -S)"
        found = few.why if few and few.why else found
        end = {"end_ns": window.end_ns, "phase": "timed", "block": 1, "data_ns": 0, "samples": 0}
        run_folder.steps(rank).write_text(json_line(StepLine(step=0, start_ns=window.start_ns, **end)))  # type: ignore[arg-type]
        write_json(
            run_folder.rank_file(rank, "result.json"),
            RankResult(rank=rank, window=window, step_source=WHOLE_RUN, notes=[f"{found}: timed as a whole"]),
        )


def has_begun(run_folder: RunFolder, rank: int) -> bool:
    """Whether the hook has seen a step."""
    phases = run_folder.rank_file(rank, "heartbeat").with_suffix(".phases.jsonl")
    return phases.exists() and '"warmup"' in phases.read_text()


def why_given_up(run_folder: RunFolder) -> str | None:
    """Why the steps of a rank could no longer be watched; None where those of all could."""
    found = (read_json(path, Few) for _, path in by_rank(run_folder.path, r"rank(\d+)\.few\.json"))
    return next((few.why for few in found if few and few.why), None)


def drop_whole_runs(run_folder: RunFolder) -> None:
    """Where some ranks of a script have steps, those that were timed as a whole have none: which rank ends first must
    not decide it."""
    results = {rank: read_json(path, RankResult) for rank, path in by_rank(run_folder.path, r"rank(\d+)\.result\.json")}
    whole = [rank for rank, result in results.items() if result is not None and result.step_source == WHOLE_RUN]
    for rank in whole if len(whole) < len(results) else ():
        run_folder.rank_file(rank, "result.json").unlink()
        run_folder.steps(rank).unlink(missing_ok=True)


def first_sign(run_folder: RunFolder, rank: int) -> None:
    """The sign of life that stands until the hook gives one."""
    Heartbeat(run_folder.rank_file(rank, "heartbeat")).beat("start")
