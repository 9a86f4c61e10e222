"""Words of a script's notes by which others know what came of it. The hook writes them in the script's environment,
which has none of our packages: nothing is imported here."""

from __future__ import annotations


def without_effect(switch: str) -> str:
    """How the note begins that nothing in the script answered to a switch."""
    return f"the switch {switch} had no effect"
