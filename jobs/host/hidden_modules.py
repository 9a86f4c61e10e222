"""Packages that libraries import where they are installed, though nothing here needs them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNUSED = ("torchao", "scipy", "sklearn")
"""Of what transformers imports for any model: half a second each, and more. What needs one imports it itself. Older
releases (5.17) also import scikit-learn, which cannot be without SciPy."""


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """As if these packages were not installed, unless they are imported already."""
    absent = [name for name in names if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
