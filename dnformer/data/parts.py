"""The Parquet files of a dataset: from columns in memory to a part, and back, checked."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from dnformer import storage
from dnformer.data.fingerprint import one_zero
from dnformer.data.manifest import PartFile
from dnformer.data.table import EdgeColumns, NodeColumns, Quantized
from dnformer.errors import DataError

_ROW_GROUP_BYTES = 32 << 20
# of each column of a file that is read: without it, whole row groups are held
_READ_BYTES = 1 << 20
_DAMAGED = "the dataset is damaged: copy it again, or ingest it again with --overwrite"


class PartTable(NamedTuple):
    """What goes into one file.

    Attributes:
        columns: a pyarrow.Table.
        row_bytes: of a row before compression.
        delta: the columns of growing integers.
    """

    columns: Any
    row_bytes: float
    delta: tuple[str, ...]


def edge_part(dst: npt.NDArray[Any], src: npt.NDArray[Any], edges: EdgeColumns) -> PartTable:
    """Edges sorted by (dst, src, their columns) as columns of a part."""
    columns: dict[str, Any] = {
        "dst": dst.astype(np.int64, copy=False),
        "src": src.astype(np.int64, copy=False),
    }
    if edges.weight is not None:
        columns["weight"] = one_zero(edges.weight)
    if edges.attr is not None:
        columns["attr"] = _lists(edges.attr)
    if edges.time is not None:
        columns["time"] = edges.time
    return PartTable(pa.table(columns), edge_row_bytes(edges), ("dst", "src"))


def edge_row_bytes(edges: EdgeColumns) -> float:
    """Bytes of an edge in a part, before compression."""
    width = 0 if edges.attr is None else edges.attr.shape[1]
    return 16 + 4 * (edges.weight is not None) + 4 * width + 8 * (edges.time is not None)


def node_part(nodes: NodeColumns, first: int) -> PartTable:
    """All columns but the ids of the nodes from `first` on."""
    # the index, so that a graph without features and labels has rows too
    columns: dict[str, Any] = {"index": np.arange(first, first + nodes.num_nodes)}
    x = nodes.x
    if isinstance(x, sp.csr_matrix):
        offsets = x.indptr.astype(np.int32)
        columns["x_index"] = pa.ListArray.from_arrays(offsets, x.indices.astype(np.int32))
        columns["x_value"] = pa.ListArray.from_arrays(offsets, one_zero(x.data))
    elif x is not None:
        columns["x"] = _lists(x.values if isinstance(x, Quantized) else x)
    for number, (_, values) in enumerate(nodes.targets):
        columns[f"y_{number}"] = values if values.ndim == 1 else _lists(values)
    if nodes.split is not None:
        columns["split"] = nodes.split
    if nodes.time is not None:
        columns["time"] = nodes.time
    return PartTable(pa.table(columns), node_row_bytes(nodes), ("index",))


def node_row_bytes(nodes: NodeColumns) -> float:
    """Bytes of a node in a part, before compression, on average."""
    x, rows = nodes.x, max(nodes.num_nodes, 1)
    stored = x.values.nbytes if isinstance(x, Quantized) else 0
    if isinstance(x, sp.csr_matrix):
        stored = 8 * x.nnz
    elif isinstance(x, np.ndarray):
        stored = x.nbytes
    targets = sum(column.values.nbytes for column in nodes.targets)
    return 16 + (stored + targets) / rows


def id_part(ids: npt.NDArray[np.int64] | list[str], first: int) -> PartTable:
    """Original ids of the nodes from `first` on."""
    index = np.arange(first, first + len(ids))
    return PartTable(pa.table({"index": index, "id": pa.array(ids)}), 32, ("index",))


def _lists(matrix: npt.NDArray[Any]) -> Any:
    if matrix.dtype.kind == "f":
        matrix = one_zero(matrix)
    flat = pa.array(np.ascontiguousarray(matrix).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1])


def write_part(uri: str, name: str, part: PartTable, temp: Path | None = None) -> PartFile:
    """Publishes `part` as the file `name` of the dataset's folder `uri`."""
    return write_pieces(uri, name, [part], temp)


def write_pieces(
    uri: str, name: str, pieces: Iterable[PartTable], temp: Path | None = None
) -> PartFile:
    """The same of a part in pieces, at least one, of which one at a time is held."""
    rows, values, writer = 0, 0, None
    with storage.staged(storage.join(uri, name), temp) as path:
        try:
            for part in pieces:
                if writer is None:
                    writer = pq.ParquetWriter(
                        path,
                        part.columns.schema,
                        compression="zstd",
                        use_dictionary=False,
                        column_encoding=dict.fromkeys(part.delta, "DELTA_BINARY_PACKED"),
                    )
                group = max(1, int(_ROW_GROUP_BYTES / part.row_bytes))
                writer.write_table(part.columns, row_group_size=group)
                rows += part.columns.num_rows
                values += _num_values(part.columns)
        finally:
            if writer is not None:
                writer.close()
        found = path.stat().st_size
        return PartFile(path=name, rows=rows, values=values, bytes=found, sha256=_sha256(path))


def _num_values(columns: pa.Table) -> int:
    """Stored feature values, of sparse features."""
    if "x_value" not in columns.column_names:
        return 0
    return sum(len(chunk.flatten()) for chunk in columns["x_value"].chunks)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_part(
    uri: str, part: PartFile, columns: list[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Some columns of one part, `batch_rows` at a time, after its size and hash were checked.

    Raises:
        DataError: the file is missing, truncated, changed or no Parquet; the message names it.
    """
    name = storage.join(uri, part.path)
    with storage.fetched(name) as path:
        found = path.stat().st_size
        if found != part.bytes:
            raise DataError(f"{name}: {found} bytes, the manifest says {part.bytes}; {_DAMAGED}")
        if _sha256(path) != part.sha256:
            raise DataError(f"{name}: its content is not what the manifest says; {_DAMAGED}")
        try:
            with pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
                if file.metadata.num_rows != part.rows:
                    raise DataError(
                        f"{name}: {file.metadata.num_rows} rows, not {part.rows}; {_DAMAGED}"
                    )
                rows = 0
                # no threads: parts are read in parallel already
                for batch in file.iter_batches(batch_rows, columns=columns, use_threads=False):
                    rows += batch.num_rows
                    if rows <= part.rows and batch.num_rows:
                        yield batch
                if rows != part.rows:
                    raise DataError(f"{name}: {rows} rows, not {part.rows}; {_DAMAGED}")
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            # what it met in the file may stand in it
            text = "".join(sign for sign in " ".join(str(error).split()) if sign.isprintable())
            raise DataError(
                f"{name}: no readable Parquet file ({text[:200]}); {_DAMAGED}"
            ) from None


def column(batch: pa.RecordBatch, name: str, file: str) -> Any:
    """The array of column `name`.

    Raises:
        DataError: the file has no such column, or it holds nulls.
    """
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise DataError(f"{file}: column {name!r} is missing; ingest the dataset again")
    array = batch.column(index)
    if array.null_count:
        raise DataError(f"{file}: column {name!r} holds nulls; ingest the dataset again")
    return array
