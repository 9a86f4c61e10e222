"""Commands with fields: `train.py --lr {lr}` and the values that make words of it. No shell is asked."""

from __future__ import annotations

import contextlib
import shlex
import string
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightsweep.jobs.point.point import Point

TEMPLATES = ("command", "launcher_options")
ENVIRONMENT = "env."
"""An axis env.NAME is a variable of the script's environment."""
CONFIG = "config."
"""An axis config.KEY.KEY is a line of the script's config_file."""
GIVEN = ("out", "config_file")
"""Fields that are known when a run begins."""
SETTINGS = ("seed", "repeat", "nodes", "ranks_per_node", "warmup_steps", "timed_steps", "traced_steps")
"""Settings that a command may name. The rest are Nightsweep's own, or switches, which are not the script's."""


class TemplateError(ValueError):
    """A text with a brace that is no field's. The message says which, in one line."""


def fields(text: str) -> set[str]:
    """Names of the fields of a text. Raises TemplateError."""
    found = set()
    try:
        for _, name, form, conversion in string.Formatter().parse(text):
            if name is None:
                continue
            if form or conversion or not all(part.replace("-", "_").isidentifier() for part in name.split(".")):
                shown = name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
                raise TemplateError(f"{{{shown}}} is no name of an axis; a brace that is meant is written twice")
            found.add(name)
    except ValueError as error:
        if isinstance(error, TemplateError):
            raise
        raise TemplateError(f"{str(error).lower()}; a brace that is meant is written twice") from error
    return found


def fields_or_none(text: str) -> set[str]:
    """Names of the fields; none where the text is no template."""
    with contextlib.suppress(TemplateError):
        return fields(text)
    return set()


def names(point: Point) -> set[str]:
    """Names that fields of this point's command may have."""
    return {*(name for name, _ in point.variables), *SETTINGS, *GIVEN}


def values(point: Point) -> dict[str, Any]:
    """The values of the fields, but for those that a run gives."""
    return {name: getattr(point, name) for name in SETTINGS} | dict(point.variables)


def as_text(value: Any) -> str:
    """A value as an argument, a variable or a label has it: as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def words(text: str, known: Mapping[str, Any]) -> list[str]:
    """The words of a command, divided before values are put in, so that no value is ever divided or interpreted. A word
    that is a field alone, and whose value is null, is left out."""
    found = []
    for word in shlex.split(text):
        own = fields(word)
        if len(own) == 1 and word == f"{{{(name := next(iter(own)))}}}" and known[name] is None:
            continue
        found.append(fill(word, known))
    return found


def fill(text: str, known: Mapping[str, Any]) -> str:
    """The text with its fields filled in."""
    parts = []
    for literal, name, _, _ in string.Formatter().parse(text):
        parts.append(literal)
        if name is not None:
            parts.append(as_text(known[name]))
    return "".join(parts)


def environment(point: Point) -> dict[str, str]:
    """Variables that the point's axes set; those that are null are not set."""
    own = {name.removeprefix(ENVIRONMENT): value for name, value in point.variables if name.startswith(ENVIRONMENT)}
    return {name: as_text(value) for name, value in own.items() if value is not None}


def config_edits(point: Point) -> dict[str, Any]:
    """Values of the config_file's lines, by their keys with dots."""
    return {name.removeprefix(CONFIG): value for name, value in point.variables if name.startswith(CONFIG)}
