"""Thresholds of the verdict, of the evidence and of several causes; those of one category stand beside its causes.

docs/diagnosis.md lists them all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    value: float
    unit: str
    text: str
    source: str


NOISE = Threshold(
    0.01,
    "share",
    "Smaller shares are not reported, nor smaller differences of two runs.",
    "starts of one compute-bound point differ by 0.7 % (docs/telemetry.md: standard error 0.13 % of 32 pairs)",
)
HEALTHY = Threshold(
    0.10,
    "share",
    "A run is healthy if no cause has this share,",
    "PyTorch's profiler for TensorBoard recommended from 5 % (loader) and 10 % (communication) of a step on",
)
HEALTHY_SUM = Threshold(0.15, "share", "nor all together this one.", "nsys-ai warns of idle time from 15 % on")
LOSS_CHANGE = Threshold(
    0.05,
    "share",
    "By more than this, and than chance, losses of a script's timed steps must not change where a switch is imposed on "
    "it: it would no longer compute the same.",
    "H100s: TF32 changes the mean loss of a Llama's fine-tuning by less than 0.01 %",
)
PAUSE = Threshold(
    1e6,
    "ns",
    "A thread that calls nothing of CUDA for so long does other work; a call as long stands still.",
    "ten times the pause that the breakdown takes for dispatch (analysis/metrics/steps/parts.py)",
)
LONG_STEP = Threshold(
    1.0,
    "median steps",
    "A timed step that takes longer than the median one by more than this, but for waits for batches, is a long one.",
    "assumed: steps that do the same rarely differ by half",
)
REPLAY_ERROR = Threshold(
    0.60,
    "share",
    "Of what a replay says a remedy gives back, times what is left of the step, and `noise` beside it: how far off it "
    "may be.",
    "70 measured fixes of scripts (tests/labelled/scripts.yaml)",
)
TRACER = Threshold(
    3_500,
    "ns",
    "What a tracer is taken to add to each call of CUDA, where no steps were timed without it.",
    "five launch-bound jobs on H200s with and without nsys (tests/data/labelled): 3.0 to 5.6 us",
)
SMALL_IMAGES = Threshold(
    16,
    "samples",
    "At most this many images are a small batch, if memory has room for twice as many.",
    "the smallest batch of a GPU in MLPerf v4.0 ResNet-50: 40,448 over 2,528 GPUs",
)
SMALL_TOKENS = Threshold(
    2048,
    "tokens",
    "Likewise for text.",
    "2048 rows and columns are 256 tiles of 128 x 128, two for each of an H100's 132 SMs",
)
SMALL_FILL = Threshold(
    0.35,
    "share",
    "Where no settings tell of the batch: blocks over SMs of the mean kernel, by time.",
    "assumed: twice the batch would still not reach all SMs",
)
NCHW_NORM = Threshold(
    0.59,
    "share",
    "What PyTorch's own batch norms in NCHW lose of their time.",
    "ResNet-50 in bf16 on an H200, batch 128: 30.6 ms a step in NCHW, 12.7 in NHWC",
)
BATCH_GROWTH = Threshold(8, "times", "A batch is not made larger by more at once.", "assumed: three doublings")
MEMORY_ROOM = Threshold(
    0.80,
    "share",
    "Of the device's memory, what a grown batch may take.",
    "assumed: the rest is for the allocator's cache, CUDA's context and NCCL's buffers",
)
NETWORK_BYTES_PER_S = Threshold(
    12.5e9,
    "bytes/s",
    "Link of a rank between hosts, and where nothing tells of the link.",
    "100 Gbit/s; a GPU of a DGX H100 has 400",
)
STRAGGLER = Threshold(
    0.60,
    "share",
    "Of all waiting in collectives, what one rank must cause, and be slower by, to be named.",
    "of two equal ranks each causes half; of two that began 50 ms apart one is no slower (tests/data/labelled)",
)
ATTENTION_SOFTMAX = Threshold(
    4,
    "kernels",
    "Softmax kernels of a pass from which they are attention's and not the loss's.",
    "a loss has two: forward and backward",
)
POWER_CAPPED_CLOCK = Threshold(
    0.60,
    "share",
    "SM clock over the highest sampled; below it a power cap is more than the usual one.",
    "an H200 at its cap in dense bf16 products: 1468 of 1980 MHz, 0.74 (docs/telemetry.md)",
)
LARGE_MESSAGE = Threshold(
    4 << 20,
    "bytes",
    "From this size on the link, not the start of a message, decides; smaller ones would gain from being one.",
    "two H200s (tests/data/h200-ranks): 3.8 us for 256 bytes, 5 us for 128 KiB; 0.19 of NVLink's rate at 2 MiB",
)
REACHABLE_LINK = Threshold(
    0.55,
    "share",
    "Of the link's bandwidth, what large messages reach; where they reach less than half of that, the link is slow.",
    "two H200s: messages of 109 MB at 248 of 450 GB/s; of 64 and 128 MiB at 244 and 240 (launch_bound_fsdp2)",
)
