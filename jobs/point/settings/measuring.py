"""How long a job runs and what watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jobs.point.settings.field import setting

FAULT_PATTERN = r"^(exception|kill|nan|hang)@rank\d+:step\d+$"
# A rank has one spelling, 1 and not 01: `Point.traces` compares texts. `$` alone would let the end of a line pass.
TRACE_RANKS_PATTERN = r"^(all|first-per-node|(0|[1-9][0-9]*)(,(0|[1-9][0-9]*))*)$(?!\n)"


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Settings of the looks at a job."""

    warmup_steps: int = setting("Optimizer steps before each window.", 5, minimum=1)
    timed_steps: int = setting("Optimizer steps of the timed window, which no profiler sees.", 20, minimum=2)
    traced_steps: int = setting("Optimizer steps of the traced window, in a second start; 0: no trace.", 3, minimum=0)
    tracer: Literal["auto", "nsys", "kineto"] = setting(
        "auto: Nsight Systems where it works and there is a GPU, the PyTorch profiler (Kineto) otherwise.", "auto"
    )
    trace_ranks: str = setting(
        "Ranks that are traced: all, first-per-node, or global ranks with commas.",
        "all",
        pattern=TRACE_RANKS_PATTERN,
    )
    trace_preset: Literal["light", "deep"] = setting(
        "light: kernels, copies, API calls and ranges. deep: also memory use, backtraces and, on the first rank of a "
        "node under nsys, GPU metrics; disturbs the step more.",
        "light",
    )
    keep_report: bool = setting("Keep nsys' own report (.nsys-rep) beside its export.", True)
    nvml_hz: int = setting("Rate at which the GPUs are sampled, Hz; 0: not at all.", 10, minimum=0, maximum=50)
    cost_pairs: int = setting(
        "Control of what the measuring costs: so many pairs of starts, without and with the tracer, after the two "
        "looks; 0: none.",
        0,
        minimum=0,
    )
    fault: str | None = setting(
        "A failure made on purpose, to see that it is told rightly: KIND@rankR:stepS, KIND one of exception, kill, "
        "nan, hang.",
        None,
        pattern=FAULT_PATTERN,
    )
