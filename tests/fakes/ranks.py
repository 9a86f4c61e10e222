"""Timelines of ranks, made event by event, and the recorded ones of tests/data/h200-ranks."""

import gzip
import sqlite3
from collections import defaultdict
from contextlib import closing

import polars as pl

from nightsweep.analysis.ingest import engine
from nightsweep.analysis.readers.nsys import payloads
from nightsweep.analysis.readers.nsys import reader as nsys
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import EVENTS
from tests.analysis.readers.test_readers import DATA

COMMUNICATOR = "00000000000000aa"
KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(x)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(x)",
    "reduce": "ncclKernel_Reduce_RING_LL_Sum_float(x)",
    "all_to_all": "ncclSymDevKernel_AlltoAll(x)",
    "send_recv": "ncclDevKernel_SendRecv(x)",
}
CALLS = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
    "all_to_all": "ncclAlltoAll",
    "send_recv": "ncclSend",
}


class Timeline:
    """One rank's events; times in ns. A call lasts 10 ns, a launch 4."""

    def __init__(self, rank=None, process=7):
        self.rank, self.process = rank, process
        self.rows = defaultdict(list)

    def add(self, kind, name, start, end, **more):
        more = {"rank": self.rank, "process": self.process, "device": 0, "thread": 1} | more
        self.rows[kind].append({"name": name, "start_ns": start, "end_ns": end} | more)

    def call(self, kind, at, size, **more):
        self.add(
            "nccl_calls", CALLS.get(kind, kind), at, at + 10, bytes=size, **({"communicator": COMMUNICATOR} | more)
        )

    def launch(self, at, name, start, end, thread=1, **more):
        correlation = len(self.rows["runtime"]) + 1
        self.add("runtime", "cudaLaunchKernel", at, at + 4, thread=thread, correlation=correlation)
        self.add("kernels", KERNELS.get(name, name), start, end, correlation=correlation, **({"stream": 3} | more))

    def collective(self, kind, start, end, size=1024, at=None, **more):
        """A call outside a group and its kernel."""
        at = start - 20 if at is None else at
        self.call(kind, at, size, **more)
        self.launch(at + 2, kind, start, end)

    def events(self):
        return {
            kind: column.conform(pl.DataFrame(self.rows.get(kind, []), infer_schema_length=None), columns).collect()
            for kind, columns in EVENTS.items()
        }


def analyse(path, name):
    """All tables of a file, its ranks one after the other."""
    made = list(engine.analyse(path, name))
    return {table: pl.concat([frames[table] for frames in made if table in frames]) for table in made[-1]}


def unpack(name, folder):
    """An export of tests/data/h200-ranks, such as ddp-r0."""
    path = folder / f"{name}.sqlite"
    path.write_bytes(gzip.decompress((DATA / "h200-ranks" / f"{name}.sqlite.gz").read_bytes()))
    return path


def payload_tables(path):
    """The arguments of payloads.calls."""
    types = {"text": pl.String, "value": pl.String, "name": pl.String, "binaryData": pl.Binary}
    wanted = {
        "NVTX_EVENTS": payloads.EVENT_COLUMNS,
        "StringIds": ("id", "value"),
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": payloads.ENTRY_COLUMNS,
    }
    with closing(sqlite3.connect(path)) as db:
        for table, names in wanted.items():
            schema = {name: types.get(name, pl.Int64) for name in names}
            rows = db.execute(f'SELECT {", ".join(f"{chr(34)}{n}{chr(34)}" for n in names)} FROM "{table}"').fetchall()
            yield pl.DataFrame(rows, schema=schema, orient="row")


def read_events(path):
    """Events of an export."""
    return nsys.read(path).events
