"""Columns of an SQLite table straight from the pages of its file.

SQLite hands over one cell at a time, which is what a large export costs. Here a column of thousands of rows is taken at
once, and threads do so at the same time. Of the format (https://www.sqlite.org/fileformat2.html) this knows what an
export is made of; whatever else a file may hold is told as Unusual, and left to SQLite.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_MAGIC, _UTF8 = b"SQLite format 3\0", 1
_PAGE_SIZES, _LEAST_USABLE = tuple(2**power for power in range(9, 17)), 480
_INTERIOR, _LEAF = 5, 13
_HEADER = {_INTERIOR: 12, _LEAF: 8}
"""Bytes before the cell pointers of a page, by its kind."""
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8], dtype=np.int64)
"""Bytes of a whole number, by serial type; types 8 and 9 are the numbers 0 and 1, which take none."""
_REAL, _ONE, _BLOB, _TEXT = 7, 9, 12, 13
_INLINE = 12
"""Bytes of a text that an Arrow view holds itself."""
_SPARE = 64
"""Bytes after the last page, for what begins in it is read in words, and may be nonsense."""
_DEEPEST = 20


class Unusual(Exception):
    """What is left to SQLite, in one line."""


class Pages:
    """A file. Raises Unusual where it is not as exports are, and OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            head = file.read(100)
        if not head.startswith(_MAGIC) or int.from_bytes(head[56:60], "big") != _UTF8:
            raise Unusual("no SQLite file of UTF-8 text")
        told = int.from_bytes(head[16:18], "big")
        self.size = 65536 if told == 1 else told
        self.usable = self.size - head[20]
        self.count = path.stat().st_size // max(self.size, 1)
        if self.size not in _PAGE_SIZES or self.usable < _LEAST_USABLE:
            raise Unusual("no such page size")

    def leaves(self, root: int) -> Ints:
        """Numbers of the pages that hold a table's rows, in the order of its row ids."""
        level = np.array([root], dtype=np.int64)
        for _ in range(_DEEPEST):
            if self._bytes(level[:1])[0] == _LEAF:
                return level
            data = self._bytes(level)
            cells, counts = self._cells(data, _INTERIOR)
            child = _view(data, ">u4")
            last = child[np.arange(len(level)) * self.size + 8]  # it stands in the header, after those of all cells
            level = np.insert(child[cells].astype(np.int64), np.cumsum(counts), last.astype(np.int64))
            if len(level) > self.count:
                break
        raise Unusual("pages that lead nowhere")

    def columns(self, leaves: Ints, wanted: Mapping[int, bool]) -> dict[int, pl.Series]:
        """Columns by their place in the table, of the rows on these pages: Categorical where text is wanted, else
        Int64."""
        data = self._bytes(leaves)
        cells, counts = self._cells(data, _LEAF)
        payload, after = _varints(data, cells)
        begin = after + _varint_lengths(data, after)  # past the row id
        end = begin + self._local(payload)
        page_end = np.repeat(np.arange(len(leaves)) * self.size + self.usable, counts)
        header, at = _varints(data, begin)
        value = begin + header
        if ((end > page_end) | (value > end) | (header < 1)).any():
            raise Unusual("a row that is larger than its page")
        header_end, found = value, {}
        for place, types in enumerate(_serial_types(data, at, header_end, max(wanted) + 1)):
            if place in wanted:
                found[place] = value, types
            value = value + _lengths(types)
        if (value > end).any():
            raise Unusual("a row that reaches beyond its page")
        return {p: (_texts if wanted[p] else _numbers)(data, *each) for p, each in found.items()}

    def _bytes(self, pages: Ints) -> Bytes:
        """Pages one after another, and some bytes more."""
        data = np.zeros(len(pages) * self.size + _SPARE, dtype=np.uint8)
        view = data.data
        edges = np.flatnonzero(np.diff(pages, prepend=-1, append=-1) != 1).tolist()
        with self.path.open("rb") as file:
            for first, last in pairwise(edges):
                room, place = view[first * self.size : last * self.size], (int(pages[first]) - 1) * self.size
                if place < 0 or os.preadv(file.fileno(), [room], place) < len(room):
                    raise Unusual("pages that are not in the file")
        return data

    def _cells(self, data: Bytes, kind: int) -> tuple[Ints, Ints]:
        """Where the cells of all pages begin, and how many each page has."""
        base = np.arange((len(data) - _SPARE) // self.size, dtype=np.int64) * self.size
        short = _view(data, ">u2")
        counts = short[base + 3].astype(np.int64)
        if (data[base] != kind).any() or (_HEADER[kind] + 2 * counts > self.usable).any():
            raise Unusual("pages of another kind")
        of_page = np.repeat(base, counts)
        number = np.arange(len(of_page)) - np.repeat(np.cumsum(counts) - counts, counts)
        pointers = short[of_page + _HEADER[kind] + 2 * number].astype(np.int64)
        if (pointers >= self.usable).any():
            raise Unusual("cells beyond their page")
        return of_page + pointers, counts

    def _local(self, payload: Ints) -> Ints:
        """Bytes of each row on its own page: what is too long goes on elsewhere."""
        if len(payload) and payload.min() < 0:
            raise Unusual("a row of no length")
        most = self.usable - 35
        if not len(payload) or payload.max() <= most:
            return payload
        least = (self.usable - 12) * 32 // 255 - 23
        cut = least + (payload - least) % (self.usable - 4)
        return np.where(payload <= most, payload, np.where(cut <= most, cut, least))


def _view(data: Bytes, dtype: str) -> npt.NDArray[Any]:
    """Numbers of this type that begin at each byte."""
    kind = np.dtype(dtype)
    return np.ndarray(len(data) - kind.itemsize + 1, kind, data, strides=(1,))


def _varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The numbers of variable length that begin at these places, and the places after them."""
    value, at = data[at].astype(np.int64), at + 1
    more = np.flatnonzero(value >= 128)
    value[more] &= 127
    for _ in range(8):
        if not len(more):
            break
        byte = data[at[more]].astype(np.int64)
        value[more] = value[more] << 7 | byte & 127
        at[more] += 1
        more = more[byte >= 128]
    return value, at


def _varint_lengths(data: Bytes, at: Ints) -> Ints:
    """How many bytes those numbers take: as many as begin with a one, and the next, but not more than nine."""
    ends = ~_view(data, "<u8")[at] & np.uint64(0x8080808080808080)
    lengths: Ints = np.bitwise_count((ends & -ends) - np.uint64(1)).astype(np.int64) // 8 + 1
    return lengths


def _serial_types(data: Bytes, at: Ints, end: Ints, columns: int) -> Iterator[Ints]:
    """The serial types of the first columns, where rows' headers begin and end: of each column one for all rows, or one
    a row."""
    place = 0
    while place < columns:
        words = _view(data, "<u8")[at]  # eight types, mostly: those under 128 take one byte each
        varying = int(np.bitwise_or.reduce(words ^ words[:1], initial=np.uint64(0)))
        left = int((end - at).min(initial=columns))
        for number in range(min(8, columns - place)):
            if number >= left:
                raise Unusual("a row with fewer columns than its table")
            bits = np.uint64(8 * number)
            types = ((words if varying >> 8 * number & 255 else words[:1]) >> bits & np.uint64(255)).astype(np.int64)
            place += 1
            if (types >= 128).any():  # as that of a long text
                types, at = _varints(data, at + number)
                yield types
                break
            yield types
        else:
            at = at + 8


def _lengths(types: Ints) -> Ints:
    """Bytes of values, by serial type."""
    if len(types) and (types.min() < 0 or types.max() >= 1 << 32 or ((types == 10) | (types == 11)).any()):
        raise Unusual("a value of unknown type")
    numbers = _SIZES[np.where(types < _REAL, types, 0)]
    return np.where(types >= _BLOB, (types - _BLOB) >> 1, np.where(types == _REAL, 8, numbers))


def _numbers(data: Bytes, at: Ints, types: Ints) -> pl.Series:
    if ((types == _REAL) | (types >= _BLOB)).any():
        raise Unusual("a value that is no whole number")
    sizes = _lengths(types)
    if sizes.any():
        values = _view(data, ">i8")[at].astype(np.int64) >> np.minimum(64 - 8 * sizes, 63)
    else:
        values = np.zeros(len(at), dtype=np.int64)
    if (sizes == 0).any():
        values = np.where(sizes > 0, values, np.where(types == _ONE, 1, 0))
    return pl.Series(_array(pa.int64(), types, values))


def _texts(data: Bytes, at: Ints, types: Ints) -> pl.Series:
    if ((types != 0) & ((types < _TEXT) | (types % 2 == 0))).any():
        raise Unusual("a value that is no text")
    sizes = np.broadcast_to(np.maximum(types - _TEXT, 0) >> 1, len(at))
    views = np.zeros((len(at), 4), dtype=np.int32)  # Arrow's: length, first four bytes, buffer, place in it
    views[:, 0], views[:, 1], views[:, 3] = sizes, _view(data, "<i4")[at], at
    short = np.flatnonzero(sizes <= _INLINE)
    if len(short):
        byte = np.arange(_INLINE)
        inline = np.where(byte < sizes[short, None], data[at[short, None] + byte], 0).astype(np.uint8)
        views[short, 1:] = inline.view("<i4")
    texts = _array(pa.string_view(), types, views, data)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Unusual("text that is not UTF-8") from error
    return pl.Series(texts).cast(pl.Categorical())


def _array(kind: pa.DataType, types: Ints, values: npt.NDArray[Any], *more: Bytes) -> pa.Array:
    """Values as Arrow has them, null where their type says so."""
    null = types == 0
    if null.all():
        return pa.nulls(len(values), kind)
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    return pa.Array.from_buffers(kind, len(values), [valid, *map(pa.py_buffer, (values, *more))])
