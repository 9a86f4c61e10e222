"""Which GPUs a job has: by index, UUID or MIG UUID, as CUDA_VISIBLE_DEVICES names them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OF_RANKS_VARIABLE = "NIGHTSWEEP_GPUS"
"""CUDA_VISIBLE_DEVICES of a rank, whatever srun sets it to."""


def are_named_by_index() -> bool:
    """Whether CUDA_VISIBLE_DEVICES names the job's GPUs by their indices."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return all(word.strip().isdigit() for word in visible.split(","))


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG device of one. `board` is the whole GPU's handle (the same as `handle` without MIG), `instance`
    the MIG device's GPU instance."""

    index: int
    uuid: str
    handle: Any
    board: Any
    instance: int | None = None


def probe() -> tuple[bool, str]:
    """Whether NVML answers here, and how many GPUs it knows, or why not."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return False, f"NVML: {error}"
    if not count:
        return False, "NVML: no GPU"
    return (True, f"{count} GPUs") if job_gpus() else (False, f"NVML: none of {count} GPUs is this job's")


def visible(index: int, uuid: str, *migs: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves this GPU, or one of its MIG devices, to the job; it names them by index or by
    the start of the UUID. Empty, it leaves none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return True
    return any(word == str(index) or _begins(word, uuid, *migs) for word in visible.split(","))


def _begins(word: str, *uuids: str) -> bool:
    return bool(word) and not word.isdigit() and any(uuid.startswith(word) for uuid in uuids)


def full_uuid(uuid: str) -> str:
    """The UUID of a GPU or MIG device as NVML writes it; torch leaves out a GPU's prefix."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def host_boards() -> dict[int, Any]:
    """Handles of all GPUs that NVML shows of this host, by index, whosever they are; without those that are lost."""
    import pynvml

    found = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(pynvml.NVMLError):
            found[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
    return found


def job_gpus() -> list[Gpu]:
    """The job's devices, in NVML's order: MIG devices in place of a GPU that is split into them. One that is lost, or
    that this process may not use, is left out."""
    import pynvml

    pynvml.nvmlInit()
    words = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    found: list[Gpu] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError:
            continue
        migs = list(_migs(handle, index))
        if not visible(index, uuid, *(mig.uuid for mig in migs)):
            continue
        named = [mig for mig in migs if any(_begins(word, mig.uuid) for word in words)]
        found += named or migs or [Gpu(index, uuid, handle, handle)]
    return found


def _migs(board: Any, index: int) -> Iterator[Gpu]:
    """The MIG devices of a GPU; none where it is whole."""
    import pynvml as n

    try:
        if not n.nvmlDeviceGetMigMode(board)[0]:
            return
        places = range(n.nvmlDeviceGetMaxMigDeviceCount(board))
    except n.NVMLError:
        return
    for place in places:
        try:
            mig = n.nvmlDeviceGetMigDeviceHandleByIndex(board, place)
        except n.NVMLError:
            continue  # a place without a device
        yield Gpu(index, n.nvmlDeviceGetUUID(mig), mig, board, n.nvmlDeviceGetGpuInstanceId(mig))
