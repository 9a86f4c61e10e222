"""Nightsweep from Python: the tables, diagnoses and comparisons of its commands (docs/python.md).

    import nightsweep

    nightsweep.read("results/demo")["points"]
    nightsweep.diagnose("rank0.json.gz", "rank1.json.gz").causes
    nightsweep.compare("results/demo/points/ID", "results/demo/points/OTHER").verdict

What a name needs is imported when it is first used, so that `import nightsweep` itself takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.diagnosis.cause import Cause as Cause
    from analysis.diagnosis.cause import Fact as Fact
    from analysis.diagnosis.comparison import Comparison as Comparison
    from analysis.diagnosis.comparison import Difference as Difference
    from analysis.diagnosis.comparison import compare as compare
    from analysis.diagnosis.verdict import Diagnosis as Diagnosis
    from analysis.sweep.dataset import Tables as Tables
    from analysis.tools.diagnose import diagnose as diagnose
    from analysis.tools.read import read as read
    from jobs.hook.site.nightsweep import step as step
    from jobs.record.input_error import InputError as InputError

_MODULES = {
    "Cause": "analysis.diagnosis.cause",
    "Comparison": "analysis.diagnosis.comparison",
    "Diagnosis": "analysis.diagnosis.verdict",
    "Difference": "analysis.diagnosis.comparison",
    "Fact": "analysis.diagnosis.cause",
    "InputError": "jobs.record.input_error",
    "Tables": "analysis.sweep.dataset",
    "compare": "analysis.diagnosis.comparison",
    "diagnose": "analysis.tools.diagnose",
    "read": "analysis.tools.read",
    "step": "jobs.hook.site.nightsweep",
}

if not TYPE_CHECKING:  # a name that is not there stays an error of the type checker's

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'nightsweep' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return list(_MODULES)
