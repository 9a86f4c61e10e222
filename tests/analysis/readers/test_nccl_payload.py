"""NVTX payloads of NCCL: real ones, whose sizes the model's parameters tell, and ones that cannot be read."""

import struct

import polars as pl
import pytest

from nightsweep.analysis.readers.nsys import payloads
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import EVENTS
from tests.fakes.ranks import payload_tables, unpack

PARAMETERS = 918_656  # of llama-nano
DOMAIN, THREAD = 4, (77 << 24) | 78


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    return list(payload_tables(unpack("ddp-r0", tmp_path_factory.mktemp("ddp"))))


def test_ddp_reduces_each_parameter_once_a_step(ddp):
    calls = payloads.calls(*ddp)
    reduced = calls.filter(pl.col("name") == "ncclAllReduce")
    assert reduced["bytes"].to_list() == [1_049_600, 2_625_024] * 3
    assert sum(reduced["bytes"][:2]) == 4 * PARAMETERS
    assert calls["communicator"].unique().to_list() == ["f06f91d9a81f85e7"]
    assert calls["ranks"].null_count() == calls.height == 9  # the communicator is older than the capture


def test_both_ranks_have_one_communicator_and_the_same_sizes(ddp, tmp_path):
    mine, other = (payloads.calls(*t) for t in (ddp, payload_tables(unpack("ddp-r1", tmp_path))))
    same = ("name", "bytes", "communicator")
    assert mine.select(same).equals(other.select(same)) and set(mine["process"]) != set(other["process"])


def test_zero3_scatters_half_of_the_gradients_to_each_of_two_ranks(tmp_path):
    calls = payloads.calls(*payload_tables(unpack("zero3-r0", tmp_path)))
    scattered = calls.filter(pl.col("name") == "ncclReduceScatter")
    assert set(scattered["bytes"]) == {2 * PARAMETERS // 2}  # bf16
    assert set(calls["name"]) == {"ncclReduceScatter", "ncclAllReduce", "ncclAllGather"}


def container(schema, payload, count=1, size=None, at=32):
    return struct.pack("<QQQQ", count, schema, len(payload) if size is None else size, at) + payload


def tables_of(*ranges, entries=None, domains=((DOMAIN, "NCCL"),)):
    """ranges: (name, binaryData[, domain])."""
    schema = dict.fromkeys(payloads.EVENT_COLUMNS, pl.Int64) | {"text": pl.String, "binaryData": pl.Binary}
    rows = [(0, None, 75, name, None, THREAD, domain, None) for domain, name in domains]
    for i, (name, data, *domain) in enumerate(ranges):
        rows.append((10 * i, 10 * i + 5, 59, name, None, THREAD, domain[0] if domain else DOMAIN, data))
    entries = entries or [
        (DOMAIN, 1, 18, "NCCL communicator ID", None),
        (DOMAIN, 1, 22, "Message size [bytes]", 8),
        (DOMAIN, 2, 18, "NCCL communicator ID", None),
        (DOMAIN, 2, 5, "No. of ranks", 8),
        (DOMAIN, 3, 22, "Bytes", None),
    ]
    types = dict.fromkeys(payloads.ENTRY_COLUMNS, pl.Int64) | {"name": pl.String}
    strings = pl.DataFrame(schema={"id": pl.Int64, "value": pl.String})
    return pl.DataFrame(rows, schema=schema, orient="row"), strings, pl.DataFrame(entries, schema=types, orient="row")


def test_a_communicator_made_in_the_capture_has_its_ranks():
    made = container(2, struct.pack("<Qiii", 255, 16, 3, 3))
    sent = container(1, struct.pack("<QQ", 255, 2**40))
    calls = payloads.calls(*tables_of(("ncclCommInitRank", made), ("ncclAllGather", sent)))
    assert column.schema(EVENTS["nccl_calls"]) == calls.schema
    (row,) = calls.iter_rows(named=True)
    assert row | {"correlation": None, "rank": None} == row
    known = {"name": "ncclAllGather", "start_ns": 10, "end_ns": 15, "process": 77, "thread": 78}
    assert row | known | {"bytes": 2**40, "communicator": "00000000000000ff", "ranks": 16} == row


def test_older_nccl_tells_bytes_alone():
    (size,) = payloads.calls(*tables_of(("ncclBroadcast", container(3, struct.pack("<Q", 8)))))["bytes"]
    assert size == 8


GOOD = container(1, struct.pack("<QQ", 1, 64))


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        GOOD[:20],
        GOOD[:40],
        container(9, GOOD[32:]),
        container(1, GOOD[32:], size=99),
        GOOD.replace(b"\1", b"\xff"),
    ],
    ids=["none", "empty", "cut_head", "cut_payload", "unknown_schema", "too_long", "rubbish"],
)
def test_a_payload_that_cannot_be_read_leaves_nulls(data):
    calls = payloads.calls(*tables_of(("ncclAllReduce", data), ("ncclAllReduce", GOOD)))
    assert calls["bytes"].to_list() == [None, 64]
    assert calls["communicator"].to_list() == [None, "0000000000000001"]


def test_an_entry_that_stands_twice_is_not_guessed():
    twice = [(DOMAIN, 1, 22, "Message size [bytes]", 0), (DOMAIN, 1, 22, "Message size [bytes]", 8)]
    assert payloads.calls(*tables_of(("ncclAllReduce", GOOD), entries=twice))["bytes"].to_list() == [None]


def test_ranges_of_other_domains_are_no_calls():
    other = ((DOMAIN, "NCCL"), (5, "mine"))
    frames = tables_of(("ncclReduce", GOOD), ("ncclReduce", GOOD, 5), ("ncclReduce", GOOD, 0), domains=other)
    assert payloads.calls(*frames)["start_ns"].to_list() == [0]
    # A cut export may lack the name of the domain.
    assert len(payloads.calls(*tables_of(("ncclReduce", GOOD), ("ncclGroupEnd", None), domains=()))) == 1


def test_no_tables_are_no_calls():
    frames = [frame.clear() for frame in tables_of()]
    assert payloads.calls(*frames).is_empty()
