"""Where samples come from and how they reach the device."""

from __future__ import annotations

from dataclasses import dataclass

from nightsweep.jobs.point.settings.field import MOST_PATH, ON_GPU, except_for, only, setting


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Settings of the input, of both workloads."""

    data: str = setting(
        "builtin, or a folder: MNIST idx files (image), UTF-8 text files (llm). builtin is scikit-learn's handwritten "
        "digits (image) and the text of Python's language reference (llm).",
        "builtin",
        minLength=1,
        maxLength=MOST_PATH,
    )
    loader_workers: int = setting(
        "DataLoader worker processes of a rank; 0 loads in the rank itself.",
        0,
        minimum=0,
        maximum=1024,
        needs=[except_for("loader", "device")],
    )
    prefetch_factor: int = setting(
        "Batches that each loader worker prepares ahead.",
        2,
        minimum=1,
        maximum=1024,
        needs=[except_for("loader_workers", 0)],
    )
    persistent_workers: bool = setting(
        "Loader workers outlive an epoch.",
        True,
        needs=[except_for("loader_workers", 0), only("across_epochs", False), only("loader", "torch", "mmap")],
    )
    pin_memory: bool = setting(
        "Copy batches to the GPU from page-locked memory.", False, needs=[ON_GPU, except_for("loader", "device")]
    )
    release_unlocked: bool = setting(
        "The thread that pins batches frees their shared memory without holding Python's global interpreter lock "
        "(GIL), which the launching thread needs; else it holds the GIL meanwhile, as in PyTorch.",
        False,
        needs=[only("pin_memory", True), except_for("loader_workers", 0), only("loader", "torch", "mmap")],
    )
    non_blocking: bool = setting(
        "Let the copy to the GPU run behind the launching thread.", False, needs=[ON_GPU, only("pin_memory", True)]
    )
    device_prefetch: bool = setting(
        "Copy the next batch to the GPU, and prepare it there, on a stream of its own while this one is trained on.",
        False,
        needs=[ON_GPU, only("non_blocking", True)],
    )
    across_epochs: bool = setting(
        "Loader workers go on into the next epoch without a pause; else what they prepare ahead runs out at the end of "
        "each, as PyTorch has it.",
        False,
        needs=[except_for("loader_workers", 0), only("loader", "torch", "mmap")],
    )
