"""The link between ranks: as the record describes it, else as devices of their name have it that are on one host."""

from __future__ import annotations

import re

from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.thresholds import NETWORK_BYTES_PER_S

NVLINK_BYTES_PER_S = 25e9
"""One NVLink 3 or 4 in one direction (NVIDIA A100 and H100 white papers); nvidia-smi counts links as NV18."""
PCIE_BYTES_PER_S = 31.5e9
"""PCIe 4.0 x16 in one direction: what GPUs without NVLink have at least."""
LINKED = {
    "A100-SXM4-40GB": 12, "A100-SXM4-80GB": 12, "H100 80GB HBM3": 18, "H200": 18,
}  # fmt: skip
"""NVLinks of devices that never come without (NVIDIA DGX A100, H100 and H200 user guides)."""


def bandwidth_between_ranks(e: Evidence) -> tuple[float, str]:
    """Bandwidth between ranks in one direction, bytes/s, and what that is taken from."""
    hosts = e.record.hosts
    if len(hosts) == 1 and len(hosts[0].gpus) > 1 and hosts[0].topology:
        links = [int(n) for n in re.findall(r"\bNV(\d+)\b", hosts[0].topology)]
        return (min(links) * NVLINK_BYTES_PER_S, f"NV{min(links)}") if links else (PCIE_BYTES_PER_S, "PCIe")
    linked = None if hosts else _links_by_name(e)
    if linked:
        return linked * NVLINK_BYTES_PER_S, f"NV{linked}"
    return NETWORK_BYTES_PER_S.value, "a network" if len(hosts) > 1 else "an unknown link"


def _links_by_name(e: Evidence) -> int | None:
    """NVLinks of the devices, if each rank has one of another number: those of several hosts would begin anew."""
    numbers = {lane.device for lane in e.lanes}
    if len(numbers) < len(e.lanes) or len({lane.rank for lane in e.lanes}) < 2:
        return None
    counts = {LINKED.get((e.of_device(lane, "name") or "").removeprefix("NVIDIA ")) for lane in e.lanes}
    return counts.pop() if len(counts) == 1 else None
