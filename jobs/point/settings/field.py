"""One setting: a dataclass field that also knows its text, its workload, its JSON schema and where it has an effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_STEPS = 10_000_000
MOST_TEXT, MOST_PATH = 65_536, 4096
"""Characters of a text, and of a path. All bounds are wide: what is beyond them is a slip of the hand, which else would
end in a full memory or a number that nothing can hold."""


@dataclass(frozen=True)
class Needs:
    """A setting has an effect only where the setting `of` is one of `values`, or, with `but`, none of them."""

    of: str
    values: tuple[Any, ...]
    but: bool = False

    def met_by(self, value: Any) -> bool:
        """Whether the other setting's value lets this one have an effect; one that does not apply says nothing."""
        return value is None or (value in self.values) != self.but


def only(of: str, *values: Any) -> Needs:
    """Has an effect only with these values of another setting."""
    return Needs(of, values)


def except_for(of: str, *values: Any) -> Needs:
    """Has no effect with these values of another setting."""
    return Needs(of, values, but=True)


ON_GPU = except_for("device", "cpu")
"""Has an effect on GPUs only."""


def setting(
    text: str,
    default: Any = dataclasses.MISSING,
    *,
    only: str | None = None,
    needs: Sequence[Needs] = (),
    **schema: Any,
) -> Any:
    """A field of a point.

    Args:
        text: what it means, for docs/settings.md and the column of `points`.
        default: its value where nothing is given; without one it is required.
        only: the workload that it is for; None for all. In points of the other it is None, and
            `nightsweep.jobs.point.point.complete` fills the default in.
        needs: where it has an effect. Given in vain it is refused: it would make a second point that runs the same job.
        schema: further keywords of its JSON schema.
    """
    metadata = {"text": text, "only": only, "needs": tuple(needs), "schema": schema, "default": default}
    return dataclasses.field(default=None if only else default, metadata=metadata)
