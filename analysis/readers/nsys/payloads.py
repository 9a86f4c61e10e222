"""NCCL calls of an Nsight Systems export, with the sizes and communicators in their NVTX payloads.

`NVTX_EVENTS.binaryData` holds the extended payloads of an event, little-endian, in a container:

| byte | type | content |
|---|---|---|
| 0 | uint64 | payloads in the container (NCCL gives one) |
| 8 + 24 i | uint64 | schema of payload i |
| 16 + 24 i | uint64 | size of payload i, bytes |
| 24 + 24 i | uint64 | where payload i begins, from the start of the container |

Derived from exports of nsys 2025.3 (schema 3.20), where the payloads follow the header without a gap. The layout of a
payload is in NVTX_PAYLOAD_SCHEMA_ENTRIES (an offset that is NULL is 0). Only an export made with --include-blobs=true
has these blobs; without them the calls are known, but not their sizes and communicators.
"""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import EVENTS

EVENT_COLUMNS = ("start", "end", "eventType", "text", "textId", "globalTid", "domainId", "binaryData")
ENTRY_COLUMNS = ("domainId", "schemaId", "type", "name", "offset")

_DOMAIN, _DATA = "NCCL", "binaryData"
_CALL = r"^nccl(All(Reduce|Gather|ToAll|toAll)|ReduceScatter|Broadcast|Bcast|Reduce|Gather|Scatter|Send|Recv)$"
_DOMAIN_CREATED, _PUSH_POP = 75, 59
_INTEGERS: dict[int, type[pl.DataType]] = {
    5: pl.Int32, 6: pl.UInt32, 7: pl.Int64, 8: pl.UInt64, 9: pl.Int64, 10: pl.UInt64,
    15: pl.Int32, 16: pl.UInt32, 17: pl.Int64, 18: pl.UInt64, 22: pl.UInt64,
}  # fmt: skip
"""NVTX_PAYLOAD_ENTRY_TYPE_* of nvToolsExtPayload.h, integers on 64-bit Linux: int, unsigned, long, unsigned long,
long long, unsigned long long; those with their size in the name; size_t."""
_WIDTHS: dict[type[pl.DataType], int] = {pl.Int32: 4, pl.UInt32: 4, pl.Int64: 8, pl.UInt64: 8}
_FIELDS = {
    "communicator": ["NCCL communicator ID"],
    "bytes": ["Message size [bytes]", "Bytes"],
    "ranks": ["No. of ranks"],
}
"""The names of each in the schema, over NCCL's versions."""


def calls(events: pl.DataFrame, strings: pl.DataFrame, entries: pl.DataFrame) -> pl.DataFrame:
    """The table EVENTS["nccl_calls"]: collectives, sends and receives, in time order, on the export's own clock.

    bytes: as NCCL reports it, one rank's share of an all-gather, reduce-scatter or all-to-all (sendcount or recvcount
    times the size of the type), else the whole message. communicator: 16 hex digits, the same on all its ranks. ranks:
    from calls of ncclCommInitRank and similar, null where the communicator was made before the capture. All are null
    where a payload is absent, cut or of an unknown schema.

    Args:
        events: NVTX_EVENTS with EVENT_COLUMNS, binaryData as pl.Binary.
        strings: StringIds (id, value).
        entries: NVTX_PAYLOAD_SCHEMA_ENTRIES with ENTRY_COLUMNS. Tables that the export lacks have no rows.
    """
    ranges = _add_payloads(_ranges(events, strings), entries)
    sizes = ranges.drop_nulls(["communicator", "ranks"]).group_by("communicator").agg(pl.col("ranks").max())
    found = ranges.filter(pl.col("name").str.contains(_CALL)).drop("ranks")
    found = found.join(sizes, on="communicator", how="left").sort("start_ns")
    return column.conform(found, EVENTS["nccl_calls"]).collect()


def _ranges(events: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    """NCCL's ranges: name, start_ns, end_ns, process, thread, domainId, binaryData."""
    ids = strings.select(textId=pl.col("id").cast(pl.Int64), value=pl.col("value").cast(pl.String)).unique("textId")
    text = pl.col("text").cast(pl.String)
    named = events.with_columns(pl.col("textId", "globalTid", "domainId").cast(pl.Int64)).join(
        ids, on="textId", how="left"
    )
    named = named.with_columns(
        name=pl.coalesce(pl.when(text != "").then(text), "value"),
        process=(pl.col("globalTid") // 0x1000000) % 0x1000000,
        thread=pl.col("globalTid") % 0x1000000,
    )
    # Each process numbers its domains. An export cut out of a longer one may lack a domain's name; a range that is not
    # known to be another domain's (0 is the default one) is then NCCL's by its name.
    key = ["process", "domainId"]
    others = named.filter(pl.col("eventType") == _DOMAIN_CREATED, pl.col("name") != _DOMAIN).select(key)
    ranges = named.filter(pl.col("eventType") == _PUSH_POP, pl.col("end").is_not_null(), pl.col("domainId") != 0)
    ranges = ranges.filter(pl.col("name").str.starts_with("nccl")).join(others, on=key, how="anti")
    spans = {"start": "start_ns", "end": "end_ns"}
    return ranges.rename(spans).select(*spans.values(), "name", "thread", *key, _DATA)


def _add_payloads(ranges: pl.DataFrame, entries: pl.DataFrame) -> pl.DataFrame:
    """Add communicator, bytes and ranks to ranges, from their payloads."""
    data = pl.col(_DATA).cast(pl.Binary)
    head = {"schemaId": 8, "size": 16, "at": 24}
    opened = ranges.with_columns(_number(data, pl.lit(at), 18).alias(name) for name, at in head.items())
    cut = data.bin.slice(pl.col("at"), pl.col("size"))
    opened = opened.with_columns(payload=pl.when(cut.bin.size() == pl.col("size")).then(cut))
    for field, labels in _FIELDS.items():
        places = _places(entries, labels)
        value = _communicator() if field == "communicator" else _value()
        opened = opened.join(places, on=["domainId", "schemaId"], how="left").with_columns(value.alias(field))
        opened = opened.drop("type", "offset")
    return opened


def _places(entries: pl.DataFrame, labels: list[str]) -> pl.DataFrame:
    """The type and offset of a field by domainId and schemaId; without schemas that have it twice."""
    key = ["domainId", "schemaId"]
    labelled = entries.filter(pl.col("name").cast(pl.String).is_in(labels))
    places = labelled.select(pl.col(*key, "type").cast(pl.Int64), pl.col("offset").cast(pl.Int64).fill_null(0)).unique()
    return places.filter(pl.struct(key).is_unique())


def _number(data: pl.Expr, at: pl.Expr, kind: int) -> pl.Expr:
    dtype = _INTEGERS[kind]
    cut = data.bin.slice(at, _WIDTHS[dtype])
    whole = pl.when(cut.bin.size() == _WIDTHS[dtype]).then(cut)
    return whole.bin.reinterpret(dtype=dtype, endianness="little").cast(pl.Int64, strict=False)


def _value() -> pl.Expr:
    values = [pl.when(pl.col("type") == k).then(_number(pl.col("payload"), pl.col("offset"), k)) for k in _INTEGERS]
    return pl.coalesce(values)


def _communicator() -> pl.Expr:
    cut = pl.col("payload").bin.slice(pl.col("offset"), 8)
    known = pl.when(pl.col("type") == 18, cut.bin.size() == 8).then(cut)

    def print_hex(numbers: pl.Series) -> pl.Series:
        return pl.Series(
            [None if n is None else f"{int.from_bytes(n, 'little'):016x}" for n in numbers], dtype=pl.String
        )

    return known.map_batches(print_hex, return_dtype=pl.String)
