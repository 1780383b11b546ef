"""The fingerprint of a dataset: a function of its content, not of how it was written.

Nodes are cut in blocks of 65,536; a block hashes each column's little-endian bytes (edges belong
to the block of their destination), and the fingerprint hashes the schema and all block hashes.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 65_536


class BlockHasher:
    """Hashes of columns by block, fed in order of the nodes in pieces of any size."""

    def __init__(self, num_nodes: int) -> None:
        self._num_blocks = -(-num_nodes // BLOCK)
        self._columns: dict[str, list[Any]] = {}

    def update(self, column: str, block: int, values: npt.NDArray[Any] | bytes) -> None:
        """Adds `values` to `column` of `block`; numbers are hashed little-endian."""
        if column not in self._columns:
            self._columns[column] = [hashlib.sha256() for _ in range(self._num_blocks)]
        if not isinstance(values, bytes):
            values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
        self._columns[column][block].update(values)

    def digest(self, schema: dict[str, Any]) -> str:
        """The fingerprint, 64 hex digits."""
        total = hashlib.sha256(json.dumps(schema, sort_keys=True).encode())
        for column in sorted(self._columns):
            total.update(column.encode())
            for block in self._columns[column]:
                total.update(block.digest())
        return total.hexdigest()


def node_blocks(first: int, stop: int) -> Iterator[tuple[int, slice]]:
    """(block, slice into the piece) for the nodes `first` to `stop`."""
    for block in range(first // BLOCK, -(-stop // BLOCK)):
        begin, end = max(block * BLOCK, first), min((block + 1) * BLOCK, stop)
        yield block, slice(begin - first, end - first)


def edge_blocks(dst: npt.NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """(block, slice) for edges sorted by destination."""
    if len(dst) == 0:
        return
    first, last = int(dst[0]) // BLOCK, int(dst[-1]) // BLOCK
    edges = np.searchsorted(dst, np.arange(first, last + 2) * BLOCK)
    for block in range(first, last + 1):
        yield block, slice(int(edges[block - first]), int(edges[block - first + 1]))


def hash_edges(hasher: BlockHasher, dst: npt.NDArray[Any], src: npt.NDArray[Any]) -> None:
    """Adds edges sorted by (dst, src)."""
    for block, part in edge_blocks(dst):
        hasher.update("edges.dst", block, dst[part].astype(np.int64, copy=False))
        hasher.update("edges.src", block, src[part].astype(np.int64, copy=False))


def hash_rows(hasher: BlockHasher, column: str, first: int, values: npt.NDArray[Any]) -> None:
    """Adds one value or row for each node from `first` on."""
    for block, part in node_blocks(first, first + len(values)):
        hasher.update(column, block, values[part])


def hash_sparse_rows(
    hasher: BlockHasher,
    first: int,
    indptr: npt.NDArray[Any],
    indices: npt.NDArray[Any],
    values: npt.NDArray[np.float32],
) -> None:
    """Adds CSR rows for the nodes from `first` on: counts, column indices, values."""
    for block, part in node_blocks(first, first + len(indptr) - 1):
        stored = slice(int(indptr[part.start]), int(indptr[part.stop]))
        counts = np.diff(indptr[part.start : part.stop + 1]).astype(np.int64)
        hasher.update("nodes.x.counts", block, counts)
        hasher.update("nodes.x.index", block, indices[stored].astype(np.int64))
        hasher.update("nodes.x.value", block, values[stored])


def hash_ids(hasher: BlockHasher, first: int, ids: npt.NDArray[np.int64] | list[str]) -> None:
    """Adds original ids for the nodes from `first` on; strings by length and UTF-8 bytes."""
    if not isinstance(ids, list):
        hash_rows(hasher, "ids", first, ids)
        return
    for block, part in node_blocks(first, first + len(ids)):
        encoded = [text.encode() for text in ids[part]]
        hasher.update("ids.length", block, np.array([len(e) for e in encoded], dtype=np.int64))
        hasher.update("ids.bytes", block, b"".join(encoded))
