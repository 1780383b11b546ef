"""OGB's raw folders as streams: CSV files (raw/edge.csv.gz, ...) and arrays (raw/data.npz).

The names are those of OGB's readers (ogb/io/read_graph_raw.py at github.com/snap-stanford/ogb).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from dnformer import storage
from dnformer.data.sources.npz import npz_headers, npz_pairs, npz_rows
from dnformer.data.table import Int64Array
from dnformer.errors import DataError

EDGE_ROWS = 131_072
_MAX_COLUMNS = 1024
_FETCH = "fetch it again"

Pieces = Iterator[npt.NDArray[Any]]


class RawFolder(NamedTuple):
    """A raw folder of one graph, whichever its layout.

    Attributes:
        num_nodes: N, as a file says.
        num_edges: E, likewise.
        edges: int64 `[2, <= 131,072]`, source and destination, piece by piece.
        rows: (name, size): the rows of node_feat, edge_feat, node_year or node_label, in pieces
            of `size`, each `[size, F]`.
        file: what a person finds `name` by.
        edge_at: the like of an edge.
    """

    num_nodes: int
    num_edges: int
    edges: Callable[[], Pieces]
    rows: Callable[[str, int], Pieces]
    file: Callable[[str], str]
    edge_at: Callable[[int], str]


def open_raw(folder: str) -> RawFolder:
    """The raw folder `folder`.

    Raises:
        DataError: a file is missing or damaged, or the folder has several graphs.
    """
    if storage.exists(f"{folder}/data.npz"):
        return _open_npz(folder)
    return _open_csv(folder)


def _open_csv(folder: str) -> RawFolder:
    files = {"node_feat": "node-feat", "edge_feat": "edge-feat", "node_label": "node-label"}

    def file(name: str) -> str:
        return f"{folder}/{files.get(name, name)}.csv.gz"

    edge_file = file("edge")
    return RawFolder(
        num_nodes=_one_graph(read_integers(file("num-node-list")), file("num-node-list")),
        num_edges=_one_graph(read_integers(file("num-edge-list")), file("num-edge-list")),
        edges=lambda: (_two_columns(piece, edge_file) for piece in _integers(edge_file, EDGE_ROWS)),
        rows=lambda name, size: _csv_rows(file(name), size, pa.float64()),
        file=file,
        edge_at=lambda edge: f"{edge_file} row {edge + 1}",
    )


def _open_npz(folder: str) -> RawFolder:
    data = f"{folder}/data.npz"
    headers = npz_headers(data)

    def of(name: str) -> str:
        return f"{folder}/node-label.npz" if name == "node_label" else data

    sizes = []
    for key in ("num_nodes_list", "num_edges_list"):
        _require(key in headers, f"{data}: no array {key!r}; it has {', '.join(headers)}; {_FETCH}")
        values = np.concatenate(list(npz_rows(data, key, 2)) or [np.empty(0)])
        sizes.append(_one_graph(values, f"{data}: {key}"))
    shape = headers["edge_index"].shape if "edge_index" in headers else ()
    found = f"{data}: edge_index is of shape {list(shape)}"
    _require(shape == (2, sizes[1]), f"{found}, expected [2, {sizes[1]}]; {_FETCH}")
    _require(headers["edge_index"].dtype.kind in "iu", f"{data}: edge_index is no integer array")
    return RawFolder(
        num_nodes=sizes[0],
        num_edges=sizes[1],
        edges=lambda: (
            piece.astype(np.int64) for piece in npz_pairs(data, "edge_index", EDGE_ROWS)
        ),
        rows=lambda name, size: _npz_matrix(of(name), name, size),
        file=lambda name: f"{of(name)}: {name}",
        edge_at=lambda edge: f"{data}: edge_index[:, {edge}]",
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise DataError(message)


def _one_graph(sizes: Any, file: str) -> int:
    if len(sizes) != 1 or sizes.dtype.kind not in "iu":
        found = f"{file}: {len(sizes)} graphs"
        raise DataError(f"{found}; only datasets of one graph, ogbn-..., are supported")
    size = int(sizes[0])
    if size < 0:
        raise DataError(f"{file}: {size}; a size is 0 or more: {_FETCH}")
    return size


def _npz_matrix(uri: str, key: str, rows: int) -> Pieces:
    """Numbers of any real type, `[size, F]` in each piece."""
    for piece in npz_rows(uri, key, rows):
        if piece.dtype.kind not in "fiub" or piece.ndim > 2:
            found = f"{uri}: {key} is {piece.dtype} with {piece.ndim} dimensions"
            raise DataError(f"{found}; it must be a matrix of numbers")
        yield piece.reshape(len(piece), -1)


def _two_columns(piece: npt.NDArray[Any], file: str) -> npt.NDArray[Any]:
    if piece.shape[1] != 2:
        raise DataError(f"{file}: {piece.shape[1]} columns, expected source and destination")
    return np.ascontiguousarray(piece.T)


def read_integers(file: str) -> Int64Array:
    """The one column of a small CSV file of integers."""
    pieces = list(_integers(file, EDGE_ROWS))
    whole: Int64Array = np.concatenate(pieces)
    if whole.shape[1] != 1:
        raise DataError(f"{file}: {whole.shape[1]} columns, expected one")
    return whole[:, 0]


def _integers(file: str, rows: int) -> Pieces:
    return _csv_rows(file, rows, pa.int64())


def _csv_rows(file: str, rows: int, kind: Any) -> Pieces:
    """The rows of a gzipped CSV file without header as `[rows, C]` of `kind`, piece by piece."""
    held: list[npt.NDArray[Any]] = []
    size = 0
    for batch in _csv_batches(file, kind):
        held.append(batch)
        size += len(batch)
        while size >= rows:
            whole = np.concatenate(held)
            yield whole[:rows]
            held = [whole[rows:]]
            size -= rows
    if size:
        yield np.concatenate(held)


def _csv_batches(file: str, kind: Any) -> Pieces:
    # without threads an error names its row
    read = pa_csv.ReadOptions(autogenerate_column_names=True, use_threads=False)
    types = {f"f{number}": kind for number in range(_MAX_COLUMNS)}
    convert = pa_csv.ConvertOptions(column_types=types, null_values=[""])
    first = 0
    with storage.open_read(file) as stream:
        try:
            decompressed = pa.input_stream(stream, compression="gzip")
            for batch in pa_csv.open_csv(decompressed, read_options=read, convert_options=convert):
                _refuse_missing(batch, file, first)
                first += batch.num_rows
                yield np.stack([column.to_numpy() for column in batch.columns], axis=1)
        except (pa.ArrowException, OSError) as error:
            found = " ".join(str(error).split())
            raise DataError(f"{file}: cannot be read as CSV: {found}; {_FETCH}") from None


def _refuse_missing(batch: Any, file: str, first: int) -> None:
    for column in batch.columns:
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(f"{file} row {first + row + 1}: a value is missing; {_FETCH}")
