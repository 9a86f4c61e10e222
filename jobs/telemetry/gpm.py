"""GPM counters (Hopper and later): how busy SMs, tensor cores, memory and links were between two samples.

The driver moves the counters on every 100 ms, at moments of its own. A sample taken in between repeats the last state,
so counters read at a fixed beat are old by up to 100 ms, by how much nobody can tell. Here they are asked for every
few milliseconds around the moment when they should move; the row then bears the time at which they did. Between two
samples without a move no cycle has passed, and the DRAM ratio is 0/0: that is how a move is seen.

GPM uses other hardware than nsys' --gpu-metrics-devices and DCGM's profiling fields, and runs beside them.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from jobs.telemetry.gpus import Gpu

MIB = 1 << 20
METRICS: dict[str, tuple[str, float]] = {
    "dram_active_percent": ("NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
    "graphics_active_percent": ("NVML_GPM_METRIC_GRAPHICS_UTIL", 1.0),
    "sm_active_percent": ("NVML_GPM_METRIC_SM_UTIL", 1.0),
    "sm_occupancy_percent": ("NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    "tensor_active_percent": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    "tensor_dfma_percent": ("NVML_GPM_METRIC_DFMA_TENSOR_UTIL", 1.0),
    "tensor_hmma_percent": ("NVML_GPM_METRIC_HMMA_TENSOR_UTIL", 1.0),
    "tensor_imma_percent": ("NVML_GPM_METRIC_IMMA_TENSOR_UTIL", 1.0),
    "fp64_active_percent": ("NVML_GPM_METRIC_FP64_UTIL", 1.0),
    "fp32_active_percent": ("NVML_GPM_METRIC_FP32_UTIL", 1.0),
    "fp16_active_percent": ("NVML_GPM_METRIC_FP16_UTIL", 1.0),
    "pcie_tx_bytes_per_s": ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", MIB),
    "pcie_rx_bytes_per_s": ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", MIB),
    "nvlink_tx_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", MIB),
    "nvlink_rx_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", MIB),
}
"""Field of the log to GPM's name and the factor to the field's unit."""
CLOCK = "dram_active_percent"  # the metric that is 0/0 when the counters stood still
NAMES = ("gpm_span_ns", *METRICS)
PERIOD_NS = 100_000_000
EARLY_NS = 4_000_000
POLL_NS = 2_000_000
PATIENCE_NS = 400_000_000
"""Counters that have not moved for so long are asked for at the period's beat only."""


@dataclass(frozen=True)
class Move:
    """One move of the counters: when (UTC ns, monotonic ns), and the means over the span before it."""

    at: tuple[int, int]
    values: dict[str, float | int]


class GpmReader:
    """The counters of one GPU. `missing` gets the reason of each metric that it does not give."""

    def __init__(self, gpu: Gpu, missing: dict[str, str], period_ns: int = PERIOD_NS) -> None:
        import pynvml as n

        self.gpu, self.missing, self.period_ns = gpu, missing, max(period_ns, PERIOD_NS)
        self.samples: list[Any] = []
        self.moved_ns: int | None = None
        self.asked_ns = self.due_ns = time.monotonic_ns()
        try:
            if not n.nvmlGpmQueryDeviceSupport(gpu.board).isSupportedDevice:
                raise n.NVMLError(n.NVML_ERROR_NOT_SUPPORTED)
            self.samples = [n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()]
            self._sample(0)
        except n.NVMLError as error:
            self._give_up(error)

    def _give_up(self, error: Any) -> None:
        self.samples = []
        self.missing.update(dict.fromkeys(NAMES, f"no GPM counters: {error}"))

    def _sample(self, place: int) -> int:
        """Take a sample; when, on the monotonic clock."""
        import pynvml as n

        before = time.monotonic_ns()
        if self.gpu.instance is None:
            n.nvmlGpmSampleGet(self.gpu.board, self.samples[place])
        else:
            n.nvmlGpmMigSampleGet(self.gpu.board, self.gpu.instance, self.samples[place])
        return (before + time.monotonic_ns()) // 2

    def poll(self) -> Move | None:
        """Ask once; the move, if there was one since the last. Sets `due_ns`, when to ask again (monotonic ns)."""
        import pynvml as n

        try:
            now_ns = self._sample(1)
            moved = CLOCK in self._metrics([CLOCK])
            if not moved:
                idle = self.moved_ns is not None and now_ns - self.moved_ns > PATIENCE_NS
                self.asked_ns, self.due_ns = now_ns, now_ns + (self.period_ns if idle else POLL_NS)
                return None
            values = self._metrics([name for name in METRICS if name not in self.missing])
        except n.NVMLError as error:
            self._give_up(error)
            return None
        self.samples.reverse()
        return self._move((self.asked_ns + now_ns) // 2, now_ns, values)

    def _move(self, at_ns: int, now_ns: int, values: dict[str, float | int]) -> Move | None:
        last, self.moved_ns = self.moved_ns, at_ns
        self.asked_ns, self.due_ns = now_ns, at_ns + self.period_ns - EARLY_NS
        if last is None:  # what the first move reaches back to is not known
            return None
        utc_ns = time.time_ns() - time.monotonic_ns() + at_ns
        return Move((utc_ns, at_ns), {"gpm_span_ns": at_ns - last, **values})

    def _metrics(self, wanted: list[str]) -> dict[str, float | int]:
        import pynvml as n

        request = n.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, len(wanted)
        request.sample1, request.sample2 = self.samples
        for place, name in enumerate(wanted):
            request.metrics[place].metricId = getattr(n, METRICS[name][0])
        n.nvmlGpmMetricsGet(request)
        values: dict[str, float | int] = {}
        for place, name in enumerate(wanted):
            metric = request.metrics[place]
            if metric.nvmlReturn != n.NVML_SUCCESS:
                self.missing[name] = str(n.NVMLError(metric.nvmlReturn))
            elif not math.isnan(metric.value):
                values[name] = metric.value * METRICS[name][1]
        return values
