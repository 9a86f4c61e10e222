"""How long a job runs and what watches it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nightsweep.jobs.point.reason import Reason
from nightsweep.jobs.point.settings.field import MOST_STEPS, ON_GPU, except_for, setting

if TYPE_CHECKING:
    from nightsweep.jobs.point.point import Point

# `$` alone would let the end of a line pass, and \d digits of any script.
FAULT_PATTERN = r"^(exception|kill|nan|hang)@rank[0-9]{1,8}:step[0-9]{1,8}$(?!\n)"
# A rank has one spelling, 1 and not 01: `Point.traced_ranks` compares texts.
TRACE_RANKS_PATTERN = r"^(auto|all|first-per-node|(0|[1-9][0-9]{0,7})(,(0|[1-9][0-9]{0,7}))*)$(?!\n)"

TRACED = 16
"""Ranks up to which all are traced: more traces take long to write and to read, and most show the same."""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Settings of the looks at a job."""

    warmup_steps: int = setting("Optimizer steps before each window.", 5, minimum=1, maximum=MOST_STEPS)
    timed_steps: int = setting(
        "Optimizer steps of the timed window, which no profiler sees.", 20, minimum=2, maximum=MOST_STEPS
    )
    traced_steps: int = setting(
        "Optimizer steps of the traced window, after the timed one; 0: no trace.", 3, minimum=0, maximum=100_000
    )
    tracer: Literal["auto", "nsys", "kineto"] = setting(
        "auto: the PyTorch profiler (Kineto), in the start that was timed. kineto: the same in a second start. nsys: "
        "Nsight Systems in a second start where it works, else kineto.",
        "auto",
        needs=[except_for("traced_steps", 0)],
    )
    trace_ranks: str = setting(
        f"Ranks that are traced: auto (all of up to {TRACED}; of more the first of each node and {TRACED} over the "
        "job), all, first-per-node, or global ranks with commas.",
        "auto",
        pattern=TRACE_RANKS_PATTERN,
        maxLength=10_000,
        needs=[except_for("traced_steps", 0)],
    )
    trace_preset: Literal["light", "deep"] = setting(
        "light: kernels, copies, API calls and ranges. deep: also memory use, backtraces and, on the first rank of a "
        "node under nsys, GPU metrics; disturbs the step more.",
        "light",
        needs=[except_for("traced_steps", 0)],
    )
    keep_report: bool = setting(
        "Keep nsys' own report (.nsys-rep) beside its export.", True, needs=[except_for("traced_steps", 0)]
    )
    nvml_hz: int = setting(
        "Rate at which the GPUs are sampled, Hz; 0: not at all.", 10, minimum=0, maximum=50, needs=[ON_GPU]
    )
    cost_pairs: int = setting(
        "Pairs of starts, without and with the tracer, that measure what measuring costs, after the timed and the "
        "traced run; 0: none.",
        0,
        minimum=0,
        maximum=1000,
    )
    fault: str | None = setting(
        "A failure made on purpose, to see that it is reported rightly: KIND@rankR:stepS, KIND one of exception, "
        "kill, nan, hang.",
        None,
        pattern=FAULT_PATTERN,
    )


def conflicts(p: Point) -> Iterator[Reason]:
    if p.tracer == "nsys" and p.device == "cpu":
        yield Reason(("tracer", "device"), "nsys traces GPUs; device is cpu")
    traced = [int(word) for word in p.trace_ranks.split(",") if word.isdigit()]
    if twice := [rank for rank, count in Counter(traced).items() if count > 1]:
        yield Reason(("trace_ranks",), f"rank {twice[0]} is given more than once in {p.trace_ranks}")
    if traced and max(traced) >= p.ranks:
        text = f"rank {max(traced)} never comes: ranks go from 0 to {p.ranks - 1}"
        yield Reason(("trace_ranks", "ranks_per_node", "nodes"), text)


def fault_conflicts(p: Point) -> Iterator[Reason]:
    if not p.fault:
        return
    rank, step = map(int, re.findall(r"\d+", p.fault))
    if rank >= p.processes:
        text = f"rank {rank} never fails: ranks go from 0 to {p.processes - 1}"
        yield Reason(("fault", "ranks_per_node", "nodes"), text)
    # A second start begins anew at step 0, so the longer of the two windows is the limit.
    in_all = sum if p.tracer == "auto" else max
    steps = p.warmup_steps + in_all((p.timed_steps, p.traced_steps))
    if step >= steps:
        text = f"step {step} never comes: steps go from 0 to {steps - 1}"
        yield Reason(("fault", "warmup_steps", "timed_steps", "traced_steps"), text)


CHECKS = (conflicts, fault_conflicts)
