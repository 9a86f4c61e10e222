"""How much longer or shorter the steps of one run, B, are than those of another, A, in which parts, and whether that is
more than noise.

The 95 % interval of the difference is that of starts (analysis/sweep/starts.py): of the two points' repeats, where
there are enough, unless all of A ran on one host and all of B on another; else of what starts of such runs are known
to differ by. A difference below the threshold `noise` is none. A part's interval is Welch's over the steps of the two
traces: it says how steady the part is within a start, no more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.diagnosis.evidence import sources
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.thresholds import NOISE
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.interval import half_interval
from nightsweep.analysis.sweep.starts import LEAST_OWN, Noise, both_active, known_noise, noise_of_repeats, own_noise
from nightsweep.analysis.tables import parquet
from nightsweep.analysis.tables.parquet import StrPath
from nightsweep.analysis.tables.part_names import PARTS
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.point_folder import record_of

PART_DIFFERENCES = {
    "part": pl.String(),
    "a_ms": pl.Float64(),
    "b_ms": pl.Float64(),
    "difference_ms": pl.Float64(),
    "half_interval_ms": pl.Float64(),
    "beyond_noise": pl.Boolean(),
}
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """Means of a time in A and B, ms, and half of the 95 % interval of B - A; None where that is not known."""

    a: float
    b: float
    half: float | None

    @property
    def by(self) -> float:
        return self.b - self.a

    def beyond(self, noise_ms: float) -> bool | None:
        """Whether B - A is more than noise; None where steps cannot tell."""
        return None if self.half is None else abs(self.by) > max(self.half, noise_ms)

    def as_json(self, noise_ms: float) -> dict[str, Any]:
        return {
            "a_ms": self.a,
            "b_ms": self.b,
            "difference_ms": self.by,
            "half_interval_ms": self.half,
            "beyond_noise": self.beyond(noise_ms),
        }


@dataclass(frozen=True)
class Comparison:
    """`step`: of steps, or of samples where the two have batches of different sizes (`of`). `steps`: how many there
    were in A and B. `starts`: how many starts the means are of. `noise`: what the interval is from. `timed`: whether
    the steps are those of the timed run. `two_tracers`: whether the traces are of different tracers, each of which
    lengthens steps in its own way. `settings`: those that differ, (A, B). `disturbed`: what disturbed A and B; None
    where nothing is known to have. `failed`: why A and B did not end well; None where they did. `diverged`: the first
    step of A and B whose loss is not finite; None where there is none. Repeats that were disturbed or failed are left
    out."""

    of: str
    step: Difference
    steps: tuple[int, int]
    starts: tuple[int, int]
    noise: Noise
    timed: bool
    two_tracers: bool
    parts: dict[str, Difference]
    settings: dict[str, tuple[Any, Any]]
    disturbed: tuple[str | None, str | None]
    failed: tuple[str | None, str | None]
    diverged: tuple[int | None, int | None]

    @property
    def noise_ms(self) -> float:
        return NOISE.value * self.step.a

    @property
    def verdict(self) -> str:
        """In which a run that failed or was disturbed decides nothing (docs/protocol.md leaves it out of ratios), nor
        do steps that two tracers lengthened."""
        if any(self.failed):
            return "not known: a run did not end well"
        if any(self.disturbed):
            return "not known: something else disturbed a run"
        if self.two_tracers and not self.timed:
            return "not known: two tracers lengthen steps differently"
        beyond = self.step.beyond(self.noise_ms)
        return ("faster" if self.step.by < 0 else "slower") if beyond else "no difference beyond noise"

    def as_json(self) -> dict[str, Any]:
        noise = max(self.noise_ms, self.step.half or 0.0)
        return {
            "schema": 1,
            "verdict": self.verdict,
            "of": self.of,
            "step": self.step.as_json(self.noise_ms),
            "noise_ms": noise,
            "noise_share": noise / self.step.a,
            "noise_from": self.noise.source,
            "starts": list(self.starts),
            "steps": list(self.steps),
            "timed": self.timed,
            "two_tracers": self.two_tracers,
            "parts": {name: part.as_json(0.0) for name, part in self.parts.items()},
            "disturbed": list(self.disturbed),
            "failed": list(self.failed),
            "diverged": list(self.diverged),
            "settings": {name: list(values) for name, values in self.settings.items()},
        }

    def table(self) -> pl.DataFrame:
        """The parts of a traced step, a row each, ms; empty where one of the two has no trace."""
        rows = [{"part": name, **part.as_json(0.0)} for name, part in self.parts.items()]
        return pl.DataFrame(rows, schema=PART_DIFFERENCES)


@parquet.faults_as_input_errors()
def compare(a: StrPath, b: StrPath) -> Comparison:
    """Say how much longer or shorter the steps of run B are than those of run A, and whether that is more than noise.

    Args:
        a: a trace, a folder of `nightsweep ingest`, or a point's folder. Repeats of a point that lie beside it count.
        b: the other one.

    Returns:
        Its `verdict` is "faster", "slower", "no difference beyond noise", or begins with "not known", where a run
        did not end well, something else disturbed it, or their steps are those of different tracers. `step` and
        `parts` are means in ms with half of their 95 % interval; `table()` is the parts as a table.

    Raises:
        InputError: in one line, where one of them cannot be read, or has no step.

    Two points of the published set, the same training with images in NHWC and in NCHW order:

        >>> import nightsweep
        >>> points = "data/h200-2026-11-21/points"
        >>> found = nightsweep.compare(f"{points}/174573f6e51a", f"{points}/4cf452770303")
        >>> found.verdict, found.settings["layout"]
        ('slower', ('nhwc', 'nchw'))
    """
    one, other = with_repeats(Path(a)), with_repeats(Path(b))
    require_steps({str(a): one[0]} | {str(b): other[0]})
    return compare_runs(one, other)


def require_steps(runs: Mapping[str, Evidence]) -> None:
    """Raise InputError unless all of these runs, by path, have timed steps, or all have traced ones."""
    found = {path: (e.timed_ns is not None, e.periods.size > 0) for path, e in runs.items()}
    if all(timed for timed, _ in found.values()) or all(traced for _, traced in found.values()):
        return
    for path, e in runs.items():
        if not any(found[path]):
            gaps = [f"{name}: {e.absent[name]}" for name in ("trace, in part", "trace") if name in e.absent]
            why = e.failed or "; ".join(gaps[:1]) or "no timed step"
            expected = "the trace of a GPU, or a point's folder with timed steps, was expected"
            raise InputError(f"{path}: has no step to compare ({why}); {expected}")
    (one, (timed, _)), (other, _) = found.items()
    plain, bare = (one, other) if timed else (other, one)
    raise InputError(
        f"{plain}: has no step to compare with those of {bare}: its steps are timed ones, and those of the other "
        "traced ones; two traces, or two points with timed steps, were expected"
    )


def compare_runs(one: Sequence[Evidence], other: Sequence[Evidence]) -> Comparison:
    """What changed from one run, A, to the other, B. Each is the run that was named, and the repeats of its settings.
    Both have timed steps, or both traced ones."""
    a, b = one[0], other[0]
    timed = a.timed_ns is not None and b.timed_ns is not None
    samples = [samples_of(e) or 0 for e in (a, b)]
    per_sample = timed and all(samples) and samples[0] != samples[1]
    means = [
        [mean / count if per_sample else mean for mean in start_means(side, timed=timed)]
        for side, count in zip((one, other), samples, strict=True)
    ]
    if a.point is not None and b.point is not None and is_alike(a.point, b.point):  # each is a repeat of the other
        found = noise_of_repeats(means[:1], LEAST_OWN, f"{len(means[0])} repeats of these settings")
        means = [own[:1] for own in means]
    else:
        found = own_noise(means[0], means[1])
    places = [{hosts_of(e) for e in side} for side in (one, other)]
    if places[0] != places[1] and max(map(len, places)) == 1:
        found = None  # repeats on one host do not tell what another one differs by
    one_host = bool(hosts_of(a)) and hosts_of(a) == hosts_of(b)
    noise = found or known_noise(both_active(sm_active(a), sm_active(b)), one_host=one_host)
    parts = {}
    if a.lanes and b.lanes:
        rows = {name: [e.part(name).mean(axis=0) / 1e6 for e in (a, b)] for name in PARTS}
        parts = {name: difference(*pair) for name, pair in rows.items() if pair[0].any() or pair[1].any()}
    return Comparison(
        "sample" if per_sample else "step",
        of_starts(means[0], means[1], noise),
        (len(step_times(a, timed=timed)), len(step_times(b, timed=timed))),
        (len(means[0]), len(means[1])),
        noise,
        timed,
        bool(a.lanes and b.lanes) and has_operators(a) != has_operators(b),
        parts,
        setting_changes(a, b),
        (a.disturbed, b.disturbed),
        (a.failed, b.failed),
        (first_diverged(a), first_diverged(b)),
    )


def has_operators(e: Evidence) -> bool:
    """Whether its trace has PyTorch's operators, as those of Kineto have and those of nsys have not."""
    return any(lane.events["operators"].height for lane in e.lanes)


def first_diverged(e: Evidence) -> int | None:
    """The first timed step in which the loss of a rank is not finite; None where there is none."""
    return e.steps.filter(~pl.col("loss").is_finite())["step"].min()  # type: ignore[return-value]


def start_means(side: Sequence[Evidence], *, timed: bool) -> list[float]:
    """The mean step of each start, ms: of its timed steps, else of the traced ones of the run that was named."""
    starts = [e for e in side if e.timed_ns is not None] if timed else side[:1]
    return [float(step_times(e, timed=timed).mean()) for e in starts]


def of_starts(a: Sequence[float], b: Sequence[float], noise: Noise) -> Difference:
    """B - A of the mean steps of starts, ms. The interval is that of the ratio, as far as it reaches towards A."""
    mean, other, half = float(np.mean(a)), float(np.mean(b)), noise.half((len(a), len(b)))
    return Difference(mean, other, other * (math.expm1(half) if other < mean else -math.expm1(-half)))


def sm_active(e: Evidence) -> float | None:
    """Mean activity of the SMs of its GPUs in the timed steps, %; None where one was not sampled."""
    known = [value for own in e.samples.values() if isinstance(value := own["sm_active_percent"].mean(), float)]
    return float(np.mean(known)) if known and len(known) == len(e.samples) else None


def hosts_of(e: Evidence) -> tuple[str, ...]:
    """Where the run was, and on which day."""
    return tuple(f"{host.hostname} {str(e.record.started_at)[:10]}" for host in e.record.hosts)


def step_times(e: Evidence, *, timed: bool) -> Floats:
    """Times of the timed, or the traced, steps of the slowest rank, ms."""
    if timed:
        return e.unseen.slowest_ms.to_numpy()
    return e.traced_lengths / 1e6


def samples_of(e: Evidence) -> int | None:
    """Samples of a step over all ranks, where all of them tell."""
    if e.point is not None and e.steps["rank"].n_unique() < e.point.processes:
        return None
    return int(e.steps.group_by("step").agg(pl.col("samples").sum())["samples"].max() or 0) or None  # type: ignore[arg-type]


def difference(a: Floats, b: Floats) -> Difference:
    """B - A of two sets of steps."""
    if len(a) < 2 or len(b) < 2:
        return Difference(float(a.mean()), float(b.mean()), None)
    half = half_interval([(float(x.var(ddof=1)) / len(x), len(x)) for x in (a, b)])
    return Difference(float(a.mean()), float(b.mean()), half)


def setting_changes(a: Evidence, b: Evidence) -> dict[str, tuple[Any, Any]]:
    """Settings that differ between two points."""
    if a.point is None or b.point is None:
        return {}
    one, other = a.point.settings(), b.point.settings()
    return {n: (one.get(n), other.get(n)) for n in {**one, **other} if one.get(n) != other.get(n)}


def with_repeats(path: Path) -> list[Evidence]:
    """A run and, where it is a point of a sweep, the timed steps of the repeats of its settings that nothing disturbed.
    Raises InputError."""
    own = sources.gather([path])
    if own.point is None or not path.is_dir():
        return [own]
    others = [
        folder
        for folder in sorted(path.resolve().parent.iterdir())
        if folder.name != path.resolve().name and is_repeat(own.point, folder)
    ]
    repeats = (sources.from_folder(folder, with_traces=False) for folder in others)
    return [own, *(e for e in repeats if e.disturbed is None)]


def is_repeat(point: Point, folder: Path) -> bool:
    """Whether the folder's point is ok and is a further start of the same settings."""
    record = record_of(folder)
    if record.status != "ok":
        return False
    other = sources.point_of(record.settings)
    return other is not None and is_alike(point, other)


def is_alike(one: Point, other: Point) -> bool:
    """Whether two points are starts of the same settings."""
    return dataclasses.replace(other, **{name: getattr(one, name) for name in dataset.ASIDE}) == one
