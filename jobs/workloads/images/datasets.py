"""Data sets of images, by where the images come from.

An image is float32 (3, H, W) in about [-1, 1], or bytes (H, W, 3), as decoders give them; `prepare` of the workload
makes the one of the other on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from nightsweep.jobs.workloads.base import Batch
from nightsweep.jobs.workloads.images.digits import enlarge, from_bytes, to_bytes
from nightsweep.jobs.workloads.images.prepared import Prepared


class Digits(Dataset[Batch]):
    """Digits from memory, one by one; enlarged here when `size` is given, else at their own size."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, size: int | None, as_bytes: bool = False) -> None:
        self.images, self.labels, self.size, self.as_bytes = images, labels, size, as_bytes

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        image = torch.from_numpy(self.images[index]).expand(3, -1, -1)
        if self.size is not None:
            image = enlarge(image[None], self.size)[0]
        if self.as_bytes:
            image = to_bytes(image).permute(1, 2, 0)
        return {"image": image.contiguous(), "label": torch.tensor(int(self.labels[index]))}


class Files(Dataset[Batch]):
    """Prepared files, read and decoded one by one; `rows`: numbers of the images that belong to the set."""

    def __init__(self, prepared: Prepared, rows: np.ndarray, as_bytes: bool) -> None:
        self.prepared, self.rows, self.as_bytes = prepared, rows, as_bytes
        self.labels = prepared.labels()[rows]
        self.shape = prepared.shape()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Batch:
        image = torch.from_numpy(self.decode(int(self.rows[index])))
        if not self.as_bytes:
            image = from_bytes(image[None])[0].contiguous()
        return {"image": image, "label": torch.tensor(int(self.labels[index]))}

    def decode(self, number: int) -> np.ndarray:
        """Bytes (H, W, 3) of an image."""
        path = self.prepared.file(number)
        if self.prepared.form == "raw":
            return np.fromfile(path, np.uint8).reshape(self.shape)
        from PIL import Image

        with Image.open(path) as image:
            return np.array(image.convert("RGB"))


class Mapped(Dataset[Batch]):
    """One memory-mapped array, of which a batch is taken at once: no Python for each image. `size`: enlarge to it."""

    def __init__(self, prepared: Prepared, rows: np.ndarray, size: int | None, as_bytes: bool) -> None:
        self.prepared, self.rows, self.size, self.as_bytes = prepared, rows, size, as_bytes
        self.labels = prepared.labels()[rows]
        self.array = prepared.array()

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        # A mapped array would be pickled whole; a worker maps it anew.
        return self.__dict__ | {"array": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.array = self.prepared.array()

    def __getitem__(self, index: int) -> Batch:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: list[int]) -> Batch:
        """A whole batch."""
        places = self.rows[indices]
        label = torch.from_numpy(self.labels[indices])
        if self.as_bytes and self.size is None:
            return {"image": self.take(places), "label": label}
        image = from_bytes(torch.from_numpy(self.array[places]))
        if self.size is not None:
            image = enlarge(image, self.size)
        image = to_bytes(image).permute(0, 2, 3, 1) if self.as_bytes else image
        return {"image": image.contiguous(), "label": label}

    def take(self, places: np.ndarray) -> torch.Tensor:
        """Bytes (N, H, W, 3) of these images; in a worker they are put straight into shared memory, which is how they
        get to the rank."""
        shape = (len(places), *self.array.shape[1:])
        size = int(np.prod(shape))
        if get_worker_info() is None:
            image = torch.empty(size, dtype=torch.uint8)
        else:
            image = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size))  # type: ignore[call-overload]
        image = image[:size].view(shape)
        # mode: with numpy's default one it would take into a copy first, lest an index be wrong
        np.take(self.array, places, axis=0, out=image.numpy(), mode="clip")
        return image

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """A batch is one already."""
        return batch
