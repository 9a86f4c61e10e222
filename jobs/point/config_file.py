"""A script's config_file, with other values at the keys that a point's axes name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomlkit
import yaml


class ConfigError(Exception):
    """A config_file that cannot be edited as the point's axes say. The message is one line."""


def edited(source: Path, edits: dict[str, Any]) -> str:
    """The text of a file of YAML, JSON or TOML with other values at these keys. Raises ConfigError."""
    try:
        return _edited(source.read_text(), source.suffix, edits)
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: {' '.join(str(error).split())}") from error


def _edited(text: str, suffix: str, edits: dict[str, Any]) -> str:
    content: Any
    match suffix:
        case ".json":
            content = json.loads(text)
        case ".toml":
            content = tomlkit.parse(text)
        case ".yaml" | ".yml":
            content = yaml.safe_load(text)
        case _:
            raise ValueError("is no .yaml, .json or .toml file")
    for key, value in edits.items():
        _change(content, key, value)
    match suffix:
        case ".json":
            return json.dumps(content, indent=1)
        case ".toml":
            return tomlkit.dumps(content)
    return yaml.safe_dump(content, sort_keys=False)


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
