"""Records of nodes or edges cut by ranges of nodes, in files on local disk.

A bucket is a range of whole blocks of 65,536 nodes that fits into memory. Where many edges lead
into few nodes it is cut again, at last within a block.
"""

import os
import threading
from pathlib import Path
from typing import Any, NamedTuple, final

import numba
import numpy as np
import numpy.typing as npt

from dnformer.data.fingerprint import BLOCK
from dnformer.data.table import Int64Array

# more files at once would be more than a process may usually have open, with reverses twice
_MAX_BUCKETS = 240
_READ_ROWS = 1 << 20


class Cut(NamedTuple):
    """How a range of nodes is cut into buckets.

    Attributes:
        first: the first node.
        stop: one past the last.
        shift: a unit, which is never cut, has 2 ** shift nodes.
        units: of each bucket.
    """

    first: int
    stop: int
    shift: int
    units: int

    @property
    def num_buckets(self) -> int:
        """How many there are."""
        return -(-(self.stop - self.first) // (self.units << self.shift))

    def range(self, bucket: int) -> tuple[int, int]:
        """(first node, one past the last) of a bucket."""
        width = self.units << self.shift
        begin = self.first + bucket * width
        return begin, min(begin + width, self.stop)


def first_cut(num_nodes: int, *, rows: int, max_rows: int) -> Cut:
    """All nodes, cut so that most buckets will not have to be cut again."""
    shift = BLOCK.bit_length() - 1
    blocks = -(-num_nodes // BLOCK)
    wanted = 1 if rows <= max_rows else min(2 * rows // max_rows, _MAX_BUCKETS)
    return Cut(0, num_nodes, shift, -(-blocks // wanted))


def cut(first: int, stop: int, *, rows: int, max_rows: int) -> Cut | None:
    """A cut into buckets of about half of `max_rows`, were `rows` spread evenly.

    None where the range cannot be cut: it is one node.
    """
    shift = BLOCK.bit_length() - 1
    wanted = max(2 * rows // max(max_rows, 1), 2)
    if stop - first <= BLOCK:
        shift = max(0, (stop - first - 1).bit_length() - 8)
    units = -(-(stop - first) >> shift)
    if units < 2:
        return None
    return Cut(first, stop, shift, max(-(-units // min(wanted, _MAX_BUCKETS)), 1))


@final
class Buckets:
    """Files of fixed-width records, one a bucket; records are added in any order by any thread.

    Args:
        folder: for the files; it is made.
        plan: the cut.
        dtype: of a record.
    """

    def __init__(self, folder: Path, plan: Cut, dtype: Any) -> None:
        folder.mkdir()
        self.plan, self.dtype, self._folder = plan, np.dtype(dtype), folder
        self.rows: Int64Array = np.zeros(plan.num_buckets, np.int64)
        self._lock = threading.Lock()
        self._files: dict[int, int] = {}

    def add(self, nodes: Int64Array, records: npt.NDArray[Any]) -> None:
        """Adds `records`, each to the bucket of its node in `nodes`."""
        counts: Int64Array = np.zeros(self.plan.num_buckets, np.int64)
        order: npt.NDArray[np.int32] = np.empty(nodes.size, np.int32)
        _group(nodes, self.plan.first, self.plan.units << self.plan.shift, counts, order)
        grouped = records[order]
        begin = 0
        for bucket in np.flatnonzero(counts).tolist():
            stop = begin + int(counts[bucket])
            self._append(bucket, grouped[begin:stop])
            begin = stop
        with self._lock:
            self.rows += counts

    def _append(self, bucket: int, records: npt.NDArray[Any]) -> None:
        with self._lock:
            if bucket not in self._files:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._files[bucket] = os.open(self.path(bucket), flags, 0o600)
            view = _bytes(records)
            try:
                while view:
                    view = view[os.write(self._files[bucket], view) :]
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self._folder)) from None

    def path(self, bucket: int) -> Path:
        """The file of a bucket; it is missing where the bucket is empty."""
        return self._folder / str(bucket)

    def close(self) -> None:
        """Closes the files; nothing can be added any more."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def take(self, bucket: int) -> npt.NDArray[Any]:
        """A bucket's records; its file is removed."""
        if not self.rows[bucket]:
            return np.empty(0, self.dtype)
        records = np.fromfile(self.path(bucket), self.dtype)
        self.path(bucket).unlink()
        return records

    def pieces(self, bucket: int) -> Any:
        """The same a piece at a time."""
        if not self.rows[bucket]:
            return
        with self.path(bucket).open("rb") as file:
            while (piece := np.fromfile(file, self.dtype, _READ_ROWS)).size:
                yield piece
        self.path(bucket).unlink()


def _bytes(records: npt.NDArray[Any]) -> memoryview:
    buffer: Any = records.view(np.uint8)
    return memoryview(buffer)


@numba.njit(nogil=True, cache=True)
def _group(nodes: Any, first: int, width: int, counts: Any, order: Any) -> None:
    """Positions of `nodes` by bucket, and the number in each."""
    bucket = np.empty(nodes.size, np.uint8)
    for at in range(nodes.size):
        bucket[at] = (nodes[at] - first) // width
        counts[bucket[at]] += 1
    begin = np.zeros(counts.size, np.int64)
    for one in range(1, counts.size):
        begin[one] = begin[one - 1] + counts[one - 1]
    for at in range(nodes.size):
        order[begin[bucket[at]]] = at
        begin[bucket[at]] += 1
