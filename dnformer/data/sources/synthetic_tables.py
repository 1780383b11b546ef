"""A streamed graph as plain Parquet tables, as a user has them: what ingest is measured on."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dnformer import storage
from dnformer.data.counter_rng import key_of
from dnformer.data.sources.synthetic_kernels import Shuffle, make_shuffle, shuffle_each
from dnformer.data.stream import GraphStream
from dnformer.data.table import Int64Array, NodeColumns, Quantized
from dnformer.errors import DataError

Ids = Literal["int", "string"]

_PREFIX = b"user-"
_DIGITS = 9
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def write_tables(
    stream: GraphStream, uri: str, *, ids: Ids = "int", rows_per_file: int = 1 << 24, seed: int = 0
) -> None:
    """Writes edges-*.parquet (src, dst) and nodes-*.parquet (id, label, features) into `uri`.

    Held are one chunk of edges or one block of nodes and a row group being compressed.

    Args:
        stream: the graph; only its edges' ends, first target and features are written.
        uri: an empty or new folder, local or any fsspec URI.
        ids: "int", the node's number, or "string", like user-000123abc; these are shuffled, so
            that their order says nothing about the node's number.
        rows_per_file: at which a file ends.
        seed: of the shuffle.

    Raises:
        DataError: the folder is not empty.
    """
    found = storage.list_names(uri)
    if found:
        raise DataError(f"{uri} is not empty (found {found[0]}); choose another folder")
    shuffle = make_shuffle(stream.num_nodes, key_of(seed, "synthetic", 4))

    def named(nodes: Int64Array) -> Any:
        return pa.array(nodes) if ids == "int" else string_ids(nodes, shuffle)

    edges = (
        pa.table({"src": named(chunk.src), "dst": named(chunk.dst)}) for chunk in stream.edges()
    )
    _write(edges, uri, "edges", rows_per_file)
    _write(_node_tables(stream.nodes(), named), uri, "nodes", rows_per_file)


def string_ids(nodes: Int64Array, shuffle: Shuffle) -> Any:
    """An Arrow string array: user- and nine hexadecimal digits, each node's own."""
    shuffled = np.empty(nodes.size, dtype=np.int64)
    shuffle_each(shuffle, nodes, shuffled)
    width = len(_PREFIX) + _DIGITS
    text = np.empty((nodes.size, width), dtype=np.uint8)
    text[:, : len(_PREFIX)] = np.frombuffer(_PREFIX, dtype=np.uint8)
    for digit in range(_DIGITS):
        text[:, width - 1 - digit] = _HEX[(shuffled >> (4 * digit)) & 15]
    offsets = np.arange(nodes.size + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(
        nodes.size, pa.py_buffer(offsets), pa.py_buffer(text.reshape(-1))
    )


def _node_tables(blocks: Iterable[NodeColumns], named: Any) -> Iterator[Any]:
    first = 0
    for block in blocks:
        nodes = np.arange(first, first + block.num_nodes)
        first += block.num_nodes
        columns = {"id": named(nodes)}
        if block.targets:
            columns["label"] = pa.array(block.targets[0].values)
        x: Any = block.x
        if isinstance(x, Quantized):
            x = x.values * x.scale
        if x is not None:
            columns["features"] = pa.FixedSizeListArray.from_arrays(x.reshape(-1), x.shape[1])
        yield pa.table(columns)


def _write(tables: Iterator[Any], uri: str, name: str, rows_per_file: int) -> None:
    """Files `name`-00000.parquet, ... each ended by the table that fills `rows_per_file`."""
    for number, first in enumerate(tables):
        with ExitStack() as stack:
            path = stack.enter_context(storage.staged(f"{uri}/{name}-{number:05d}.parquet"))
            # ids hardly repeat within a row group: a dictionary would be tried and given up
            writer = stack.enter_context(
                pq.ParquetWriter(path, first.schema, use_dictionary=False, compression="zstd")
            )
            rows = 0
            table: Any = first
            while table is not None:
                writer.write_table(table)
                rows += table.num_rows
                table = next(tables, None) if rows < rows_per_file else None
