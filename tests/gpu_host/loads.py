"""Known loads on the first GPU, to check telemetry against: what each did, and when, is written down.

    python -m tests.gpu_host.loads FOLDER steady      # matrix products, copies and rest, of known size
    python -m tests.gpu_host.loads FOLDER bursts      # short bursts with rest between, inside nsys' capture range

One line a load in FOLDER/loads.jsonl: {"load", "start_ns", "end_ns" (UTC ns, device idle at both), "flop", "bytes"}.
FOLDER/device.json says on what: {"name", "uuid", "sm_count", "capability", "memory_bus_bits"}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nightsweep.jobs.host.gpus import full_uuid
from nightsweep.jobs.record.json_files import write_json

EDGE = 8192
"""Edge of the bf16 matrices."""
COPY_BYTES = 4 << 30
STEADY_S = {"matmul": 30.0, "matmul_zeros": 8.0, "copy": 8.0, "rest": 8.0}
"""matmul_zeros: products of zeros draw so little power that the clock stays at its highest."""
BURSTS, BURST_S, REST_S = 20, 0.35, 0.45
BATCH_S = 0.02
"""How much work is queued at a time: little enough that a load ends when it should."""


class Loads:
    """The buffers of the loads, and the file that tells of them."""

    def __init__(self, folder: Path) -> None:
        self.sink = (folder / "loads.jsonl").open("a")
        self.left = torch.randn(EDGE, EDGE, device="cuda", dtype=torch.bfloat16)
        self.zeros = torch.zeros_like(self.left)
        self.product = torch.empty_like(self.left)
        self.source = torch.zeros(COPY_BYTES, device="cuda", dtype=torch.uint8)
        self.target = torch.empty_like(self.source)

    def work(self, name: str) -> tuple[Callable[[], object], float, float]:
        """What to call, and its floating-point operations and bytes moved (read and written)."""
        return {
            "matmul": (lambda: torch.mm(self.left, self.left, out=self.product), 2.0 * EDGE**3, 0.0),
            "matmul_zeros": (lambda: torch.mm(self.zeros, self.zeros, out=self.product), 2.0 * EDGE**3, 0.0),
            "copy": (lambda: self.target.copy_(self.source), 0.0, 2.0 * COPY_BYTES),
            "rest": (lambda: time.sleep(BATCH_S), 0.0, 0.0),
        }[name]

    def run(self, name: str, seconds: float, as_name: str | None = None) -> None:
        """One load for about so long."""
        call, flop, moved = self.work(name)
        call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        batch = max(1, int(BATCH_S / max(time.perf_counter() - begin, 1e-6)))
        count, start_ns, start = 0, time.time_ns(), time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(batch):
                call()
            torch.cuda.synchronize()
            count += batch
        entry = {
            "load": as_name or name,
            "start_ns": start_ns,
            "end_ns": time.time_ns(),
            "flop": count * flop,
            "bytes": count * moved,
        }
        self.sink.write(json.dumps(entry) + "\n")
        self.sink.flush()


def steady(loads: Loads) -> None:
    for name, seconds in STEADY_S.items():
        loads.run(name, seconds)


def bursts(loads: Loads) -> None:
    """Bursts at odd intervals, so that they do not keep step with the sampler."""
    torch.cuda.cudart().cudaProfilerStart()
    for number in range(BURSTS):
        with torch.cuda.nvtx.range(f"burst {number}"):
            loads.run("matmul", BURST_S, as_name="burst")
        time.sleep(REST_S + 0.013 * (number % 7))
    torch.cuda.cudart().cudaProfilerStop()


def device() -> dict[str, Any]:
    """What the peaks of the first GPU follow from."""
    import pynvml

    facts = torch.cuda.get_device_properties(0)
    uuid = full_uuid(str(facts.uuid))
    pynvml.nvmlInit()
    return {
        "name": facts.name,
        "uuid": uuid,
        "sm_count": facts.multi_processor_count,
        "capability": [facts.major, facts.minor],
        "memory_bus_bits": pynvml.nvmlDeviceGetMemoryBusWidth(pynvml.nvmlDeviceGetHandleByUUID(uuid)),
    }


def main() -> None:
    write_json(Path(sys.argv[1]) / "device.json", device())
    loads = Loads(Path(sys.argv[1]))
    {"steady": steady, "bursts": bursts}[sys.argv[2]](loads)


if __name__ == "__main__":
    main()
