"""Images: from every source and through every loader the same ones, each once an epoch, in the point's layout."""

import gzip
import struct
import sys
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from jobs import constraints
from jobs.data import EndlessBatches, endless, make_loader, make_sampler, one_epoch, order_of
from jobs.failures import Unsupported
from jobs.feed import Feed
from jobs.point import complete
from jobs.telemetry.trace import NoTracer
from jobs.workloads import Work, image
from jobs.workloads.images import digits, prepared
from jobs.workloads.images.datasets import Digits

CPU = torch.device("cpu")
SIZE = 40
TINY = {"workload": "image", "model": "resnet50", "image_size": SIZE, "micro_batch": 16}
STEP = 1 / 127.5


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/nightsweep"


@pytest.fixture(scope="module")
def alone():
    """A group of this process, as loaders ask for their rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # operators here are small
    yield
    torch.set_num_threads(threads)
    dist.destroy_process_group()


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


def work_of(point):
    """As much of the work as a feed takes."""
    return Work(None, None, image.preparation(point), image.loss, (), tokens_per_sample=None)


def batches(settings, count=None):
    """The batches of an epoch as they reach the network."""
    point = complete(TINY | settings)
    dataset, _ = image.datasets(point)
    loader = make_loader(point, dataset, CPU)
    feed = Feed(point, one_epoch(point, loader, 3), work_of(point), CPU, NoTracer())
    return [feed.next() for _ in range(count or len(loader))]


def assert_same(found, expected, atol):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["label"], other["label"])
        assert one["image"].shape == other["image"].shape == (16, 3, SIZE, SIZE)
        assert one["image"].dtype == other["image"].dtype
        assert torch.allclose(one["image"], other["image"], atol=atol)


@pytest.mark.parametrize(
    ("settings", "atol"),
    [
        # bytes of builtin's 17 greys are their nearest; what is enlarged of bytes may be off by one once more
        ({"source": "raw"}, 0.51 * STEP),
        ({"source": "raw", "pixels": "uint8"}, 0.51 * STEP),
        ({"source": "jpeg"}, 12 * STEP),
        ({"source": "jpeg", "pixels": "uint8"}, 12 * STEP),
        ({"source": "raw", "loader": "mmap"}, 0.51 * STEP),
        ({"source": "raw", "loader": "mmap", "pixels": "uint8"}, 0.51 * STEP),
        ({"loader": "mmap"}, 0.51 * STEP),
        ({"loader": "mmap", "pixels": "uint8"}, 1.02 * STEP),
        ({"loader": "mmap", "resize_on": "device"}, 0.51 * STEP),
        ({"loader": "mmap", "resize_on": "device", "pixels": "uint8"}, 0.51 * STEP),
        ({"pixels": "uint8"}, 0.51 * STEP),
        ({"resize_on": "device"}, 1e-6),
        ({"resize_on": "device", "pixels": "uint8"}, 0.51 * STEP),
        ({"layout": "nhwc"}, 0),
        ({"layout": "mixed", "pixels": "uint8"}, 0.51 * STEP),
        ({"device_prefetch": True}, 0),
    ],
)
def test_every_way_gives_the_same_images_in_the_same_order(alone, settings, atol):
    assert_same(batches(settings, 4), batches({}, 4), atol)


@pytest.mark.slow
def test_workers_give_what_the_rank_would(alone):
    settings = {"source": "raw", "loader": "mmap", "pixels": "uint8"}
    assert_same(batches(settings | {"loader_workers": 1}), batches(settings), 0)


def test_fp64_is_double_from_bytes_on(alone):
    plain, raw = (batches({"precision": "fp64", "pixels": pixels}, 1)[0]["image"] for pixels in ("float", "uint8"))
    assert plain.dtype == raw.dtype == torch.float64
    assert torch.allclose(plain, raw, atol=0.51 * STEP)


def test_bytes_and_floats_are_each_others_inverse():
    every = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1)
    values = digits.from_bytes(every)
    assert torch.allclose(values.flatten(), torch.arange(256) / 127.5 - 1, atol=1e-6)
    assert torch.equal(digits.to_bytes(values), every.permute(0, 3, 1, 2))


LAYOUTS = [("nchw", False, False), ("nhwc", True, True), ("mixed", False, True)]


@pytest.mark.parametrize("pixels", ["float", "uint8"])
@pytest.mark.parametrize(("layout", "images", "_weights"), LAYOUTS)
def test_layout_of_images_is_that_of_their_strides(alone, layout, images, _weights, pixels):
    batch = batches({"layout": layout, "pixels": pixels, "resize_on": "device"}, 1)[0]["image"]
    assert batch.is_contiguous(memory_format=torch.channels_last) is images
    assert batch.is_contiguous() is not images


@pytest.mark.parametrize(("layout", "_images", "weights"), LAYOUTS)
def test_layout_of_weights_is_that_of_their_strides(layout, _images, weights):
    model = image.build(complete(TINY | {"model": "mobilenet_v2", "layout": layout})).model
    weight = model.mobilenet_v2.conv_stem.first_conv.convolution.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) is weights
    assert weight.is_contiguous() is not weights


class Pads(TorchDispatchMode):
    """Counts paddings by copy."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.constant_pad_nd.default
        return function(*args, **(kwargs or {}))


def test_fused_padding_is_the_same_network(alone):
    """In fp64: to the last digits, forward and backward; 47 copies of inputs are gone."""
    found = []
    for fused in (False, True):
        point = complete(TINY | {"model": "mobilenet_v2", "fused_padding": fused, "image_size": SIZE})
        torch.manual_seed(0)
        model = image.build_model(point)[0].double()
        torch.manual_seed(1)
        batch = {"image": torch.randn(2, 3, 37, 40).double(), "label": torch.tensor([1, 2])}
        with Pads() as pads:
            loss = image.loss(model, batch)
        loss.backward()
        found.append((pads.count, loss.detach(), [p.grad for p in model.parameters()]))
    (many, loss, gradients), (few, other, others) = found
    assert (many, few) == (52, 5)
    assert torch.allclose(loss, other, rtol=1e-12, atol=0)
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-12) for a, b in zip(gradients, others, strict=True))


def test_ranks_share_every_image_once_an_epoch(monkeypatch):
    point = complete(TINY)
    dataset, _ = image.datasets(point)
    monkeypatch.setattr(dist, "is_available", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 3)
    for epoch in (0, 1):
        seen = []
        for rank in range(3):
            monkeypatch.setattr(dist, "get_rank", lambda *_, rank=rank: rank)
            sampler = make_sampler(point, dataset)
            sampler.set_epoch(epoch)
            seen += list(sampler)
        assert sorted(seen) == list(range(len(dataset)))  # 1,797 is 3 times 599


@pytest.mark.parametrize("strategy", ["ddp", "ddp_ds"])
def test_across_epochs_is_the_order_of_epochs(alone, strategy):
    """To the worker there is no end, and the batches are those of one epoch after another."""
    orders = []
    for across in (False, True):
        point = complete(TINY | {"across_epochs": across, "strategy": strategy, "micro_batch": 500})
        images = np.zeros((1797, 1, 1), np.float32)
        loader = make_loader(point, Digits(images, np.arange(1797), None), CPU)
        assert len(loader) == 3 and isinstance(order_of(loader), EndlessBatches) is across
        found = endless(loader)
        orders.append([next(found)["label"] for _ in range(8)])
    assert all(torch.equal(*pair) for pair in zip(*orders, strict=True))
    assert not torch.equal(orders[0][0], orders[0][3])


def test_an_epoch_is_the_same_whatever_was_read_before(alone):
    for strategy in ("ddp", "ddp_ds"):
        point = complete(TINY | {"strategy": strategy})
        images = np.zeros((100, 1, 1), np.float32)
        orders = []
        for before in (0, 3):
            loader = make_loader(point, Digits(images, np.arange(100), None), CPU)
            found = endless(loader)
            for _ in range(before):
                next(found)
            orders.append([torch.cat([b["label"] for b in one_epoch(point, loader, epoch)]) for epoch in (1, 2)])
        assert torch.equal(orders[0][0], orders[1][0]) and torch.equal(orders[0][1], orders[1][1])
        assert not torch.equal(*orders[0])


def test_a_batch_on_the_device_is_the_first_of_the_order(alone):
    """Loading is off, not the data: the images, the length of an epoch and the layout are those of the point."""
    point = complete(TINY | {"loader": "device", "layout": "nhwc"})
    dataset, _ = image.datasets(point)
    loader = make_loader(point, dataset, CPU)
    found = endless(loader)
    one, other = next(found), next(found)
    assert one["image"] is other["image"] and one["image"].is_contiguous(memory_format=torch.channels_last)
    plain = complete(TINY)
    expected = next(endless(make_loader(plain, image.datasets(plain)[0], CPU)))
    assert torch.equal(one["image"], expected["image"]) and torch.equal(one["label"], expected["label"])
    assert image.preparation(point)(one)["image"] is one["image"]
    assert len(loader) == 1797 // 16 and len(dataset) == 1797
    many = complete(TINY | {"loader": "device", "micro_batch": 2000})
    assert next(endless(make_loader(many, dataset, CPU)))["image"].shape == (2000, 3, SIZE, SIZE)


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


def test_forms_and_sizes_do_not_collide(cache):
    for form in ("jpeg", "raw", "array"):
        for size in (None, 12):
            prepared.prepare("builtin", form, size)
    folders = [path for path in cache.iterdir() if path.is_dir()]
    assert len(folders) == 6 and not [path for path in folders if path.name.startswith(".")]
    assert prepared.prepare("builtin", "array", 12).array().shape == (1797, 12, 12, 3)
    assert prepared.prepare("builtin", "raw", None).file(1796).stat().st_size == 8 * 8 * 3


def test_two_at_once_make_it_once(monkeypatch):
    """Both get all of it; the second waits, alive, and makes nothing."""
    made, beats = [], []
    plain = prepared._make
    monkeypatch.setattr(prepared, "_make", lambda *args: (made.append(1), plain(*args)))
    monkeypatch.setattr(prepared, "POLL_S", 0.01)
    found = []

    def go():
        found.append(prepared.prepare("builtin", "array", 64, lambda: beats.append(1)).array().shape)

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(1797, 64, 64, 3)] * 3 and len(made) == 1 and beats


def test_where_a_lock_does_not_reach_the_first_to_end_wins(cache):
    target = prepared.Prepared(cache / "x-array-own-v1", "array")
    cache.mkdir(parents=True)
    prepared._make("builtin", target, None, lambda: None)
    before = (target.folder / "images.npy").stat().st_ino
    prepared._make("builtin", target, None, lambda: None)
    assert (target.folder / "images.npy").stat().st_ino == before
    assert [path.name for path in cache.iterdir()] == [target.folder.name]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_batches_copied_ahead_are_those_that_are_trained_on(alone, layout):
    """The GPU is kept busy, so that a batch whose memory or copy were not waited for would show."""
    device = torch.device("cuda", 0)
    settings = {"source": "raw", "loader": "mmap", "pixels": "uint8", "micro_batch": 256, "image_size": 224}
    settings |= {"pin_memory": True, "non_blocking": True, "layout": layout}
    sums, busy = [], torch.randn(4096, 4096, device=device)
    for ahead in (False, True):
        point = complete(TINY | settings | {"device_prefetch": ahead})
        loader = make_loader(point, image.datasets(point)[0], device)
        feed = Feed(point, endless(loader), work_of(point), device, NoTracer())
        found = []
        for _ in range(14):
            batch = feed.next()
            for _ in range(20):
                busy @ busy
            found.append(batch["image"].double().sum(dim=(1, 2, 3)) * batch["label"])
            del batch
        sums.append(torch.stack(found).cpu())
    assert torch.equal(*sums)


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
