"""How much of the differences of starts comes from configurations, nights and hosts: components of variance.

A mixed model of the logarithm of a start's mean step, fitted by restricted likelihood (Pinheiro and Bates,
Mixed-Effects Models in S and S-PLUS, 2000, chapter 2): random intercepts of the configuration, of the night, of the
host, and of the night within a configuration; what is left is of the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy

from nightsweep.analysis.sweep import dataset, nights
from nightsweep.analysis.sweep.starts import Starts

CONFIGURATION, NIGHT, HOST, WITHIN, START = "configuration", "night", "host", "night within a configuration", "start"
LEAST = 0.01
"""A standard deviation up to this share of the start's is at the bound: the search stops short of 0."""
EQUAL = 1e-6
"""Standard deviation of logarithms up to which starts are equal; clocks of a microsecond differ more."""
MOST_TRIES = 800
"""Steps of a search; some 200 are needed."""


@dataclass(frozen=True)
class Component:
    """A component of variance.

    Attributes:
        name: what differs.
        levels: how many of it the starts have.
        freedom: degrees of freedom left for it by the components above it.
        sd: standard deviation of the logarithm of a start's mean step; 0 at the bound; None for no estimate.
        reason: why not, or what else it includes; empty for none.
    """

    name: str
    levels: int
    freedom: int
    sd: float | None = None
    reason: str = ""

    @property
    def percent(self) -> float | None:
        """How much longer a step takes one standard deviation above the middle, %."""
        return None if self.sd is None else 100 * math.expm1(self.sd)


def list_starts(tables: dataset.Tables) -> pl.DataFrame:
    """The starts of a sweep that nothing disturbed: point_id, workload, config (a label), settings (equal for repeats),
    night, host (all hosts of the start), ms (mean timed step of the slowest rank), sm_active (%)."""
    own = Starts.of(tables["points"], tables.scan("steps")).frame
    known = dataset.undisturbed(own).drop("host", "disturbed")
    points = nights.add_nights(dataset.labelled(tables), tables["points"])
    host = pl.col("hosts").cast(pl.List(pl.String)).list.sort().list.join(",")
    return points.select("point_id", "workload", "config", "night", host=host).join(
        known, on="point_id", maintain_order="left"
    )


def components(starts: pl.DataFrame) -> list[Component]:
    """The components of the starts of one workload, from those whose night and host are known; their standard
    deviations are None where no search of the likelihood ends.

    Args:
        starts: settings, night, host, ms.
    """
    known = starts.drop_nulls(["night", "host"]).filter(pl.col("ms") > 0)
    found = _list_components(known)
    told = [one.name for one in found[:-1] if not one.reason]
    if not found or not found[-1].freedom:
        return found
    sds = _fit(known, told)
    if sds is None:
        return [replace(one, reason=one.reason or "the fit does not converge") for one in found]
    by_name = dict(zip([*told, START], sds, strict=True))
    return [replace(one, sd=by_name.get(one.name)) for one in found]


def _codes(starts: pl.DataFrame, name: str) -> np.ndarray:
    """The level of each start, 0, 1 and so on."""
    columns = {CONFIGURATION: ["settings"], NIGHT: ["night"], HOST: ["host"], WITHIN: ["settings", "night"]}[name]
    return starts.select(pl.struct(columns).rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()


def _design(codes: np.ndarray) -> np.ndarray:
    """A column a level."""
    return np.asarray(np.eye(int(codes.max()) + 1)[codes])


def _rank_within(columns: np.ndarray, codes: np.ndarray) -> int:
    """How many differences these columns tell beyond those of the levels `codes`: their rank, each less its mean in its
    level."""
    sums = np.zeros((int(codes.max()) + 1, columns.shape[1]))
    np.add.at(sums, codes, columns)
    return int(np.linalg.matrix_rank(columns - (sums / np.bincount(codes)[:, None])[codes]))


def _list_components(starts: pl.DataFrame) -> list[Component]:
    """The components with levels and degrees of freedom, each after those before it, as in an analysis of variance."""
    if starts.is_empty():
        return []
    codes = {name: _codes(starts, name) for name in (CONFIGURATION, NIGHT, HOST, WITHIN)}
    levels = {name: int(own.max()) + 1 for name, own in codes.items()}
    night, host = _design(codes[NIGHT]), _design(codes[HOST])
    of_night = _rank_within(night, codes[CONFIGURATION])
    of_host = _rank_within(np.hstack([night, host]), codes[CONFIGURATION]) - of_night
    moved = _rank_within(host, codes[CONFIGURATION]) > 0
    # The levels of WITHIN hold those of configuration and night.
    all_but_start = levels[WITHIN] + _rank_within(host, codes[WITHIN])
    of_within = all_but_start - levels[CONFIGURATION] - of_night - of_host
    of_start = starts.height - all_but_start
    freedoms = {CONFIGURATION: levels[CONFIGURATION] - 1, NIGHT: of_night, HOST: of_host, WITHIN: of_within}
    repeated = of_start + of_within > 0
    # Without two starts of a configuration in a night, what the night does to it and what the start does are one.
    joint = repeated and not of_start
    aliased = {
        NIGHT: _ONE_NIGHT,
        HOST: "cannot be separated from nights" if moved else "no configuration ran on two",
        WITHIN: f"cannot be separated from nights{' and hosts' if of_host else ''}" if of_night else _ONE_NIGHT,
    }
    if joint:
        aliased[WITHIN] = "no configuration has two starts on one host in a night"
    made = []
    for name, own in freedoms.items():
        apart = own and not (joint and name == WITHIN)
        reason = _ONE if levels[name] < 2 else "" if apart and repeated else aliased[name] if repeated else _FEW
        made.append(Component(name, levels[name], own, None, reason))
    reason = _JOINT if joint else "" if repeated else _FEW
    return [*made, Component(START, starts.height, of_within if joint else of_start, None, reason)]


_ONE, _FEW, _ONE_NIGHT = "there is only one", "too few repeats", "no configuration ran in two nights"
_JOINT = "includes the night within a configuration"


def _fit(starts: pl.DataFrame, names: list[str]) -> list[float] | None:
    """Standard deviations of these components, and of the start last; None where the search does not end."""
    logs = np.log(starts["ms"].to_numpy())
    if np.ptp(logs) == 0:
        return [0.0] * (len(names) + 1)
    if not names:
        return [float(np.std(logs, ddof=1))]
    likelihood = _Likelihood(logs, [_design(_codes(starts, name)) for name in names])
    # Configurations differ by far the most.
    begin = [10.0 if name == CONFIGURATION else 1.0 for name in names]
    # The gradient leads far from the maximum; of the simplex of Nelder and Mead, kept from 0, no other start was seen
    # to end higher. Beyond the other bound rounding is all that is left of the start.
    bounds = [(LEAST / 10, 1 / EQUAL)] * len(names)
    options = {"maxiter": MOST_TRIES, "xatol": 1e-3, "fatol": 1e-5}
    search = scipy.optimize.minimize(
        lambda ratios: -likelihood.at(ratios)[0], begin, method="Nelder-Mead", bounds=bounds, options=options
    )
    start = math.sqrt(likelihood.at(search.x)[1])
    # Starts as equal as rounding leaves them have no scale to search by.
    if not search.success or not start > EQUAL:
        return None
    return [*(float(ratio) * start if ratio > LEAST else 0.0 for ratio in search.x), start]


class _Likelihood:
    """The restricted likelihood of a common mean and of random intercepts with these designs.

    By the ratio of each one's standard deviation to the start's, of which the best follows from them. Sparse, for 1,000
    starts have as many levels.
    """

    def __init__(self, values: npt.NDArray[np.float64], designs: list[npt.NDArray[np.float64]]) -> None:
        levels = scipy.sparse.csr_array(np.hstack(designs))
        fixed = np.column_stack([np.ones(len(values)), values - values.mean()])
        self.freedom = len(values) - 1
        self.sizes = [design.shape[1] for design in designs]
        self.levels, self.mixed, self.fixed = levels.T @ levels, levels.T @ fixed, fixed.T @ fixed

    def at(self, ratios: Sequence[float]) -> tuple[float, float]:
        """Its logarithm, but for a constant, and the variance of the start."""
        scale = np.repeat(ratios, self.sizes)
        scaled = scipy.sparse.diags_array(scale)
        # Woodbury's identity: a matrix of the levels instead of one of the starts, of the same determinant.
        factor = scipy.sparse.linalg.splu((scipy.sparse.eye_array(len(scale)) + scaled @ self.levels @ scaled).tocsc())
        right = scale[:, None] * self.mixed
        (ones, both), (_, squares) = self.fixed - right.T @ factor.solve(right)
        # Of equal starts rounding leaves less than nothing.
        variance = max((squares - both**2 / ones) / self.freedom, np.finfo(float).tiny)
        log_determinant = np.log(np.abs(factor.U.diagonal())).sum() + math.log(ones)
        return -(self.freedom * math.log(variance) + log_determinant) / 2, variance
