"""Points as runs of TensorBoard."""

from __future__ import annotations

from pathlib import Path

from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from nightsweep.analysis.sweep.dataset import Tables
from nightsweep.analysis.sweep.labels import plural
from nightsweep.analysis.tools.export import point_values


def write(tables: Tables, out: str) -> str:
    """OUT/POINT of each point with steps: scalars over its steps, its settings and its numbers as hyperparameters."""
    point_values.labels(tables)  # refuses tables without points
    folder = point_values.new_folder(Path(out))
    settings, numbers = point_values.settings(tables), point_values.numbers(tables)
    # TensorBoard takes the columns of its table from whichever run it reads first, so each names those of all.
    columns = ({name: value for own in of.values() for name, value in own.items()} for of in (settings, numbers))
    experiment = hparams(*columns)[0]
    count = 0
    for point, steps in point_values.steps(tables):
        with SummaryWriter(str(folder / point)) as writer:
            # Not add_hparams, which would put them into a run of their own.
            for summary in (experiment, *hparams(settings[point], numbers[point])[1:]):
                writer.file_writer.add_summary(summary)
            for name, value in numbers[point].items():
                writer.add_scalar(name, value, 0, walltime=steps["end_ns"][-1] / 1e9)
            for row in steps.iter_rows(named=True):
                step, ended_s = row.pop("step"), row.pop("end_ns") / 1e9
                for name, value in row.items():
                    if value is not None:
                        writer.add_scalar(f"steps/{name}", value, step, walltime=ended_s)
        count += 1
    return f"{folder}: {plural(count, 'run')}; tensorboard --logdir {folder}"
