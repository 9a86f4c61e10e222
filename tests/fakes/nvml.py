"""GPUs for machines that have none: the real package `pynvml`, over a library that lives in this file alone.

Names, constants, structures and errors are the installed package's own; only what it would load from the driver,
libnvidia-ml.so.1, is replaced. `load` makes such a module; `install` makes a folder which, on PYTHONPATH, gives it to
other processes as `pynvml`, with their GPUs in $FAKE_NVML.
"""

import copy
import ctypes
import importlib.metadata
import importlib.util
import math
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

VARIABLE = "FAKE_NVML"
GIB = 1 << 30
MOVE_S = 0.1
"""How often the GPM counters move."""
OF_MIG = ("nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetMemoryInfo",
          "nvmlDeviceGetComputeRunningProcesses_v3")  # fmt: skip
"""What a MIG device answers; all else is asked of its GPU."""
FIELDS = {"NVML_FI_DEV_POWER_INSTANT": 500_000, "NVML_FI_DEV_POWER_AVERAGE": 480_000, "NVML_FI_DEV_MEMORY_TEMP": 60}

GPU = {
    "uuid": None,
    "migs": [],  # [UUID, GPU instance] each
    # [from second, percent of SMs] each, or a file that holds the percent; the utilisation is 100 while there is any
    "busy": [[0.0, 90.0]],
    "energy_s": 0.005,  # how long the energy call takes
    "pids": [],
    "near": 1,  # CPUs near to it, a bit each
    "xids": [],  # [second, number] or [second, number, GPU instance] each
    "gpm": True,
    "errors": {},  # call, field value or GPM metric to an error's name, or to [name, number of calls that it lasts]
}


def gpu(number, **settings):
    own = {"uuid": f"GPU-{number}0000000-aaaa-bbbb-cccc-{number:012d}"}
    return copy.deepcopy(GPU | own | settings)


def load(gpus):
    """A module like `pynvml`; what it knows and was asked is its nvmlLib, a Driver."""
    path = importlib.metadata.distribution("nvidia-ml-py").locate_file("pynvml.py")
    spec = importlib.util.spec_from_file_location("pynvml_of_no_gpu", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # it looks itself up there while it is loaded
    spec.loader.exec_module(module)
    module.nvmlLib = Driver(module, gpus)
    return module


def install(folder):
    """Write `pynvml` for other processes into the folder."""
    folder.joinpath("pynvml.py").write_text(
        "import json, os, sys\nfrom tests.fakes import nvml as fake_nvml\n"
        f"sys.modules[__name__] = fake_nvml.load(json.loads(os.environ['{VARIABLE}']))\n"
    )


def number(pointer):
    """What an opaque handle points to."""
    return ctypes.cast(pointer, ctypes.c_void_p).value


def give(out, value):
    """Write a handle to where the caller wants it."""
    ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = value


class Driver:
    """The library: its functions, as C has them, return an error's number or nothing."""

    def __init__(self, names, gpus):
        self.names, self.gpus = names, gpus
        self.began = time.monotonic()
        self.calls = Counter()
        self.samples = {}
        self.registered = set()

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return partial(self.called, name, object.__getattribute__(self, f"_{name}"))

    def called(self, name, function, *args):
        """Count the call, and do it, unless it is to fail."""
        place = self.place(args[0]) if args and isinstance(args[0], self.names.c_nvmlDevice_t) else None
        if place and place[1] is not None and name not in OF_MIG:
            return self.names.NVML_ERROR_NOT_SUPPORTED
        return self.fails(place, name) or function(*args) or self.names.NVML_SUCCESS

    def place(self, handle):
        """Number of the GPU, and of its MIG device or None."""
        index, mig = divmod(number(handle), 100)
        return index - 1, mig - 1 if mig else None

    def of(self, handle):
        return self.gpus[self.place(handle)[0]]

    def fails(self, place, name):
        """The error that is set for this call, or 0."""
        told = self.gpus[place[0] if place else 0]["errors"].get(name)
        self.calls[place[0] if place else None, name] += 1
        if isinstance(told, list):
            told[1] -= 1
            told = told[0] if told[1] >= 0 else None
        return getattr(self.names, f"NVML_ERROR_{told}") if told else 0

    def now(self):
        """Seconds; tests may set it."""
        return time.monotonic() - self.began

    def busy(self, gpu, at):
        if isinstance(gpu["busy"], str):
            return float(Path(gpu["busy"]).read_text())
        return [percent for start, percent in gpu["busy"] if start <= at][-1]

    def _nvmlInitWithFlags(self, flags):
        pass

    def _nvmlDeviceGetCount_v2(self, out):
        out._obj.value = len(self.gpus)

    def _nvmlDeviceGetHandleByIndex_v2(self, index, out):
        give(out, 100 * (index.value + 1))
        return self.fails((index.value, None), "handle")

    def _nvmlDeviceGetUUID(self, handle, text, length):
        gpu, (_, mig) = self.of(handle), self.place(handle)
        text.value = (gpu["uuid"] if mig is None else gpu["migs"][mig][0]).encode()

    def _nvmlDeviceGetMigMode(self, handle, current, pending):
        current._obj.value = pending._obj.value = bool(self.of(handle)["migs"])

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle, out):
        out._obj.value = 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index, out):
        if index.value >= len(self.of(handle)["migs"]):
            return self.names.NVML_ERROR_NOT_FOUND
        give(out, number(handle) + index.value + 1)
        return None

    def _nvmlDeviceGetGpuInstanceId(self, handle, out):
        index, mig = self.place(handle)
        out._obj.value = self.gpus[index]["migs"][mig][1]

    def _nvmlDeviceGetClockInfo(self, handle, kind, out):
        out._obj.value = {self.names.NVML_CLOCK_SM: 1980, self.names.NVML_CLOCK_MEM: 3201}[kind.value]

    def _nvmlDeviceGetUtilizationRates(self, handle, out):
        share = self.busy(self.of(handle), self.now())
        out._obj.gpu, out._obj.memory = 100 if share else 0, round(share / 2)

    def _nvmlDeviceGetMemoryInfo(self, handle, out):
        out._obj.total, out._obj.used, out._obj.free = 140 * GIB, 61 * GIB, 79 * GIB

    def _nvmlDeviceGetTemperature(self, handle, sensor, out):
        out._obj.value = 55

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle, out):
        out._obj.value = self.names.nvmlClocksEventReasonSwPowerCap

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle, out):
        out._obj.value = 700_000

    def _nvmlDeviceGetCpuAffinity(self, handle, size, out):
        out._obj[0] = self.of(handle)["near"]

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle, out):
        time.sleep(self.of(handle)["energy_s"])
        out._obj.value = int(500e3 * int(self.now() / MOVE_S) * MOVE_S)  # 500 W

    def _nvmlDeviceGetTotalEccErrors(self, handle, kind, counter, out):
        out._obj.value = kind.value

    def _nvmlDeviceGetFieldValues(self, handle, length, out):
        for value in out._obj:
            name = next(name for name in FIELDS if getattr(self.names, name) == value.fieldId)
            value.nvmlReturn = self.fails(self.place(handle), name)
            value.valueType, value.value.uiVal = self.names.NVML_VALUE_TYPE_UNSIGNED_INT, FIELDS[name]

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle, length, out):
        pids = self.of(handle)["pids"]
        length._obj.value = len(pids)
        if out is None:
            return self.names.NVML_ERROR_INSUFFICIENT_SIZE if pids else None
        for place, pid in enumerate(pids):
            out[place].pid = pid
        return None

    def _nvmlGpmQueryDeviceSupport(self, handle, out):
        out._obj.isSupportedDevice = self.of(handle)["gpm"]

    def _nvmlGpmSampleAlloc(self, out):
        self.samples[len(self.samples) + 1] = None
        give(out, len(self.samples))

    def _nvmlGpmSampleGet(self, handle, sample):
        if self.of(handle)["migs"]:
            return self.names.NVML_ERROR_NOT_SUPPORTED
        self.samples[number(sample)] = self.place(handle), int(self.now() / MOVE_S)
        return None

    def _nvmlGpmMigSampleGet(self, handle, instance, sample):
        if instance not in [mig[1] for mig in self.of(handle)["migs"]]:
            return self.names.NVML_ERROR_INVALID_ARGUMENT
        self.calls[self.place(handle)[0], f"instance {instance}"] += 1
        self.samples[number(sample)] = self.place(handle), int(self.now() / MOVE_S)
        return None

    def _nvmlGpmMetricsGet(self, out):
        """SMs are as busy as is set, all else half as much; what stood still is 0, and DRAM 0/0."""
        ids = {value: name for name, value in vars(self.names).items() if name.startswith("NVML_GPM_METRIC_")}
        (place, begin), (_, end) = (self.samples[number(s)] for s in (out._obj.sample1, out._obj.sample2))
        shares = [self.busy(self.gpus[place[0]], (move + 0.5) * MOVE_S) for move in range(begin, end)]
        share = sum(shares) / len(shares) if shares else 0.0
        for metric in out._obj.metrics[: out._obj.numMetrics]:
            name = ids[metric.metricId]
            metric.nvmlReturn = self.fails(place, name)
            metric.value = share if name == "NVML_GPM_METRIC_SM_UTIL" else share / 2
            if name == "NVML_GPM_METRIC_DRAM_BW_UTIL" and not shares:
                metric.value = math.nan

    def _nvmlEventSetCreate(self, out):
        give(out, 1)

    def _nvmlDeviceGetSupportedEventTypes(self, handle, out):
        out._obj.value = self.names.nvmlEventTypeAll

    def _nvmlDeviceRegisterEvents(self, handle, kinds, events):
        if kinds.value & self.names.nvmlEventTypeXidCriticalError:
            self.registered.add(self.place(handle)[0])

    def _nvmlEventSetWait_v2(self, events, out, timeout_ms):
        end = time.monotonic() + timeout_ms.value / 1e3
        while time.monotonic() < end:
            for index in self.registered:
                told = self.gpus[index]["xids"]
                if told and told[0][0] <= self.now():
                    _, xid, instance, *_ = [*told.pop(0), 0xFFFFFFFF]
                    ctypes.cast(ctypes.byref(out._obj), ctypes.POINTER(ctypes.c_void_p))[0] = 100 * (index + 1)
                    out._obj.eventType, out._obj.eventData = self.names.nvmlEventTypeXidCriticalError, xid
                    out._obj.gpuInstanceId = instance
                    return None
            time.sleep(0.01)
        return self.names.NVML_ERROR_TIMEOUT

    def _nvmlEventSetFree(self, events):
        pass
