"""Rows of the node table to sorted parts of a dataset: staged, cut on disk, put in their places."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp

from dnformer.data import fingerprint as fp
from dnformer.data.cache import schema
from dnformer.data.features import (
    TEXT,
    arrow_kind,
    arrow_split,
    is_sparse,
    refuse_empty_split,
)
from dnformer.data.ingest.buckets import Buckets, Cut
from dnformer.data.ingest.features import ColumnFeatures, FeatureReader, PositionedFeatures
from dnformer.data.ingest.labels import LabelReader, label_reader
from dnformer.data.ingest.progress import Stage
from dnformer.data.ingest.scan import IdReader, StageWriter, cast, read_times, staged_batches
from dnformer.data.ingest.table_files import Batch, RowCounter, Rows, TableFiles
from dnformer.data.ingest.tables import FeatureDtype, NodeRoles, TableSource
from dnformer.data.ingest.workspace import Workspace
from dnformer.data.manifest import PartFile
from dnformer.data.parts import PartTable, node_part, write_pieces
from dnformer.data.table import (
    TARGET_DTYPES,
    EdgeColumns,
    Int64Array,
    NodeColumns,
    Quantized,
    Target,
    TargetColumn,
)
from dnformer.errors import DataError

_ROWS, _WIDE_ROWS = 1 << 17, 1 << 13
_FLOAT16_MAX = 65504.0
_PART_BYTES = 256 << 20


class FeatureFacts:
    """What has to be known of all features before one can be kept.

    Attributes:
        width: F; 0 for none.
        nonzero: how many values are not 0.
        largest: absolute value of each feature, float32 `[F]`.
    """

    def __init__(self) -> None:
        self.width = self.nonzero = 0
        self.largest: npt.NDArray[np.float32] = np.empty(0, np.float32)

    def see(self, x: npt.NDArray[np.float32]) -> None:
        """Takes note of some rows."""
        if not self.width:
            self.width = x.shape[1]
            self.largest = np.zeros(self.width, np.float32)
        self.nonzero += int(np.count_nonzero(x))
        np.maximum(self.largest, np.abs(x).max(axis=0, initial=0), out=self.largest)

    def merge(self, later: "FeatureFacts", where: str) -> None:
        """Takes over what is known of rows that come later, the first at `where`."""
        if not later.width:
            return
        if not self.width:
            self.width, self.largest = later.width, np.zeros(later.width, np.float32)
        if self.width != later.width:
            found = f"{where} and on: {later.width} features, expected {self.width}"
            raise DataError(f"{found}, as many in each row; choose them with features")
        self.nonzero += later.nonzero
        self.largest = np.maximum(self.largest, later.largest)


class NodeFacts(NamedTuple):
    """What has to be known of all nodes before one can be kept.

    Attributes:
        labels: what turns y_i into targets.
        features: of the features.
        codes: of the split, those that occur.
    """

    labels: list[LabelReader]
    features: FeatureFacts
    codes: set[int]

    def merge(self, later: "NodeFacts", where: str) -> None:
        """Takes over what is known of rows that come later, the first at `where`.

        Raises:
            DataError: both do not fit together.
        """
        for label, other in zip(self.labels, later.labels, strict=True):
            label.merge(other, where)
        self.features.merge(later.features, where)
        self.codes.update(later.codes)


class NodeStage(NamedTuple):
    """Checked node rows on local disk, in the order of the files.

    Attributes:
        path: of a Parquet file of y_0, y_1, ..., split, time, x.
        ids: of one of their ids.
        rows: where each row came from.
        num_rows: of all files.
        labels: what turns y_i into targets.
        targets: of each of `labels`, None where no node has a label.
        has_split: whether there is a split.
        has_time: whether there are times.
        facts: of the features.
        dtype: how features are kept.
        sparse: whether they are kept as CSR.
    """

    path: Path
    ids: Path
    rows: Rows
    num_rows: int
    labels: list[LabelReader]
    targets: list[Target | None]
    has_split: bool
    has_time: bool
    facts: FeatureFacts
    dtype: FeatureDtype
    sparse: bool

    @property
    def scale(self) -> npt.NDArray[np.float32]:
        """Of int8 features: the largest absolute value is 127 of it."""
        scale = self.facts.largest / np.float32(127)
        return np.where(scale > 0, scale, np.float32(1)).astype(np.float32)


@final
class NodeReader:
    """Reads all columns of the node table but the ids, from row `start` of the table on.

    Attributes:
        facts: of what was read so far.
    """

    def __init__(
        self, source: TableSource, roles: NodeRoles, table: TableFiles, *, start: int = 0
    ) -> None:
        self.roles, self.dtype = roles, source.feature_dtype
        self.facts = NodeFacts([], FeatureFacts(), set())
        # the number of classes is that of the first target of classes
        given = source.num_classes
        for label in roles.labels:
            self.facts.labels.append(label_reader(label, table, given))
            given = None if self.facts.labels[-1].kind == "class" else given
        self.features: FeatureReader = ColumnFeatures(roles.features)
        if source.features_file is not None:
            self.features = PositionedFeatures(source.features_file, source.features, start=start)

    def numbers(self) -> list[str]:
        """The columns of numbers."""
        matrices = [label for label in self.roles.labels if label.kind not in (None, "class")]
        return self.roles.features + [name for label in matrices for name in label.read]

    def read(self, batch: Batch) -> dict[str, Any]:
        """The columns to stage."""
        columns: dict[str, Any] = {}
        for number, label in enumerate(self.facts.labels):
            columns[f"y_{number}"] = _arrow(label.read(batch))
        if self.roles.split is not None:
            split = self._split(batch, self.roles.split)
            self.facts.codes.update(np.unique(split).tolist())
            columns["split"] = split
        if self.roles.time is not None:
            name = self.roles.time
            columns["time"] = read_times(batch.column(name), name, batch.where)
        x = self.features.read(batch)
        if x is not None and x.shape[1]:
            self.facts.features.see(x)
            columns["x"] = _arrow(self._narrow(x, batch))
        return columns

    def _split(self, batch: Batch, name: str) -> npt.NDArray[np.int8]:
        column = batch.column(name)
        if arrow_kind(column.type, numbers=True) == TEXT:
            column = cast(column, TEXT, name, batch.where)
        return arrow_split(column, name, where=batch.where)

    def _narrow(self, x: npt.NDArray[np.float32], batch: Batch) -> npt.NDArray[Any]:
        if self.dtype != "float16":
            return x
        wide = np.abs(x) > _FLOAT16_MAX
        if wide.any():
            row, col = divmod(int(np.argmax(wide)), x.shape[1])
            found = f"{batch.where(row)}: feature {col} is {x[row, col]:g}"
            raise DataError(f"{found}; float16 holds up to {_FLOAT16_MAX:g}: use float32 or int8")
        return x.astype(np.float16) + np.float16(0)  # what was rounded to -0.0 is 0.0


def _arrow(values: npt.NDArray[Any]) -> Any:
    if values.ndim == 1:
        return pa.array(values)
    flat = pa.array(np.ascontiguousarray(values).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def stage_nodes(
    source: TableSource,
    roles: NodeRoles,
    table: TableFiles,
    ids: IdReader,
    *,
    folder: Path,
    stage: Stage,
) -> NodeStage:
    """Reads the node table once, checks it, and writes what is needed into `folder`.

    Raises:
        DataError: a value is wrong; the message names file, row and value.
        TextIds: see `IdReader`.
    """
    reader, counter, num_rows = NodeReader(source, roles, table), RowCounter(), 0
    batches = table.batches(
        list(roles.columns()), numbers=reader.numbers(), rows=batch_rows(source, roles)
    )
    path, id_path = folder / "nodes.parquet", folder / "node-ids.parquet"
    with StageWriter(path) as writer, StageWriter(id_path) as id_writer:
        for batch in batches:
            counter.see(batch)
            if not batch.columns.num_rows:
                continue
            id_writer.write({"id": ids.read(batch, roles.id)})
            if columns := reader.read(batch):
                writer.write(columns)
            num_rows += batch.columns.num_rows
            stage.add(rows=batch.columns.num_rows, bytes_=batch.read)
    reader.features.finish(num_rows, table.name)
    rows = counter.rows()
    return node_stage(source, roles, reader.facts, rows, num_rows)._replace(path=path, ids=id_path)


def batch_rows(source: TableSource, roles: NodeRoles) -> int:
    """Rows of a node table to read at a time."""
    wide = roles.features or source.features_file is not None or len(roles.labels) > 1
    return _WIDE_ROWS if wide else _ROWS


def node_stage(
    source: TableSource, roles: NodeRoles, facts: NodeFacts, rows: Rows, num_rows: int
) -> NodeStage:
    """What all nodes are, from what was learnt of all rows; of no files on disk.

    Raises:
        DataError: a split has no row, or the labels are wrong together.
    """
    if roles.split is not None:
        refuse_empty_split(facts.codes, roles.split, lambda row: rows.where(0))
    layout = source.feature_layout if source.feature_dtype == "float32" else "dense"
    return NodeStage(
        path=Path(),
        ids=Path(),
        rows=rows,
        num_rows=num_rows,
        labels=facts.labels,
        targets=[label.target() for label in facts.labels],
        has_split=roles.split is not None,
        has_time=roles.time is not None,
        facts=facts.features,
        dtype=source.feature_dtype,
        sparse=is_sparse(layout, facts.features.nonzero, num_rows, facts.features.width),
    )


def record_type(stage: NodeStage) -> np.dtype[Any]:
    """Of a node on disk, its index first."""
    fields: list[Any] = [("index", np.int64)]
    for number, target in enumerate(stage.targets):
        if target is not None:
            shape = () if target.kind == "class" else (target.num_outputs,)
            fields.append((f"y_{number}", TARGET_DTYPES[target.kind], shape))
    if stage.has_split:
        fields.append(("split", np.int8))
    if stage.has_time:
        fields.append(("time", np.int64))
    if stage.facts.width:
        fields.append(("x", np.dtype(stage.dtype), (stage.facts.width,)))
    return np.dtype(fields)


def records(
    stage: NodeStage, indices: Iterable[Int64Array], dtype: np.dtype[Any]
) -> Iterator[npt.NDArray[Any]]:
    """The staged rows as records, each with its index of `indices`, given in the same order."""
    if len(dtype.names or ()) == 1:  # nothing but ids
        return
    ahead, pieces = np.empty(0, np.int64), iter(indices)
    for batch in staged_batches(stage.path):
        while ahead.size < batch.num_rows:
            ahead = np.concatenate([ahead, next(pieces)])
        taken, ahead = ahead[: batch.num_rows], ahead[batch.num_rows :]
        yield as_records(stage, batch, taken, dtype)


def as_records(
    stage: NodeStage, batch: Any, index: Int64Array, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """A batch of what `NodeReader.read` gives as records of the nodes `index`."""
    assert dtype.names is not None
    found = np.empty(index.size, dtype)
    found["index"] = index
    for name in dtype.names[1:]:
        column = batch.column(batch.schema.get_field_index(name))
        values = column
        if pa.types.is_fixed_size_list(column.type):
            values = column.flatten()
        values = values.to_numpy()
        if name.startswith("y_"):
            values = stage.labels[int(name[2:])].resolve(values)
        if name == "x" and stage.dtype == "int8":
            rows = values.reshape(-1, stage.facts.width)
            values = np.rint(rows / stage.scale).clip(-127, 127).astype(np.int8)
        found[name] = values.reshape(found[name].shape)
    return found


def first_node_cut(num_nodes: int, dtype: np.dtype[Any], space: Workspace) -> tuple[Cut, int]:
    """All nodes cut into buckets, and how many nodes of a bucket a thread may take at once."""
    # as records, as columns, and what Parquet keeps of both
    row_bytes = 3 * dtype.itemsize + 64
    rows = max(int(0.6 * space.memory / space.threads) // row_bytes, 256)
    blocks = max(min(rows, _PART_BYTES // row_bytes) // fp.BLOCK, 1)
    blocks = max(blocks, -(-num_nodes // fp.BLOCK // 240))
    return Cut(0, num_nodes, fp.BLOCK.bit_length() - 1, blocks), rows


class WrittenNodes(NamedTuple):
    """A part of nodes, its hashes, and the values of sparse features in it."""

    part: PartFile
    digests: fp.Digests
    num_values: int


def write_nodes(
    uri: str,
    name: str,
    pieces: Iterable[tuple[int, int, npt.NDArray[Any]]],
    stage: NodeStage | None,
    temp: Path | None = None,
) -> WrittenNodes:
    """Puts records of nodes in their places and publishes them as the part `name`.

    Args:
        uri: the dataset's folder.
        name: of the part.
        pieces: (first node, one past the last, records in any order) of consecutive ranges, which
            together are whole blocks; a node without a record gets no label, no split, zeros.
        stage: what the columns are; None for none.
        temp: as in `storage.staged`.
    """
    hasher, num_values = fp.BlockHasher(), 0

    def parts() -> Iterator[PartTable]:
        nonlocal num_values
        for first, stop, found in pieces:
            nodes = columns_of(stage, first, stop, found)
            if isinstance(nodes.x, sp.csr_matrix):
                num_values += int(nodes.x.nnz)
            fp.hash_nodes(hasher, first, nodes)
            yield node_part(nodes, first)

    part = write_pieces(uri, name, parts(), temp)
    return WrittenNodes(part, hasher.digests(), num_values)


def columns_of(
    stage: NodeStage | None, first: int, stop: int, found: npt.NDArray[Any]
) -> NodeColumns:
    """The columns of the nodes `first` to `stop` - 1, of whom there are records in any order."""
    if stage is None:
        return NodeColumns(num_nodes=stop - first)
    at = found["index"] - first

    def placed(name: str, none: float) -> npt.NDArray[Any]:
        column = np.full((stop - first, *found[name].shape[1:]), none, found[name].dtype)
        column[at] = found[name]
        return column

    targets = tuple(
        TargetColumn(target, placed(f"y_{n}", np.nan if target.kind == "regression" else -1))
        for n, target in enumerate(stage.targets)
        if target is not None
    )
    x: Any = None
    if stage.facts.width:
        x = placed("x", 0)
        if stage.dtype == "int8":
            x = Quantized(x, stage.scale)
        elif stage.sparse:
            x = sp.csr_matrix(x)
    return NodeColumns(
        num_nodes=stop - first,
        x=x,
        targets=targets,
        split=placed("split", 0) if stage.has_split else None,
        time=placed("time", 0) if stage.has_time else None,
    )


def schema_of(stage: NodeStage | None, edges: EdgeColumns, id_type: Any) -> dict[str, Any]:
    """`cache.schema` of such nodes and edges; `id_type` is None where ids are indices."""
    ids: Any = None
    if id_type is not None:
        ids = [] if id_type == TEXT else np.empty(0, np.int64)
    none = NodeColumns(num_nodes=0)
    if stage is not None:
        none = columns_of(stage, 0, 0, np.empty(0, record_type(stage)))
    return schema(replace(none, ids=ids), edges)


def read_bucket(
    buckets: Buckets, bucket: int, rows: int
) -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
    """The pieces of a bucket for `write_nodes`, each of about `rows` nodes or fewer."""
    first, stop = buckets.plan.range(bucket)
    if stop - first <= rows:
        yield first, stop, buckets.take(bucket)
        return
    shift = max(rows.bit_length() - 1, (stop - first - 1).bit_length() - 7)
    plan = Cut(first, stop, shift, 1)
    smaller = Buckets(buckets.path(bucket).with_name(f"cut-{bucket}"), plan, buckets.dtype)
    for found in buckets.pieces(bucket):
        smaller.add(found["index"], found)
    smaller.close()
    for piece in range(plan.num_buckets):
        yield *plan.range(piece), smaller.take(piece)
