"""A sweep: one YAML file that stands for many points. config/README.md describes the format.

    sweep = load(Path("config/demo.yaml"), preset=None)
    for point in sweep.points: ...

Read and checked for shape by jobs/sweep/file.py; here it is merged with a preset, multiplied out and checked as points.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nightsweep.jobs.point import check as constraints
from nightsweep.jobs.point import config_file, template
from nightsweep.jobs.point.point import FIELDS, Point, complete, setting_schema
from nightsweep.jobs.point.reason import Source
from nightsweep.jobs.sweep import code, estimate
from nightsweep.jobs.sweep import pairs as pairing
from nightsweep.jobs.sweep.alert import Alert
from nightsweep.jobs.sweep.design import LOOKS, Design, Precision, even
from nightsweep.jobs.sweep.file import SweepError, read
from nightsweep.jobs.sweep.pairs import Pair

__all__ = ["MAX_POINTS", "Resources", "Sweep", "SweepError", "load"]

# A slip of the hand in the axes should be an error, not a full memory.
MAX_POINTS = 100_000
MAX_GPU_HOURS = 1e7


@dataclass(frozen=True)
class Resources:
    """What a point may use. timeout_min: wall time of its job; stall_s: time without a step that counts as hung."""

    timeout_min: int = 60
    stall_s: int = 300


@dataclass(frozen=True)
class Sweep:
    """A named set of points, each once, in the order of the file. remedy_rounds: how often the target `remedies` may
    diagnose and change points. pairs: techniques, whose points are among the sweep's. points: with a precision those of
    the first look."""

    name: str
    points: tuple[Point, ...]
    resources: Resources = field(default_factory=Resources)
    alert: Alert = field(default_factory=Alert)
    preset: str | None = None
    remedy_rounds: int = 1
    pairs: tuple[Pair, ...] = ()
    design: Design = field(default_factory=Design)

    @property
    def repeat_rounds(self) -> int:
        """How often it is looked whether starts are to be added; the last look adds none."""
        return LOOKS if self.design.precision else 0

    def varying(self) -> tuple[str, ...]:
        """Names of the settings that differ between points, or between points of a workload for its own settings."""
        own = {name: None for point in self.points for name, _ in point.variables}
        values = {name: {point.value(name) for point in self.points} for name in [*FIELDS, *own]}
        shared = {name for name, setting in FIELDS.items() if setting.metadata["only"] is None} | own.keys()
        return tuple(name for name, v in values.items() if len(v if name in shared else v - {None}) > 1)


@dataclass(frozen=True)
class _Part:
    """The axes, or one entry of include: choices over the base, and their path in the file."""

    base: dict[str, Any]
    source: Source
    path: str

    def combinations(self) -> Iterator[dict[str, Any]]:
        for values in itertools.product(*self.source.choices.values()):
            yield self.base | dict(zip(self.source.choices, values, strict=True))

    @property
    def size(self) -> int:
        return math.prod(map(len, self.source.choices.values()))


class _Config:
    """A file with one preset laid over it, which still knows where each entry was written."""

    def __init__(self, content: dict[str, Any], preset: str | None) -> None:
        presets = content.get("presets", {})
        if preset is not None and preset not in presets:
            there = f"there are {', '.join(map(str, presets))}" if presets else "the file has none"
            raise SweepError([f"presets.{preset}: no such preset ({there})"])
        self._file = content
        self._over: dict[str, Any] = {} if preset is None else presets[preset]
        self._prefix = f"presets.{preset}."

    def map(self, key: str) -> dict[str, Any]:
        """A section that is merged entry by entry."""
        return {**self._file.get(key, {}), **self._over.get(key, {})}

    def value(self, key: str, default: Any) -> Any:
        """A section that a preset replaces."""
        return self._over.get(key, self._file.get(key, default))

    def is_preset(self, key: str, entry: str | None = None) -> bool:
        """Whether the preset gives it."""
        return entry in self._over.get(key, {}) if entry is not None else key in self._over

    def path(self, key: str, entry: str | None = None) -> str:
        prefix = self._prefix if self.is_preset(key, entry) else ""
        return prefix + (key if entry is None else f"{key}.{entry}")


def load(source: Path | Mapping[str, Any], preset: str | None = None) -> Sweep:
    """The sweep of a file, or of what one would hold; a SweepError with all that is wrong with it."""
    content = read(source)
    code.forget()
    if wrong := pairing.errors(content):
        raise SweepError(wrong)
    config = _Config(content, preset)
    parts = [*_parts(config), *_pair_parts(content)]
    design = _design(config)
    repeats = most = config.value("repeats", 1)
    if design.precision:
        repeats, most = design.precision.least, design.precision.most
        if pairing.pairs(content):
            repeats, most = even(repeats), even(most)
    _refuse_too_many(parts, most)

    errors = [error for part in parts for error in _find_misplaced(part)]
    if errors:
        raise SweepError(errors)
    points, errors = _exclude(_points(parts, repeats), config)
    errors += _code_errors(points) or constraints.errors(points.values())
    if not points and not errors:
        errors = [f"{config.path('exclude')}: no point is left"]
    if errors:
        raise SweepError(errors)
    resources = Resources(**config.map("resources"))
    alert = Alert(**config.map("alert"))
    rounds = config.value("remedy_rounds", 1)
    own = tuple(point for point, _ in points.values())
    if (hours := estimate.estimate(own).gpu_hours) > MAX_GPU_HOURS:
        raise SweepError([f"file: about {hours:.1e} GPU-hours are more than {MAX_GPU_HOURS:.0e}"])
    return Sweep(content["name"], own, resources, alert, preset, rounds, pairing.pairs(content), design)


def _design(config: _Config) -> Design:
    """The order of the points and the precision that they are to reach. A preset's precision counts more than the
    file's repeats, and its repeats more than the file's precision. Raises SweepError."""
    given = config.map("design")
    precision, path = given.get("precision"), config.path("design", "precision")
    repeats = config.value("repeats", None)
    if precision is not None and repeats is not None:
        if config.is_preset("repeats") == config.is_preset("design", "precision"):
            raise SweepError([f"{config.path('repeats')}: {path} counts the starts; expected one of the two"])
        precision = precision if config.is_preset("design", "precision") else None
    if precision is None:
        return Design(given.get("seed"))
    made = Precision(float(precision["half_width"].rstrip("%")) / 100, precision["least"], precision["most"])
    if made.least > made.most:
        raise SweepError([f"{path}.least: {made.least} is more than most, {made.most}"])
    return Design(given.get("seed", 0), made)


def _parts(config: _Config) -> Iterator[_Part]:
    base, axes, include = config.map("base"), config.map("axes"), config.value("include", [])
    base_paths = {name: config.path("base", name) for name in base}
    # Without axes the base is a point of its own, unless the file only lists points under include.
    if axes or not (include or config.value("pairs", {})):
        paths = base_paths | {name: config.path("axes", name) for name in axes}
        yield _Part(base, Source(axes, paths, frozenset(axes)), config.path("axes"))
    for number, entry in enumerate(include):
        path = f"{config.path('include')}[{number}]"
        choices = {name: value if isinstance(value, list) else [value] for name, value in entry.items()}
        listed = frozenset(name for name, value in entry.items() if isinstance(value, list))
        yield _Part(base, Source(choices, base_paths | {n: f"{path}.{n}" for n in entry}, listed), path)


def _pair_parts(content: dict[str, Any]) -> Iterator[_Part]:
    """Both points of each pair that is shown."""
    for pair, entry in zip(pairing.pairs(content), content.get("pairs", {}).values(), strict=True):
        path = f"pairs.{pair.name}"
        places = {name: f"base.{name}" for name in content.get("base", {})}
        named = entry.get("base")
        places |= {name: f"bases.{named}.{name}" for name in content.get("bases", {}).get(named, {})}
        places |= {name: f"{path}.both.{name}" for name in entry.get("both", {})}
        for side, switch in (("without", pair.without), ("with", pair.having)):
            if pair.not_shown is None:
                own = places | {name: f"{path}.{side}.{name}" for name in switch}
                yield _Part(dict(pair.base), Source({n: [v] for n, v in switch.items()}, own, frozenset()), path)


def _refuse_too_many(parts: list[_Part], repeats: int) -> None:
    total = sum(part.size for part in parts) * repeats
    if total > MAX_POINTS:
        shown = total if total < 10**15 else "10^15 and more"
        raise SweepError([f"file: {shown} points are more than {MAX_POINTS}"])


def _find_misplaced(part: _Part) -> Iterator[str]:
    """Settings that a part lacks, or that it gives for the wrong workload."""
    given = part.base | part.source.choices
    workloads = part.source.choices.get("workload", [part.base.get("workload")])
    where = part.path if part.path.endswith("]") or part.path.startswith("pairs.") else "base"
    if "command" in (*workloads, part.base.get("workload")):
        if "command" not in given:
            yield f"{where}.command: is required: the script and its arguments"
        if workloads != ["command"] or part.base.get("workload") != "command":
            path = part.source.paths.get("workload", "base.workload")
            yield f"{path}: command stands alone in a sweep, as base.workload"
        return
    missing = [name for name in ("workload", "model") if name not in given]
    for name in missing:
        yield f"{where}.{name}: is required (one of {', '.join(setting_schema(name)['enum'])})"
    if "workload" in missing:
        return
    for name in part.source.choices:
        only = FIELDS[name].metadata["only"]
        wrong = sorted({w for w in workloads if only not in (None, w)})
        if wrong:
            path = part.source.paths[name]
            yield f"{path}: is a setting of {only}, given for {wrong[0]} ({_count(part, wrong)})"


def _count(part: _Part, workloads: list[str]) -> str:
    own = part.source.choices.get("workload", [None])
    number = part.size * sum(w in workloads for w in own) // len(own) if own != [None] else part.size
    return f"{number} point{'s' if number > 1 else ''}"


def _points(parts: list[_Part], repeats: int) -> dict[str, tuple[Point, Source]]:
    """All points by id, each with where it came from first."""
    found: dict[str, tuple[Point, Source]] = {}
    for part in parts:
        for settings in part.combinations():
            own = pairing.select_settings(settings)
            for repeat in range(repeats):
                point = complete(own | {"repeat": repeat})
                with contextlib.suppress(code.CodeError, ValueError):  # it is told with its place in the file
                    point = code.with_code(point)
                found.setdefault(point.id, (point, part.source))
    return found


def _code_errors(points: Mapping[str, tuple[Point, Source]]) -> list[str]:
    """Scripts and files of commands that are not there, and keys that a config_file lacks, each once."""
    found = []
    for point, source in points.values():
        try:
            code.with_code(point)
        except (code.CodeError, ValueError) as error:
            if isinstance(error, code.CodeError):  # else the command is no text of words, which the checks tell
                found.append(f"{source.locate((error.setting,), point)}: {error}")
    return list(dict.fromkeys([*found, *_config_errors(points)]))


def _config_errors(points: Mapping[str, tuple[Point, Source]]) -> Iterator[str]:
    """Keys that a config_file lacks, each once."""
    tried = set()
    for point, source in points.values():
        path = Path(str(point.workdir), str(point.config_file))
        if not path.is_file():  # that it is missing has its own error; a name with {axes} is not known yet
            continue
        for key, value in template.config_edits(point).items():
            if (one := (path, key)) not in tried:
                tried.add(one)
                try:
                    config_file.edited(path, {key: value})
                except config_file.ConfigError as error:
                    yield f"{source.locate((template.CONFIG + key,), point)}: {error}"


def _exclude(
    points: dict[str, tuple[Point, Source]], config: _Config
) -> tuple[dict[str, tuple[Point, Source]], list[str]]:
    """The points that no entry of exclude matches, and an error for each entry that matches none."""
    entries: list[dict[str, Any]] = config.value("exclude", [])
    # Points by value, since entries and points may both be many.
    held: dict[str, defaultdict[Any, list[str]]] = {name: defaultdict(list) for entry in entries for name in entry}
    for name, keys in held.items():
        for key, (point, _) in points.items():
            keys[point.value(name)].append(key)
    dropped: set[str] = set()
    errors = []
    for number, entry in enumerate(entries):
        wanted = {name: set(value if isinstance(value, list) else [value]) for name, value in entry.items()}
        rarest = min(wanted, key=lambda name: sum(len(held[name].get(value, ())) for value in wanted[name]))
        some = (key for value in wanted[rarest] for key in held[rarest].get(value, ()))
        hits = {key for key in some if all(points[key][0].value(n) in v for n, v in wanted.items())}
        if not hits:
            errors.append(f"{config.path('exclude')}[{number}]: matches no point")
        dropped |= hits
    return {key: value for key, value in points.items() if key not in dropped}, errors
