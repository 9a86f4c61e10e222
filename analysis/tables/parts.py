"""The parts of a step on one device: the one list of them. They add up to the step's window to the nanosecond."""

from __future__ import annotations

COPIES = (
    "copy_htod_pageable", "copy_htod_pinned", "copy_htod", "copy_dtoh_pageable", "copy_dtoh_pinned", "copy_dtoh",
    "copy_dtod", "copy_ptop", "copy_other", "memset",
)  # fmt: skip
IDLE = ("idle_data_wait", "idle_sync", "idle_allocator", "idle_launch", "idle_host", "idle_outside")
PARTS = ("compute", "communication", *COPIES, *IDLE)
HIDDEN = "hidden_communication"
"""Communication under compute: a row of its own, no part of the sum."""
