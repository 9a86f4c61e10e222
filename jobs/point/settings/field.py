"""One setting: a dataclass field that also knows its text, its workload and its JSON schema."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Workload = Literal["image", "llm"]


def setting(text: str, default: Any = dataclasses.MISSING, *, only: Workload | None = None, **schema: Any) -> Any:
    """A field with its text, the workload it is for (None: all) and extra JSON schema keywords.

    A setting of one workload is None in points of the other; `jobs.point.point.complete` fills the default in."""
    metadata = {"text": text, "only": only, "schema": schema, "default": default}
    return dataclasses.field(default=None if only else default, metadata=metadata)
