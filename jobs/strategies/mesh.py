"""Ranks as a device mesh."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def make_mesh(device_type: str, keep: str, **sizes: int) -> DeviceMesh:
    """All ranks in dimensions of these names and sizes, the last one's ranks next to each other. A dimension of size 1
    is left out, but for the one to `keep`: it would cost process groups."""
    kept = {name: size for name, size in sizes.items() if size > 1 or name == keep}
    return init_device_mesh(device_type, tuple(kept.values()), mesh_dim_names=tuple(kept))
