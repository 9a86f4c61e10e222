"""Columns of an SQLite table straight from the pages of its file.

SQLite returns one cell at a time, which takes most of the time of reading a large export. Here a column of thousands of
rows is decoded at once, in several threads: a whole ingest takes a third less time. Only those parts of the format
(https://www.sqlite.org/fileformat2.html) are supported that exports use; anything else raises UnsupportedLayout, and is
left to SQLite.
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
Types = int | Ints
"""Serial types of a column: one where all rows have the same, which is usual, or one a row."""

PIECE_BYTES = 2 << 20
"""Bytes decoded at once: enough to hide the cost of numpy's calls, and not much more than a processor's cache."""

_MAGIC, _UTF8 = b"SQLite format 3\0", 1
_PAGE_SIZES, _LEAST_USABLE = tuple(2**power for power in range(9, 17)), 480
_INTERIOR, _LEAF = 5, 13
_HEADER = {_INTERIOR: 12, _LEAF: 8}
"""Bytes before the cell pointers of a page, by its kind."""
_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)
"""Bytes of a value that is neither text nor blob, by serial type."""
_REAL, _ZERO, _ONE, _BLOB, _TEXT = 7, 8, 9, 12, 13
"""Serial types: the numbers 0 and 1 have one of their own."""
_INLINE = 12
"""Bytes of a text that an Arrow view holds itself."""
_SPARE = 64
"""Bytes after the last page: numbers are read in whole words, which may reach beyond it."""
_DEEPEST = 20
"""Levels of pages, as SQLite has it (BTCURSOR_MAX_DEPTH): a damaged file may lead in circles."""


class UnsupportedLayout(Exception):
    """Says in one line what only SQLite can read."""


class Pages:
    """The pages of an SQLite file.

    Raises UnsupportedLayout where the file is not laid out like an export, and OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            head = file.read(100)
        if not head.startswith(_MAGIC) or int.from_bytes(head[56:60], "big") != _UTF8:
            raise UnsupportedLayout("no SQLite file of UTF-8 text")
        stored = int.from_bytes(head[16:18], "big")
        self.size = 65536 if stored == 1 else stored
        self.usable = self.size - head[20]
        self.count = path.stat().st_size // max(self.size, 1)
        if self.size not in _PAGE_SIZES or self.usable < _LEAST_USABLE:
            raise UnsupportedLayout("no such page size")

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
        raise UnsupportedLayout("pages that lead nowhere")

    def columns(self, leaves: Ints, wanted: Mapping[int, bool]) -> dict[int, pl.Series]:
        """Columns of the rows on these pages, by their place in the table.

        `wanted`: places of columns, and whether they are text, which becomes Categorical; other columns are Int64.
        """
        step = PIECE_BYTES // self.size
        pieces = [self._piece(leaves[first : first + step], wanted) for first in range(0, len(leaves), step)]
        columns = {place: pl.Series(pa.chunked_array([piece[place] for piece in pieces])) for place in wanted}
        return {place: values.cast(pl.Categorical()) if wanted[place] else values for place, values in columns.items()}

    def _piece(self, leaves: Ints, wanted: Mapping[int, bool]) -> dict[int, pa.Array]:
        """The same of a few pages, without casting texts."""
        data = self._bytes(leaves)
        cells, counts = self._cells(data, _LEAF)
        payload, after = _varints(data, cells)
        begin = after + _varint_lengths(data, after)  # past the row id
        end = begin + self._local(payload)
        page_end = np.repeat(np.arange(len(leaves)) * self.size + self.usable, counts)
        header, at = _varints(data, begin)
        value = begin + header
        if ((end > page_end) | (value > end) | (header < 1)).any():
            raise UnsupportedLayout("a row that is larger than its page")
        header_end, found, further = value, {}, 0
        for place, types in enumerate(_serial_types(data, at, header_end, max(wanted) + 1)):
            if place in wanted:
                found[place] = value, further, types
            if isinstance(types, int):
                further += _length(types)
            else:
                value, further = value + (_lengths(types) + further), 0
        if (value + further > end).any():
            raise UnsupportedLayout("a row that reaches beyond its page")
        return {
            place: (_texts if wanted[place] else _numbers)(data, at + by if by else at, types)
            for place, (at, by, types) in found.items()
        }

    def _bytes(self, pages: Ints) -> Bytes:
        """These pages one after another, and _SPARE bytes more."""
        data = np.zeros(len(pages) * self.size + _SPARE, dtype=np.uint8)
        view = data.data
        edges = np.flatnonzero(np.diff(pages, prepend=-1, append=-1) != 1).tolist()
        with self.path.open("rb") as file:
            for first, last in pairwise(edges):
                room, place = view[first * self.size : last * self.size], (int(pages[first]) - 1) * self.size
                if place < 0 or os.preadv(file.fileno(), [room], place) < len(room):
                    raise UnsupportedLayout("pages that are not in the file")
        return data

    def _cells(self, data: Bytes, kind: int) -> tuple[Ints, Ints]:
        """Where the cells of all pages begin, and the number of each page's."""
        base = np.arange((len(data) - _SPARE) // self.size, dtype=np.int64) * self.size
        short = _view(data, ">u2")
        counts = short[base + 3].astype(np.int64)
        if (data[base] != kind).any() or (_HEADER[kind] + 2 * counts > self.usable).any():
            raise UnsupportedLayout("pages of another kind")
        of_page = np.repeat(base, counts)
        number = np.arange(len(of_page)) - np.repeat(np.cumsum(counts) - counts, counts)
        pointers = short[of_page + _HEADER[kind] + 2 * number].astype(np.int64)
        if (pointers >= self.usable).any():
            raise UnsupportedLayout("cells beyond their page")
        return of_page + pointers, counts

    def _local(self, payload: Ints) -> Ints:
        """Bytes of each row on its page; the rest of a long row is on overflow pages."""
        if len(payload) and payload.min() < 0:
            raise UnsupportedLayout("a row of no length")
        most = self.usable - 35
        if not len(payload) or payload.max() <= most:
            return payload
        least = (self.usable - 12) * 32 // 255 - 23
        cut = least + (payload - least) % (self.usable - 4)
        return np.where(payload <= most, payload, np.where(cut <= most, cut, least))


def _view(data: Bytes, dtype: str) -> npt.NDArray[Any]:
    """The numbers of this type that begin at each byte."""
    kind = np.dtype(dtype)
    return np.ndarray(len(data) - kind.itemsize + 1, kind, data, strides=(1,))


def _varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The numbers of variable length (varints) at these places, and the places after them."""
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
    """Lengths of varints, bytes: those bytes that begin with a one, and the next; at most nine."""
    ends = ~_view(data, "<u8")[at] & np.uint64(0x8080808080808080)
    lengths: Ints = np.bitwise_count((ends & -ends) - np.uint64(1)).astype(np.int64) // 8 + 1
    return lengths


def _serial_types(data: Bytes, at: Ints, end: Ints, columns: int) -> Iterator[Types]:
    """The serial types of the first columns. `at`, `end`: where the types in each row's header begin and end."""
    place = 0
    while place < columns:
        words = _view(data, "<u8")[at]  # eight types, mostly: those under 128 take one byte each
        first = int(words[0]) if len(words) else 0
        varying = int(np.bitwise_or.reduce(words ^ words[:1], initial=np.uint64(0)))
        left = int((end - at).min(initial=columns))
        for number in range(min(8, columns - place)):
            if number >= left:
                raise UnsupportedLayout("a row with fewer columns than its table")
            place += 1
            bits = 8 * number
            if not varying >> bits & 255 and first >> bits & 255 < 128:
                yield first >> bits & 255
                continue
            types = (words >> np.uint64(bits) & np.uint64(255)).astype(np.int64)
            if types.max() >= 128:  # as that of a long text
                types, at = _varints(data, at + number)
                yield types
                break
            yield types
        else:
            at = at + 8


def _length(kind: int) -> int:
    """Bytes of a value, by its serial type."""
    if kind >= _BLOB:
        return (kind - _BLOB) >> 1
    if kind > _ONE:
        raise UnsupportedLayout("a value of unknown type")
    return _SIZES[kind]


def _lengths(types: Ints) -> Ints:
    if types.min() < 0 or types.max() >= 1 << 32 or ((types > _ONE) & (types < _BLOB)).any():
        raise UnsupportedLayout("a value of unknown type")
    return np.where(types >= _BLOB, (types - _BLOB) >> 1, np.array(_SIZES)[np.where(types < _BLOB, types, 0)])


def _numbers(data: Bytes, at: Ints, types: Types) -> pa.Array:
    if isinstance(types, int):
        if types == 0:
            return pa.nulls(len(at), pa.int64())
        if types in (_ZERO, _ONE):
            return _array(pa.int64(), None, np.full(len(at), types - _ZERO))
        if types >= _REAL:
            raise UnsupportedLayout("a value that is no whole number")
        return _array(pa.int64(), None, _view(data, ">i8")[at].astype(np.int64) >> (64 - 8 * _length(types)))
    implied = (types == _ZERO) | (types == _ONE)
    if ((types >= _REAL) & ~implied).any():
        raise UnsupportedLayout("a value that is no whole number")
    values = _view(data, ">i8")[at].astype(np.int64) >> np.minimum(64 - 8 * _lengths(types), 63)
    return _array(pa.int64(), types != 0, np.where(implied, types - _ZERO, values))


def _texts(data: Bytes, at: Ints, types: Types) -> pa.Array:
    types = np.full(len(at), types) if isinstance(types, int) else types
    if ((types != 0) & ((types < _TEXT) | (types % 2 == 0))).any():
        raise UnsupportedLayout("a value that is no text")
    sizes = np.maximum(types - _TEXT, 0) >> 1
    views = np.zeros((len(at), 4), dtype=np.int32)  # Arrow's: length, first four bytes, buffer, place in it
    views[:, 0], views[:, 1], views[:, 3] = sizes, _view(data, "<i4")[at], at
    short = np.flatnonzero(sizes <= _INLINE)
    if len(short):
        byte = np.arange(_INLINE)
        inline = np.where(byte < sizes[short, None], data[at[short, None] + byte], 0).astype(np.uint8)
        views[short, 1:] = inline.view("<i4")
    texts = _array(pa.string_view(), types != 0, views, data)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UnsupportedLayout("text that is not UTF-8") from error
    return texts


def _array(kind: pa.DataType, given: npt.NDArray[np.bool_] | None, values: npt.NDArray[Any], *more: Bytes) -> pa.Array:
    """An array of Arrow; null where `given` is false."""
    valid = None if given is None or given.all() else pa.py_buffer(np.packbits(given, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, *map(pa.py_buffer, (values, *more))])
