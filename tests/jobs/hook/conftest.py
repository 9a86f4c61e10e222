"""What switches replace of PyTorch is put back."""

import inspect

import pytest


@pytest.fixture
def undone(monkeypatch):
    import torch

    ddp, optimizer, tensor = torch.nn.parallel.DistributedDataParallel, torch.optim.Optimizer, torch.Tensor
    replaced = (
        *((optimizer, name) for name in ("__init__", "load_state_dict", "profile_hook_step")),
        *((tensor, name) for name in ("to", "cuda", "is_pinned", "pin_memory", "contiguous", "reshape", "flatten")),
        (torch.utils.data.DataLoader, "__init__"),
        *((ddp, name) for name in ("__init__", "forward")),
        (torch.amp.GradScaler, "step"),
        *((module, "empty_cache") for module in (torch.cuda, torch.accelerator)),
    )
    for owner, name in replaced:
        monkeypatch.setattr(owner, name, inspect.getattr_static(owner, name))
    yield
    torch.nn.modules.module._global_forward_pre_hooks.clear()
