"""The table of phases: where the time went in which a point's GPUs were held."""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.tables.column import ID, Column
from nightsweep.jobs.record.phases import PHASES as PHASE_NAMES

USES = {
    "timed": ("timed",),
    "traced": ("traced",),
    "epochs": ("epochs",),
    "warm-up": ("warmup",),
    "start": ("job_start", "launch", "start", "import", "process_group", "data", "model"),
    "compile": ("compile",),
    "tracing": ("tracing",),
    "control": ("control",),
    "search": (),
    "end": ("results", "flops", "rest", "teardown", "record"),
    "idle": ("idle",),
    "failed": (),
    "lost": ("lost",),
    "unknown": ("unknown",),
    "queue": ("queue",),
}
"""What time is used for, and the phases that are such time. All of a batch_search is `search`, and all of a point that
is not ok, or of a start of ranks that failed, `failed`."""
USE_OF = {phase: use for use, of_use in USES.items() for phase in of_use}
NOT_HELD = "queue"
"""The use in which a point holds no GPU."""

PHASES: dict[str, Column] = {
    **ID,
    "attempt": Column(pl.Int64, "Number of the attempt at the point, from 1.", "attempts.jsonl"),
    "look": Column(
        pl.String,
        "Run of the point that the phase is part of: timed, traced, cost-plain-K, cost-tracer-K or search; null of the "
        "launcher's own phases.",
        "record.json",
    ),
    "start": Column(pl.Int64, "Number of that start of ranks in the attempt, from 1; null likewise.", "record.json"),
    "phase": Column(
        pl.String,
        "One of " + ", ".join(PHASE_NAMES) + " (docs/formats.md says what each is). Of several ranks the slowest "
        "decides: a phase begins when the last rank has come to it. Of a record of an earlier version start lasts "
        "until the first step, warmup holds what compiled, traced is the counted steps, and the rest is unknown.",
        "record.json",
    ),
    "use": Column(
        pl.String,
        "What the time was for: "
        + "; ".join(f"{use} ({', '.join(of)})" if of else use for use, of in USES.items())
        + ". All of a batch_search is search, and all of a point that is not ok, or of a start of ranks that failed, "
        "is failed.",
        "derived",
    ),
    "reason": Column(pl.String, "Why this start of ranks failed; null for a good one.", "record.json"),
    "start_ns": Column(pl.Int64, "When the phase began, UTC ns; null where only its length is known.", "record.json"),
    "duration_ns": Column(
        pl.Int64,
        "How long it lasted, ns; of a phase that came several times, all together. The phases of an attempt but queue "
        "add up to the time that its GPUs were held. Null where the end of a lost attempt is not known.",
        "record.json",
    ),
    "gpus": Column(pl.Int64, "GPUs that the point held, or ranks on CPUs; 0 in the queue.", "record.json"),
    "gpu_s": Column(pl.Float64, "duration_ns x gpus, s.", "derived"),
}
