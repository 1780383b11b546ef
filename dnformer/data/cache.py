"""Cache format 1 on any storage: writes a graph as Parquet parts, reads the parts back, checked.

Parts begin on block boundaries of the fingerprint; the manifest is put last and makes the dataset.
"""

import hashlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from dnformer import storage
from dnformer.config import SplitConfig
from dnformer.data import fingerprint as fp
from dnformer.data.manifest import NAME, Manifest, PartFile, read_manifest
from dnformer.data.table import GraphTable, NodeColumns
from dnformer.errors import DataError

_MARKER = ".ingest-in-progress"
_FOLDERS = ("edges", "nodes", "ids")
_ROW_GROUP_BYTES = 32 << 20
_EDGE_BYTES, _ID_BYTES = 16, 32


def write_cache(
    table: GraphTable,
    uri: str,
    *,
    source: str,
    split: SplitConfig | None = None,
    overwrite: bool = False,
    part_bytes: int = 256 << 20,
) -> tuple[Manifest, bool]:
    """Publishes `table` as a dataset at `uri`.

    Args:
        table: the cleaned graph.
        uri: folder of the dataset; empty, new, or a dataset.
        source: what was ingested, for the manifest.
        split: default split recipe, recorded outside the fingerprint.
        overwrite: replace the dataset that is there, also an equal or a damaged one.
        part_bytes: size of a part before compression, at least one block of nodes.

    Returns:
        The manifest, and whether anything was written: an equal dataset is left as it is.

    Raises:
        DataError: the folder holds another dataset, or something that is none.
    """
    uri = storage.absolute(uri)
    manifest = _manifest(table, source, split)
    found = _make_room(uri, manifest.fingerprint, overwrite)
    if found is not None and found.split == split:
        return found, False
    if found is not None:
        return _publish(uri, found.model_copy(update={"split": split})), True
    nodes = table.nodes
    row_bytes = _node_row_bytes(nodes)
    node_ranges = _row_ranges(nodes.num_nodes, row_bytes, part_bytes)
    node_tables = (_node_table(nodes, rows) for rows in node_ranges)
    files = {
        "edges": _write_parts(
            f"{uri}/edges", _edge_tables(table, part_bytes), _EDGE_BYTES, ("dst", "src")
        ),
        "nodes": _write_parts(f"{uri}/nodes", node_tables, row_bytes, ("y",)),
        "id_files": _write_parts(
            f"{uri}/ids", _id_tables(nodes, part_bytes), _ID_BYTES, ("index",)
        ),
    }
    return _publish(uri, manifest.model_copy(update=files)), True


def _publish(uri: str, manifest: Manifest) -> Manifest:
    text = manifest.model_dump_json(indent=1, exclude_none=True)
    storage.write_bytes(storage.join(uri, NAME), text.encode())
    storage.remove(storage.join(uri, _MARKER))
    return manifest


def _manifest(table: GraphTable, source: str, split: SplitConfig | None) -> Manifest:
    nodes = table.nodes
    sparse = isinstance(nodes.x, sp.csr_matrix)
    dtypes = {"dst": "int64", "src": "int64"}
    if nodes.x is not None:
        dtypes["x"] = "float32"
    one = PartFile(path="-", rows=len(table.dst), bytes=0, sha256="0" * 64)
    manifest = Manifest(
        fingerprint="0" * 64,
        num_nodes=nodes.num_nodes,
        num_edges=len(table.dst),
        num_features=0 if nodes.x is None else nodes.x.shape[1],
        num_classes=nodes.num_classes,
        classes=nodes.classes,
        features="none" if nodes.x is None else "sparse" if sparse else "dense",
        num_values=nodes.x.nnz if isinstance(nodes.x, sp.csr_matrix) else 0,
        labels=nodes.y is not None,
        stored_split=nodes.split is not None,
        ids="index" if nodes.ids is None else "string" if isinstance(nodes.ids, list) else "int",
        dtypes=dtypes,
        policies=table.policies,
        counts=table.counts,
        split=split,
        source=source,
        created_by=f"dnformer {version('dnformer')}",
        edges=[one],
        nodes=[one.model_copy(update={"rows": nodes.num_nodes})],
        id_files=[] if nodes.ids is None else [one.model_copy(update={"rows": nodes.num_nodes})],
    )
    return manifest.model_copy(update={"fingerprint": _fingerprint(table, manifest)})


def _fingerprint(table: GraphTable, manifest: Manifest) -> str:
    hasher = fp.BlockHasher(table.nodes.num_nodes)
    fp.hash_edges(hasher, table.dst, table.src)
    nodes = table.nodes
    if isinstance(nodes.x, sp.csr_matrix):
        fp.hash_sparse_rows(hasher, 0, nodes.x.indptr, nodes.x.indices, nodes.x.data)
    elif nodes.x is not None:
        fp.hash_rows(hasher, "nodes.x", 0, nodes.x)
    if nodes.y is not None:
        fp.hash_rows(hasher, "nodes.y", 0, nodes.y)
    if nodes.split is not None:
        fp.hash_rows(hasher, "nodes.split", 0, nodes.split)
    if nodes.ids is not None:
        fp.hash_ids(hasher, 0, nodes.ids)
    return hasher.digest(manifest.schema_values())


def _make_room(uri: str, fingerprint: str, overwrite: bool) -> Manifest | None:
    """The equal dataset that is there; else None, once the folder is marked and cleared."""
    names = storage.list_names(uri)
    if NAME in names and not overwrite:
        try:
            found = read_manifest(uri)
        except DataError as error:
            raise DataError(f"{error}; --overwrite replaces what is there") from None
        if found.fingerprint != fingerprint:
            raise DataError(
                f"{uri} holds another dataset ({found.source}); choose another --out, or replace "
                "it with --overwrite"
            )
        return found
    if names and NAME not in names and _MARKER not in names:
        raise DataError(
            f"{uri} is not empty and holds no dataset (found {names[0]}); choose another --out"
        )
    # the marker first: whenever this stops, the next ingest knows the rest for leftovers;
    # then the manifest: half a dataset must never look like one
    storage.write_bytes(storage.join(uri, _MARKER), b"")
    for name in (NAME, *_FOLDERS):
        storage.remove(storage.join(uri, name))
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_parts(
    folder: str, tables: Iterator[pa.Table], row_bytes: float, delta: tuple[str, ...]
) -> list[PartFile]:
    """Publishes each table as the next part; `delta` names its columns of growing integers."""
    parts = []
    for number, table in enumerate(tables):
        name = f"part-{number:05d}.parquet"
        with storage.staged(storage.join(folder, name)) as path:
            pq.write_table(
                table,
                path,
                compression="zstd",
                use_dictionary=False,
                column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
                row_group_size=max(1, int(_ROW_GROUP_BYTES / row_bytes)),
            )
            part = PartFile(
                path=f"{folder.rsplit('/', 1)[1]}/{name}",
                rows=table.num_rows,
                bytes=path.stat().st_size,
                sha256=_sha256(path),
            )
        parts.append(part)
    return parts


def _edge_tables(table: GraphTable, part_bytes: int) -> Iterator[pa.Table]:
    """One range of destinations a table."""
    num_blocks = -(-table.nodes.num_nodes // fp.BLOCK)
    ends = np.searchsorted(table.dst, np.arange(1, num_blocks + 1) * fp.BLOCK)
    begin = 0
    for end in ends:
        if (end - begin) * _EDGE_BYTES >= part_bytes or end == len(table.dst):
            yield pa.table({"dst": table.dst[begin:end], "src": table.src[begin:end]})
            begin = end
            if end == len(table.dst):
                return


def _row_ranges(num_nodes: int, row_bytes: float, part_bytes: int) -> Iterator[slice]:
    rows = max(1, int(part_bytes / row_bytes) // fp.BLOCK) * fp.BLOCK
    for first in range(0, num_nodes, rows):
        yield slice(first, min(first + rows, num_nodes))


def _node_row_bytes(nodes: NodeColumns) -> float:
    if nodes.x is None:
        return 16
    if isinstance(nodes.x, sp.csr_matrix):
        return float(16 + 8 * nodes.x.nnz / nodes.num_nodes)
    return float(16 + 4 * nodes.x.shape[1])


def _node_table(nodes: NodeColumns, rows: slice) -> pa.Table:
    columns: dict[str, Any] = {}
    if isinstance(nodes.x, sp.csr_matrix):
        x = nodes.x[rows]
        offsets = x.indptr.astype(np.int32)
        columns["x_index"] = pa.ListArray.from_arrays(offsets, x.indices.astype(np.int32))
        columns["x_value"] = pa.ListArray.from_arrays(offsets, x.data)
    elif nodes.x is not None:
        flat = pa.array(nodes.x[rows].ravel())
        columns["x"] = pa.FixedSizeListArray.from_arrays(flat, nodes.x.shape[1])
    # always there, so that a graph without features and labels has rows too
    columns["y"] = np.full(rows.stop - rows.start, -1) if nodes.y is None else nodes.y[rows]
    if nodes.split is not None:
        columns["split"] = nodes.split[rows]
    return pa.table(columns)


def _id_tables(nodes: NodeColumns, part_bytes: int) -> Iterator[pa.Table]:
    if nodes.ids is None:
        return
    for rows in _row_ranges(nodes.num_nodes, _ID_BYTES, part_bytes):
        index = np.arange(rows.start, rows.stop)
        yield pa.table({"index": index, "id": pa.array(nodes.ids[rows])})


def read_part(uri: str, part: PartFile) -> Iterator[pa.RecordBatch]:
    """The rows of one part, a row group at a time, after its size and hash were checked.

    Raises:
        DataError: the file is missing, truncated, changed or no Parquet; the message names it.
    """
    name = storage.join(uri, part.path)
    mend = "the dataset is damaged: copy it again, or ingest it again with --overwrite"
    with storage.fetched(name) as path:
        found = path.stat().st_size
        if found != part.bytes:
            raise DataError(f"{name}: {found} bytes, the manifest says {part.bytes}; {mend}")
        if _sha256(path) != part.sha256:
            raise DataError(f"{name}: its content is not what the manifest says; {mend}")
        try:
            with pq.ParquetFile(path) as file:
                if file.metadata.num_rows != part.rows:
                    raise DataError(
                        f"{name}: {file.metadata.num_rows} rows, not {part.rows}; {mend}"
                    )
                for group in range(file.num_row_groups):
                    yield from file.read_row_group(group).to_batches()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{name}: no readable Parquet file ({error}); {mend}") from None


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
