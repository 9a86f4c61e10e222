"""What the GPU's own counters say while steps ran: the table gpu_samples, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from nightsweep.analysis.diagnosis.thresholds import POWER_CAPPED_CLOCK
from nightsweep.jobs.record.launch_files import RankResult

THROTTLES = {
    2: "fixed clocks",
    8: "hardware slowdown",
    32: "software thermal",
    64: "hardware thermal",
    128: "power brake",
}
"""Bits of throttle_reasons (NVML's clocks event reasons) that nobody wants. The power cap (4) is no such bit: dense
products run into it on every GPU; it counts where clocks fall further than they do then."""
POWER_CAP = 4
COUNTED = ("processes", "foreign_processes")


@dataclass(frozen=True)
class Span:
    """When to look at a rank's GPU: from `start_ns` to `end_ns`, UTC, in this look. A log of one GPU is that GPU's,
    whatever its `uuid`. `every`: the rank drives all GPUs of the log."""

    rank: int
    uuid: str | None
    start_ns: int
    end_ns: int
    look: str | None = None
    every: bool = False


def timed_spans(results: Sequence[RankResult], offsets: Mapping[str, int]) -> list[Span]:
    """The timed windows that ranks left at their end. `offsets`: what was taken out of the times of hosts, ns."""
    spans = []
    for result in results:
        every = result.uuid is None and len(results) == 1
        if result.window and (result.uuid or every):
            by = offsets.get(result.host or "", 0)
            window = (result.window.start_ns - by, result.window.end_ns - by)
            spans.append(Span(result.rank, result.uuid, *window, "timed", every=every))
    return spans


def select_spans(samples: pl.DataFrame, spans: Sequence[Span]) -> dict[int, pl.DataFrame]:
    """The samples that tell of each rank's span, where there are any, with top_clock_mhz, the GPU's highest in the log.
    A sample tells of the time since the one before (utilisation, GPM), so the first one after a span does too.
    Processes are counted once a second, which a span of a few steps may miss: see `_between`."""
    alone = samples["uuid"].n_unique() == 1
    found = dict[int, pl.DataFrame]()
    for span in spans:
        gpu = samples if alone or span.every else samples.filter(pl.col("uuid").eq_missing(span.uuid))
        gpu = gpu.sort("t_ns").with_columns(top_clock_mhz=pl.col("sm_clock_mhz").max().over("uuid"))
        if span.look is not None and "look" in gpu.columns:
            gpu = gpu.filter(pl.col("look") == span.look)
        gpu = gpu.with_columns(_between(column) for column in COUNTED if column in gpu.columns)
        since = pl.coalesce(pl.col("t_ns").shift().over("uuid"), "t_ns")
        own = gpu.filter(pl.col("t_ns") >= span.start_ns, since <= span.end_ns)
        if own.height and not (alone and span.rank in found):
            found[span.rank] = pl.concat([found[span.rank], own]) if span.rank in found else own
    return found


def _between(column: str) -> pl.Expr:
    """A count where it was not read: the smaller of those read before and after, so that a process which was there both
    times was there all the while, and one that came or went was not."""
    read = pl.col(column)
    around = (filled.over("uuid") for filled in (read.forward_fill(), read.backward_fill()))
    return pl.coalesce(read, pl.min_horizontal(*around)).alias(column)


def throttled_samples(samples: pl.DataFrame) -> pl.DataFrame:
    """Those of the samples in which clocks were held down as nobody wants them."""
    known = samples.drop_nulls(["throttle_reasons", "sm_clock_mhz", "top_clock_mhz"])
    reasons = pl.col("throttle_reasons")
    low = pl.col("sm_clock_mhz") < POWER_CAPPED_CLOCK.value * pl.col("top_clock_mhz")
    return known.filter((reasons & sum(THROTTLES) != 0) | ((reasons & POWER_CAP != 0) & low))


def reasons(samples: pl.DataFrame) -> str:
    """The reasons of throttled samples, in words."""
    names = THROTTLES | {POWER_CAP: "power cap"}
    seen = {bit for value in samples["throttle_reasons"].unique() for bit in names if value & bit}
    return ", ".join(names[bit] for bit in sorted(seen))
