"""Python imports this module by itself when it starts, where its folder is on PYTHONPATH: so jobs/hook gets into a
script that knows nothing of it. It may be any Python from 3.10 on, with nothing of Nightsweep installed.

Nightsweep's modules are loaded under a name of their own (nightsweep_jobs): a script may have a package `jobs`.
"""

import importlib.machinery
import importlib.util
import os
import pathlib
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent


def run_shadowed() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    rest = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def start() -> None:
    jobs = HERE.parents[1]
    spec: Any = importlib.util.spec_from_file_location(
        "nightsweep_jobs", jobs / "__init__.py", submodule_search_locations=[str(jobs)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["nightsweep_jobs"] = package
    spec.loader.exec_module(package)
    importlib.import_module("nightsweep_jobs.hook.install").install()


run_shadowed()
if "NIGHTSWEEP_RUN" in os.environ:
    try:
        start()
    except Exception as error:  # whatever it is, the script must run
        print(f"nightsweep: steps cannot be found: {type(error).__name__}: {error}", file=sys.stderr)
