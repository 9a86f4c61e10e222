"""What is read of a GPU, in what unit, and how often: the fields of the NVML log.

Measured on an H200 with driver 580: cached values take 1 us a call; a GPM sample 40 us and its metrics 10 us; the
energy counter 3 ms and up to 20 ms when the GPU is busy; the PCIe throughput call 20 ms, which is why PCIe traffic is
GPM's. Power, energy and GPM counters change every 100 ms, so rates above 10 Hz repeat the former two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nightsweep.jobs.host.gpus import Gpu

MIG_REASON = "is known of the whole GPU alone, not of a MIG device"

Values = tuple[float | int | None, ...]


@dataclass(frozen=True)
class Reading:
    """One call and the fields that it gives; `read`, of the module pynvml and a GPU, returns a value for each or raises
    NVMLError."""

    names: tuple[str, ...]
    read: Callable[[Any, Gpu], Values]
    per_board: bool = False
    """Whether it holds for a whole GPU and says nothing of a MIG device."""


TYPES: dict[str, type] = {
    "sm_clock_mhz": int,
    "memory_clock_mhz": int,
    "utilization_percent": int,
    "memory_utilization_percent": int,
    "memory_used_bytes": int,
    "power_instant_w": float,
    "power_average_w": float,
    "temperature_c": int,
    "memory_temperature_c": int,
    "throttle_reasons": int,
    "power_limit_w": float,
    "energy_j": float,
    "ecc_corrected": int,
    "ecc_uncorrected": int,
    "processes": int,
    "foreign_processes": int,
    "gpm_span_ns": int,
    "sm_active_percent": float,
    "sm_occupancy_percent": float,
    "tensor_active_percent": float,
    "tensor_hmma_percent": float,
    "tensor_imma_percent": float,
    "tensor_dfma_percent": float,
    "dram_active_percent": float,
    "fp64_active_percent": float,
    "fp32_active_percent": float,
    "fp16_active_percent": float,
    "pcie_tx_bytes_per_s": float,
    "pcie_rx_bytes_per_s": float,
    "nvlink_tx_bytes_per_s": float,
    "nvlink_rx_bytes_per_s": float,
}
"""Every field of the log, with its type; docs/tables.md says what each means."""


def _field(name: str, scale: float = 1.0) -> Callable[[Any, Gpu], Values]:
    """A reading of an NVML field value."""

    def read(n: Any, gpu: Gpu) -> Values:
        value = n.nvmlDeviceGetFieldValues(gpu.board, [getattr(n, name)])[0]
        if value.nvmlReturn != n.NVML_SUCCESS:
            raise n.NVMLError(value.nvmlReturn)
        kinds = {
            n.NVML_VALUE_TYPE_DOUBLE: "dVal",
            n.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            n.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            n.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            n.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
            n.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        }
        number = getattr(value.value, kinds[value.valueType])
        return (number / scale if scale != 1.0 else number,)

    return read


def _clocks(n: Any, gpu: Gpu) -> Values:
    return tuple(n.nvmlDeviceGetClockInfo(gpu.board, kind) for kind in (n.NVML_CLOCK_SM, n.NVML_CLOCK_MEM))


def _utilization(n: Any, gpu: Gpu) -> Values:
    rates = n.nvmlDeviceGetUtilizationRates(gpu.handle)
    return rates.gpu, rates.memory


def _ecc(n: Any, gpu: Gpu) -> Values:
    kinds = (n.NVML_MEMORY_ERROR_TYPE_CORRECTED, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    return tuple(n.nvmlDeviceGetTotalEccErrors(gpu.board, kind, n.NVML_VOLATILE_ECC) for kind in kinds)


# At the rate that was asked for: cached by the driver, a microsecond a call.
EVERY_TICK = (
    Reading(("sm_clock_mhz", "memory_clock_mhz"), _clocks),
    Reading(("utilization_percent", "memory_utilization_percent"), _utilization),
    Reading(("memory_used_bytes",), lambda n, gpu: (n.nvmlDeviceGetMemoryInfo(gpu.handle).used,)),
    Reading(("power_instant_w",), _field("NVML_FI_DEV_POWER_INSTANT", 1e3), per_board=True),
    Reading(("power_average_w",), _field("NVML_FI_DEV_POWER_AVERAGE", 1e3), per_board=True),
    Reading(("temperature_c",), lambda n, gpu: (n.nvmlDeviceGetTemperature(gpu.board, n.NVML_TEMPERATURE_GPU),)),
    Reading(("memory_temperature_c",), _field("NVML_FI_DEV_MEMORY_TEMP")),
    Reading(("throttle_reasons",), lambda n, gpu: (n.nvmlDeviceGetCurrentClocksEventReasons(gpu.board),)),
)
ENERGY = Reading(
    ("energy_j",), lambda n, gpu: (n.nvmlDeviceGetTotalEnergyConsumption(gpu.board) / 1e3,), per_board=True
)
POWER_LIMIT = Reading(
    ("power_limit_w",), lambda n, gpu: (n.nvmlDeviceGetEnforcedPowerLimit(gpu.board) / 1e3,), per_board=True
)
"""The limit that holds: the lowest of those that the board, the driver and the administrator set."""
ECC = Reading(("ecc_corrected", "ecc_uncorrected"), _ecc)

LASTING = ("NOT_SUPPORTED", "NO_PERMISSION", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND", "GPU_IS_LOST")
"""Errors after which asking again is no use."""


def is_lasting(error: Any) -> bool:
    import pynvml

    return error.value in {getattr(pynvml, f"NVML_ERROR_{name}") for name in LASTING}


class Reader:
    """Readings of one GPU. The reason of what it does not give is kept in `missing`, once."""

    def __init__(self, gpu: Gpu, missing: dict[str, str]) -> None:
        self.gpu, self.missing = gpu, missing
        self.gone: set[str] = set()

    def read(self, *readings: Reading) -> dict[str, float | int]:
        """Name to value, without what is missing."""
        import pynvml

        found: dict[str, float | int] = {}
        for reading in readings:
            if reading.names[0] in self.gone:
                continue
            if reading.per_board and self.gpu.instance is not None:
                self.lose(reading.names, MIG_REASON, for_good=True)
                continue
            try:
                values = zip(reading.names, reading.read(pynvml, self.gpu), strict=True)
                found |= {name: value for name, value in values if value is not None}
            except pynvml.NVMLError as error:
                self.lose(reading.names, str(error), for_good=is_lasting(error))
            else:
                for name in reading.names:
                    self.missing.pop(name, None)
        return found

    def lose(self, names: tuple[str, ...], reason: str, *, for_good: bool) -> None:
        for name in names:
            self.missing.setdefault(name, reason)
        if for_good:
            self.gone.update(names)
