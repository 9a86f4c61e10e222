"""Calls a function as soon as a module has been imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are waited for as Python would, and calls their callbacks once they have been executed."""

    def __init__(self, callbacks: dict[str, Callback]) -> None:
        self.callbacks = callbacks

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.callbacks:
            return None
        after: list[Any] = [importlib.machinery.PathFinder]  # where another finder has taken this one's place
        if self in sys.meta_path:
            after = sys.meta_path[sys.meta_path.index(self) + 1 :]
        finders = (find for finder in after if (find := getattr(finder, "find_spec", None)))  # old ones have none
        spec = next(filter(None, (find(name, path, target) for find in finders)), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                # Not before: many a library asks where a module is, and does not import it. A loader may be that of
                # other modules, too.
                if module.__name__ == name and (callback := self.callbacks.pop(name, None)) is not None:
                    callback(module)

            loader.exec_module = exec_module
        return spec


def after_import(callbacks: dict[str, Callback]) -> None:
    """Call these when the modules of these names are imported, at once of those that are already; each once."""
    for name in callbacks.keys() & sys.modules.keys():
        callbacks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, Finder(callbacks))
