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
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, final

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types

from dnformer.errors import DataError
from dnformer.loader.async_read import Ring
from dnformer.loader.read_plan import PAGE, Requests, Slabs, Wanted, make_slabs, needed, plan, take
from dnformer.loader.row_kernels import Out, Rows

Array = npt.NDArray[Any]

# a gap this long costs less to read than the request that would skip it (bench/LOG.md)
_GAP = 16 << 10
_REQUEST_BYTES = 256 << 10
_SECTOR = 512
_MEND = "remove its folder, and the store is built again"

# by name, not by address: so the compiled code can be kept on the disk
_pread: Any = types.ExternalFunction(
    "pread", types.intp(types.int32, types.uintp, types.uintp, types.int64)
)


@numba.njit(nogil=True, cache=True)
def _read(wanted, requests, span, fd, slab):  # type: ignore[no-untyped-def]
    """Reads and writes the rows of a span of requests; the first that fell short, or its end."""
    r, stop = span
    while r < stop:
        size, offset = np.uintp(requests.size[r]), requests.offset[r]
        found = _pread(np.int32(fd), np.uintp(slab.address), size, offset)
        if found < needed(wanted, requests, r):
            return r
        take(wanted, requests, r, slab, 0)
        r += 1
    return r


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
        self._readers = readers
        self._slab_bytes = max(_REQUEST_BYTES, row_bytes + 2 * PAGE)
        # of those that are not in use
        self._rings: SimpleQueue[Ring] = SimpleQueue()
        self._slabs: SimpleQueue[Slabs] = SimpleQueue()
        self._pool = ThreadPoolExecutor(readers, "dnformer-reader")
        self.uses_threads = not self.direct

    def read(self, rows: Rows, ids: Array, places: Array, scale: Array, to: Out) -> int:
        """Reads row ids[i] into row places[i] of `to`, as `rows` says; how many bytes that took.

        Raises:
            DataError: the file cannot be read.
        """
        order = np.argsort(ids, kind="stable")
        starts = self._start + ids[order] * self._row_bytes
        wanted = Wanted(rows, starts, places[order], scale, to)
        requests = Requests(*plan(starts, self._row_bytes, self._align, _GAP, _REQUEST_BYTES))
        ring = None if self.uses_threads else self._free_ring()
        if ring is None:
            self._read_by_threads(wanted, requests)
        else:
            self._read_by_ring(ring, wanted, requests)
        return int(requests.size.sum())

    def _free_ring(self) -> Ring | None:
        """A ring that nobody uses; None where the system gives none (any more)."""
        try:
            return self._rings.get_nowait()
        except Empty:
            pass
        try:
            return Ring(self._readers, self._slab_bytes)
        except OSError:
            self.uses_threads = True
            return None

    def _read_by_ring(self, ring: Ring, wanted: Wanted, requests: Requests) -> None:
        try:
            for r in ring.read(self._fd, wanted, requests).tolist():
                self._read_again(wanted, requests, r, ring.slabs)
        finally:
            self._rings.put(ring)

    def _read_by_threads(self, wanted: Wanted, requests: Requests) -> None:
        count = len(requests.offset)
        cuts = np.linspace(0, count, min(self._readers, count) + 1).astype(int).tolist()
        futures = [
            self._pool.submit(self._read_span, wanted, requests, begin, end)
            for begin, end in itertools.pairwise(cuts)
        ]
        wait(futures)
        if not self.direct and sys.platform == "linux":
            # their pages would only displace others
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for future in futures:
            future.result()

    def _read_span(self, wanted: Wanted, requests: Requests, begin: int, end: int) -> None:
        try:
            slab = self._slabs.get_nowait()
        except Empty:
            slab = make_slabs(1, self._slab_bytes)
        try:
            while begin < end:
                begin = _read(wanted, requests, (begin, end), self._fd, slab)
                if begin < end:
                    self._read_again(wanted, requests, begin, slab)
                    begin += 1
        finally:
            self._slabs.put(slab)

    def _read_again(self, wanted: Wanted, requests: Requests, r: int, slab: Slabs) -> None:
        """A request that failed or fell short, by Python's calls, which raise or go on."""
        offset, least, done = int(requests.offset[r]), int(needed(wanted, requests, r)), 0
        while done < least:
            rest = slab.memory[done : int(requests.size[r])]
            try:
                found = os.preadv(self._fd, [rest.data], offset + done)
            except OSError as error:
                raise DataError(
                    f"{self.path}: {len(rest)} bytes at byte {offset + done} cannot be read "
                    f"({error.strerror}); check the disk, or {_MEND}"
                ) from None
            if done + found < least and found < self._align:
                size = os.fstat(self._fd).st_size
                raise DataError(
                    f"{self.path}: {size} bytes, a row ends at byte {offset + least}; {_MEND}"
                )
            done += found if done + found >= least else found // self._align * self._align
        take(wanted, requests, r, slab, 0)


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
    memory = make_slabs(1, PAGE).memory
    for align in (_SECTOR, PAGE):
        try:
            os.preadv(fd, [memory[:align].data], align)
        except OSError:
            continue
        return align
    return 0
