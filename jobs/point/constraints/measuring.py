"""What a look at a job cannot be."""

from __future__ import annotations

import re
from collections import Counter

from jobs.point.constraints.reason import Reason
from jobs.point.point import Point


def nsys_on_cpu(p: Point) -> Reason | None:
    if p.tracer == "nsys" and p.device == "cpu":
        return Reason(("tracer", "device"), "nsys traces GPUs; device is cpu")
    return None


def _trace_ranks(p: Point) -> list[int]:
    return [int(word) for word in p.trace_ranks.split(",") if word.isdigit()]


def trace_ranks_differ(p: Point) -> Reason | None:
    twice = [rank for rank, count in Counter(_trace_ranks(p)).items() if count > 1]
    if twice:
        return Reason(("trace_ranks",), f"rank {twice[0]} is given more than once in {p.trace_ranks}")
    return None


def trace_ranks_exist(p: Point) -> Reason | None:
    ranks = _trace_ranks(p)
    if ranks and max(ranks) >= p.processes:
        text = f"rank {max(ranks)} never comes: ranks go from 0 to {p.processes - 1}"
        return Reason(("trace_ranks", "ranks_per_node", "nodes"), text)
    return None


def fault_rank(p: Point) -> Reason | None:
    if p.fault and (rank := _fault(p.fault)[0]) >= p.processes:
        text = f"rank {rank} never fails: ranks go from 0 to {p.processes - 1}"
        return Reason(("fault", "ranks_per_node", "nodes"), text)
    return None


def fault_step(p: Point) -> Reason | None:
    # The traced look starts anew at step 0, so the longer of the two looks is the limit.
    steps = p.warmup_steps + max(p.timed_steps, p.traced_steps)
    if p.fault and (step := _fault(p.fault)[1]) >= steps:
        text = f"step {step} never comes: steps go from 0 to {steps - 1}"
        return Reason(("fault", "warmup_steps", "timed_steps", "traced_steps"), text)
    return None


def _fault(text: str) -> tuple[int, int]:
    rank, step = re.findall(r"\d+", text)
    return int(rank), int(step)


CHECKS = (nsys_on_cpu, trace_ranks_differ, trace_ranks_exist, fault_rank, fault_step)
