"""GPM counters (Hopper and later): how busy SMs, tensor cores, memory and links were between two samples.

Measured on H200s: the driver shows new counters every 100 ms, and what it shows is a 100 ms period that ended up to 100
ms earlier; that age is the same for seconds and wanders over minutes, because two clocks beat. So reading more often
than 10 Hz gives nothing, and analysis/metrics/ranks/clock.py estimates the age from the end of the timed window. A
sample taken before the counters have moved holds no cycles: its DRAM ratio is 0/0. It is dropped, and the next one
reaches back to the last that counted, so that the spans of the values cover the time without gaps.

NVML_GPM_METRIC_GRAPHICS_UTIL is left out: it alone takes 1.4 ms of CPU a call, all others together 10 us.
GPM uses other hardware than nsys' --gpu-metrics-devices and DCGM's profiling fields, and runs beside them.
"""

from __future__ import annotations

import math
import time
from typing import Any

from nightsweep.jobs.host.gpus import Gpu
from nightsweep.jobs.telemetry.gpu.fields import is_lasting

MIB = 1 << 20
METRICS: dict[str, tuple[str, float]] = {
    "sm_active_percent": ("NVML_GPM_METRIC_SM_UTIL", 1.0),
    "sm_occupancy_percent": ("NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    "tensor_active_percent": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    "tensor_dfma_percent": ("NVML_GPM_METRIC_DFMA_TENSOR_UTIL", 1.0),
    "tensor_hmma_percent": ("NVML_GPM_METRIC_HMMA_TENSOR_UTIL", 1.0),
    "tensor_imma_percent": ("NVML_GPM_METRIC_IMMA_TENSOR_UTIL", 1.0),
    "dram_active_percent": ("NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
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


def refusal(gpu: Gpu) -> Any:
    """Why the GPU has no counters, as NVML's error; None where it has them."""
    import pynvml as n

    try:
        supported = n.nvmlGpmQueryDeviceSupport(gpu.board).isSupportedDevice
    except n.NVMLError as error:
        return error
    except AttributeError:  # an old pynvml
        return n.NVMLError(n.NVML_ERROR_FUNCTION_NOT_FOUND)
    return None if supported else n.NVMLError(n.NVML_ERROR_NOT_SUPPORTED)


class GpmReader:
    """The counters of one GPU. `missing` gets the reason of each metric that it does not give."""

    def __init__(self, gpu: Gpu, missing: dict[str, str]) -> None:
        import pynvml as n

        self.gpu, self.missing = gpu, missing
        self.gone: set[str] = set()
        self.samples: list[Any] = []
        self.since_ns: int | None = None
        try:
            if why := refusal(gpu):
                raise why
            self.samples = [n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()]
            self._sample(0)
        except n.NVMLError as error:
            self._lose(error, for_good=True)

    def _lose(self, error: Any, *, for_good: bool) -> None:
        self.missing.update({name: f"no GPM counters: {error}" for name in NAMES if name not in self.gone})
        if for_good:
            self.gone.update(NAMES)

    def _sample(self, place: int) -> int:
        """Take a sample; when, on the monotonic clock."""
        import pynvml as n

        before = time.monotonic_ns()
        if self.gpu.instance is None:
            n.nvmlGpmSampleGet(self.gpu.board, self.samples[place])
        else:
            n.nvmlGpmMigSampleGet(self.gpu.board, self.gpu.instance, self.samples[place])
        return (before + time.monotonic_ns()) // 2

    def read(self) -> dict[str, float | int]:
        """Means over the time since the last reading, and its length; nothing where the counters have not moved, or
        where it is not known since when."""
        import pynvml as n

        if NAMES[0] in self.gone:
            return {}
        try:
            now_ns = self._sample(1)
            values = self._metrics()
        except n.NVMLError as error:
            self._lose(error, for_good=is_lasting(error))
            return {}
        self.missing.pop(NAMES[0], None)
        if CLOCK not in values and CLOCK not in self.gone:
            return {}
        since, self.since_ns = self.since_ns, now_ns
        self.samples.reverse()
        return {"gpm_span_ns": now_ns - since, **values} if since is not None else {}

    def _metrics(self) -> dict[str, float | int]:
        import pynvml as n

        wanted = [name for name in METRICS if name not in self.gone]
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
                error = n.NVMLError(metric.nvmlReturn)
                self.missing[name] = str(error)
                if is_lasting(error):
                    self.gone.add(name)
                continue
            self.missing.pop(name, None)
            if not math.isnan(metric.value):
                values[name] = metric.value * METRICS[name][1]
        return values
