"""Handwritten digits: MNIST's idx files where a folder is given, else 1,797 real ones of 8 x 8 px.

Those lie in digits.npz: `images` (1797, 8, 8), uint8 from 0 to 16, and `labels` (1797,), uint8. They are the test part
of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49; licence CC BY 4.0), in the order in which scikit-learn has them. Loading them with
scikit-learn would take each rank a second or more of imports, while it holds its GPU.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

BUILTIN = Path(__file__).with_name("digits.npz")
HELD_BACK = 6
"""One image in so many is held back from training where accuracy is measured; MNIST's own share is one in seven."""
STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def read_idx(path: Path) -> np.ndarray:
    """An array from an idx file of unsigned bytes (MNIST's format, gzipped or not)."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path}: not an idx file of unsigned bytes")
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def idx_files(folder: str) -> list[Path]:
    """The files of the images and of their labels. Raises FileNotFoundError where one is missing."""
    files = []
    for stem in STEMS:
        found = sorted(Path(folder).glob(stem.replace("-idx", "?idx") + "*"))
        if not found:
            raise FileNotFoundError(f"{folder}: no {stem}[.gz] in this folder")
        files.append(found[0])
    return files


def load_digits(data: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, h, w) float32 in [-1, 1] and labels (N,), integers. `data`: builtin, or a folder of idx files. Raises
    FileNotFoundError where one is missing, ValueError where one is something else."""
    if data == "builtin":
        with np.load(BUILTIN) as digits:
            return (digits["images"] / 8.0 - 1.0).astype(np.float32), digits["labels"].astype(np.int64)
    images, labels = (read_idx(path) for path in idx_files(data))
    return (images / 127.5 - 1.0).astype(np.float32), labels


def enlarge(images: torch.Tensor, size: int) -> torch.Tensor:
    """Bilinear enlargement of (N, C, h, w) to (N, C, size, size)."""
    return F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)


def to_bytes(images: torch.Tensor) -> torch.Tensor:
    """The nearest bytes of values in [-1, 1], of any shape."""
    return ((images + 1.0) * 127.5).round_().clamp_(0, 255).to(torch.uint8)


def from_bytes(images: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Bytes (N, H, W, C) as values in [-1, 1], of shape (N, C, H, W); in memory they stay channels last."""
    # One pass: the sum of a float and bytes is in float, and read and written once.
    minus_one = torch.full((), -1.0, dtype=dtype, device=images.device)
    return torch.add(minus_one, images.permute(0, 3, 1, 2), alpha=1 / 127.5)


def split(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the images to train on and of those held back, in order. They follow the seed alone."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
    held = max(1, count // HELD_BACK)
    return np.sort(order[held:]), np.sort(order[:held])
