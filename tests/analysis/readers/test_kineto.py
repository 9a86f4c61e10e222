"""The reader of Kineto traces: every table of a trace made here, exact times, ROCm's ways, and what the trace omits."""

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.metrics.ranks import collectives
from nightsweep.analysis.readers.kineto import reader as kineto
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import DEVICES, EVENTS

DATA = Path(__file__).parents[2] / "data"
REAL = Path(__file__).parents[4] / "shared/traces"
BASE = 1_790_857_026_000_000_000
COLLECTIVE = {
    "Collective name": "_reduce_scatter_base", "In msg nelems": 1000, "Out msg nelems": 500, "dtype": "BFloat16",
    "Group size": 2, "Process Group Name": "7",
}  # fmt: skip
MEMORY = {"Bytes": -512, "Device Id": 0, "Device Type": 1, "Total Allocated": 2048, "Total Reserved": 4096}


def event(cat, name, ts, dur="1", pid=77, tid=78, **args):
    """An event as Kineto writes it, with its times as given."""
    text = json.dumps({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "args": args})
    return text[:-1] + f', "ts": {ts}, "dur": {dur}}}'


def gpu_event(cat, name, ts, dur="1", correlation=1, stream=7, **args):
    return event(cat, name, ts, dur, pid=0, tid=stream, device=0, stream=stream, correlation=correlation, **args)


def write(path, events, head='"schemaVersion": 1', tail=f'"baseTimeNanoseconds": {BASE}'):
    path.write_text(f'{{{head}, "traceEvents": [\n  {",  ".join(events)}\n], {tail}}}')
    return path


@pytest.fixture
def read(tmp_path):
    """Reads a trace of these events."""
    return lambda events, **more: kineto.read(write(tmp_path / "trace-r0.json", events, **more))


def test_every_table_has_its_columns(read):
    trace = read([])
    assert set(trace.events) == set(EVENTS)
    for kind, frame in trace.events.items():
        assert frame.schema == column.schema(EVENTS[kind]), kind
    assert trace.devices.schema == column.schema(DEVICES)
    assert trace.absent == frozenset(EVENTS) - {"graphs"} and trace.problems == ()


def test_kernels_with_their_launch_shape_and_the_callers_process(read):
    shape = {"grid": [3, 2, 2], "block": [128, 2, 1], "registers per thread": 40, "shared memory": 1024}
    launch = event("cuda_runtime", "cudaLaunchKernel", 1, correlation=5)
    kernels = [
        gpu_event("kernel", "gemm", 2.5, correlation=5, **shape, **{"graph id": 0, "graph node id": 0}),
        gpu_event("kernel", "gemm", 4, correlation=6, **{"graph id": 3, "graph node id": 9}),
    ]
    rows = read([*kernels, launch], head='"distributedInfo": {"rank": 3}').events["kernels"].rows(named=True)
    assert rows[0] == {
        "rank": 3, "start_ns": BASE + 2500, "end_ns": BASE + 3500, "name": "gemm", "device": 0, "stream": 7,
        "process": 77, "correlation": 5, "blocks": 12, "threads": 256, "registers": 40, "shared_bytes": 1024,
        "graph": None,
    }  # fmt: skip
    assert (rows[1]["blocks"], rows[1]["graph"]) == (None, 3)


@pytest.mark.parametrize(
    ("name", "direction", "source", "target"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", "pageable", "device"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", "device", "pinned"),
        ("Memcpy PtoP (Device Static -> Managed)", "PtoP", "device", "managed"),
        ("Memcpy DtoH (Device -> Host)", "DtoH", "device", "unknown"),
        ("Memcpy HtoH (Host -> Host)", "other", "unknown", "unknown"),
        ("Memcpy DtoD", "DtoD", "unknown", "unknown"),
    ],
)
def test_a_copys_memories_come_from_its_name(read, name, direction, source, target):
    row = read([gpu_event("gpu_memcpy", name, 1, bytes=64)]).events["copies"].row(0, named=True)
    assert (row["direction"], row["source"], row["target"], row["bytes"]) == (direction, source, target, 64)


def test_a_copy_to_another_device_is_its_on_whose_stream_it_is(read):
    peer = {"fromDevice": 1, "inDevice": 1, "toDevice": 0, "stream": 7, "correlation": 1, "bytes": 64}
    trace = read([event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 1, pid=1, tid=7, **peer)])
    assert trace.events["copies"].select("device", "direction").row(0) == (1, "PtoP")


def test_the_other_tables(read):
    instant = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 77, "tid": 78, "ts": 6}
    events = [
        gpu_event("gpu_memset", "Memset (Device)", 1, bytes=16),
        gpu_event("cuda_sync", "Context Synchronize", 2, stream=-1, correlation=4),
        event("cuda_driver", "cuLaunchKernel", 3, correlation=1),
        event("user_annotation", "step 4", 4),
        gpu_event("gpu_user_annotation", "step 4", 4),
        event("cpu_op", "aten::add", 5),
        event("python_function", "train.py(3): main", 5),
        json.dumps(instant | {"args": MEMORY}),
        json.dumps(instant | {"args": MEMORY | {"Device Type": 0, "Device Id": -1}}),
        '{"ph": "C", "name": "Queue Length", "pid": 0, "ts": 7, "args": {"stream 7": 3}}',
    ]
    trace = read(events)
    found = trace.events
    assert found["memsets"]["bytes"].to_list() == [16]
    assert found["syncs"].select("name", "device", "stream", "process").rows() == [("Context Synchronize", 0, None, 77)]
    assert found["runtime"].select("name", "process", "thread", "correlation").rows() == [("cuLaunchKernel", 77, 78, 1)]
    assert found["nvtx"].select("name", "style", "domain").rows() == [("step 4", "annotation", None)]
    assert found["operators"]["name"].to_list() == ["aten::add"]
    allocations = found["allocations"].select("start_ns", "end_ns", "device", "bytes", "memory")
    time = BASE + 6000
    assert allocations.rows() == [(time, time, 0, -512, "device"), (time, time, None, -512, "pageable")]
    assert found["counters"].select("name", "device", "value").rows() == [
        ("Total Allocated", 0, 2048), ("Total Reserved", 0, 4096), ("Queue Length: stream 7", None, 3),
    ]  # fmt: skip
    assert trace.absent == set() and trace.problems == ()


def test_a_collective_is_described_by_its_kernel_or_its_operator(read):
    def kernel(number, **args):
        return gpu_event("kernel", "ncclDevKernel_ReduceScatter", 9 * number, correlation=number, **args)

    events = [
        event("cpu_op", "record_param_comms", 1, dur=2, **COLLECTIVE, **{"External id": 11}),
        event("cpu_op", "record_param_comms", 4, **{"Collective name": "wait", "dtype": "Byte", "External id": 12}),
        kernel(1, **{"External id": 11}),
        kernel(2, **COLLECTIVE | {"dtype": "Float"}),
        kernel(3),
    ]
    trace = read(events)
    columns = ("start_ns", "end_ns", "name", "thread", "correlation", "bytes", "communicator", "ranks")
    assert trace.events["nccl_calls"].select(columns).rows() == [
        (BASE + 1000, BASE + 3000, "_reduce_scatter_base", 78, 1, 1000, "7", 2),
        (BASE + 18000, BASE + 19000, "_reduce_scatter_base", None, 2, 2000, "7", 2),
    ]
    assert "nccl_calls" in read([event("cpu_op", "aten::add", 1), kernel(3)]).absent
    assert "nccl_calls" not in read([event("cpu_op", "aten::add", 1)]).absent


def test_sends_and_receives_of_a_group_belong_to_the_kernel_that_it_launches(read):
    """batch_isend_irecv: an operator each, and one kernel that has the external id of what encloses them."""

    def operator(number, name, elements):
        described = COLLECTIVE | {"Collective name": name, "In msg nelems": elements, "External id": number}
        return event("cpu_op", "record_param_comms", number, dur=2, **described)

    def launch(at, number, name="SendRecv", external=1):
        call = event("cuda_runtime", "cudaLaunchKernel", at, dur=1, correlation=number)
        own = {"correlation": number, "External id": external}
        return [call, gpu_event("kernel", f"ncclDevKernel_{name}", at + 5, **own)]

    events = [
        operator(10, "send", 100), operator(20, "recv", 300), *launch(30, 1), operator(40, "wait", 0),
        operator(50, "send", 7), *launch(60, 2), *launch(70, 3),
        operator(80, "allreduce", 9), *launch(81, 4, "AllReduce", 80),
    ]  # fmt: skip
    found = collectives.rank_collectives(read(events).events)
    assert found.select("collective", "bytes", "calls").rows() == [
        ("send_recv", 600, 2), ("send_recv", None, None), ("send_recv", None, None), ("all_reduce", 18, 1),
    ]  # fmt: skip


def test_times_keep_every_nanosecond(read):
    times = ["4412645799615.694", "1724000000000000.123", '"1724000000000000.457"', "1.5e3", "7"]
    trace = read([event("cpu_op", "aten::add", ts, dur="0.001") for ts in times], tail='"traceName": ""')
    starts = [4412645799615694, 1724000000000000123, 1724000000000000457, 1500000, 7000]
    assert trace.events["operators"]["start_ns"].to_list() == starts
    assert trace.events["operators"]["end_ns"].to_list() == [start + 1 for start in starts]


def test_times_are_utc_or_the_trace_says_that_they_are_not(read):
    assert read([event("cpu_op", "aten::add", 1724000000000000)], tail='"x": 1').problems == ()
    (problem,) = read([event("cpu_op", "aten::add", 4412645799615)], tail='"x": 1').problems
    assert "baseTimeNanoseconds" in problem


def test_devices_and_facts(read):
    cuda = {
        "id": 1, "name": "NVIDIA H200", "numSms": 132, "maxThreadsPerMultiprocessor": 2048, "warpSize": 32,
        "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 233472, "totalGlobalMem": 150109880320,
        "computeMajor": 9, "computeMinor": 0,
    }  # fmt: skip
    rocm = {"id": 0, "maxThreadsPerMultiprocessor": 2048, "warpSize": 64, "maxSharedMemoryPerMultiProcessor": 65536}
    head = {"schemaVersion": 1, "cupti_version": 130001, "deviceProperties": [cuda, rocm, None], "host_name": "n1"}
    head["distributedInfo"] = {"rank": 1, "world_size": 2, "nccl_version": "2.28.9", "pg_config": []}
    trace = read([], head=json.dumps(head)[1:-1])
    first, second = trace.devices.rows(named=True)
    assert first == {
        "rank": 1, "device": 1, "name": "NVIDIA H200", "uuid": None, "sm_count": 132, "warps_per_sm": 64,
        "blocks_per_sm": None, "registers_per_sm": 65536, "shared_bytes_per_sm": 233472,
        "memory_bytes": 150109880320, "memory_bytes_per_s": None, "compute_capability": "9.0",
    }  # fmt: skip
    assert (second["warps_per_sm"], second["shared_bytes_per_sm"], second["sm_count"]) == (32, 65536, None)
    facts = {"schemaVersion": "1", "cupti_version": "130001", "world_size": "2", "nccl_version": "2.28.9"}
    assert trace.facts == {"format": "kineto"} | facts


def test_facts_that_make_no_sense_are_null(read):
    device = '{"id": "x", "name": 5, "totalGlobalMem": 99999999999999999999, "maxThreadsPerMultiprocessor": NaN}'
    trace = read([], head=f'"deviceProperties": [{device}], "distributedInfo": []', tail='"baseTimeNanoseconds": "x"')
    assert trace.devices.select("rank", "device", "memory_bytes", "warps_per_sm").row(0) == (None,) * 4
    assert read([], head='"deviceProperties": null').devices.is_empty()


def test_threads_by_address_and_absurd_shapes(read):
    """Ids too large for their column stay apart from each other; numbers that cannot be are null."""
    tids = (140_737_353_930_560, 140_737_353_930_561, 17)
    calls = [event("cuda_runtime", "cudaLaunchKernel", t, tid=tid, correlation=t) for t, tid in enumerate(tids)]
    trace = read([*calls, gpu_event("kernel", "gemm", 9, block=[2**20, 2**12, 1], grid=[1, 1, 1])])
    threads = trace.events["runtime"]["thread"].to_list()
    assert len(set(threads)) == 3 and threads[2] == 17
    assert trace.events["kernels"]["threads"].to_list() == [None] and trace.events["kernels"]["blocks"].to_list() == [1]


def test_what_was_recorded_but_did_not_happen_is_not_absent(read):
    assert {"kernels", "copies", "memsets"}.isdisjoint(read([event("cuda_runtime", "cudaMalloc", 1)]).absent)
    assert {"kernels", "runtime", "syncs"} <= read([event("cpu_op", "aten::add", 1)]).absent
    assert "allocations" in read([]).absent and "allocations" not in read([], head='"profile_memory": 1').absent


def test_rocm_launches_by_threads_are_counted_in_blocks(read):
    launches = [
        event("cuda_runtime", name, 1, correlation=i)
        for i, name in enumerate(["hipLaunchKernel", "hipExtModuleLaunchKernel"])
    ]
    shape = {"grid": [512, 1, 1], "block": [256, 1, 1], "kind": "Dispatch Kernel"}
    kernels = [gpu_event("kernel", "k", 2, correlation=i, **shape) for i in range(2)]
    assert read([*launches, *kernels]).events["kernels"]["blocks"].to_list() == [512, 2]


def test_names_of_old_traces(read):
    cats = {"Kernel": "kernels", "Memcpy": "copies", "Memset": "memsets", "Runtime": "runtime", "Operator": "operators"}
    found = read([event(cat, cat, 1724000000000000) for cat in cats]).events
    assert [found[kind]["name"].to_list() for kind in cats.values()] == [[cat] for cat in cats]


def test_annotations_of_old_traces(read):
    """Until PyTorch 1.11 they are operators: PyTorch's own are known by their names."""
    names = ["ProfilerStep#3", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "Optimizer.step#SGD.step"]
    found = read([event("Operator", name, 1724000000000000) for name in (*names, "aten::add")]).events
    assert found["nvtx"]["name"].cast(pl.String).to_list() == names
    assert found["operators"]["name"].to_list() == ["aten::add"]


def test_two_ranks_of_h200():
    zero, one = (kineto.read(DATA / f"kineto-h200-ddp-r{rank}.json.gz") for rank in (0, 1))
    assert zero.problems == one.problems == ()
    for rank, trace in enumerate((zero, one)):
        assert [trace.events[k].height for k in ("kernels", "copies", "memsets", "nccl_calls")] == [2022, 156, 24, 9]
        assert trace.events["kernels"]["rank"].unique().to_list() == [rank]
        assert trace.events["kernels"].select("blocks", "threads", "registers").null_count().row(0) == (0, 0, 0)
    calls = zero.events["nccl_calls"]
    assert calls.select("name", "bytes").equals(one.events["nccl_calls"].select("name", "bytes"))
    assert calls["bytes"].to_list() == [128] * 3 + [4 * 262400, 4 * 656256] * 3 and set(calls["ranks"]) == {2}
    kernels = zero.events["kernels"].join(calls, on=["process", "correlation"], suffix="_of_call")
    assert kernels.height == 9 and (kernels["start_ns"] > kernels["start_ns_of_call"]).all()
    assert kernels["name"].str.contains("nccl").all()


@pytest.mark.skipif(not REAL.is_dir(), reason="no public traces here")
@pytest.mark.parametrize("name", [p.name for p in sorted(REAL.glob("*.json.gz"))])
def test_every_event_of_a_public_trace_is_there(name):
    trace = kineto.read(REAL / name)
    written = json.loads(gzip.decompress((REAL / name).read_bytes()))["traceEvents"]
    counts = pl.Series([e.get("cat") for e in written if e["ph"] == "X"]).value_counts()
    count = dict(counts.iter_rows())
    for cat, kind in {"kernel": "kernels", "gpu_memset": "memsets", "cpu_op": "operators"}.items():
        assert trace.events[kind].height == count[cat]
    memory = [e for e in written if e.get("name") == "[memory]"]
    assert trace.events["allocations"]["bytes"].to_list() == [e["args"]["Bytes"] for e in memory]
    assert trace.problems == () and "allocations" not in trace.absent
