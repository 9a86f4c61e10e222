"""The NVML log: an Arrow IPC stream to which a batch is added four times a second, so that a killed job keeps it.

The header is in the stream's schema metadata, as JSON under `nightsweep`: what the fields are missing and why, the
GPUs, the rate. Every row is one GPU at one time; a field that was not read then is null.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightsweep.jobs.host import clock
from nightsweep.jobs.telemetry.gpu.fields import TYPES

SCHEMA = 1
KEY = b"nightsweep"
_ARROW = {int: pa.int64(), float: pa.float64()}


def schema(header: dict[str, Any]) -> pa.Schema:
    """The columns: where and when, then the fields."""
    head = [("t_ns", pa.int64()), ("mono_ns", pa.int64()), ("gpu", pa.int32()), ("uuid", pa.string())]
    fields = [(name, _ARROW[kind]) for name, kind in TYPES.items()]
    return pa.schema(head + fields, metadata={KEY: json.dumps({"schema": SCHEMA, **header}).encode()})


class Log:
    """Takes rows from several threads; `flush` brings them to the file."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.schema = schema(header)
        pa.RecordBatch.from_pylist([], schema=self.schema)  # Arrow imports pandas for it, where there is one
        self.sink = path.open("wb")
        self.writer = pa.ipc.new_stream(self.sink, self.schema)
        self.sink.flush()
        self.rows: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def add(self, gpu: int, uuid: str, values: dict[str, Any], at: tuple[int, int] | None = None) -> None:
        """A row; `at` is its time (UTC ns, monotonic ns), now where that is not given."""
        t_ns, mono_ns = at or (clock.now_ns(), time.monotonic_ns())
        with self.lock:
            self.rows.append({"t_ns": t_ns, "mono_ns": mono_ns, "gpu": gpu, "uuid": uuid, **values})

    def flush(self) -> None:
        with self.lock:
            rows, self.rows = self.rows, []
        if rows:
            self.writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=self.schema))
            self.sink.flush()

    def close(self) -> None:
        self.flush()
        self.writer.close()
        self.sink.close()


def header_of(path: Path) -> dict[str, Any]:
    """The header of a log. ValueError where it is none."""
    with path.open("rb") as source:
        try:
            metadata = pa.ipc.open_stream(source).schema.metadata or {}
            content: dict[str, Any] = json.loads(metadata[KEY])
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise ValueError(f"{path}: not an NVML log: {error}") from error
    return content


def batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The whole batches of a log; what follows the last one, where its writer was killed, is left out."""
    with path.open("rb") as source:
        try:
            stream = pa.ipc.open_stream(source)
            yield from stream
        except (pa.ArrowException, OSError):
            return
