"""Ids to indices; integers by a bitmap, where the rank of an id is the number of smaller ones.

It takes 1.5 bits for each number up to the largest id; ids that are farther apart than that, and
strings, go through `join`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dnformer.data import fingerprint as fp
from dnformer.data.ingest.scan import EdgeStage, staged_batches
from dnformer.data.manifest import PartFile
from dnformer.data.parts import id_part, write_part
from dnformer.data.table import Int64Array

_WORD = 64
# ids are handed out in pieces of this many words
_PIECE_WORDS = 1 << 12


class IdMap(ABC):
    """The index of each id of staged tables.

    Attributes:
        num_nodes: how many ids there are.
        is_range: whether they are 0..N-1, their own indices.
    """

    num_nodes: int
    is_range: bool

    @abstractmethod
    def batches(self, *, row: bool) -> Iterator[Any]:
        """The edges as record batches of src, dst, what they carry, and with `row` their rows."""

    @abstractmethod
    def find(self, ends: Int64Array) -> Int64Array:
        """Ends as `batches` has them as indices, -1 for no node; in any thread."""

    @abstractmethod
    def ids(self) -> Iterator[Any]:
        """All ids in order, in Arrow arrays."""

    @abstractmethod
    def node_indices(self) -> Iterator[Int64Array]:
        """The index of each row of the node table, in order."""

    @abstractmethod
    def dangling(self, limit: int) -> list[int]:
        """Rows of the first edges with an end that is no row of the node table."""


@final
class IdBits:
    """A set of integers from 0 on.

    Args:
        max_bytes: that it may take.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_words = max(1, max_bytes * 2 // 3 // 8)
        self.words: npt.NDArray[np.uint64] = np.zeros(1024, np.uint64)
        self.largest = -1

    def add(self, ids: Int64Array) -> bool:
        """Adds `ids`; False if they are too large for a bitmap of the size allowed."""
        if not self._reach(ids):
            return False
        _set_bits(self.words, ids)
        return True

    def add_new(self, ids: Int64Array) -> int | None:
        """Adds `ids`; the first position of one that was there before, -1 where none was.

        None if they are too large for a bitmap of the size allowed.
        """
        return int(_set_new_bits(self.words, ids)) if self._reach(ids) else None

    def _reach(self, ids: Int64Array) -> bool:
        self.largest = max(self.largest, int(ids.max(initial=-1)))
        words = self.largest // _WORD + 1
        if words > self._max_words:
            return False
        if words > self.words.size:
            size = min(max(words, 2 * self.words.size), self._max_words)
            grown = np.zeros(size, np.uint64)
            grown[: self.words.size] = self.words
            self.words = grown
        return True


@final
class IdRanks:
    """The indices of the ids in a bitmap.

    Attributes:
        num_nodes: how many ids there are.
        is_range: whether they are 0..N-1, their own indices.
        num_words: 64 bits each.
    """

    def __init__(self, bits: IdBits) -> None:
        self._words = bits.words[: bits.largest // _WORD + 1]
        counts = np.bitwise_count(self._words)
        self._before: npt.NDArray[np.uint32] = np.zeros(counts.size, np.uint32)
        np.cumsum(counts[:-1], dtype=np.uint32, out=self._before[1:])
        self.num_nodes = int(self._before[-1]) + int(counts[-1]) if counts.size else 0
        self.is_range = self.num_nodes == bits.largest + 1
        self.num_words = self._words.size

    def find(self, ids: Int64Array) -> Int64Array:
        """The index of each of `ids`, -1 for one that is not in the set."""
        if self.is_range:
            inside = ids < self.num_nodes
            return ids if inside.all() else np.where(inside, ids, -1)
        found: Int64Array = np.empty(ids.size, np.int64)
        _find(self._words, self._before, ids, found)
        return found

    def ids(self) -> Iterator[Int64Array]:
        """All ids, ascending, in pieces."""
        for first in range(0, self._words.size, _PIECE_WORDS):
            piece = self._words[first : first + _PIECE_WORDS]
            bits = np.unpackbits(piece.view(np.uint8), bitorder="little")
            yield np.flatnonzero(bits).astype(np.int64) + first * _WORD


@final
class RankedIds(IdMap):
    """Integer ids by a bitmap.

    Args:
        bits: the ids of all nodes.
        edges: the edges.
        nodes: path of the node table's ids, None where the endpoints are the nodes.
    """

    def __init__(self, bits: IdBits, edges: EdgeStage, nodes: Path | None) -> None:
        self._ranks, self._edges, self._nodes = IdRanks(bits), edges, nodes
        self.num_nodes, self.is_range = self._ranks.num_nodes, self._ranks.is_range

    def batches(self, *, row: bool) -> Iterator[Any]:
        """As they were staged."""
        start = 0
        for batch in self._edges.batches():
            rows = pa.array(np.arange(start, start + batch.num_rows))
            yield batch.append_column("row", rows) if row else batch
            start += batch.num_rows

    def find(self, ends: Int64Array) -> Int64Array:
        """Ids as indices."""
        return self._ranks.find(ends)

    def ids(self) -> Iterator[Any]:
        """All ids in order."""
        for piece in self._ranks.ids():
            yield pa.array(piece)

    def node_indices(self) -> Iterator[Int64Array]:
        """The index of each row of the node table, in order."""
        assert self._nodes is not None
        for batch in staged_batches(self._nodes):
            yield self._ranks.find(batch.column(0).to_numpy())

    def dangling(self, limit: int) -> list[int]:
        """Rows of edges with an end that is no row of the node table."""
        assert self._nodes is not None
        rows_only = IdBits(16 * self._ranks.num_words)
        for batch in staged_batches(self._nodes):
            rows_only.add(batch.column(0).to_numpy())
        known = IdRanks(rows_only)
        start, rows = 0, list[int]()
        for batch in self._edges.batches():
            src, dst = (known.find(batch.column(end).to_numpy()) for end in (0, 1))
            rows += (np.flatnonzero((src < 0) | (dst < 0))[: limit - len(rows)] + start).tolist()
            start += batch.num_rows
            if len(rows) >= limit:
                break
        return rows


def write_ids(
    uri: str, name: str, first: int, column: Any, temp: Path | None = None
) -> tuple[PartFile, fp.Digests]:
    """Publishes an Arrow array of ids, of the nodes from `first` on, as the part `name`."""
    ids = column.to_numpy() if pa.types.is_integer(column.type) else column.to_pylist()
    hasher = fp.BlockHasher()
    fp.hash_ids(hasher, first, ids)
    return write_part(uri, name, id_part(ids, first), temp), hasher.digests()


@numba.njit(nogil=True, cache=True)
def _set_bits(words: Any, ids: Any) -> None:
    for one in ids:
        words[one >> 6] |= np.uint64(1) << np.uint64(one & 63)


@numba.njit(nogil=True, cache=True)
def _set_new_bits(words: Any, ids: Any) -> int:
    for at in range(ids.size):
        bit = np.uint64(1) << np.uint64(ids[at] & 63)
        if words[ids[at] >> 6] & bit:
            return at
        words[ids[at] >> 6] |= bit
    return -1


@numba.njit(nogil=True, cache=True)
def _find(words: Any, before: Any, ids: Any, found: Any) -> None:
    top = words.size << 6
    for at in range(ids.size):
        one = ids[at]
        found[at] = -1
        if one >= top:
            continue
        word = words[one >> 6]
        shift = np.uint64(one & 63)
        if not (word >> shift) & np.uint64(1):
            continue
        # the bits below, counted in parallel (Hacker's Delight, figure 5-2)
        low = word & ((np.uint64(1) << shift) - np.uint64(1))
        low = low - ((low >> np.uint64(1)) & np.uint64(0x5555555555555555))
        low = (low & np.uint64(0x3333333333333333)) + (
            (low >> np.uint64(2)) & np.uint64(0x3333333333333333)
        )
        low = (low + (low >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
        count = (low * np.uint64(0x0101010101010101)) >> np.uint64(56)
        found[at] = np.int64(before[one >> 6]) + np.int64(count)
