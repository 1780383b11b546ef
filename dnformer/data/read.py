"""The rows of a dataset's parts as columns, each checked against the manifest.

Everything that reads a dataset comes through here: what is in a file may be anything.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dnformer import storage
from dnformer.data.manifest import Manifest, PartFile
from dnformer.data.parts import column, read_part
from dnformer.data.table import TARGET_DTYPES, EdgeColumns, Target
from dnformer.errors import DataError

Array = npt.NDArray[Any]

# of the rows that are decoded at a time, about; each thread holds a few copies of them
_BATCH_BYTES = 2 << 20


class EdgeRows(NamedTuple):
    """Consecutive edges: int64 `[E]`, sorted by (dst, src), and what they carry."""

    dst: Array
    src: Array
    edges: EdgeColumns


class NodeRows(NamedTuple):
    """Consecutive nodes.

    Attributes:
        num_rows: how many.
        arrays: by the name of the store's array; of a CSR without its offsets.
        indptr: int64, offsets of these rows' sparse features from 0 on; None where there are none.
    """

    num_rows: int
    arrays: dict[str, Array]
    indptr: Array | None


def read_edges(uri: str, manifest: Manifest, part: PartFile) -> Iterator[EdgeRows]:
    """The edges of a part.

    Raises:
        DataError: the file is damaged, or its content contradicts the manifest.
    """
    file = storage.join(uri, part.path)
    names = ["dst", "src"]
    names += ["weight"] if manifest.edge_weight else []
    names += ["attr"] if manifest.edge_attr_names else []
    names += ["time"] if manifest.edge_time else []
    last = (-1, -1)
    for batch in read_part(uri, part, names, _rows(24 + 4 * len(manifest.edge_attr_names))):
        dst, src = (_ints(batch, name, file) for name in ("dst", "src"))
        last = _check_edges(dst, src, manifest.num_nodes, last, file)
        yield EdgeRows(dst, src, _edge_columns(batch, manifest, file))


def _rows(row_bytes: float) -> int:
    return max(1, int(_BATCH_BYTES / row_bytes))


def _check_edges(
    dst: Array, src: Array, num_nodes: int, last: tuple[int, int], file: str
) -> tuple[int, int]:
    """The last edge, once all are in range and sorted after `last`."""
    low, high = min(dst.min(), src.min()), max(dst.max(), src.max())
    if low < 0 or high >= num_nodes:
        wrong = low if low < 0 else high
        raise DataError(f"{file}: node {wrong} is not in 0..{num_nodes - 1}; ingest again")
    step, same = np.diff(dst), np.diff(src)
    if (step < 0).any() or ((step == 0) & (same < 0)).any() or (int(dst[0]), int(src[0])) < last:
        raise DataError(f"{file}: edges are not sorted by (dst, src); ingest the dataset again")
    return int(dst[-1]), int(src[-1])


def _edge_columns(batch: pa.RecordBatch, manifest: Manifest, file: str) -> EdgeColumns:
    names, weight, attr, time = manifest.edge_attr_names, None, None, None
    if manifest.edge_weight:
        weight = _finite(_numbers(column(batch, "weight", file), "float32", file), file)
    if names:
        attr = _finite(_matrix(batch, "attr", len(names), "float32", file), file)
    if manifest.edge_time:
        time = _ints(batch, "time", file)
    return EdgeColumns(weight=weight, attr=attr, attr_names=tuple(names), time=time)


def read_nodes(uri: str, manifest: Manifest, part: PartFile, first: int) -> Iterator[NodeRows]:
    """The nodes of a part, which begins with node `first`.

    Raises:
        DataError: the file is damaged, or its content contradicts the manifest.
    """
    file = storage.join(uri, part.path)
    features = {"none": [], "dense": ["x"], "sparse": ["x_index", "x_value"]}[manifest.features]
    names = ["index", *features, *(f"y_{number}" for number in range(len(manifest.targets)))]
    names += ["split"] if manifest.stored_split else []
    names += ["time"] if manifest.node_time else []
    done, values = first, 0
    for batch in read_part(uri, part, names, _rows(_node_bytes(manifest, part))):
        _check_index(batch, done, file)
        rows = _node_rows(batch, manifest, file)
        done += rows.num_rows
        values += 0 if rows.indptr is None else int(rows.indptr[-1])
        if values > part.values:
            break
        yield rows
    if values != part.values:
        raise DataError(f"{file}: {values} feature values, not {part.values}; ingest again")


def _node_bytes(manifest: Manifest, part: PartFile) -> float:
    dense = manifest.num_features * np.dtype(manifest.feature_dtype).itemsize
    targets = sum(4 * t.num_outputs for t in manifest.targets if t.kind != "class")
    sparse = 12 * part.values / max(part.rows, 1)
    return 32 + targets + (dense if manifest.features == "dense" else sparse)


def _check_index(batch: pa.RecordBatch, first: int, file: str) -> None:
    index = _ints(batch, "index", file)
    if not np.array_equal(index, np.arange(first, first + len(index))):
        raise DataError(f"{file}: its index does not go on from {first}; ingest again")


def _node_rows(batch: pa.RecordBatch, manifest: Manifest, file: str) -> NodeRows:
    arrays: dict[str, Array] = {}
    indptr = None
    if manifest.features == "dense":
        x = _matrix(batch, "x", manifest.num_features, manifest.feature_dtype, file)
        arrays["x"] = _finite(x, file)
    elif manifest.features == "sparse":
        indptr, arrays["x_indices"], arrays["x_values"] = _sparse(
            batch, manifest.num_features, file
        )
    for number, target in enumerate(manifest.targets):
        arrays[f"y_{number}"] = _target_values(batch, f"y_{number}", target, file)
    if manifest.stored_split:
        split = _in_range(_ints(batch, "split", file), 0, 4, "split", file)
        arrays["split"] = split.astype(np.int8)
    if manifest.node_time:
        arrays["node_time"] = _ints(batch, "time", file)
    return NodeRows(batch.num_rows, arrays, indptr)


def _target_values(batch: pa.RecordBatch, name: str, target: Target, file: str) -> Array:
    if target.kind == "class":
        return _in_range(_ints(batch, name, file), -1, target.num_outputs, name, file)
    dtype = np.dtype(TARGET_DTYPES[target.kind]).name
    values = _matrix(batch, name, target.num_outputs, dtype, file)
    return _in_range(values, -1, 2, name, file) if target.kind == "multilabel" else values


def _sparse(batch: pa.RecordBatch, width: int, file: str) -> tuple[Array, Array, Array]:
    """(offsets from 0 on, column indices, values)."""
    index, value = (column(batch, name, file) for name in ("x_index", "x_value"))
    if not pa.types.is_list(index.type) or not pa.types.is_list(value.type):
        raise DataError(f"{file}: sparse features are no lists; ingest the dataset again")
    counts = np.asarray(pc.list_value_length(index), dtype=np.int64)
    if not np.array_equal(counts, np.asarray(pc.list_value_length(value))):
        raise DataError(f"{file}: a row has more indices than values, or fewer; ingest again")
    indices = _int64(index.flatten(), "feature index", file)
    return (
        np.concatenate([[0], np.cumsum(counts)]),
        _in_range(indices, 0, width, "feature index", file),
        _finite(_numbers(value.flatten(), "float32", file), file),
    )


def read_ids(uri: str, manifest: Manifest, part: PartFile, first: int) -> Iterator[Any]:
    """Pieces of the original ids of a part in index order, from node `first` on.

    Yields:
        int64 arrays, or pyarrow string arrays.

    Raises:
        DataError: the file is damaged, or its content contradicts the manifest.
    """
    file = storage.join(uri, part.path)
    for batch in read_part(uri, part, ["index", "id"], _rows(64)):
        _check_index(batch, first, file)
        first += batch.num_rows
        ids = column(batch, "id", file)
        if manifest.ids == "int" and pa.types.is_integer(ids.type):
            yield _int64(ids, "id", file)
        elif manifest.ids == "string" and pa.types.is_string(ids.type):
            yield _utf8(ids, file)
        else:
            raise DataError(f"{file}: ids are {ids.type}, not {manifest.ids}; ingest again")


def _utf8(ids: Any, file: str) -> Any:
    try:
        ids.validate(full=True)
    except pa.ArrowInvalid:
        raise DataError(f"{file}: an id is no UTF-8 text; ingest the dataset again") from None
    return ids


def _ints(batch: pa.RecordBatch, name: str, file: str) -> Array:
    array = column(batch, name, file)
    if not pa.types.is_integer(array.type):
        raise DataError(f"{file}: column {name!r} is {array.type}, not int64; ingest again")
    return _int64(array, name, file)


def _int64(array: Any, name: str, file: str) -> Array:
    if array.null_count:  # inside of lists; those of a column were found before
        raise DataError(f"{file}: {name} holds nulls; ingest the dataset again")
    try:
        return np.asarray(array.cast(pa.int64()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{file}: {name} is no int64 ({error}); ingest again") from None


def _matrix(batch: pa.RecordBatch, name: str, width: int, dtype: str, file: str) -> Array:
    """A column of lists of `width` values as `[rows, width]`."""
    values = column(batch, name, file)
    if not pa.types.is_fixed_size_list(values.type) or values.type.list_size != width:
        raise DataError(f"{file}: column {name!r} is {values.type}, not {width} values a row")
    return _numbers(values.flatten(), dtype, file).reshape(-1, width)


def _numbers(values: Any, dtype: str, file: str) -> Array:
    if values.type != pa.from_numpy_dtype(np.dtype(dtype)) or values.null_count:
        raise DataError(f"{file}: values are {values.type}, or hold nulls; ingest again")
    return np.asarray(values)


def _finite(values: Array, file: str) -> Array:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(f"{file}: a value is NaN or infinite; ingest the dataset again")
    return values


def _in_range(values: Array, low: int, stop: int, name: str, file: str) -> Array:
    wrong = values[(values < low) | (values >= stop)]
    if len(wrong):
        raise DataError(f"{file}: {name} {wrong[0]} is not in {low}..{stop - 1}; ingest again")
    return values
