"""Makes what the scripts of others read: a folder of JPEG files in classes, and nanoGPT's tokens.

python make_data.py FOLDER NANOGPT
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image


def make_class(folder: Path) -> None:
    """150 pictures of 500 x 375, the mean size of ImageNet's, that look like noise at a coarse scale."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(int(folder.name))
    for number in range(150):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg", quality=90)


def main() -> None:
    images, nanogpt = Path(sys.argv[1]), Path(sys.argv[2])
    with ProcessPoolExecutor() as pool:
        list(pool.map(make_class, [images / "train" / str(name) for name in range(20)]))
    tokens = np.random.default_rng(0).integers(0, 50_000, 4_000_000).astype(np.uint16)
    data = nanogpt / "data" / "made"
    data.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        tokens.tofile(data / f"{name}.bin")


if __name__ == "__main__":
    main()
