"""Runs that are made up, from their timelines to their evidence, the way that real traces go."""

import dataclasses

import polars as pl

from nightsweep.analysis.diagnosis import verdict
from nightsweep.analysis.diagnosis.evidence import sources
from nightsweep.analysis.diagnosis.replay.build import build
from nightsweep.analysis.diagnosis.replay.what_if import WhatIf
from nightsweep.analysis.ingest import engine
from nightsweep.analysis.metrics.ranks import all_ranks
from nightsweep.analysis.tables import column, trace_files
from nightsweep.analysis.tables.events import DEVICES, EVENTS
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.record.json_files import convert
from nightsweep.jobs.record.launch_files import RankResult
from nightsweep.jobs.record.record import Record
from tests.fakes.ranks import COMMUNICATOR, Timeline

US, MS = 1_000, 1_000_000
LAUNCH = 5 * US
H200 = {"name": "NVIDIA H200", "sm_count": 132, "memory_bytes": 150_000_000_000, "compute_capability": "9.0"}
LINKED = {"hosts": [{"gpus": [{"memory_bytes": 140 << 30}] * 2, "topology": "GPU0\tX\tNV18\nGPU1\tNV18\tX"}]}
GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN"
FP32 = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_"
    "execute_kernel__5x_cublas"
)
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


class Run(Timeline):
    """One rank's steps. Its one thread launches as soon as it can where nothing else is said: after what it did last,
    and no earlier than the step begins."""

    def __init__(self, rank=0):
        super().__init__(rank, process=100 + rank)
        self.free = 0  # when the thread has done all so far
        self.reduced = None  # the end of the last reduction that no kernel was told to wait for

    def events(self):
        made = super().events()
        return {kind: made[kind] if self.rows.get(kind) else column.empty(columns) for kind, columns in EVENTS.items()}

    def step(self, number, start, end):
        self.add("nvtx", f"step {number}", start, end)
        self.free = max(self.free, start)

    def wait(self, end):
        """For the GPU to end its step, as a loop does that is no more than a step ahead."""
        if self.free < end and max(row["end_ns"] for row in self.rows["kernels"]) == end:
            self.called("cudaEventSynchronize", self.free, end)

    def range(self, name, start, end):
        self.add("nvtx", name, start, end)
        self.free = end

    def called(self, name, start, end, thread=1):
        self.add("runtime", name, start, end, thread=thread, correlation=10**6 + len(self.rows["runtime"]))
        self.free = max(self.free, end) if thread == 1 else self.free

    def launched(self, name, start, at, end=None, thread=1):
        """The number of a call that launches what begins at `start`; `at`, `end`: of the call."""
        at = min(self.free, start) if at is None else at
        number = len(self.rows["runtime"]) + 1
        self.add("runtime", name, at, end or at + LAUNCH, correlation=number, thread=thread)
        self.free = end or at + LAUNCH
        return number

    def kernel(self, start, end, name=GEMM, at=None, blocks=132 * 8, thread=1, **more):
        """`at`: when it was launched."""
        if self.reduced is not None and start >= self.reduced and at is None:
            self.called("cudaStreamWaitEvent", self.free, self.free)
            self.reduced = None
        number = self.launched("cudaLaunchKernel", start, at, thread=thread)
        shape = {"blocks": blocks, "threads": 256, "registers": 64, "shared_bytes": 0}
        self.add("kernels", name, start, end, correlation=number, stream=7, **shape, **more)

    def copy(self, start, end, size, source="pinned", at=None, called=None, direction="HtoD", stream=7):
        """`called`: end of the call that launched it."""
        number = self.launched("cudaMemcpyAsync", start, at, called)
        ends = {"source": source, "target": "device"} if direction == "HtoD" else {"source": "device", "target": source}
        self.add(
            "copies", "Memcpy", start, end, correlation=number, stream=stream, bytes=size, direction=direction, **ends
        )

    def reduce(self, start, end, size=64 << 20, kind="all_reduce", at=None, ranks=2):
        """After the kernels before it; what is launched next and begins after it waits for it. `at`: when launched."""
        self.called("cudaStreamWaitEvent", self.free, self.free)
        at = min(self.free, start) if at is None else at
        self.call(kind, at, size, communicator=COMMUNICATOR, ranks=ranks)
        number = self.launched("cudaLaunchKernelExC", start, at + 2)
        names = {
            "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
            "all_gather": "ncclDevKernel_AllGather_RING_LL(x)",
            "send_recv": "ncclDevKernel_SendRecv(x)",
        }
        self.add("kernels", names[kind], start, end, correlation=number, stream=9)
        self.reduced = end


def written(runs, folder, device=H200):
    """A folder of tables of these ranks, as ingest writes them."""
    devices = pl.DataFrame([{"device": 0, **device}] if device else [], schema_overrides={"device": pl.Int32})
    devices = column.conform(devices, DEVICES).collect() if device else column.empty(DEVICES)
    events = [run.events() for run in runs]
    frames = [engine.process_tables(e, devices, run.rank, "run") for run, e in zip(runs, events, strict=True)]
    joined = {name: pl.concat([frame[name] for frame in frames]) for name in frames[0] if name != "collectives"}
    together = all_ranks.joint_tables(
        [frame["collectives"] for frame in frames], lambda rank: events[[r.rank for r in runs].index(rank)]
    )
    about = {name: column.empty(TRACE_TABLES[name]) for name in ("reports", "file_clocks")}
    texts = {
        n: f.with_columns(pl.col(pl.Categorical()).cast(pl.String)) for n, f in {**joined, **together, **about}.items()
    }
    trace_files.write(texts, folder)
    return folder


def evidence(runs, folder, device=H200, settings=None, **more):
    """What is known of these ranks; `settings` make a point, `more` are fields of Evidence. No tracer took any time."""
    found = sources.from_tables(written(runs, folder, device))
    point = complete(settings) if settings else None
    if "record" in more:
        more["record"] = convert({"status": "ok", **more["record"]}, Record)
    if "results" in more:
        more["results"] = [convert(result, RankResult) for result in more["results"]]
    made = dataclasses.replace(found, point=point, **more)
    if made.timed_ns is None and made.lanes:
        events = {lane.rank: lane.events for lane in made.lanes}
        made.__dict__["what_if"] = WhatIf(
            build(events, pl.concat([lane.windows for lane in made.lanes]), loader_holds_gil=made.loader_holds_gil)
        )
    return made


def causes(e):
    """Causes by kind."""
    return {cause.kind: cause for cause in verdict.judge(e).causes}


def steps_of(count, length, make, rank=0):
    """A rank of so many steps, each made by `make(run, start)`; the first one does not count."""
    run = Run(rank)
    for number in range(count):
        start = 10 * MS + number * length
        run.step(number, start, start + length)
        make(run, start)
        run.wait(start + length)
    return run


STEP = 10 * MS
IMAGE = {"workload": "image", "model": "resnet50", "device": "cuda", "micro_batch": 64}


def busy(run, start, until=STEP, since=0, piece=MS, launch=None, **more):
    """Large kernels one after the other, launched as soon as the thread can, or from `launch` of the step on."""
    for number, at in enumerate(range(start + since, start + until, piece)):
        when = None if launch is None else start + launch + number * LAUNCH
        run.kernel(at, min(at + piece, start + until), at=when, **more)


def of(folder, make, count=5, ranks=1, **more):
    """The evidence of ranks with so many steps of 10 ms."""
    return evidence([steps_of(count, STEP, make, rank) for rank in range(ranks)], folder, **more)


def shares(e):
    """Shares by kind, remarks left out."""
    return {kind: round(cause.share, 3) for kind, cause in causes(e).items() if cause.share}


def timed(wait=0.0, step=10.0, retries=False):
    """Four timed steps: ms in the loader, ms in all, and whether the allocator had to try again in each."""
    tried = list(range(4)) if retries else [0] * 4
    columns = {"rank": [0] * 4, "step": range(4), "step_ms": [step] * 4, "data_ms": [wait] * 4}
    return pl.DataFrame({**columns, "alloc_retries": tried})
