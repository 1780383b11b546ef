"""Rows of a file read by explicit requests, for features that do not fit in memory.

A page fault reads one page at a time and leaves it in a cache that has no room for it. Here the
rows of a batch are sorted, neighbours share a request, and many requests are in flight, past the
page cache (O_DIRECT) where the file system allows it.
"""

import itertools
import logging
import os
import sys
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, final

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types

from dnformer.errors import DataError
from dnformer.loader.row_kernels import Out, Rows, Table, put_row, table

Array = npt.NDArray[Any]

# a gap this long costs less to read than the request that would skip it (bench/LOG.md)
_GAP = 16 << 10
_REQUEST_BYTES = 256 << 10
_SECTOR, _PAGE = 512, 4096
_MEND = "remove its folder, and the store is built again"

# by name, not by address: so the compiled code can be kept on the disk
_pread: Any = types.ExternalFunction(
    "pread", types.intp(types.int32, types.uintp, types.uintp, types.int64)
)


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


class Slab(NamedTuple):
    """Aligned memory of one request."""

    address: int
    memory: Array
    table: Table


@numba.njit(nogil=True, cache=True)
def plan(starts, row_bytes, align, gap, limit):  # type: ignore[no-untyped-def]
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


@numba.njit(inline="always")
def _needed(wanted, requests, r):  # type: ignore[no-untyped-def]
    """Bytes of request r up to the end of its last row: a file may end within the last block."""
    last = requests.first[r + 1] - 1
    return wanted.starts[last] + wanted.rows.row_bytes - requests.offset[r]


@numba.njit(nogil=True, cache=True)
def _take(wanted, requests, r, buffer):  # type: ignore[no-untyped-def]
    """Writes the rows of request r, which is in `buffer`."""
    for i in range(requests.first[r], requests.first[r + 1]):
        start = wanted.starts[i] - requests.offset[r]
        put_row(wanted.rows, buffer, start, wanted.scale, wanted.to, wanted.places[i])


@numba.njit(nogil=True, cache=True)
def _read(wanted, requests, span, fd, address, buffer):  # type: ignore[no-untyped-def]
    """Reads and writes the rows of a span of requests; the first that fell short, or its end."""
    r, stop = span
    while r < stop:
        size, offset = np.uintp(requests.size[r]), requests.offset[r]
        found = _pread(np.int32(fd), np.uintp(address), size, offset)
        if found < _needed(wanted, requests, r):
            return r
        _take(wanted, requests, r, buffer)
        r += 1
    return r


class Reading(NamedTuple):
    """Requests in flight, and how many bytes they read."""

    futures: list[Future[None]]
    num_bytes: int


@final
class RowFile:
    """Rows of one size in a file, one after the other.

    Args:
        path: the file.
        start: the byte where row 0 begins.
        num_rows: how many there are.
        row_bytes: their size.
        readers: requests in flight at most; memory is about 256 KiB for each.
        direct: past the page cache where that is possible; the log says where it is not.

    Raises:
        DataError: the file is missing or too short.
    """

    def __init__(
        self,
        path: Path,
        start: int,
        num_rows: int,
        row_bytes: int,
        *,
        readers: int,
        direct: bool = True,
    ) -> None:
        self.path, self._start, self._row_bytes = path, start, row_bytes
        self._fd, self._align, self.direct = _open(path, direct)
        weakref.finalize(self, os.close, self._fd)
        size, end = os.fstat(self._fd).st_size, start + num_rows * row_bytes
        if size < end:
            raise DataError(f"{path}: {size} bytes, {num_rows} rows end at byte {end}; {_MEND}")
        self._slabs: SimpleQueue[Slab] = SimpleQueue()
        for _ in range(readers):
            self._slabs.put(_slab(max(_REQUEST_BYTES, row_bytes + 2 * _PAGE)))
        self._readers = readers
        self._pool = ThreadPoolExecutor(readers, "dnformer-reader")

    def read(self, rows: Rows, ids: Array, places: Array, scale: Array, to: Out) -> Reading:
        """Begins to read row ids[i] into row places[i] of `to`, as `rows` says."""
        order = np.argsort(ids, kind="stable")
        starts = self._start + ids[order] * self._row_bytes
        wanted = Wanted(rows, starts, places[order], scale, to)
        requests = Requests(*plan(starts, self._row_bytes, self._align, _GAP, _REQUEST_BYTES))
        count = len(requests.offset)
        cuts = np.linspace(0, count, min(self._readers, count) + 1).astype(int).tolist()
        futures = [
            self._pool.submit(self._read_span, wanted, requests, begin, end)
            for begin, end in itertools.pairwise(cuts)
        ]
        return Reading(futures, int(requests.size.sum()))

    def finish(self, reading: Reading) -> None:
        """Waits until the rows are there.

        Raises:
            DataError: the file cannot be read; no request is in flight any more.
        """
        wait(reading.futures)
        if not self.direct and sys.platform == "linux":
            # their pages would only displace others
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for future in reading.futures:
            future.result()

    def _read_span(self, wanted: Wanted, requests: Requests, begin: int, end: int) -> None:
        slab = self._slabs.get()
        try:
            while begin < end:
                span = (begin, end)
                begin = _read(wanted, requests, span, self._fd, slab.address, slab.table)
                if begin < end:
                    self._read_again(wanted, requests, begin, slab)
                    begin += 1
        finally:
            self._slabs.put(slab)

    def _read_again(self, wanted: Wanted, requests: Requests, r: int, slab: Slab) -> None:
        """A request that failed or fell short, by Python's calls, which raise or go on."""
        offset, needed, done = int(requests.offset[r]), int(_needed(wanted, requests, r)), 0
        while done < needed:
            rest = slab.memory[done : int(requests.size[r])]
            try:
                found = os.preadv(self._fd, [rest.data], offset + done)
            except OSError as error:
                raise DataError(
                    f"{self.path}: {len(rest)} bytes at byte {offset + done} cannot be read "
                    f"({error.strerror}); check the disk, or {_MEND}"
                ) from None
            if done + found < needed and found < self._align:
                size = os.fstat(self._fd).st_size
                raise DataError(
                    f"{self.path}: {size} bytes, a row ends at byte {offset + needed}; {_MEND}"
                )
            done += found if done + found >= needed else found // self._align * self._align
        _take(wanted, requests, r, slab.table)


def _slab(size: int) -> Slab:
    size = -(-size // _PAGE) * _PAGE
    whole = np.empty(size + _PAGE, np.uint8)
    memory = whole[-whole.ctypes.data % _PAGE :][:size]
    return Slab(memory.ctypes.data, memory, table(memory))


def _open(path: Path, direct: bool) -> tuple[int, int, bool]:
    """(descriptor, bytes that requests are aligned to, whether it goes past the page cache)."""
    try:
        plain = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror}); {_MEND}") from None
    if sys.platform == "linux":
        os.posix_fadvise(plain, 0, 0, os.POSIX_FADV_RANDOM)
    if not direct:
        return plain, 1, False
    reason = f"{sys.platform} has no O_DIRECT"
    if sys.platform == "linux":
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            reason = f"{error.strerror}"
        else:
            align = _alignment(fd)
            if align:
                os.close(plain)
                return fd, align, True
            os.close(fd)
            reason = "no read of whole pages succeeds"
    logging.getLogger(__name__).warning(
        "%s: its file system does not read past the page cache (%s); rows are read through it",
        path,
        reason,
    )
    return plain, 1, False


def _alignment(fd: int) -> int:
    """The least alignment that direct reads of this file take; 0: none."""
    memory = _slab(_PAGE).memory
    for align in (_SECTOR, _PAGE):
        try:
            os.preadv(fd, [memory[:align].data], align)
        except OSError:
            continue
        return align
    return 0
