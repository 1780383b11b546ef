"""The source `table`: an edge table and, if there is one, a node table, as Parquet or CSV files.

Ids are integers or strings. CSV does not say which: its ids are text, and integers only where
every id of both tables is one in its plain form, so that "007" and "7" stay two nodes.
"""

import difflib
import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from dnformer import storage
from dnformer.data.features import (
    TEXT,
    Layout,
    Where,
    arrow_block,
    arrow_kind,
    arrow_labels,
    arrow_split,
    first_true,
    lay_out,
    plain_integers,
)
from dnformer.data.table import Features, Int64Array, NodeColumns, RawGraph, class_target
from dnformer.errors import ConfigError, DataError

_log = logging.getLogger("dnformer")
_COMPRESSIONS = {".csv": None, ".csv.gz": "gzip", ".csv.zst": "zstd"}
_MAX_INT64 = 2**63 - 1


class TableSource(BaseModel):
    """Where the tables are and what their columns mean."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    edges: str = Field(
        description="URI or glob (*, ?, [..]) of the edge table: .parquet, .csv, .csv.gz, .csv.zst"
    )
    nodes: str | None = Field(
        None, description="URI or glob of the node table; without it the endpoints are the nodes"
    )
    src: str = Field("src", description="edge column of the source (neighbour)")
    dst: str = Field("dst", description="edge column of the destination")
    id: str = Field("id", description="node column of the id, an integer or a string")
    label: str | None = Field(
        None,
        description="node column of the class: whole numbers from 0, or names; no value or -1 is "
        "no label. By default the column label, if there is one",
    )
    split: str | None = Field(
        None,
        description="node column of train, val (valid, validation), test or no value. By default "
        "the column split, if there is one",
    )
    features: list[str] | None = Field(
        None,
        description="node columns of numbers, or one column of lists of numbers. By default all "
        "others, in the order of the file",
    )
    num_classes: int | None = Field(
        None, ge=1, description="number of classes; by default what the labels have"
    )
    feature_layout: Layout = Field(
        "auto",
        description="how features are kept; auto: sparse from 64 features on where at most 25 % "
        "are not zero",
    )


def read_tables(source: TableSource) -> RawGraph:
    """The graph of an edge and a node table; rows are counted per file, the first data row is 1.

    Edge columns other than src and dst are not read, with a warning. Holds the columns that it
    reads in memory, once as Arrow and once as the result.

    Raises:
        ConfigError: an option names a column of the node table, and there is none.
        DataError: a file or a value is wrong; the message names file, row and value.
    """
    edges = _read(source.edges, {source.src: "src", source.dst: "dst"})
    ignored = [name for name in edges.header if name not in (source.src, source.dst)]
    if ignored:
        _log.warning("%s: columns not read: %s", source.edges, ", ".join(ignored))
    ends = [_Ids(edges, source.src), _Ids(edges, source.dst)]
    if source.nodes is None:
        _refuse_node_options(source)
        values = _id_values(ends)
        both = pa.chunked_array([*values[0].chunks, *values[1].chunks])
        index, _ = _index(pa.chunked_array([pc.unique(both)]))
        nodes = NodeColumns(num_nodes=len(index.ids), ids=index.column())
    else:
        roles = _roles(source, _header(_files(source.nodes)[0]), source.nodes)
        table = _read(source.nodes, roles.columns(), same_header=source.features is None)
        own = _Ids(table, source.id)
        *values, ids = _id_values([*ends, own])
        index, order = _index(ids)
        _refuse_repeated(index, order, own)
        nodes = _node_columns(source, roles, table, index, order)
    src, dst = (
        _find(index, value, end, source.nodes) for value, end in zip(values, ends, strict=True)
    )
    return RawGraph(nodes=nodes, src=src, dst=dst, where=_edge_where(edges.rows, src, dst, nodes))


def _edge_where(
    rows: "_Rows", src: Int64Array, dst: Int64Array, nodes: NodeColumns
) -> Callable[[int], str]:
    def name(node: int) -> object:
        return node if nodes.ids is None else nodes.ids[node]

    return lambda edge: f"{rows.where(edge)}: {name(src[edge])} -> {name(dst[edge])}"


class _Roles(NamedTuple):
    """Names of the node columns."""

    id: str
    label: str | None
    split: str | None
    features: list[str]

    def columns(self) -> dict[str, str]:
        """{column: option that names it}."""
        columns = dict.fromkeys(self.features, "features")
        named = (("split", self.split), ("label", self.label), ("id", self.id))
        return columns | {name: option for option, name in named if name is not None}


def _refuse_node_options(source: TableSource) -> None:
    for option in ("label", "split", "features", "num_classes"):
        if getattr(source, option) is not None:
            raise ConfigError(f"{option} is about the node table, but nodes is not given; give it")


def _roles(source: TableSource, header: list[str], file: str) -> _Roles:
    label = source.label or ("label" if "label" in header else None)
    split = source.split or ("split" if "split" in header else None)
    if source.num_classes is not None and label is None:
        raise ConfigError(f"num_classes needs labels, but {file} has no column label; give label")
    features = source.features
    if features is None:
        features = [name for name in header if name not in (source.id, label, split)]
    return _Roles(source.id, label, split, features)


def _require(name: str, option: str, header: list[str], file: str) -> None:
    if header.count(name) == 1:
        return
    if name in header:
        raise DataError(f"{file}: {header.count(name)} columns {name!r}; rename all but one")
    near = difflib.get_close_matches(name, header, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    shown = ", ".join(header[:8]) + (", ..." if len(header) > 8 else "")
    found = f"{file}: no column {name!r}{hint}; it has {shown}"
    raise DataError(f"{found}; name the column with {option}")


@dataclass(frozen=True)
class _Rows:
    """Rows of several files counted through: `starts[k]` is the first of file k."""

    files: list[str]
    starts: list[int]

    def where(self, row: int) -> str:
        k = bisect_right(self.starts, row) - 1
        return f"{self.files[k]} row {row - self.starts[k] + 1}"

    def shifted(self, start: int) -> Where:
        """`where` for rows that are counted from row `start`."""
        return lambda row: self.where(start + row)


@dataclass(frozen=True)
class _Table:
    """The files of a table, with the columns asked for; `header` has all, of the first file."""

    rows: _Rows
    parts: list[Any]  # pyarrow.Table, one a file
    header: list[str]
    is_csv: bool


def _read(pattern: str, columns: dict[str, str], *, same_header: bool = False) -> _Table:
    """Reads `columns` ({column: option that names it}) of all files that match `pattern`."""
    files = _files(pattern)
    first = _header(files[0])
    parts: list[Any] = []
    starts = [0]
    for file in files:
        header = first if file == files[0] else _header(file)
        for name, option in columns.items():
            _require(name, option, header, file)
        if same_header and set(header) != set(first):
            odd = ", ".join(sorted(set(header) ^ set(first)))
            raise DataError(f"{file}: other columns than in {files[0]}: {odd}; choose features")
        parts.append(_read_file(file, columns))
        starts.append(starts[-1] + parts[-1].num_rows)
    if not starts.pop():
        raise DataError(f"{pattern}: no rows; the table must have at least one")
    return _Table(_Rows(files, starts), parts, first, _is_csv(files[0]))


def _files(pattern: str) -> list[str]:
    files = storage.glob(pattern)
    inside = storage.list_names(pattern) if files == [pattern] else []
    if inside and inside != [pattern.rsplit("/", 1)[-1]]:
        raise DataError(f"{pattern} is a folder; give its files, as in {pattern}/*.parquet")
    if len({_is_csv(file) for file in files}) > 1:
        raise DataError(f"{pattern}: Parquet and CSV files; a table has files of one kind")
    return files


def _is_csv(file: str) -> bool:
    return _compression(file) != "parquet"


def _compression(file: str) -> str | None:
    """How a CSV file is compressed; "parquet" for a Parquet file."""
    if file.endswith((".parquet", ".pq")):
        return "parquet"
    for ending, compression in _COMPRESSIONS.items():
        if file.endswith(ending):
            return compression
    raise DataError(f"{file}: the name must end in .parquet, {', '.join(_COMPRESSIONS)}")


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A stream of the file's content, decompressed; what Arrow can't read is a DataError."""
    compression = _compression(file)
    try:
        with storage.open_read(file) as stream:
            if compression in ("parquet", None):
                yield stream
            else:
                yield pa.input_stream(stream, compression=compression)
    except (pa.ArrowException, OSError) as error:
        found = " ".join(str(error).split())
        kind = "CSV" if _is_csv(file) else "Parquet"
        raise DataError(f"{file}: cannot be read as {kind}: {found}") from None


def _header(file: str) -> list[str]:
    with _opened(file) as stream:
        if not _is_csv(file):
            return list(pq.ParquetFile(stream).schema_arrow.names)
        # a ragged row among the first ones is named when the file is read
        lenient = pa_csv.ParseOptions(invalid_row_handler=lambda row: "skip")
        return list(pa_csv.open_csv(stream, parse_options=lenient).schema.names)


def _read_file(file: str, columns: dict[str, str]) -> Any:
    numbers = [name for name, option in columns.items() if option == "features"]
    types = {name: pa.float64() if name in numbers else TEXT for name in columns}
    with _opened(file) as stream:
        if not _is_csv(file):
            return pq.ParquetFile(stream).read(columns=list(columns))
        try:
            return pa_csv.read_csv(stream, convert_options=_convert(types))
        except pa.ArrowInvalid as error:
            problem = error
    _refuse_csv(file, numbers)
    raise DataError(f"{file}: cannot be read as CSV: {' '.join(str(problem).split())}")


def _convert(types: dict[str, Any]) -> Any:
    return pa_csv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=False
    )


def _refuse_csv(file: str, numbers: list[str]) -> None:
    """Names the row of a CSV file that Arrow could not read, if that can be found out."""
    ragged: list[Any] = []

    def collect(row: Any) -> str:
        ragged.append(row)
        return "skip"

    with _opened(file) as stream:
        table = pa_csv.read_csv(
            stream,
            read_options=pa_csv.ReadOptions(use_threads=False),  # else rows have no number
            parse_options=pa_csv.ParseOptions(invalid_row_handler=collect),
            convert_options=_convert(dict.fromkeys(numbers, TEXT)),
        )
    if ragged:
        row = ragged[0]
        found = f"{file} row {row.number - 1}: {row.actual_columns} values"
        raise DataError(f"{found}, expected {row.expected_columns} as in the first line; mend it")
    for name in numbers:
        for at, text in enumerate(table[name].to_pylist(), start=1):
            if text and not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|nan|inf", text):
                found = f"{file} row {at}: {name} is {text!r}, not a number"
                raise DataError(f"{found}; mend it, or choose the feature columns with features")


def _typed(table: _Table, name: str, *, numbers: bool) -> Any:
    """A column of all files as int64 or text, or, where `numbers` may be any, float64."""
    chunks: list[Any] = []
    kinds: dict[Any, str] = {}
    for file, start, part in zip(table.rows.files, table.rows.starts, table.parts, strict=True):
        column = part[name]
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        # an empty file, and a column without any value, may have any type
        if column.null_count < len(column):
            kind = arrow_kind(column.type, numbers=numbers)
            if kind is None:
                allowed = "whole numbers or strings" if numbers else "integers or strings"
                raise DataError(f"{file}: column {name!r} is {column.type}; it must be {allowed}")
            kinds.setdefault(kind, file)
            chunks += _cast(column, kind, name, table.rows.shifted(start)).chunks
        else:
            chunks.append(pa.nulls(len(column)))
    if kinds.keys() == {pa.int64(), pa.float64()}:
        del kinds[pa.int64()]
    if len(kinds) > 1:
        found = " and ".join(f"{kind} in {file}" for kind, file in kinds.items())
        raise DataError(f"column {name!r} is {found}; write it as one type")
    kind = next(iter(kinds), pa.float64() if numbers else TEXT)
    return pa.chunked_array([pc.cast(chunk, kind) for chunk in chunks], kind)


def _cast(column: Any, kind: Any, name: str, where: Where) -> Any:
    if pa.types.is_uint64(column.type):
        row = first_true(pc.greater(column, pa.scalar(_MAX_INT64, pa.uint64())))
        if row >= 0:
            found = f"{where(row)}: {name} {column[row]} is too large"
            raise DataError(f"{found}; the largest integer is {_MAX_INT64}")
    try:
        column = pc.cast(column, kind)
        column.validate(full=True)  # Parquet strings may be no UTF-8
    except pa.ArrowInvalid as error:
        found = " ".join(str(error).split())
        raise DataError(f"{where(0)} and on: column {name!r}: {found}") from None
    return column


class _Ids(NamedTuple):
    """A column of ids and where it is."""

    table: _Table
    name: str

    def found(self, row: int, value: object) -> str:
        return f"{self.table.rows.where(row)}: {self.name} {value!r}"

    def refuse(self, values: Any, mask: Any, why: str) -> None:
        row = first_true(mask)
        if row >= 0:
            raise DataError(f"{self.found(row, values[row].as_py())} {why}")


def _id_values(columns: list[_Ids]) -> list[Any]:
    """The id columns as all int64 or all text."""
    values = [_typed(column.table, column.name, numbers=False) for column in columns]
    for column, value in zip(columns, values, strict=True):
        missing = pc.is_null(value)
        if value.type == TEXT:
            missing = pc.or_kleene(missing, pc.equal(value, ""))
        column.refuse(value, missing, "is empty; give each row an id, or remove it")
    values = _one_kind(columns, values)
    for column, value in zip(columns, values, strict=True):
        if value.type == pa.int64():
            column.refuse(value, pc.less(value, 0), "is negative; integer ids start at 0")
    return values


def _one_kind(columns: list[_Ids], values: list[Any]) -> list[Any]:
    pairs = list(zip(columns, values, strict=True))
    typed = {value.type: column for column, value in pairs if not column.table.is_csv}
    if len(typed) > 1:
        found = " and ".join(
            f"{column.name} of {column.table.rows.files[0]} is {kind}"
            for kind, column in typed.items()
        )
        raise DataError(f"{found}; ids are integers everywhere or strings everywhere")
    if TEXT in typed:
        return values
    integers = [value if value.type != TEXT else plain_integers(value) for value in values]
    if all(value is not None for value in integers):
        return integers
    if not typed:
        return values
    column, value = next(pair for pair, n in zip(pairs, integers, strict=True) if n is None)
    text = value.to_pylist()
    row = next((r for r, one in enumerate(text) if not re.fullmatch(r"0|-?[1-9]\d*", one)), 0)
    other = next(iter(typed.values()))
    found = f"{column.found(row, text[row])} is no plain integer"
    raise DataError(f"{found}, {other.name} of {other.table.rows.files[0]} is int64; use one kind")


class _Index(NamedTuple):
    """Ids in index order; `is_range` where they are 0..N-1."""

    ids: Any
    is_range: bool

    def column(self) -> Int64Array | list[str] | None:
        if self.is_range:
            return None
        if self.ids.type == TEXT:
            names: list[str] = self.ids.to_pylist()
            return names
        numbers: Int64Array = self.ids.to_numpy()
        return numbers


def _index(ids: Any) -> tuple[_Index, Int64Array]:
    """`ids` by rank, and the row of each."""
    positions = pc.sort_indices(ids)
    ranked = ids.take(positions).combine_chunks()
    ends = (ranked[0].as_py(), ranked[len(ranked) - 1].as_py())
    is_range = ranked.type == pa.int64() and ends == (0, len(ranked) - 1)
    return _Index(ranked, is_range), positions.to_numpy().astype(np.int64)


def _refuse_repeated(index: _Index, order: Int64Array, ids: _Ids) -> None:
    at = first_true(pc.equal(index.ids[1:], index.ids[:-1]))
    if at >= 0:
        first, second = sorted(order[at : at + 2].tolist())
        found = ids.found(second, index.ids[at].as_py())
        raise DataError(f"{found} repeats {ids.table.rows.where(first)}; a node has one row")


def _find(index: _Index, values: Any, end: _Ids, nodes: str | None) -> Int64Array:
    """The index of each of `values`; one that is no node is refused."""
    if index.is_range:
        found: Int64Array = values.to_numpy()
        missing = found >= len(index.ids)
    else:
        positions = pc.index_in(values, value_set=index.ids)
        found = pc.fill_null(positions, -1).to_numpy().astype(np.int64)
        missing = found < 0
    if missing.any():
        row = int(np.argmax(missing))
        what = end.found(row, values[row].as_py())
        raise DataError(f"{what} is no node of {nodes}; add the node or remove the edge")
    return found


def _node_columns(
    source: TableSource, roles: _Roles, table: _Table, index: _Index, order: Int64Array
) -> NodeColumns:
    y, num_classes, classes, split = None, 0, None, None
    where = table.rows.where
    if roles.label is not None:
        column = _typed(table, roles.label, numbers=True)
        given = source.num_classes
        y, num_classes, classes = arrow_labels(
            column, roles.label, is_csv=table.is_csv, num_classes=given, where=where
        )
    if roles.split is not None:
        column = _typed(table, roles.split, numbers=True)
        split = arrow_split(column, roles.split, where=where)[order]
    return NodeColumns(
        num_nodes=len(index.ids),
        x=_features(table, roles.features, order, source.feature_layout),
        targets=class_target(None if y is None else y[order], num_classes, classes),
        split=split,
        ids=index.column(),
    )


def _features(table: _Table, names: list[str], order: Int64Array, layout: Layout) -> Features:
    """The columns `names` as a matrix in index order."""
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    x: npt.NDArray[np.float32] | None = None
    width = None if len(names) == 1 else 1  # a list column stands alone
    for start, part in zip(table.rows.starts, table.parts, strict=True):
        if not part.num_rows:
            continue
        rows = rank[start : start + part.num_rows]
        for col, name in enumerate(names):
            block = arrow_block(part[name], name, where=table.rows.shifted(start), width=width)
            if x is None:
                width = block.shape[1]
                x = np.empty((order.size, len(names) * width), dtype=np.float32)
            x[rows, col : col + block.shape[1]] = block
    return None if x is None else lay_out(x, layout)
