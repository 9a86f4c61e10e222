"""A rule: a function of the evidence that finds one kind of cause, and when it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from analysis.diagnosis.cause import Cause
from analysis.diagnosis.evidence.evidence import Evidence


@dataclass(frozen=True)
class Rule:
    """One kind of cause.

    Attributes:
        cause: category of the kind.
        find: gives the causes that it finds; its name is the kind, and its docstring says in docs/diagnosis.md what it
            looks for and how the share is computed.
        traced: whether it needs a trace of a GPU.
        remark: whether a cause is reported even where its share is 0.
    """

    cause: str
    find: Callable[[Evidence], list[Cause]]
    traced: bool = True
    remark: bool = False

    @property
    def kind(self) -> str:
        return self.find.__name__

    @property
    def text(self) -> str:
        return " ".join((self.find.__doc__ or "").split())
