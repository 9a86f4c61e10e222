"""What the launcher asks of the ranks of one run, run.json: the one file that they and their samplers read."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from nightsweep.jobs.point.plan import Block
from nightsweep.jobs.point.point import Point, Value, complete
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import load_json, write_json
from nightsweep.jobs.sweep.alert import Alert

TracerName = Literal["none", "nsys", "kineto"]


class Order(Struct, frozen=True, kw_only=True):
    """run.json: what the ranks of a run are to do."""

    settings: dict[str, Value]
    """Of the point, with the `micro_batch` that `batch_search` found."""
    tracer: TracerName = "none"
    """Of the ranks that are traced."""
    traced_ranks: list[int] = field(default_factory=list)
    """Global ranks."""
    blocks: list[Block] = field(default_factory=list)
    """The steps after the warm-up (jobs/point/plan.py)."""
    samplers: bool = True
    """Whether samplers run on each node."""
    gpu_metrics: bool = True
    """Whether nsys can sample the GPUs' metrics."""
    stall_s: float = 300.0
    """Seconds after which the launcher ends ranks that do not move."""
    alert: Alert = field(default_factory=Alert)
    """When a GPU that does little is an event."""

    def point(self) -> Point:
        """The point to train."""
        return complete(self.settings)

    def runs(self, run_folder: RunFolder) -> list[tuple[RunFolder, list[Block]]]:
        """The runs of this start, one after the other: each one's folder and blocks."""
        own = [block for block in self.blocks if block.phase != "traced"]
        traced = [block for block in self.blocks if block.phase == "traced"]
        return [(folder, blocks) for folder, blocks in ((run_folder, own), (run_folder.traced, traced)) if blocks]

    def write(self, run_folder: RunFolder) -> None:
        """Before the ranks start."""
        write_json(run_folder.order, self)


def read_order(run_folder: RunFolder) -> Order:
    """What the launcher asked for. Raises FormatError."""
    return load_json(run_folder.order, Order)
