"""What loaders and their settings refuse, in a line each; and DALI, where it is installed."""

import sys

import pytest
import torch

from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.point import check as constraints
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank.loader import make_loader
from nightsweep.jobs.workloads import image
from tests.jobs.workloads.image_batches import CPU, STEP, TINY, batches

pytestmark = pytest.mark.usefixtures("image_cache")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loader": "mmap", "source": "jpeg"},
         "loader mmap maps raw pixels; a JPEG file has none (source raw or small)"),
        ({"loader": "dali"}, "loader dali works in loader_workers threads: at least 1"),
        ({"loader": "dali", "loader_workers": 1, "dali_on": "mixed"},
         "dali_on mixed is for decoding; source small has nothing to decode"),
        ({"loader": "dali", "loader_workers": 1, "dali_on": "gpu", "source": "jpeg"},
         "dali_on gpu: DALI begins decoding of JPEG on the CPU (dali_on mixed)"),
        ({"loader": "dali", "loader_workers": 1, "dali_on": "gpu", "device": "cpu"},
         "dali_on gpu needs a GPU; device is cpu"),
        ({"loader": "dali", "loader_workers": 1, "dali_on": "gpu", "pin_memory": True},
         "pin_memory has no effect: dali_on gpu gives batches on the GPU"),
        ({"loader": "dali", "loader_workers": 1, "resize_on": "device"},
         "resize_on device has no effect: loader is dali"),
        ({"loader": "device", "pixels": "uint8"}, "pixels uint8 has no effect: loader is device"),
        ({"source": "raw", "resize_on": "device"}, "resize_on device has no effect: source is raw"),
        ({"across_epochs": True}, "across_epochs true has no effect: loader_workers is 0"),
        ({"device_prefetch": True}, "device_prefetch true has no effect: non_blocking is false"),
        ({"layout": "mixed", "strategy": "zero3"},
         "layout mixed with zero3: it holds weights in flat pieces, which are never nhwc"),
        ({"layout": "nhwc", "strategy": "fsdp2"}, None),
        ({"fused_padding": True}, "fused_padding true has no effect: model is resnet50"),
        ({"loader": "mmap", "source": "raw", "pixels": "uint8", "loader_workers": 4,
             "pin_memory": True, "non_blocking": True, "device_prefetch": True, "across_epochs": True},
         None),
        ({"loader": "dali", "loader_workers": 4, "dali_on": "mixed", "source": "jpeg", "prefetch_factor": 3}, None),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_line(settings, words):
    assert [r.text for r in constraints.reasons(complete(TINY | settings))] == ([words] if words else [])


def test_dali_that_is_absent_is_told_in_a_line(alone, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali.plugin.base_iterator", None)
    point = complete(TINY | {"loader": "dali", "loader_workers": 1})
    with pytest.raises(Unsupported, match=r"^loader dali needs NVIDIA DALI, which is not installed here"):
        make_loader(point, image.datasets(point)[0], CPU)


def test_dali_on_a_gpu_needs_one(alone):
    point = complete(TINY | {"loader": "dali", "loader_workers": 1, "dali_on": "gpu"})
    with pytest.raises(Unsupported, match=r"^dali_on gpu needs a GPU"):
        make_loader(point, image.datasets(point)[0], CPU)


@pytest.mark.parametrize(
    ("settings", "atol"),
    [
        ({}, 4 * STEP),  # DALI's own bilinear filter
        ({"source": "raw"}, 1e-6),
        ({"source": "raw", "pixels": "uint8"}, 0),
        ({"source": "jpeg"}, 3 * STEP),
    ],
)
def test_dali_gives_every_image_as_it_is(alone, settings, atol):
    """In its own order, so images are found by their content."""
    pytest.importorskip("nvidia.dali.plugin.pytorch")
    ways = {"torch": settings, "dali": settings | {"loader": "dali", "loader_workers": 1}}
    means = {}
    for name, way in ways.items():
        found = batches(way | {"micro_batch": 599})
        images = torch.cat([b["image"] for b in found])
        key = torch.cat([b["label"] for b in found]) * 10 + images.mean(dim=(1, 2, 3)).double()
        means[name] = images[key.argsort()].mean(dim=(1, 2, 3)), key.sort().values
    assert len(means["dali"][0]) == 1797
    assert torch.allclose(means["dali"][0], means["torch"][0], atol=max(atol, 1e-6))
    assert torch.allclose(means["dali"][1], means["torch"][1], atol=max(atol, 1e-6))
