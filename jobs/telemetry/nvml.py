"""NVML readings of this job's GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def probe() -> tuple[bool, str]:
    """Whether NVML answers here, and why not."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return False, f"NVML: {error}"
    return (True, f"{count} GPUs") if count else (False, "NVML: no GPU")


def visible(index: int, uuid: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves this GPU to the job; it names them by index or by the start of the UUID."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    return not told or any(word == str(index) or (word and uuid.startswith(word)) for word in told.split(","))


def handles() -> list[tuple[int, str, Any]]:
    """(NVML index, UUID, handle) of the GPUs that CUDA_VISIBLE_DEVICES leaves, or of all."""
    import pynvml

    pynvml.nvmlInit()
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        if visible(index, uuid):
            found.append((index, uuid, handle))
    return found


def read(handle: Any) -> dict[str, Any]:
    """One sample of a GPU; a field that it does not give is None. Units are in the names."""
    import pynvml as n

    return {
        "power_w": _try(lambda: n.nvmlDeviceGetPowerUsage(handle) / 1e3),
        "energy_j": _try(lambda: n.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3),
        "utilization_percent": _try(lambda: n.nvmlDeviceGetUtilizationRates(handle).gpu),
        "memory_used_bytes": _try(lambda: n.nvmlDeviceGetMemoryInfo(handle).used),
        "sm_clock_mhz": _try(lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM)),
        "memory_clock_mhz": _try(lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM)),
        "temperature_c": _try(lambda: n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU)),
        "throttle_reasons": _try(lambda: n.nvmlDeviceGetCurrentClocksEventReasons(handle)),
    }


def _try(call: Callable[[], Any]) -> Any:
    import pynvml

    try:
        return call()
    except pynvml.NVMLError:
        return None
