"""The fingerprint of a dataset: a function of its content, not of how it was written.

Nodes are cut in blocks of 65,536; a block hashes each column's little-endian bytes (edges belong
to the block of their destination), and the fingerprint hashes the schema and all block hashes.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dnformer.data.table import EdgeColumns, NodeColumns, Quantized

BLOCK = 65_536


Digests = dict[str, dict[int, bytes]]
"""{column: {block: sha256}}; a block of a column that is not there holds nothing."""

_EMPTY = hashlib.sha256().digest()


class BlockHasher:
    """Hashes of columns by block, each block fed in order of its nodes in pieces of any size."""

    def __init__(self) -> None:
        self._hashes: dict[str, dict[int, Any]] = {}

    def update(self, column: str, block: int, values: npt.NDArray[Any] | bytes) -> None:
        """Adds `values` to `column` of `block`; numbers are hashed little-endian."""
        blocks = self._hashes.setdefault(column, {})
        if block not in blocks:
            blocks[block] = hashlib.sha256()
        if not isinstance(values, bytes):
            if values.dtype.kind == "f":
                values = one_zero(values)
            # as bytes: a buffer of float16 or of no rows is none to hashlib
            values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
            values = values.reshape(-1).view(np.uint8)
        blocks[block].update(values)

    def digests(self) -> Digests:
        """What was hashed so far, as plain values that travel between processes."""
        return {
            column: {block: value.digest() for block, value in blocks.items()}
            for column, blocks in self._hashes.items()
        }


def one_zero(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Floats with -0.0 as 0.0, and with one NaN for all: what is equal has the same bytes."""
    values = values + values.dtype.type(0)
    missing = np.isnan(values)
    if missing.any():
        values[missing] = np.nan
    return values


def fingerprint(schema: dict[str, Any], num_nodes: int, parts: Iterable[Digests]) -> str:
    """The fingerprint, 64 hex digits, of blocks hashed in `parts`, each in one of them."""
    columns: Digests = {}
    for part in parts:
        for column, blocks in part.items():
            known = columns.setdefault(column, {})
            assert not known.keys() & blocks.keys(), "a block was hashed in two parts"
            known.update(blocks)
    total = hashlib.sha256(json.dumps(schema, sort_keys=True).encode())
    for column in sorted(columns):
        total.update(column.encode())
        for block in range(-(-num_nodes // BLOCK)):
            total.update(columns[column].get(block, _EMPTY))
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


def hash_edges(
    hasher: BlockHasher, dst: npt.NDArray[Any], src: npt.NDArray[Any], edges: EdgeColumns
) -> None:
    """Adds edges sorted by (dst, src, their columns)."""
    columns = {
        "edges.dst": dst.astype(np.int64, copy=False),
        "edges.src": src.astype(np.int64, copy=False),
        "edges.weight": edges.weight,
        "edges.attr": edges.attr, "edges.time": edges.time,
    }  # fmt: skip
    for block, part in edge_blocks(dst):
        for name, column in columns.items():
            if column is not None:
                hasher.update(name, block, column[part])


def hash_nodes(hasher: BlockHasher, first: int, nodes: NodeColumns) -> None:
    """Adds all columns of the nodes from `first` on."""
    x = nodes.x
    if isinstance(x, sp.csr_matrix):
        hash_sparse_rows(hasher, first, x.indptr, x.indices, x.data)
    elif x is not None:
        hash_rows(hasher, "nodes.x", first, x.values if isinstance(x, Quantized) else x)
    for number, column in enumerate(nodes.targets):
        hash_rows(hasher, f"nodes.y_{number}", first, column.values)
    for name, rows in (("nodes.split", nodes.split), ("nodes.time", nodes.time)):
        if rows is not None:
            hash_rows(hasher, name, first, rows)
    if nodes.ids is not None:
        hash_ids(hasher, first, nodes.ids)


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
    encoded = [text.encode() for text in ids]
    offsets = np.cumsum([0, *map(len, encoded)])
    hash_strings(hasher, first, offsets, np.frombuffer(b"".join(encoded), dtype=np.uint8))


def hash_strings(
    hasher: BlockHasher, first: int, offsets: npt.NDArray[Any], text: npt.NDArray[np.uint8]
) -> None:
    """Adds string ids as Arrow has them: id i is text[offsets[i]:offsets[i + 1]], UTF-8."""
    for block, part in node_blocks(first, first + len(offsets) - 1):
        here = offsets[part.start : part.stop + 1]
        hasher.update("ids.length", block, np.diff(here).astype(np.int64))
        hasher.update("ids.bytes", block, text[int(here[0]) : int(here[-1])])
