"""A script's config_file, with other values at the keys that a point's axes name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomlkit
import yaml


class ConfigError(Exception):
    """A config_file that cannot be edited as the point's axes say. The message is one line."""


_YAML = (yaml.safe_load, lambda content: str(yaml.safe_dump(content, sort_keys=False)))
_FORMATS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    ".json": (json.loads, lambda content: json.dumps(content, indent=1)),
    ".toml": (tomlkit.parse, tomlkit.dumps),
    ".yaml": _YAML,
    ".yml": _YAML,
}
"""What reads and what writes a file, by the end of its name."""


def edited(source: Path, edits: dict[str, Any]) -> str:
    """The text of a file of YAML, JSON or TOML with other values at these keys. Raises ConfigError."""
    try:
        text = source.read_text()
        if source.suffix not in _FORMATS:
            raise ValueError("is no .yaml, .json or .toml file")
        read, write = _FORMATS[source.suffix]
        content = read(text)
        for key, value in edits.items():
            _change(content, key, value)
        return write(content)
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: {' '.join(str(error).split())}") from error


def _change(content: Any, key: str, value: Any) -> None:
    """Set the value at a key with dots; parts that are numbers are places in lists. Raises LookupError."""
    *way, last = key.split(".")
    for part in way:
        content = content[_place(content, part, key)]
    content[_place(content, last, key)] = value


def _place(content: Any, part: str, key: str) -> str | int:
    if isinstance(content, list) and part.isdecimal() and int(part) < len(content):
        return int(part)
    if isinstance(content, dict) and part in content:
        return part
    raise LookupError(f"has no key {key}")
