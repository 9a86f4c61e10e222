"""The link between ranks, as the record describes it."""

from __future__ import annotations

import re

from analysis.diagnosis.evidence.evidence import Evidence
from analysis.diagnosis.thresholds import NETWORK_BYTES_PER_S

NVLINK_BYTES_PER_S = 25e9
"""One NVLink 3 or 4 in one direction (NVIDIA A100 and H100 white papers); nvidia-smi counts links as NV18."""
PCIE_BYTES_PER_S = 31.5e9
"""PCIe 4.0 x16 in one direction: what GPUs without NVLink have at least."""


def bandwidth_between_ranks(e: Evidence) -> tuple[float, str]:
    """Bandwidth between ranks in one direction, bytes/s, and what that is taken from."""
    hosts = e.record.hosts
    if len(hosts) == 1 and len(hosts[0].gpus) > 1 and hosts[0].topology:
        links = [int(n) for n in re.findall(r"\bNV(\d+)\b", hosts[0].topology)]
        return (min(links) * NVLINK_BYTES_PER_S, f"NV{min(links)}") if links else (PCIE_BYTES_PER_S, "PCIe")
    return NETWORK_BYTES_PER_S.value, "a network" if len(hosts) > 1 else "an unknown link"
