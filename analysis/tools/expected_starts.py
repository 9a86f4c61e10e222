"""How often the points of a sweep with a precision will be started, before it runs."""

from __future__ import annotations

from nightsweep.analysis.sweep.labels import plural
from nightsweep.analysis.sweep.precision import needed
from nightsweep.analysis.sweep.starts import TABLE
from nightsweep.jobs.sweep.design import CONFIDENCE, Precision, even, families, pair_ids
from nightsweep.jobs.sweep.sweep import Sweep

_WHERE = {"device": "the GPU decides", "mixed": "GPU and host decide", "host": "the host decides"}


def lines(sweep: Sweep, precision: Precision) -> list[str]:
    """The number of starts a point, by what starts on H200s differ by on one host (analysis/sweep/starts.py)."""
    first = [point for point in sweep.points if point.repeat == 0]
    paired = len({point.id for family in families(first, pair_ids(sweep.pairs)) for point in family})
    alone = len(first) - paired
    begun = len(sweep.points) // len(first)
    most = even(precision.most) if paired else precision.most
    found = [
        f"precision: half widths of {100 * precision.half_width:g} %, {begun} to {most} starts each; "
        f"{plural(paired, 'point')} in pairs, {alone} alone"
    ]
    for kind, words in _WHERE.items():
        sd = TABLE[True, kind][0]
        texts = [_starts(sd, precision, 2, begun) + " in pairs"] if paired else []
        texts += [_starts(sd, precision, 1, begun) + " alone"] if alone else []
        found.append(f"  expected where {words} (starts differ by {100 * sd:.1f} %): {', '.join(texts)}")
    return found


def _starts(sd: float, precision: Precision, each: int, begun: int) -> str:
    """The number that is needed of blocks of two starts, or of single ones (`each`)."""
    most = (even(precision.most) if each == 2 else precision.most) // each
    number = needed(sd, precision.half_width, most + 1, CONFIDENCE)
    return f"more than {each * most}" if number > most else str(max(begun, each * number))
