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
    from nightsweep.analysis.diagnosis.cause import Cause as Cause
    from nightsweep.analysis.diagnosis.cause import Fact as Fact
    from nightsweep.analysis.diagnosis.comparison import Comparison as Comparison
    from nightsweep.analysis.diagnosis.comparison import Difference as Difference
    from nightsweep.analysis.diagnosis.comparison import compare as compare
    from nightsweep.analysis.diagnosis.verdict import Diagnosis as Diagnosis
    from nightsweep.analysis.sweep.dataset import Tables as Tables
    from nightsweep.analysis.tools.diagnose import diagnose as diagnose
    from nightsweep.analysis.tools.read import read as read
    from nightsweep.jobs.hook.site.nightsweep import step as step
    from nightsweep.jobs.record.input_error import InputError as InputError

_MODULES = {
    "Cause": "nightsweep.analysis.diagnosis.cause",
    "Comparison": "nightsweep.analysis.diagnosis.comparison",
    "Diagnosis": "nightsweep.analysis.diagnosis.verdict",
    "Difference": "nightsweep.analysis.diagnosis.comparison",
    "Fact": "nightsweep.analysis.diagnosis.cause",
    "InputError": "nightsweep.jobs.record.input_error",
    "Tables": "nightsweep.analysis.sweep.dataset",
    "compare": "nightsweep.analysis.diagnosis.comparison",
    "diagnose": "nightsweep.analysis.tools.diagnose",
    "read": "nightsweep.analysis.tools.read",
    "step": "nightsweep.jobs.hook.site.nightsweep",
}

if not TYPE_CHECKING:  # a name that is not there stays an error of the type checker's

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'nightsweep' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return list(_MODULES)
