"""The parts of a step on one device: the one list of them, and the groups in which figures show them."""

from __future__ import annotations

COPIES = (
    "copy_htod_pageable", "copy_htod_pinned", "copy_htod", "copy_dtoh_pageable", "copy_dtoh_pinned", "copy_dtoh",
    "copy_dtod", "copy_ptop", "copy_other", "memset",
)  # fmt: skip
BUSY = ("compute", "communication", *COPIES)
"""The device does something. Time that several share goes to the first of them."""
IDLE = (
    "idle_data_wait", "idle_sync", "idle_allocator", "idle_launch", "idle_between", "idle_queued",
    "idle_unmarked_data", "idle_host", "idle_outside",
)  # fmt: skip
"""The device does nothing: what the thread did that launched the next activity.

idle_data_wait: it waited for its loader. idle_sync: for the device. idle_allocator: it asked for memory or gave some
back. idle_launch: it was launching. idle_between: the next activity had been launched before, and begins as soon as the
device can (the next kernel of a CUDA graph, or of a host that is ahead). idle_queued: likewise, but it takes longer.
idle_unmarked_data: it did something else before it copied a batch to the device, and no thread marks ranges of a
loader. idle_host: something else in a step. idle_outside: something else outside of any step.
"""
PARTS = (*BUSY, *IDLE)
"""The parts of a step, apart from each other: they add up to the step's window to the nanosecond."""
HIDDEN = "hidden_communication"
"""Communication under compute: a row beside the parts, in no sum."""

GROUPS = ("compute", "communication", "copies", "data_wait", "idle")
"""What figures show of the parts."""
GROUP = {
    **dict.fromkeys(PARTS, "idle"),
    "compute": "compute",
    "communication": "communication",
    **dict.fromkeys(COPIES, "copies"),
    **dict.fromkeys(("idle_data_wait", "idle_unmarked_data"), "data_wait"),
}
"""The group of each part."""
