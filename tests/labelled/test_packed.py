"""Kept traces hold what is read of a trace."""

import json

from tests.labelled.packed import UNIT_NS, pack, unpack


def event(cat, name, ts, dur=None, pid=1, tid=1, **args):
    took = {} if dur is None else {"dur": dur}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "args": args} | took


def again(*events):
    trace = {"schemaVersion": 1, "distributedInfo": {"rank": 1, "hostname": "n1"}, "traceEvents": list(events)}
    return json.loads(unpack(pack(json.dumps(trace).encode())))


def test_the_device_is_exact_and_the_host_to_its_unit():
    """A process of a container may have the number of a device, and its thread that of a stream."""
    call = event("cuda_runtime", "cudaLaunchKernel", 10.001, 5.003, correlation=7)
    kernel = event("kernel", "gemm", 20.017, 3.001, correlation=7, stream=1)
    found = again(kernel, call)
    assert found["distributedInfo"] == {"rank": 1}
    host, device = found["traceEvents"]
    assert device == kernel
    assert host["args"] == {"correlation": 7} and 0 <= 10.001 - host["ts"] < UNIT_NS / 1000
    assert abs(5.003 - host["dur"]) < UNIT_NS / 1000


def test_operators_are_counted_between_two_calls_of_cuda():
    calls = [event("cuda_runtime", "cudaLaunchKernel", at, 2.0) for at in (10.0, 30.0)]
    operators = [event("cpu_op", name, at, 9.0) for name, at in (("aten::mm", 14.0), ("aten::add", 21.0))]
    found = [one for one in again(*calls, *operators)["traceEvents"] if one["cat"] == "cpu_op"]
    assert [one["name"] for one in found] == ["op", "op"] and len({one["ts"] for one in found}) == 1


def test_of_what_begins_together_the_outer_one_comes_first():
    outer, inner = event("user_annotation", "step 1", 50.0, 9.0), event("user_annotation", "forward", 50.01, 4.0)
    assert [one["name"] for one in again(inner, outer)["traceEvents"]] == ["step 1", "forward"]


def test_a_trace_of_one_event_and_an_empty_one():
    assert again()["traceEvents"] == []
    assert again(event("kernel", "k", 1.5))["traceEvents"] == [event("kernel", "k", 1.5, 0.0)]
