"""A diagnosis as a person reads it: one screen."""

from __future__ import annotations

import json
import textwrap

from nightsweep.analysis.diagnosis.cause import Cause
from nightsweep.analysis.diagnosis.causes.rule import DEVICE
from nightsweep.analysis.diagnosis.thresholds import HEALTHY, NOISE
from nightsweep.analysis.diagnosis.verdict import BY_KIND, Diagnosis, is_known, waiting
from nightsweep.analysis.sweep.labels import plural, short_number
from nightsweep.jobs.record.launch_files import WHOLE_RUN

WIDTH = 100
LEAST_PART = 0.005
"""Parts with a smaller share of the step are one line."""


def screen(found: Diagnosis) -> str:
    """The verdict, the parts of the step, and the causes."""
    lines = _head(found)
    if parts := _parts(found):
        lines += ["", *parts]
    losses = [cause for cause in found.causes if cause.share >= NOISE.value]
    remarks = [cause for cause in found.causes if cause.share < NOISE.value]
    sections: dict[str, list[Cause]] = {}  # the one with the first cause comes first
    for cause in losses:
        faster = BY_KIND[cause.kind].turn == DEVICE
        sections.setdefault("what could be computed faster" if faster else "what holds the step up", []).append(cause)
    place = 0
    for title, chosen in sections.items():
        lines += ["", title]
        for cause in chosen:
            place += 1
            lines += ["", *_cause(place, cause)]
    if remarks:
        lines += ["", "remarks"]
    for cause in remarks:
        told = f"{cause.kind}: {_facts(cause)}. {_advice(cause)}"
        lines += textwrap.wrap(told, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def _open(found: Diagnosis) -> str:
    """Why it is not known whether the run is healthy."""
    explained, waits = sum(cause.share for cause in found.causes), waiting(found.parts)
    if not found.evidence.lanes:
        on_host = f": ranks compute nothing for {waits:.0%} of the step, and all causes explain {explained:.0%}"
        return f"without a trace of a GPU it is not known whether this is healthy{on_host if found.parts else ''}"
    if not is_known(found.evidence):
        return "what the trace lacks leaves open whether this is healthy: see missing_trace"
    if found.evidence.left_out >= HEALTHY.value:
        return "why some steps take longer leaves open whether this is healthy"
    return f"GPUs neither compute nor copy for {waits:.0%} of the step, and all causes explain {explained:.0%}"


def _head(found: Diagnosis) -> list[str]:
    e = found.evidence
    cut = ["of a part of the trace alone: see missing_trace"] if "trace, in part" in e.absent else []
    if found.step_ms is None:
        return ["no step could be timed: nothing can be said of it", *cut]
    ranks, steps = len(e.traced_ranks), e.traced_count
    where = f"mean of {plural(steps, 'traced step')} of {plural(ranks, 'rank')}" if steps else "mean of the timed steps"
    said = {
        True: f"healthy: no cause takes {HEALTHY.value:.0%} of the step",
        False: "time to gain: see the causes, what gives most at least first",
        None: _open(found),
    }[found.healthy]
    timed = []
    unseen = [what for what, ns in (
        ("waits for batches", e.unseen_wait), ("long steps", e.unseen_pauses), ("stalls", e.unseen_stalls)
    ) if ns]  # fmt: skip
    if steps and e.timed_ns and unseen:
        length = f"{e.step_ns / 1e6:.3f} ms with the {' and '.join(unseen)} of the timed window"
        timed = [f"{length}; shares of causes are of that"]
    elif not steps and e.timed_ns and e.step_ns >= (1 + HEALTHY.value) * e.timed_ns:
        timed = [f"{e.timed_ns / 1e6:.3f} ms in the median: some steps take much longer"]
    elif steps:
        median = f"{e.timed_ns / 1e6:.3f} ms in the median without a tracer" if e.timed_ns else ""
        timed = [told for told in (median, _shares_of(found)) if told]
    if e.left_out >= HEALTHY.value:
        mean = f"{e.unseen.mean_ns / 1e6:.3f} ms in the mean without a tracer"
        timed.append(f"{mean}: some steps take longer, and shares leave out what these have more")
    unexplained = []
    if found.path and found.path.unexplained >= NOISE.value:
        unexplained = [
            f"{found.path.unexplained:.0%} of the longest path through the steps is explained by nothing in the trace"
        ]
    notes = dict.fromkeys(note for rank in e.results for note in rank.notes)
    failed = [f"the run did not end well: {e.failed}; what follows is of the steps before"] if e.failed else []
    whole = any(rank.step_source == WHOLE_RUN for rank in e.results)
    first = f"the whole run took {found.step_ms / 1e3:.1f} s" if whole else f"step {found.step_ms:.3f} ms ({where})"
    return [first, *failed, *cut, *timed, *notes, *unexplained, said]


def _shares_of(found: Diagnosis) -> str:
    """Which step shares are of, where there is a choice."""
    e = found.evidence
    if found.shares_of_ms is None or f"{found.shares_of_ms:.3f}" == f"{found.step_ms:.3f}":
        return "shares of causes are of the traced step" if e.timed_ns else ""
    which = "the traced step less what its tracer is taken to add" if e.lanes else "the mean step without a tracer"
    return f"shares of causes are of {found.shares_of_ms:.3f} ms: {which}"


def _parts(found: Diagnosis) -> list[str]:
    if not found.parts or not found.step_ms:
        return []
    shown = {name: ms for name, ms in found.parts.items() if ms >= LEAST_PART * found.step_ms}
    rest = found.step_ms - sum(shown.values())
    rows = sorted(shown.items(), key=lambda item: -item[1]) + ([("all else", rest)] if rest > 0 else [])
    return [f"  {name:<20}{ms:>12.3f} ms {ms / found.step_ms:>7.1%}" for name, ms in rows]


def _cause(place: int, cause: Cause) -> list[str]:
    rank = "" if cause.rank is None else f", rank {cause.rank}"
    span = f"({cause.low:.1%} to {cause.high:.1%})"
    lines = [f"{place}. {cause.kind} ({cause.cause}{rank}): {cause.share:.1%} of the step {span}"]
    for text in (_facts(cause), _advice(cause)):
        lines += textwrap.wrap(text, WIDTH, initial_indent="   ", subsequent_indent="     ")
    return lines


def _facts(cause: Cause) -> str:
    values = [
        short_number(fact.value, 4) if isinstance(fact.value, float) else str(fact.value) for fact in cause.evidence
    ]
    shown = zip(cause.evidence, values, strict=True)
    return "; ".join(f"{fact.what}: {value} {fact.unit}".rstrip() for fact, value in shown)


def _advice(cause: Cause) -> str:
    change = ", ".join(f"{name}: {json.dumps(value)}" for name, value in cause.remedy.items())
    return f"remedy: {cause.advice}" + (f" {{{change}}}" if change else "")
