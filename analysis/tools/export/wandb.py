"""Points as offline runs of Weights & Biases; nothing is sent before `wandb sync`."""

from __future__ import annotations

import os
from pathlib import Path

# Even offline it reports its own errors and use over the network, unless this is set before it is imported.
os.environ["WANDB_ERROR_REPORTING"] = "false"
import wandb

from analysis.sweep.dataset import Tables
from analysis.sweep.labels import plural
from analysis.tools.export import point_values


def write(tables: Tables, out: str) -> str:
    """OUT/wandb/offline-run-*-POINT of each point with steps."""
    labels, settings = point_values.labels(tables), point_values.settings(tables)
    folder = point_values.new_folder(Path(out))
    numbers = point_values.numbers(tables)
    quiet = wandb.Settings(
        silent=True, console="off", disable_git=True,
        x_disable_meta=True, x_disable_stats=True, x_save_requirements=False,
    )  # fmt: skip
    count = 0
    for point, steps in point_values.steps(tables):
        about = labels[point]
        with wandb.init(
            project="nightsweep", id=point, name=about["config"] or point, group=about["sweep"], dir=folder,
            config=settings[point], mode="offline", reinit="create_new", settings=quiet,
        ) as run:  # fmt: skip
            for row in steps.drop("end_ns").iter_rows(named=True):
                step = row.pop("step")
                run.log({name: value for name, value in row.items() if value is not None}, step=step)
            run.summary.update(numbers[point])
        count += 1
    wandb.teardown()  # which waits until all is written; the end of a run does not
    return f"{folder}: {plural(count, 'run')}; wandb sync {folder}/wandb/offline-run-*"
