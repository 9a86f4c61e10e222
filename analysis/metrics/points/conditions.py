"""Under what conditions a point's steps ran, and whether something disturbed them.

The rule is fixed, here and in docs/protocol.md, before a point is measured, so that none is left out for its result.
A point is disturbed if, between the start and the end of its steady timed steps,

- a process that is none of the job's had a context on one of its GPUs;
- a GPU was throttled for heat, or by a brake (not by its power cap, which belongs to the card and the load);
- others than the job kept more than OTHERS of the host's cores busy;
- the hypervisor gave more than STEAL of the time in which cores had work to other machines;
- tasks waited for a core in more than WAITING of the time, while others used more than PRESENT: without others the
  tasks that wait are the job's own.

A GPU's readings are those nearest to the window too (READING_S before and after), for processes are read once a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

OTHERS, STEAL, WAITING, PRESENT = 5.0, 2.0, 20.0, 2.0
"""%. Estimates, but for STEAL: a node's daemons keep less than PRESENT of its cores busy, a neighbour's job of one GPU
in eight more than OTHERS; a job of more threads than cores makes tasks wait itself. STEAL is what starts differ by at
the least; a virtual machine with H100s, most of its cores idle, lost 0.2 to 0.7 %, and 4 % with all busy."""
CAP, BRAKES = 4, 8 | 32 | 64 | 128
"""NVML's bits (nvml.h, nvmlClocksEventReason): the power cap; slowdown by hardware for whatever reason, for heat as
software and as hardware see it, by the power brake."""
READING_S = 1.0
HOST_S = 0.5
"""Each of a host's samples is a mean of so long before it."""

_Row = dict[str, Any]
_HOST = ("other_cpu_percent", "steal_percent", "psi_cpu_percent", "runnable")


def columns(tables: Mapping[str, pl.DataFrame], *, on_gpus: bool, has_tenants: bool) -> _Row:
    """The columns of POINTS on conditions.

    Args:
        tables: of one point: steps, ranks, gpu_samples and host_samples.
        on_gpus: whether its ranks compute on GPUs.
        has_tenants: whether the point has other jobs run beside it by its own settings.
    """
    steps = tables["steps"].filter(pl.col("phase") == "timed").drop_nulls(["start_ns", "end_ns"])
    if steps.is_empty():
        return {}
    span = min(steps["start_ns"].to_list()), max(steps["end_ns"].to_list())
    row = _gpu_columns(tables["gpu_samples"], tables["ranks"], span) if on_gpus else {}
    hosts = _hosts(tables["host_samples"], tables["ranks"], span)
    row |= {name: max((h[name] for h in hosts if h[name] is not None), default=None) for name in _HOST}
    return row | judge(row, hosts, on_gpus=on_gpus, has_tenants=has_tenants)


def judge(row: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]], *, on_gpus: bool, has_tenants: bool) -> _Row:
    """`disturbed` and `disturbed_reason` by the other columns and each host's; both null where some condition is not
    known, on all hosts or on one, and no other one disturbed the point. Kernels without PSI are judged by the rest;
    tenants disturb nobody, for they are asked for."""
    checks = [("steal_percent", STEAL, "the hypervisor took {:.1f} % of the time of busy cores")]
    if on_gpus:
        checks.append(("throttled_percent", 0.0, "a GPU was throttled for heat or by a brake {:.0f} % of the time"))
    if on_gpus and not has_tenants:
        checks.append(("foreign_processes", 0.0, "foreign processes on a GPU: {:.0f}"))
    if not has_tenants:
        checks.append(("other_cpu_percent", OTHERS, "other processes kept {:.0f} % of the cores busy"))
    values = [(row.get(name), most, text) for name, most, text in checks]
    found = [text.format(value) for value, most, text in values if value is not None and value > most]
    # Others on one host make no tasks of another wait.
    shared = [h for h in hosts if (h["other_cpu_percent"] or 0.0) > PRESENT]
    waiting = max((h["psi_cpu_percent"] or 0.0 for h in shared), default=0.0)
    if waiting > WAITING and not has_tenants:
        found.append(f"tasks waited for a core {waiting:.0f} % of the time")
    if found:
        return {"disturbed": True, "disturbed_reason": "; ".join(found)}
    known = all(value is not None for value, _, _ in values)
    known = known and not any(name in host and host[name] is None for host in hosts for name, _, _ in checks)
    return {"disturbed": False if known else None, "disturbed_reason": None}


def _gpu_columns(samples: pl.DataFrame, ranks: pl.DataFrame, span: tuple[int, int]) -> _Row:
    """Of the GPUs of ranks, or of all that were sampled where it is not known whose they are."""
    timed = samples.filter(pl.col("look") == "timed")
    own = timed.filter(pl.col("uuid").is_in(ranks["uuid"].drop_nulls().implode()))
    own = timed if own.is_empty() else own
    inside = own.filter(pl.col("t_ns").is_between(*span))
    near = own.filter(_within(span, READING_S, READING_S))
    reasons = inside["throttle_reasons"].drop_nulls()

    def percent(bits: int) -> float | None:
        return 100 * float(((reasons & bits) > 0).mean()) if len(reasons) else None  # type: ignore[arg-type]

    return {
        **{name: inside[name].mean() for name in ("sm_clock_mhz", "sm_active_percent", "dram_active_percent")},
        "power_limit_w": own["power_limit_w"].min(),
        "power_capped_percent": percent(CAP),
        "throttled_percent": percent(BRAKES),
        "foreign_processes": near["foreign_processes"].max(),
    }


def _hosts(samples: pl.DataFrame, ranks: pl.DataFrame, span: tuple[int, int]) -> list[_Row]:
    """Means over the window, of each host; null of one that has ranks and no samples."""
    inside = samples.filter(pl.col("look") == "timed", _within(span, 0.0, HOST_S))
    means = inside.group_by("host", maintain_order=True).agg(pl.col(name).mean() for name in _HOST)
    unseen = ranks.select("host").drop_nulls().unique().join(means, on="host", how="anti")
    return pl.concat([means, unseen], how="diagonal").to_dicts()


def _within(span: tuple[int, int], before_s: float, after_s: float) -> pl.Expr:
    return pl.col("t_ns").is_between(span[0] - int(before_s * 1e9), span[1] + int(after_s * 1e9))
