"""What may be published: every text that a copy holds is of a column or a key that is listed here.

Numbers, truth values and times are published, for they say what was measured and not who measured it. A text is
published only as its kind allows; one that is not listed is left out. A test asks that each column of text is listed.

What this guards against, and how:

- who ran it (user, home folder, names in a traceback): of free text only words that Nightsweep's own source holds;
- where (hosts, domain, GPUs, scheduler): pseudonyms; job id, partition, node list and the launcher's command are out;
- what it was for (names of sweeps, data and weights): pseudonyms, unless the name is one of our own words;
- secrets of the environment (tokens in messages, range names, command lines): the same rule for words; of a trace
  nothing but events, devices and the names of kernels, operators and calls.

What it cannot guard against: numbers that identify (a memory size, a rare GPU, the hour), and a secret that consists of
our own words.
"""

from __future__ import annotations

from enum import Enum, auto

from nightsweep.jobs.point import point


class Kind(Enum):
    """How a text is published."""

    FACT = auto()
    """As it is: one of a closed list, a version, a time, or the model of a device."""
    HOST = auto()
    """By a pseudonym: node1, node2, ..."""
    GPU = auto()
    """By a pseudonym: GPU-1, GPU-2, ..."""
    NAME = auto()
    """As it is where it consists of our own words, else by a pseudonym: sweep1, data1, weights1."""
    SYMBOL = auto()
    """A kernel, operator or call: as it is, unless it holds a path, an address or a UUID."""
    WORDS = auto()
    """Word by word: those of our own source, numbers and pseudonyms of hosts; the others become <...>."""
    AXES = auto()
    """A map in JSON: names and texts by pseudonyms (axis1, value1) unless they are our own words."""
    OUT = auto()
    """Left out."""


F, H, G, N, S, W, OUT = Kind.FACT, Kind.HOST, Kind.GPU, Kind.NAME, Kind.SYMBOL, Kind.WORDS, Kind.OUT

_OF_SCRIPTS = dict.fromkeys(("command", "launcher_options", "config_file", "files", "version"), N)
_OF_SCRIPTS |= {"python": OUT, "workdir": OUT}

SETTINGS = dict.fromkeys(point.FIELDS, F) | {"data": N, "weights": N} | _OF_SCRIPTS
"""Every other setting of text has one of a list of values, or a pattern (`fault`, `trace_ranks`)."""

COLUMNS: dict[str, Kind] = SETTINGS | {
    "point_id": F, "remedied_id": F, "sweep": N, "status": F, "reason": F, "message": W, "device_used": F, "backend": F,
    "having_id": F, "pair": N,
    "accelerator": F, "hosts": H, "host": H, "uuid": G, "topology": F, "started_at": F, "tracer_used": F,
    "tracer_reason": W, "trace_status": F, "nvml_reason": W, "mfu_reason": W, "energy_reason": W, "model": N,
    "disturbed_reason": W,
    "variables": Kind.AXES,
    "step_source": F, "notes": W, "phase": F, "part": F, "category": F,
    "lane": F, "name": S, "look": F, "kind": F, "between": F, "condition": F, "tool": F, "traceback": W,
    "traceback_rank0": W, "use": F, "cause": F, "advice": W, "remedy": F, "method": F, "verdict": F,
}  # fmt: skip
"""Columns of text of all tables, by name."""

OWN_RANGES = ("lane", "range")
"""A row that has this value in this column holds a range that a program named: its `name` is WORDS, not SYMBOL."""

RECORD: dict[str, Kind] = {f"settings.{name}": kind for name, kind in SETTINGS.items()} | {
    "point_id": F, "sweep": N, "status": F, "reason": F, "message": W, "started_at": F, "ended_at": F, "device": F,
    "backend": F, "failure.look": F, "failure.host": H, "failure.phase": F, "tracer.used": F, "tracer.reason": W,
    "nvml.reason": W, "events.host": H, "events.uuid": G, "events.kind": F, "events.message": W, "events.look": F,
    "hosts.hostname": H, "hosts.cpu_model": F, "hosts.kernel": F, "hosts.driver": F, "hosts.topology": F,
    "hosts.gpus.uuid": G, "hosts.gpus.name": F, "software.git_commit": F, "software.python": F, "software.cuda": F,
    "software.nccl": F, "software.nsys": F, "software.packages.*": F, "slurm.restart_count": F,
    "phases.phase": F, "phases.look": F, "phases.reason": F,
    **{f"looks.{run}.{key}": kind for run in ("timed", "traced", "control")
       for key, kind in (("status", F), ("reason", F), ("message", W))},
}  # fmt: skip
"""Keys of text in record.json."""

SWEEP: dict[str, Kind] = {"name": N, "points.point_id": F} | {f"points.settings.{n}": k for n, k in SETTINGS.items()}
"""Keys of text in sweep.json."""

EXPORT_TEXTS: dict[tuple[str, str], Kind] = {
    ("NVTX_EVENTS", "text"): W,
    ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "name"): W,
    ("TARGET_INFO_GPU", "name"): F,
    ("TARGET_INFO_GPU", "uuid"): G,
    ("TARGET_INFO_GPU_METRICS", "metricName"): F,
    ("META_DATA_EXPORT", "name"): F,
    ("META_DATA_EXPORT", "value"): F,
}
"""Columns of text of an Nsight Systems export, but for StringIds, whose kind depends on what refers to a string."""

EXPORT_ROWS = {"META_DATA_EXPORT": "name GLOB 'EXPORT_PRODUCT_*' OR name GLOB 'EXPORT_SCHEMA_*'"}
"""Tables of which only some rows are published."""

SYMBOL_IDS = ("demangledName", "shortName", "mangledName", "nameId")
"""Columns of the tables of an export that hold the number of a string that is a SYMBOL; `textId` is WORDS."""

KINETO_ARGS: dict[str, Kind] = {"Collective name": S, "dtype": S, "Process Group Name": W}
"""Keys of text in the args of a Kineto event. Only args that the reader knows are published at all."""

KINETO_TOP = ("schemaVersion", "cupti_version", "cuda_runtime_version", "cuda_driver_version", "baseTimeNanoseconds")
"""Numbers at the top of a Kineto trace, and `displayTimeUnit`."""

SYMBOL_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op")
"""Categories of Kineto's events whose name is a SYMBOL; of the others it is WORDS."""
