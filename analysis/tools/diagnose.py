"""`nightsweep diagnose PATH...`: why a GPU is idle or slow, by cause, with the share of the step that each fix could
gain."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.diagnosis import screen, verdict
from analysis.diagnosis.evidence import sources

EXIT_WRONG = 2


def diagnose(paths: Sequence[Path], log_of_gpus: Path | None, as_json: bool) -> int:
    """Print the diagnosis of a run; the exit status."""
    try:
        found = verdict.judge(sources.gather(paths, log_of_gpus))
    except sources.SourceError as error:
        print(f"nightsweep diagnose: {error}", file=sys.stderr)
        return EXIT_WRONG
    print(json.dumps(found.as_json(), indent=2) if as_json else screen.screen(found), end="\n" if as_json else "")
    return 0
