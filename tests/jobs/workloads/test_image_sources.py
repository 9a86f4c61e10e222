"""Folders of images, what is held back of them, and their prepared forms, which are made once."""

import gzip
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from nightsweep.jobs.host import cache
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads import image
from nightsweep.jobs.workloads.images import digits, prepared
from tests.jobs.workloads.image_batches import SIZE, STEP, TINY

pytestmark = pytest.mark.usefixtures("image_cache")


@pytest.fixture
def idx(tmp_path):
    """A folder of 45 images of 28 x 28 px in MNIST's format, labels gzipped; their bytes, and their labels."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (45, 28, 28), np.uint8)
    labels = (np.arange(45) % 10).astype(np.uint8)
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 45, 28, 28) + images.tobytes())
    packed = gzip.compress(struct.pack(">4BI", 0, 0, 8, 1, 45) + labels.tobytes())
    (folder / "train-labels.idx1-ubyte.gz").write_bytes(packed)
    return folder, images, labels


def test_the_digits_that_are_shipped_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, labels = digits.load_digits("builtin")
    expected = load_digits()
    assert images.dtype == np.float32 and np.array_equal(images, (expected.images / 8.0 - 1.0).astype(np.float32))
    assert labels.dtype == expected.target.dtype and np.array_equal(labels, expected.target)


@pytest.mark.slow
def test_ranks_do_not_load_scikit_learn():
    """It takes a second or more, in which a GPU is held; what transformers loads is part of it."""
    script = (
        "import sys; from nightsweep.jobs.point.point import complete; from nightsweep.jobs.workloads import image\n"
        f"point = complete({TINY | {'loader': 'device'}!r}); image.build(point); assert 'sklearn' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("settings", [{}, {"source": "raw"}, {"loader": "mmap", "pixels": "uint8"}])
def test_a_folder_of_mnist(alone, idx, settings):
    folder, images, labels = idx
    point = complete(TINY | {"data": str(folder), "resize_on": "device"} | settings)
    dataset, _ = image.datasets(point)
    assert len(dataset) == 45 and [int(dataset[n]["label"]) for n in range(45)] == labels.tolist()
    grey = torch.from_numpy(images[7] / np.float32(127.5) - 1)[None, None].expand(-1, 3, -1, -1)
    batch = {"image": dataset[7]["image"][None], "label": dataset[7]["label"][None]}
    found = image.preparation(point)(batch)["image"]
    assert torch.allclose(found, digits.enlarge(grey, SIZE), atol=0.51 * STEP)


def test_a_folder_that_changes_is_another_data_set(idx):
    folder, images, _ = idx
    first = prepared.key(str(folder))
    (folder / "train-images-idx3-ubyte").write_bytes(
        struct.pack(">4B3I", 0, 0, 8, 3, 44, 28, 28) + images[:44].tobytes()
    )
    assert prepared.key(str(folder)) != first


def test_what_is_held_back_follows_the_seed_and_is_never_trained_on():
    rows = {}
    for seed in (0, 1):
        point = complete(TINY | {"epochs": 1, "source": "raw", "seed": seed})
        train, held = image.datasets(point)
        assert (len(train), len(held)) == (1498, 299)
        assert not set(train.rows) & set(held.rows) and len({*train.rows, *held.rows}) == 1797
        again = image.datasets(complete(TINY | {"epochs": 1, "seed": seed, "learning_rate": 1.0}))
        assert np.array_equal(again[1].labels, held.labels)
        rows[seed] = set(held.rows)
    assert rows[0] != rows[1]
    assert image.datasets(complete(TINY | {"source": "raw"}))[1] is None


def test_forms_and_sizes_do_not_collide(image_cache):
    for form in ("jpeg", "raw", "array"):
        for size in (None, 12):
            prepared.prepare("builtin", form, size)
    folders = [path for path in image_cache.iterdir() if path.is_dir()]
    assert len(folders) == 6 and not [path for path in folders if path.name.startswith(".")]
    assert prepared.prepare("builtin", "array", 12).array().shape == (1797, 12, 12, 3)
    assert prepared.prepare("builtin", "raw", None).file(1796).stat().st_size == 8 * 8 * 3


def test_two_at_once_make_it_once(monkeypatch):
    """Both get all of it; the second waits, alive, and makes nothing."""
    made, beats = [], []
    plain = prepared._make
    monkeypatch.setattr(prepared, "_make", lambda *args: (made.append(1), plain(*args)))
    monkeypatch.setattr(cache, "POLL_S", 0.01)
    found = []

    def go():
        found.append(prepared.prepare("builtin", "array", 64, lambda: beats.append(1)).array().shape)

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(1797, 64, 64, 3)] * 3 and len(made) == 1 and beats


def test_where_a_lock_does_not_reach_the_first_to_end_wins(image_cache):
    target = prepared.Prepared(image_cache / "x-array-own-v1", "array")
    image_cache.mkdir(parents=True)
    prepared._make("builtin", target, None, lambda: None)
    before = (target.folder / "images.npy").stat().st_ino
    prepared._make("builtin", target, None, lambda: None)
    assert (target.folder / "images.npy").stat().st_ino == before
    assert [path.name for path in image_cache.iterdir()] == [target.folder.name]
