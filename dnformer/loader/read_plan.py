# mypy: allow-untyped-defs
"""Which parts of a file hold the rows of a batch, and how rows come out of a part that is read."""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from dnformer.loader.row_kernels import Out, Rows, Table, put_row, table

Array = npt.NDArray[Any]

PAGE = 4096


class Requests(NamedTuple):
    """Parts of a file: byte offset, bytes, and the first of its rows in ascending order.

    `first` has one number more, the number of rows.
    """

    offset: Array
    size: Array
    first: Array


class Wanted(NamedTuple):
    """What is read: rows at the ascending bytes `starts`, and where each goes."""

    rows: Rows
    starts: Array
    places: Array
    scale: Array
    to: Out


class Slabs(NamedTuple):
    """Memory for requests, each `size` bytes that begin with a page."""

    address: int
    size: int
    memory: Array
    table: Table


def make_slabs(count: int, size: int) -> Slabs:
    """Room for `count` requests of up to `size` bytes."""
    size = -(-size // PAGE) * PAGE
    whole = np.empty(count * size + PAGE, np.uint8)
    memory = whole[-whole.ctypes.data % PAGE :][: count * size]
    return Slabs(memory.ctypes.data, size, memory, table(memory))


@numba.njit(nogil=True, cache=True)
def plan(starts, row_bytes, align, gap, limit):
    """Aligned requests for the rows at the ascending bytes `starts`.

    None is longer than `limit`, but for a row that alone is.
    """
    n = starts.shape[0]
    offset, size = np.empty(n, np.int64), np.empty(n, np.int64)
    first = np.empty(n + 1, np.int64)
    count, end = 0, np.int64(0)
    for i in range(n):
        begin = starts[i] // align * align
        stop = (starts[i] + row_bytes + align - 1) // align * align
        if count > 0 and begin <= end + gap and stop - offset[count - 1] <= limit:
            end = max(end, stop)
        else:
            offset[count], first[count], end = begin, i, stop
            count += 1
        size[count - 1] = end - offset[count - 1]
    first[count] = n
    return offset[:count], size[:count], first[: count + 1]


@numba.njit(nogil=True, cache=True)
def needed(wanted, requests, r):
    """Bytes of request r up to the end of its last row: a file may end within the last block."""
    last = requests.first[r + 1] - 1
    return wanted.starts[last] + wanted.rows.row_bytes - requests.offset[r]


@numba.njit(nogil=True, cache=True)
def take(wanted, requests, r, slabs, s):
    """Writes the rows of request r, which is in slab s."""
    shift = s * slabs.size - requests.offset[r]
    for i in range(requests.first[r], requests.first[r + 1]):
        start = wanted.starts[i] + shift
        put_row(wanted.rows, slabs.table, start, wanted.scale, wanted.to, wanted.places[i])
