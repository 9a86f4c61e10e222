"""Variables that a point's settings set in its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightsweep.jobs.point.point import Point

ALLOCATORS = {"expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}
_NO_NVLINK = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
_TRANSPORTS = {"shm": _NO_NVLINK, "sockets": _NO_NVLINK | {"NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"}}


def by_setting(p: Point) -> dict[str, dict[str, str]]:
    """Variables of a rank that its libraries read when they are loaded, by the setting that they are for."""
    found = {}
    if p.cpu_threads:
        found["cpu_threads"] = {"OMP_NUM_THREADS": str(p.cpu_threads)}
    if p.allocator in ALLOCATORS:
        # The old name, which comes first where both are set, and the new one.
        names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        found["allocator"] = dict.fromkeys(names, ALLOCATORS[p.allocator])
    if p.cuda_graph:
        found["cuda_graph"] = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}  # as recording DDP's all-reduces wants it
    if p.nccl_transport in _TRANSPORTS:
        found["nccl_transport"] = _TRANSPORTS[p.nccl_transport]
    if p.nccl_algo in ("ring", "tree"):
        # Of one collective, for NCCL fails where another has no tree.
        found["nccl_algo"] = {"NCCL_ALGO": f"allreduce:{p.nccl_algo}"}
    if p.nccl_proto in ("ll", "simple"):
        found["nccl_proto"] = {"NCCL_PROTO": p.nccl_proto}
    if p.nccl_ctas:
        found["nccl_ctas"] = {"NCCL_MAX_CTAS": str(p.nccl_ctas)}
    return found


def environment(p: Point) -> dict[str, str]:
    """The same, of all settings together."""
    return {name: value for variables in by_setting(p).values() for name, value in variables.items()}
