"""Makes what the scripts of others read: a folder of JPEG files in classes, a text, nanoGPT's tokens, and digits.

python make_data.py FOLDER NANOGPT [EXAMPLES]
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image


def make_class(folder: Path, count: int) -> None:
    """Pictures of 500 x 375, the mean size of ImageNet's, that look like noise at a coarse scale."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(int(folder.name))
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg", quality=90)


def make_text(folder: Path) -> None:
    """Lines of random words, as WikiText has its parts."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, lines in (("train", 20_000), ("valid", 500), ("test", 500)):
        numbers = random.integers(0, 10_000, (lines, 25))
        text = "\n".join(" ".join(f"word{n}" for n in line) for line in numbers)
        (folder / f"{part}.txt").write_text(f"{text}\n")


def make_digits(folder: Path) -> None:
    """Noise in MNIST's files."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, count in (("train", 60_000), ("t10k", 1_000)):
        for name, kind, shape, top in (("images-idx3", 3, (count, 28, 28), 256), ("labels-idx1", 1, (count,), 10)):
            header = np.array([0x800 + kind, *shape], dtype=">i4").tobytes()
            values = random.integers(0, top, shape, dtype=np.uint8)
            (folder / f"{part}-{name}-ubyte").write_bytes(header + values.tobytes())


def main() -> None:
    images, nanogpt = Path(sys.argv[1]), Path(sys.argv[2])
    with ProcessPoolExecutor() as pool:
        for part, count in (("train", 150), ("val", 2)):
            list(pool.map(make_class, [images / part / str(name) for name in range(20)], [count] * 20))
    make_text(images / "text")
    tokens = np.random.default_rng(0).integers(0, 50_000, 4_000_000).astype(np.uint16)
    data = nanogpt / "data" / "made"
    data.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        tokens.tofile(data / f"{name}.bin")
    if len(sys.argv) > 3:
        make_digits(Path(sys.argv[3]) / "data" / "MNIST" / "raw")


if __name__ == "__main__":
    main()
