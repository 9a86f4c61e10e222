"""The file of a sweep, read and checked for shape: YAML to a plain dictionary, or every error in it at once.

`read` is the edge at which types are checked; what comes after (jobs/sweep/sweep.py, jobs/point/check.py) trusts them.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from nightsweep.jobs.point import template
from nightsweep.jobs.point.point import FIELDS, applicable, setting_schema
from nightsweep.jobs.point.settings.command import SWITCHES
from nightsweep.jobs.point.settings.field import MOST_TEXT
from nightsweep.jobs.point.settings.measuring import FAULT_PATTERN, TRACE_RANKS_PATTERN
from nightsweep.jobs.sweep import yaml_file

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]*\Z"
PERCENT_PATTERN = r"^(?=.*[1-9])[0-9]{1,2}(\.[0-9]{1,2})?%\Z"
MOST_NAME = 100
"""Characters of a name: folders, files and jobs have it."""
MOST_ERRORS = 100
KINDS = {
    "integer": "an integer",
    "number": "a finite number",
    "boolean": "true or false",
    "string": "a text",
    "array": "a list",
    "object": "a map",
    "scalar": "a number, a text, true, false or null",
}


class SweepError(Exception):
    """A sweep that cannot be run. `errors` are lines of `PATH: what`."""

    def __init__(self, errors: Iterable[str]) -> None:
        lines = tuple(itertools.islice(errors, MOST_ERRORS + 1))
        self.errors = (*lines[:MOST_ERRORS], "file: and more errors") if len(lines) > MOST_ERRORS else lines
        super().__init__("\n".join(self.errors))


def read(source: Path | Mapping[str, Any]) -> dict[str, Any]:
    """The checked content of a sweep: a file, or what one would hold."""
    content = _parse(source) if isinstance(source, Path) else dict(source)
    if content is None:
        raise SweepError(["file: is empty"])
    if not isinstance(content, dict):
        raise SweepError([f"file: {show_value(content)} is not a map with name, base, axes, ..."])
    found = _validator(runs_scripts(content)).iter_errors(content)
    lines = itertools.chain.from_iterable(map(_lines, found))
    errors = dict.fromkeys(itertools.islice(lines, 2 * MOST_ERRORS))  # each looks for what was meant, which takes time
    if errors:
        raise SweepError(errors)
    return _with_text(content)


def runs_scripts(content: Mapping[str, Any]) -> bool:
    """Whether the points of a sweep are scripts of the user's own. Its axes may then have any names."""
    base = content.get("base")
    return isinstance(base, dict) and base.get("workload") == "command"


def _with_text(content: dict[str, Any]) -> dict[str, Any]:
    """The same with a command that is a list of words as the text that divides into them."""
    base = content.get("base", {})
    if not isinstance(base.get("command"), list):
        return content
    return {**content, "base": {**base, "command": shlex.join(map(template.as_text, base["command"]))}}


def _parse(path: Path) -> Any:
    try:
        return yaml_file.load(path)
    except OSError as error:
        raise SweepError([f"file: cannot be read: {error.strerror or error}"]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else "file"
        raise SweepError([f"{where}: bad YAML: {one_line(error.problem or error.context or 'unreadable')}"]) from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # PyYAML's constructors of a value with a wrong tag (`!!bool x`) raise whatever they stumble over.
        raise SweepError([f"file: bad YAML: {one_line(str(error))}"]) from error
    except RecursionError as error:
        raise SweepError(["file: bad YAML: nested too deep"]) from error


def _map(properties: dict[str, Any], other: dict[str, Any] | bool = False, **more: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": other, "properties": properties, **more}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


def _one_or_many(spec: dict[str, Any]) -> dict[str, Any]:
    # if/then, not anyOf: its errors point at the value itself and say one thing.
    return {"if": {"type": "array"}, "then": _list(spec), "else": spec}


def _settings(scripts: bool) -> dict[str, Any]:
    """Schemas of the settings. `scripts`: of workload command, whose switches may be null."""
    every = {name: setting_schema(name) for name in FIELDS}
    if not scripts:
        return every
    own = {name: every[name] for name in applicable("command")}
    return own | {name: {"if": {"type": "null"}, "else": own[name]} for name in (*SWITCHES, "no_sync")}


_PRECISION = _map(
    {
        "half_width": {"type": "string", "pattern": PERCENT_PATTERN},
        "least": {"type": "integer", "minimum": 3, "maximum": 1000},
        "most": {"type": "integer", "minimum": 3, "maximum": 1000},
    },
    required=["half_width", "least", "most"],
)


@functools.cache
def schema(scripts: bool = False) -> dict[str, Any]:
    """JSON schema of a sweep file, from the settings of a point. `scripts`: its points are scripts of the user's own,
    with any axes."""
    every = _settings(scripts)
    scalar = {"type": "scalar", "maxLength": MOST_TEXT}
    free, listed, one_or_many = (scalar, _list(scalar), _one_or_many(scalar)) if scripts else (False, False, False)
    # Repetitions are counted by `repeats`; two ways to say it would contradict each other.
    chosen = {name: spec for name, spec in every.items() if name != "repeat"}
    base = chosen | ({"command": _one_or_many(chosen["command"])} if scripts else {})

    def whole(most: int, least: int = 1) -> dict[str, Any]:
        return {"type": "integer", "minimum": least, "maximum": most}

    def many(specs: dict[str, Any]) -> dict[str, Any]:
        items = {name: _one_or_many(spec) for name, spec in specs.items()}
        return {"type": "array", "items": _map(items, one_or_many, minProperties=1)}

    overlay: dict[str, Any] = {
        "base": _map(base, free),
        "axes": _map({name: _list(spec) for name, spec in chosen.items()}, listed),
        "include": many(chosen),
        "exclude": many(every),
        "repeats": whole(100_000),
        "remedy_rounds": whole(100),
        "design": _map({"seed": whole(2**31 - 1, 0), "precision": _PRECISION}),
        "resources": _map({"timeout_min": whole(100_000), "stall_s": whole(1_000_000)}),
        "alert": _map(
            {
                "below_percent": {"type": "number", "minimum": 0, "maximum": 100},
                "for_s": {"type": "number", "minimum": 1, "maximum": 1_000_000},
                "command": {"type": "string", "minLength": 1, "maxLength": MOST_TEXT},
            }
        ),
    }
    name = {"type": "string", "pattern": NAME_PATTERN, "maxLength": MOST_NAME}
    text = {"type": "string", "minLength": 1, "maxLength": 1000}
    title = {"type": "string", "minLength": 1, "maxLength": MOST_NAME}
    pair = {
        "against": _list(text),
        "base": text,
        "both": _map(chosen, free),
        "without": _map(chosen, free),
        "with": _map(chosen, free),
        "not_shown": text,
    }
    pairs = {
        "bases": {"type": "object", "propertyNames": name, "additionalProperties": _map(chosen, free)},
        "pairs": {"type": "object", "propertyNames": title, "additionalProperties": _map(pair)},
    }
    presets = {"type": "object", "propertyNames": name, "additionalProperties": _map(overlay)}
    return _map({"name": name, **overlay, **pairs, "presets": presets}, required=["name"])


@functools.cache
def _validator(scripts: bool) -> Any:
    import jsonschema  # only what reads a sweep's file waits for it

    # JSON schema takes 2.0 for an integer and .nan for a number; in a hashed setting either would be a trap.
    types = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, v: isinstance(v, int) and not isinstance(v, bool),
            "number": lambda _, v: _is_number(v),
            "scalar": lambda _, v: v is None or isinstance(v, (bool, str)) or _is_number(v),
        }
    )
    extend: Any = jsonschema.validators.extend  # untyped in the stubs
    return extend(jsonschema.Draft202012Validator, type_checker=types)(schema(scripts))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _lines(error: ValidationError) -> Iterator[str]:
    """One error of the schema in our words; unknown keys are one line each."""
    parts = list(error.absolute_path)
    instance: Any = error.instance
    rule: Any = error.validator_value
    if error.validator == "additionalProperties":
        part: Any = error.schema
        for key in instance:
            if key not in part["properties"]:
                yield f"{_path([*parts, key])}: {_unknown(key, part['properties'])}"
    elif error.validator == "required":
        for key in rule:
            if key not in instance:
                yield f"{_path([*parts, key])}: is required"
    else:
        yield f"{_path(parts)}: {_what(error, rule)}"


def _unknown(key: Any, known: dict[str, Any]) -> str:
    if key == "repeat" and "workload" in known:
        return "is counted by the top key 'repeats'"
    kind = "setting" if "workload" in known else "key"
    close = difflib.get_close_matches(str(key), known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}" if kind == "key" else ""
    return f"unknown {kind}" + (f" ({hint})" if hint else "")


def _what(error: ValidationError, limit: Any) -> str:
    value = show_value(error.instance)
    match error.validator:
        case "enum":
            written = "cuda" if error.instance == "gpu" else str(error.instance)  # spelt more like cpu
            close = difflib.get_close_matches(written, [str(one) for one in limit], 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            return f"{value} is not one of {', '.join(map(str, limit))}{hint}"
        case "type":
            return f"{value} is not {KINDS[limit]}"
        case "maximum":
            return f"{value} is more than {limit}"
        case "minimum":
            return f"{value} is less than {limit}"
        case "exclusiveMinimum":
            return f"{value} is not more than {limit}"
        case "pattern" if limit == NAME_PATTERN:
            return f"{value} is not made of a-z, 0-9, _ and -, starting with a letter or digit"
        case "pattern" if limit == PERCENT_PATTERN:
            return f"{value} is not a percentage above 0%, as 2%"
        case "pattern" if limit == TRACE_RANKS_PATTERN:
            return f"{value} is not auto, all, first-per-node or ranks with commas and without leading zeros (0,3)"
        case "maxLength":
            return f"{value} is {len(str(error.instance))} characters long, more than {limit}"
        case "pattern" if limit == FAULT_PATTERN:
            return f"{value} is not KIND@rankR:stepS with KIND one of exception, kill, nan, hang"
        case "minItems" | "minLength" | "minProperties":
            return "is empty"
    return one_line(error.message)


def _path(parts: Iterable[Any]) -> str:
    text = "".join(f"[{p}]" if isinstance(p, int) and not isinstance(p, bool) else f".{p}" for p in parts)
    return one_line(text.lstrip(".")) or "file"


def show_value(value: Any) -> str:
    """A value as the YAML file may have it, on one line and not too long."""
    words = {True: "true", False: "false", None: "null"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(text: str) -> str:
    return " ".join(text.split())
