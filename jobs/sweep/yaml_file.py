"""A YAML file as plain Python values, whatever it holds: read whole, within bounds that no sweep comes near.

YAML is read as its version 1.2 has it where 1.1 would change what was written: 1:30 is a text and no 90, 010 is no 8,
and 1e-3 is a number.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

MOST_BYTES = 2 << 20
MOST_ENTRIES = 100_000
"""Keys and values, those that aliases stand for written out."""
DEEPEST = 20
"""Lists and maps in each other."""
LONGEST_NUMBER = 64
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class _Loader(Composer, yaml.CSafeLoader):
    """SafeLoader that refuses a key given twice (YAML keeps the last in silence) and what is beyond the bounds.

    libyaml reads the text, which takes a fifth of the time; it would also compose the nodes, where nobody could count
    them, so Python's composer stands before it.
    """

    def __init__(self, stream: bytes) -> None:
        yaml.CSafeLoader.__init__(self, stream)
        Composer.__init__(self)  # type: ignore[no-untyped-call]
        self.entries = self.depth = 0
        self.sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        before = self.entries
        self.entries, self.depth = self.entries + 1, self.depth + 1
        if self.depth > DEEPEST:
            raise _problem(event, f"more than {DEEPEST} lists and maps in each other")
        node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) and node is not None:
            if node not in self.sizes:
                raise _problem(event, f"*{event.anchor} stands within itself")
            self.entries += self.sizes[node]
        elif node is not None:
            self.sizes[node] = self.entries - before
        if self.entries > MOST_ENTRIES:
            raise _problem(event, f"more than {MOST_ENTRIES} keys and values, aliases written out")
        self.depth -= 1
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)  # type: ignore[no-untyped-call]
        if found := _UNPRINTABLE.search(node.value):
            raise _problem(node, f"the character U+{ord(found[0]):04X} in a text")
        if node.tag in (_INT, _FLOAT) and len(node.value) > LONGEST_NUMBER:
            raise _problem(node, f"a number of {len(node.value)} characters")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)  # type: ignore[no-untyped-call]
        first: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in first:
                    raise _problem(key, f"key {key.value!r} is given twice (first in line {first[key.value]})")
                first[key.value] = key.start_mark.line + 1
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in (_INT, _FLOAT)]
    for first, known in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, re.compile(r"^[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"^([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


def _problem(place: Any, text: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=place.start_mark)


def load(path: Path) -> Any:
    """The content of a file. Raises OSError, yaml.YAMLError and, for a value that is not what its tag says, any of
    Python's own errors."""
    if path.exists() and not path.is_dir() and not path.is_file():
        raise OSError(0, "is no regular file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise yaml.YAMLError(f"larger than {MOST_BYTES >> 20} MiB")
    return yaml.load(content, Loader=_Loader)
