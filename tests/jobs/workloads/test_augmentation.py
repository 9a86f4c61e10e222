"""Augmented images: the same whoever makes them, each in its own way, and those that are only looked at untouched."""

import pytest
import torch

from nightsweep.jobs.workloads.images.augmentation import augment
from tests.jobs.workloads.image_batches import STEP, assert_same, batches

pytestmark = pytest.mark.usefixtures("image_cache")


def augmented(where, **settings):
    torch.manual_seed(7)
    return batches({"augment": where, **settings}, 2)


@pytest.mark.parametrize(
    ("settings", "atol"),
    [({}, 1e-5), ({"loader": "mmap", "pixels": "uint8"}, 1.1 * STEP), ({"layout": "nhwc", "source": "raw"}, 1e-5)],
)
def test_workers_and_the_device_augment_alike(alone, settings, atol):
    found = augmented("worker", **settings)
    assert_same(found, augmented("device", **settings), atol)
    for one, plain in zip(found, batches(settings, 2), strict=True):
        assert torch.equal(one["label"], plain["label"])
        moved = (one["image"] - plain["image"]).abs().mean((1, 2, 3))
        assert (moved > 2 * STEP).all() and one["image"].abs().max() <= 1 + STEP


def test_images_that_accuracy_is_measured_on_are_left_alone(alone):
    with torch.no_grad():
        assert_same(augmented("device"), batches({}, 2), 0)


def test_each_image_is_augmented_in_its_own_way(alone):
    one, other = augmented("device", loader="device")
    assert torch.equal(one["label"], other["label"]) and not torch.allclose(one["image"], other["image"], atol=0.1)
    first, second = augment(torch.linspace(-1, 1, 40).expand(2, 3, 40, 40))
    assert not torch.allclose(first, second, atol=0.01)
