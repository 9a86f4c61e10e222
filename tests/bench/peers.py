"""Commands of other tools that read the same traces, where they are at hand; none of them is needed by Nightsweep.

nsys-ai (0.3.0) and HTA (HolisticTraceAnalysis, 0.5.0) have environments of their own:

    python -m venv /tmp/peers && /tmp/peers/bin/pip install nsys-ai HolisticTraceAnalysis
    PEERS=/tmp/peers/bin make bench
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

HTA = """
import os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # with it, an assertion of its own fails on traces of short kernels
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]})
found.get_temporal_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
"""


def _peer(name: str) -> str | None:
    """A program of the peers' environment (or of the PATH)."""
    path = os.pathsep.join(filter(None, (os.environ.get("PEERS"), os.environ["PATH"])))
    return shutil.which(name, path=path)


def nsys_sum(export: Path) -> list[list[str]]:
    """The one report of `nsys stats` that joins ranges with what ran on the GPU."""
    if shutil.which("nsys") is None:
        return []
    return [["nsys", "stats", "--quiet", "--force-export=false", "--report=nvtx_gpu_proj_sum", str(export)]]


def nsys_ai(export: Path) -> list[list[str]]:
    """Its overlap of compute and communication, and its search for root causes."""
    program = _peer("nsys-ai")
    skills = ("overlap_breakdown", "root_cause_matcher")
    return [[program, "skill", "run", skill, str(export)] for skill in skills] if program else []


def hta(trace: Path) -> list[list[str]]:
    """HTA's temporal breakdown and its overlap."""
    if "PEERS" not in os.environ or (python := _peer("python")) is None:
        return []
    return [[python, "-c", HTA, str(trace)]]
