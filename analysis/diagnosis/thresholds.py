"""Every number that a rule compares with, its unit and its source, in one table. docs/diagnosis.md is written from it:

python -m analysis.diagnosis.thresholds
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    value: float
    unit: str
    text: str
    source: str


TABLE: dict[str, Threshold] = {
    "noise": Threshold(
        0.01, "share", "Smaller shares are not reported, nor smaller differences of two runs.",
        "starts of one compute-bound point differ by 0.7 % (docs/telemetry.md: standard error 0.13 % of 32 pairs)",
    ),
    "healthy": Threshold(
        0.10, "share", "A run is healthy if no cause has this share,",
        "PyTorch's profiler for TensorBoard recommended from 5 % (loader) and 10 % (communication) of a step on",
    ),
    "healthy_sum": Threshold(0.15, "share", "nor all together this one.", "nsys-ai warns of idle time from 15 % on"),
    "pause": Threshold(
        1e6, "ns", "A thread that calls nothing of CUDA for so long does other work; a call as long stands still.",
        "ten times the pause that the breakdown takes for dispatch (analysis/metrics/steps/parts.py)",
    ),
    "small_images": Threshold(
        16, "samples", "Up to so many images are a small batch, if memory has room for twice of it.",
        "the smallest batch of a GPU in MLPerf v4.0 ResNet-50: 40,448 over 2,528 GPUs",
    ),
    "small_tokens": Threshold(
        2048, "tokens", "Likewise of text.",
        "2048 rows and columns are 256 tiles of 128 x 128, two for each of an H100's 132 SMs",
    ),
    "small_fill": Threshold(
        0.35, "share", "Where no settings tell of the batch: blocks over SMs of the mean kernel, by time.",
        "assumed: twice the batch would still not reach all SMs",
    ),
    "nchw_norm": Threshold(
        0.59, "share", "What PyTorch's own batch norms in NCHW lose of their time.",
        "ResNet-50 in bf16 on an H200, batch 128: 30.6 ms a step in NCHW, 12.7 in NHWC",
    ),
    "batch_growth": Threshold(8, "times", "A batch is not made larger by more at once.", "assumed: three doublings"),
    "memory_room": Threshold(
        0.80, "share", "Of the device's memory, what a grown batch may take.",
        "assumed: the rest is for the allocator's cache, CUDA's context and NCCL's buffers",
    ),
    "memory_full": Threshold(
        0.90, "share", "Reserved memory over the device's from which it is near its limit.",
        "PyTorch's profiler for TensorBoard warned at 90 %",
    ),
    "offload_copies": Threshold(
        16, "copies", "Copies of 1 MiB and more from the host in a step; more are weights or states, not a batch.",
        "a batch is one to four tensors for each micro-batch",
    ),
    "offload_exposed": Threshold(
        0.5, "share", "Likewise, where the steps are not known: of the trace, exposed copies from the host.",
        "assumed: batches that take longer to copy than to compute are rare",
    ),
    "pinned_bytes_per_s": Threshold(
        25e9, "bytes/s", "What a copy from page-locked memory reaches, where the trace has no large one to compare.",
        "80 % of PCIe 4.0 x16, 31.5 GB/s in one direction",
    ),
    "small_message": Threshold(
        4 << 20, "bytes", "Collectives of smaller messages would gain from being one.",
        "two H200s (tests/data/h200-ranks): 3.8 us for 256 bytes, 5 us for 128 KiB; 0.19 of NVLink's rate at 2 MiB",
    ),
    "large_message": Threshold(
        16 << 20, "bytes", "From this size on the link, not the start of a message, decides.",
        "two H200s (tests/data/labelled, half tune): 0.35 to 0.58 of NVLink's rate from here on, 0.2 at 1 MiB",
    ),
    "slow_link": Threshold(
        0.25, "share", "Bus bandwidth of large messages over the link's; less is slow.",
        "two H200s (as above): 0.35 to 0.55 over NVLink, 0.05 where NCCL goes through the host's memory",
    ),
    "reachable_link": Threshold(
        0.55, "share", "Of the link's bandwidth, what large messages reach.",
        "two H200s: messages of 109 MB at 248 of 450 GB/s; of 64 and 128 MiB at 244 and 240 (launch_bound_fsdp2)",
    ),
    "network_bytes_per_s": Threshold(
        12.5e9, "bytes/s", "Link of a rank between hosts, and where nothing tells of the link.",
        "100 Gbit/s; a GPU of a DGX H100 has 400",
    ),
    "straggler": Threshold(
        0.60, "share", "Of all waiting in collectives, what one rank must cause, and be slower by, to be named.",
        "of two equal ranks each causes half; of two that began 50 ms apart one is slower by none of it (as above)",
    ),
    "cpu_busy": Threshold(
        0.70, "share", "Loader workers that compute for so much of their time prepare samples, and wait for none.",
        "workers that only copy (as above, h2d_pageable_resnet50): 0.52",
    ),
    "attention_softmax": Threshold(
        4, "kernels", "Softmax kernels of a pass from which they are attention's and not the loss's.",
        "a loss has two: forward and backward",
    ),
    "power_capped_clock": Threshold(
        0.60, "share", "SM clock over the highest sampled; below it a power cap is more than the usual one.",
        "an H200 at its cap in dense bf16 products: 1468 of 1980 MHz, 0.74 (docs/telemetry.md)",
    ),
    "throttled_samples": Threshold(
        0.05, "share", "Of the samples, those with a reason to throttle from which it counts.", "assumed",
    ),
}  # fmt: skip


def limit(name: str) -> float:
    """The value of a threshold."""
    return TABLE[name].value
