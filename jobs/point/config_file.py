"""A script's config_file, with other values at the keys that a point's axes name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class ConfigError(Exception):
    """A config_file that cannot be edited as the point's axes say. The message is one line."""


def _format(suffix: str) -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    """What reads and what writes a file whose name ends like this; most points have none, so that its library is
    imported only here. Raises ValueError."""
    if suffix == ".json":
        return json.loads, lambda content: json.dumps(content, indent=1)
    if suffix == ".toml":
        import tomlkit

        return tomlkit.parse, tomlkit.dumps
    if suffix in (".yaml", ".yml"):
        import yaml

        return _load_yaml, lambda content: str(yaml.safe_dump(content, sort_keys=False))
    raise ValueError("is no .yaml, .json or .toml file")


def _load_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def edited(source: Path, edits: dict[str, Any]) -> str:
    """The text of a file of YAML, JSON or TOML with other values at these keys. Raises ConfigError."""
    try:
        text = source.read_text()
        read, write = _format(source.suffix)
        content = read(text)
        for key, value in edits.items():
            _change(content, key, value)
        return write(content)
    except (OSError, ValueError, LookupError, TypeError) as error:
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
