"""Names of the parts of a step on one device, and of the groups in which figures show them."""

from __future__ import annotations

COPIES = (
    "copy_htod_pageable", "copy_htod_pinned", "copy_htod", "copy_dtoh_pageable", "copy_dtoh_pinned", "copy_dtoh",
    "copy_dtod", "copy_ptop", "copy_other", "memset",
)  # fmt: skip
BUSY = ("compute", "communication", *COPIES)
"""The device is busy. Time that several parts share counts for the first of them."""
IDLE = (
    "idle_data_wait", "idle_sync", "idle_allocator", "idle_launch", "idle_between", "idle_queued",
    "idle_unmarked_data", "idle_host", "idle_outside",
)  # fmt: skip
"""The device is idle: the part is what the thread did that launched the next activity.

idle_data_wait: it waited for its loader. idle_sync: it waited for the device. idle_allocator: it allocated or freed
memory. idle_launch: it was launching. idle_between: the next activity had been launched before, and begins as soon as
the device can (the next kernel of a CUDA graph, or of a host that is ahead). idle_queued: the same, but it takes
longer. idle_unmarked_data: it did something else before it copied a batch to the device, in a trace that would have no
ranges of a loader. idle_host: something else in a step. idle_outside: something else outside of any step.
"""
PARTS = (*BUSY, *IDLE)
"""The parts of a step. They are disjoint, and add up to the step's window to the nanosecond."""
HIDDEN = "hidden_communication"
"""Communication under compute: a row beside the parts, which no sum includes."""

GROUPS = ("compute", "communication", "copies", "data_wait", "idle")
"""Groups of parts, as figures show them."""
GROUP = {
    **dict.fromkeys(PARTS, "idle"),
    "compute": "compute",
    "communication": "communication",
    **dict.fromkeys(COPIES, "copies"),
    **dict.fromkeys(("idle_data_wait", "idle_unmarked_data"), "data_wait"),
}
"""The group of each part."""
