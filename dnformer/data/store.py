"""The node-local store: a dataset as flat arrays on this host's disk, memory-mapped by everyone.

Built once from the cache, part by part, under a file lock; published by rename. Its folder is
named by the fingerprint, so it can't be stale, and all workers of a host share it in page cache.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs
import pyarrow as pa
import pyarrow.compute as pc
from filelock import FileLock

from dnformer import storage
from dnformer.data import fingerprint as fp
from dnformer.data.manifest import Manifest, PartFile
from dnformer.data.parts import column, read_part
from dnformer.data.table import TARGET_DTYPES, EdgeColumns, NodeColumns, Target, TargetColumn
from dnformer.errors import DataError

Array = npt.NDArray[Any]
_COMPLETE = "complete"


@dataclass(frozen=True, kw_only=True)
class Store:
    """Arrays of one graph, read-only.

    Attributes:
        colptr: int64 `[N+1]`, edges of destination i are colptr[i] to colptr[i+1].
        row: source of each edge, int32 (int64 from 2^31 nodes on) `[E]`.
        targets: values of each target, as `table.TargetColumn` has them.
        x: dense features float32, float16 or int8 `[N, F]`, or None.
        x_scale: float32 `[F]`, the value of an int8 feature of 1; or None.
        x_indptr, x_indices, x_values: CSR of sparse features, int64, int32, float32, or None.
        split: int8 `[N]`, codes of `table.SPLITS`, or None.
        weight: of each edge, float32 `[E]`, or None.
        edge_attr: attributes of each edge, float32 `[E, A]`, or None.
        edge_time: of each edge, int64 `[E]`, or None.
        node_time: of each node, int64 `[N]`, or None.
    """

    colptr: Array
    row: Array
    targets: tuple[Array, ...] = ()
    x: Array | None = None
    x_scale: Array | None = None
    x_indptr: Array | None = None
    x_indices: Array | None = None
    x_values: Array | None = None
    split: Array | None = None
    weight: Array | None = None
    edge_attr: Array | None = None
    edge_time: Array | None = None
    node_time: Array | None = None


def default_folder() -> Path:
    """Where stores live unless the config says otherwise."""
    return Path(platformdirs.user_cache_dir("dnformer"))


def open_store(
    uri: str,
    manifest: Manifest,
    folder: Path,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Store:
    """The store of the dataset at `uri` inside `folder`; built first where it is missing.

    Args:
        uri: the dataset.
        manifest: its manifest.
        folder: the host's folder of stores.
        say: told once when the store has to be built.

    Raises:
        DataError: a part is missing or damaged, or its content contradicts the manifest.
    """
    target = folder / manifest.fingerprint
    names = _array_names(manifest)
    if not _is_whole(target, names):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(folder / f"{manifest.fingerprint}.lock"):
            if not _is_whole(target, names):
                say(f"building the node-local store of {uri} in {target} (once on this host)")
                _build(uri, manifest, target)
    arrays = {name: np.asarray(np.load(target / f"{name}.npy", mmap_mode="r")) for name in names}
    targets = tuple(arrays.pop(f"y_{number}") for number in range(len(manifest.targets)))
    scale = manifest.feature_scale
    x_scale = None if scale is None else np.array(scale, dtype=np.float32)
    return Store(targets=targets, x_scale=x_scale, **arrays)


def _array_names(manifest: Manifest) -> list[str]:
    sparse = ["x_indptr", "x_indices", "x_values"]
    optional = {
        "split": manifest.stored_split,
        "weight": manifest.edge_weight,
        "edge_attr": bool(manifest.edge_attr_names),
        "edge_time": manifest.edge_time,
        "node_time": manifest.node_time,
    }
    return [
        "colptr",
        "row",
        *(f"y_{number}" for number in range(len(manifest.targets))),
        *{"none": [], "dense": ["x"], "sparse": sparse}[manifest.features],
        *(name for name, there in optional.items() if there),
    ]


def _is_whole(target: Path, names: list[str]) -> bool:
    """Whether the store was built to its end, and nobody cleaned up in it since."""
    return all((target / name).exists() for name in (_COMPLETE, *(f"{n}.npy" for n in names)))


def _build(uri: str, manifest: Manifest, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    for leftover in (temporary, target):
        shutil.rmtree(leftover, ignore_errors=True)
    _check_space(uri, manifest, target.parent)
    temporary.mkdir()
    try:
        hasher = fp.BlockHasher()
        _build_edges(uri, manifest, temporary, hasher)
        _build_nodes(uri, manifest, temporary, hasher)
        _hash_id_files(uri, manifest, hasher)
        found = fp.fingerprint(manifest.schema_values(), manifest.num_nodes, [hasher.digests()])
        if found != manifest.fingerprint:
            raise DataError(
                f"{uri}: the files are not what the fingerprint says; ingest the dataset again"
            )
        for path in temporary.iterdir():
            storage.sync(path)
        (temporary / _COMPLETE).touch()
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_space(uri: str, manifest: Manifest, folder: Path) -> None:
    """Refuses what the disk can't hold: writing to a map on a full disk kills the process."""
    dense = manifest.num_features if manifest.features == "dense" else 0
    node = 8 + 8 + 8 + 1 + dense * np.dtype(manifest.feature_dtype).itemsize
    node += 4 * sum(target.num_outputs for target in manifest.targets if target.kind != "class")
    edge = _index_type(manifest).itemsize + 4 * len(manifest.edge_attr_names)
    edge += 4 * manifest.edge_weight + 8 * manifest.edge_time
    needed = manifest.num_nodes * node + manifest.num_edges * edge + manifest.num_values * 8
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"the node-local store of {uri} takes {needed >> 20:,} MiB, {folder} has "
            f"{free >> 20:,} MiB free; set cache.dir to a folder on a larger disk"
        )


def _index_type(manifest: Manifest) -> np.dtype[Any]:
    return np.dtype(np.int32 if manifest.num_nodes < 2**31 else np.int64)


def _create(folder: Path, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:
    if 0 in shape:  # nothing to map
        array: Array = np.zeros(shape, dtype)
        np.save(folder / f"{name}.npy", array)
        return array
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)


def _build_edges(uri: str, manifest: Manifest, folder: Path, hasher: fp.BlockHasher) -> None:
    num_nodes = manifest.num_nodes
    row = _create(folder, "row", _index_type(manifest), (manifest.num_edges,))
    carried = _create_edge_columns(manifest, folder)
    degree = np.zeros(num_nodes, dtype=np.int64)
    done, last = 0, (-1, -1)
    for part in manifest.edges:
        file = storage.join(uri, part.path)
        for batch in read_part(uri, part):
            dst, src = (_ints(batch, name, file) for name in ("dst", "src"))
            if len(dst) == 0:
                continue
            last = _check_edges(dst, src, num_nodes, last, file)
            edges = _edge_columns(batch, manifest, file)
            fp.hash_edges(hasher, dst, src, edges)
            first = int(dst[0])
            degree[first : int(dst[-1]) + 1] += np.bincount(dst - first)
            rows = slice(done, done + len(src))
            row[rows] = src
            for name, array in carried.items():
                array[rows] = getattr(edges, name)
            done = rows.stop
    colptr = _create(folder, "colptr", np.int64, (num_nodes + 1,))
    colptr[0] = 0
    np.cumsum(degree, out=colptr[1:])


def _create_edge_columns(manifest: Manifest, folder: Path) -> dict[str, Array]:
    """By the name in `EdgeColumns`."""
    num_edges, width = manifest.num_edges, len(manifest.edge_attr_names)
    arrays = {}
    if manifest.edge_weight:
        arrays["weight"] = _create(folder, "weight", np.float32, (num_edges,))
    if width:
        arrays["attr"] = _create(folder, "edge_attr", np.float32, (num_edges, width))
    if manifest.edge_time:
        arrays["time"] = _create(folder, "edge_time", np.int64, (num_edges,))
    return arrays


def _edge_columns(batch: pa.RecordBatch, manifest: Manifest, file: str) -> EdgeColumns:
    names, weight, attr, time = manifest.edge_attr_names, None, None, None
    if manifest.edge_weight:
        weight = _floats(column(batch, "weight", file), file)
    if names:
        attr = _floats(_rows_of(batch, "attr", len(names), file), file).reshape(-1, len(names))
    if manifest.edge_time:
        time = _ints(batch, "time", file)
    return EdgeColumns(weight=weight, attr=attr, attr_names=tuple(names), time=time)


def _rows_of(batch: pa.RecordBatch, name: str, width: int, file: str) -> Any:
    """The flat values of a column of lists of `width`."""
    values = column(batch, name, file)
    if not pa.types.is_fixed_size_list(values.type) or values.type.list_size != width:
        raise DataError(f"{file}: column {name!r} is {values.type}, not {width} values a row")
    return values.flatten()


def _ints(batch: pa.RecordBatch, name: str, file: str) -> Array:
    array = column(batch, name, file)
    if not pa.types.is_integer(array.type):
        raise DataError(f"{file}: column {name!r} is {array.type}, not int64; ingest again")
    return _int64(array, name, file)


def _int64(array: Any, name: str, file: str) -> Array:
    try:
        return np.asarray(array.cast(pa.int64()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{file}: {name} is no int64 ({error}); ingest again") from None


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


def _build_nodes(uri: str, manifest: Manifest, folder: Path, hasher: fp.BlockHasher) -> None:
    num_nodes = manifest.num_nodes
    targets = [
        _create(folder, f"y_{number}", TARGET_DTYPES[target.kind], _target_shape(target, num_nodes))
        for number, target in enumerate(manifest.targets)
    ]
    split = _create(folder, "split", np.int8, (num_nodes,)) if manifest.stored_split else None
    time = _create(folder, "node_time", np.int64, (num_nodes,)) if manifest.node_time else None
    add_features = _feature_writer(manifest, folder, hasher)
    done = 0
    for part in manifest.nodes:
        file = storage.join(uri, part.path)
        for batch in read_part(uri, part):
            rows = slice(done, done + batch.num_rows)
            read = []
            for number, target in enumerate(manifest.targets):
                values = _target_values(batch, f"y_{number}", target, file)
                targets[number][rows] = values
                read.append(TargetColumn(target, values))
            columns: dict[str, Any] = {"targets": tuple(read)}
            if split is not None:
                split[rows] = _in_range(_ints(batch, "split", file), 0, 4, "split", file)
                columns["split"] = split[rows]
            if time is not None:
                time[rows] = columns["time"] = _ints(batch, "time", file)
            fp.hash_nodes(hasher, done, NodeColumns(num_nodes=batch.num_rows, **columns))
            add_features(batch, rows, file)
            done = rows.stop


def _target_shape(target: Target, num_nodes: int) -> tuple[int, ...]:
    return (num_nodes,) if target.kind == "class" else (num_nodes, target.num_outputs)


def _target_values(batch: pa.RecordBatch, name: str, target: Target, file: str) -> Array:
    if target.kind == "class":
        return _in_range(_ints(batch, name, file), -1, target.num_outputs, name, file)
    flat, dtype = _rows_of(batch, name, target.num_outputs, file), TARGET_DTYPES[target.kind]
    if flat.type != pa.from_numpy_dtype(dtype) or flat.null_count:
        raise DataError(f"{file}: {name} is {flat.type}, or holds nulls; ingest again")
    values: Array = np.asarray(flat)
    if target.kind == "multilabel":
        _in_range(values, -1, 2, name, file)
    return values.reshape(-1, target.num_outputs)


def _in_range(values: Array, low: int, stop: int, name: str, file: str) -> Array:
    wrong = values[(values < low) | (values >= stop)]
    if len(wrong):
        raise DataError(f"{file}: {name} {wrong[0]} is not in {low}..{stop - 1}; ingest again")
    return values


def _feature_writer(
    manifest: Manifest, folder: Path, hasher: fp.BlockHasher
) -> Callable[[pa.RecordBatch, slice, str], None]:
    if manifest.features == "none":
        return lambda batch, rows, file: None
    if manifest.features == "sparse":
        return _sparse_writer(manifest, folder, hasher)
    width, dtype = manifest.num_features, manifest.feature_dtype
    x = _create(folder, "x", np.dtype(dtype), (manifest.num_nodes, width))

    def add_dense(batch: pa.RecordBatch, rows: slice, file: str) -> None:
        flat = _rows_of(batch, "x", width, file)
        x[rows] = _numbers(flat, dtype, file).reshape(-1, width)
        fp.hash_rows(hasher, "nodes.x", rows.start, x[rows])

    return add_dense


def _floats(values: Any, file: str) -> Array:
    return _numbers(values, "float32", file)


def _numbers(values: Any, dtype: str, file: str) -> Array:
    if values.type != pa.from_numpy_dtype(np.dtype(dtype)) or values.null_count:
        raise DataError(f"{file}: values are {values.type}, or hold nulls; ingest again")
    array: Array = np.asarray(values)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{file}: a value is NaN or infinite; ingest the dataset again")
    return array


def _sparse_writer(
    manifest: Manifest, folder: Path, hasher: fp.BlockHasher
) -> Callable[[pa.RecordBatch, slice, str], None]:
    indptr = _create(folder, "x_indptr", np.int64, (manifest.num_nodes + 1,))
    indptr[0] = 0
    all_indices = _create(folder, "x_indices", np.int32, (manifest.num_values,))
    all_values = _create(folder, "x_values", np.float32, (manifest.num_values,))

    def add_sparse(batch: pa.RecordBatch, rows: slice, file: str) -> None:
        indices, values, counts = _sparse_rows(batch, manifest.num_features, file)
        local = np.concatenate([[0], np.cumsum(counts)])
        begin, end = int(indptr[rows.start]), int(indptr[rows.start] + local[-1])
        missing = manifest.num_values - end
        if missing < 0 or (missing and rows.stop == manifest.num_nodes):
            raise DataError(
                f"{file}: {end} feature values, not {manifest.num_values}; ingest again"
            )
        indptr[rows.start + 1 : rows.stop + 1] = begin + local[1:]
        all_indices[begin:end], all_values[begin:end] = indices, values
        fp.hash_sparse_rows(hasher, rows.start, local, indices, values)

    return add_sparse


def _sparse_rows(batch: pa.RecordBatch, width: int, file: str) -> tuple[Array, Array, Array]:
    """(indices, values, entries of each row)."""
    index, value = (column(batch, name, file) for name in ("x_index", "x_value"))
    if not pa.types.is_list(index.type) or not pa.types.is_list(value.type):
        raise DataError(f"{file}: sparse features are no lists; ingest the dataset again")
    counts = np.asarray(pc.list_value_length(index), dtype=np.int64)
    if not np.array_equal(counts, np.asarray(pc.list_value_length(value))):
        raise DataError(f"{file}: a row has more indices than values, or fewer; ingest again")
    indices = _int64(index.flatten(), "feature index", file)
    return (
        _in_range(indices, 0, width, "feature index", file),
        _floats(value.flatten(), file),
        counts,
    )


def _hash_id_files(uri: str, manifest: Manifest, hasher: fp.BlockHasher) -> None:
    done = 0
    for part in manifest.id_files:
        for ids in read_ids(uri, part):
            fp.hash_ids(hasher, done, ids)
            done += len(ids)


def read_ids(uri: str, part: PartFile) -> Any:
    """Pieces of original ids in index order: int64 arrays, or lists of str."""
    file = storage.join(uri, part.path)
    for batch in read_part(uri, part):
        ids = column(batch, "id", file)
        if pa.types.is_integer(ids.type):
            yield _int64(ids, "id", file)
        elif pa.types.is_string(ids.type):
            yield ids.to_pylist()
        else:
            raise DataError(f"{file}: ids are {ids.type}, not int64 or string; ingest again")
