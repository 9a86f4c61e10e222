"""Images on disk as a loader is to find them, made once of the digits and shared by all points and ranks.

They lie in the cache folder (jobs/host/cache.py), a folder for each data set, form and size:

    jpeg   a JPEG file an image        raw   a file of its bytes, row by row, RGB
    array  images.npy, (N, H, W, 3) bytes, to be mapped into memory

One process makes a folder under another name and renames it, the others wait; where a lock does not reach every node,
two may make it, and the first to end wins.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from nightsweep.jobs.host import cache
from nightsweep.jobs.host.cores import allowed_cores
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.workloads.images.digits import enlarge, idx_files, load_digits, to_bytes

Form = Literal["jpeg", "raw", "array"]
QUALITY = 95
VERSION = 1
"""Of what is written; a newer program does not take older files for its own."""
CHUNK = 256
FILES_IN_A_FOLDER = 1000


@dataclass(frozen=True)
class Prepared:
    """A folder of `count` images of one form; `size`: their edge in px, None for the digits' own."""

    folder: Path
    form: Form

    def labels(self) -> np.ndarray:
        """Labels (N,), int64."""
        found: np.ndarray = np.load(self.folder / "labels.npy")
        return found

    def array(self) -> np.ndarray:
        """Bytes (N, H, W, 3), mapped and not read."""
        found: np.ndarray = np.load(self.folder / "images.npy", mmap_mode="r")
        return found

    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        height, width = np.load(self.folder / "shape.npy").tolist()
        return height, width, 3

    def file(self, number: int) -> Path:
        suffix = "jpg" if self.form == "jpeg" else "raw"
        return self.folder / f"{number // FILES_IN_A_FOLDER:04d}" / f"{number:07d}.{suffix}"


def form_of(point: Point) -> Form | None:
    """The form in which a point's loader reads images; None where they stay in memory."""
    if point.loader == "mmap":
        return "array"
    if point.loader == "dali" and point.source == "small":
        return "raw"
    return point.source if point.loader in ("torch", "dali") and point.source in ("jpeg", "raw") else None


def images_of_point(point: Point, beat: Callable[[], None] = lambda: None) -> Prepared | None:
    """The point's images on disk, made where they are not there; None where it needs none. `beat` is called while
    that lasts."""
    form = form_of(point)
    if form is None:
        return None
    return prepare(point.data, form, None if point.source == "small" else point.image_size, beat)


def prepare(data: str, form: Form, size: int | None, beat: Callable[[], None] = lambda: None) -> Prepared:
    """The images of `data` (see the setting) in this form, made where they are not there."""
    folder = cache.folder() / f"{key(data)}-{form}-{size or 'own'}-v{VERSION}"
    made = Prepared(folder, form)
    if folder.is_dir():
        return made
    folder.parent.mkdir(parents=True, exist_ok=True)
    with cache.locked(folder, beat):
        if not folder.is_dir():
            _make(data, made, size, beat)
    return made


def key(data: str) -> str:
    """A name for a data set that changes when its files do."""
    if data == "builtin":
        return "builtin"
    state = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in idx_files(data)]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:12]


def _make(data: str, made: Prepared, size: int | None, beat: Callable[[], None]) -> None:
    scratch = cache.scratch(made.folder)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    images, labels = load_digits(data)
    np.save(scratch / "labels.npy", labels.astype(np.int64))
    height, width = (size, size) if size else images.shape[1:]
    np.save(scratch / "shape.npy", np.array([height, width]))
    chunks = _chunks(images, size, beat)
    if made.form == "array":
        whole = np.lib.format.open_memmap(
            scratch / "images.npy", mode="w+", dtype=np.uint8, shape=(len(images), height, width, 3)
        )
        for first, chunk in chunks:
            whole[first : first + len(chunk)] = chunk
        whole.flush()
    else:
        _write_files(chunks, Prepared(scratch, made.form))
    try:
        scratch.rename(made.folder)
    except OSError:  # another node was first
        shutil.rmtree(scratch)
        if not made.folder.is_dir():
            raise


def _chunks(images: np.ndarray, size: int | None, beat: Callable[[], None]) -> Iterator[tuple[int, np.ndarray]]:
    """Place of the first image, and bytes (n, H, W, 3), of so many images at a time."""
    for first in range(0, len(images), CHUNK):
        beat()
        grey = torch.from_numpy(images[first : first + CHUNK])[:, None]
        grey = to_bytes(enlarge(grey, size) if size else grey)
        yield first, grey.permute(0, 2, 3, 1).expand(-1, -1, -1, 3).numpy()


def _write_files(chunks: Iterator[tuple[int, np.ndarray]], into: Prepared) -> None:
    def write(number: int, image: np.ndarray) -> None:
        into.file(number).write_bytes(encode_jpeg(image) if into.form == "jpeg" else image.tobytes())

    with ThreadPoolExecutor(allowed_cores()) as pool:
        for first, chunk in chunks:
            for number in (first, first + len(chunk) - 1):
                into.file(number).parent.mkdir(exist_ok=True)
            list(pool.map(write, range(first, first + len(chunk)), chunk))


def encode_jpeg(image: np.ndarray) -> bytes:
    """JPEG of an image (H, W, 3) of bytes, with whole colour."""
    from PIL import Image

    sink = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(sink, "JPEG", quality=QUALITY, subsampling=0)
    return sink.getvalue()
