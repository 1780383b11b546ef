"""First look at the tables: every value is checked, and what is needed is staged on local disk."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dnformer.data.features import (
    TEXT,
    Where,
    arrow_block,
    arrow_kind,
    first_true,
    missing,
    plain_integers,
)
from dnformer.data.ingest.progress import Stage
from dnformer.data.ingest.table_files import Batch, RowCounter, Rows, TableFiles
from dnformer.data.ingest.tables import EdgeRoles
from dnformer.data.table import EdgeColumns
from dnformer.errors import DataError

# what one thread of DuckDB reads at a time
_GROUP_ROWS = 1 << 18
_MAX_INT64 = 2**63 - 1


class TextIds(Exception):
    """CSV ids were read as integers, and one is none: all have to be read as text."""


class IdColumn(NamedTuple):
    """A column of ids and the table it is in."""

    table: TableFiles
    name: str


class IdReader:
    """Turns columns of ids into int64 or text, as all tables together have them.

    Args:
        columns: all columns of ids.
        as_text: CSV ids are text: an earlier reading found one that is no integer.
    """

    def __init__(self, columns: list[IdColumn], *, as_text: bool = False) -> None:
        self._typed = _typed_columns(columns)
        self._guess = not self._typed and not as_text
        self.type = next(iter(self._typed), TEXT if as_text else pa.int64())
        self._negative: DataError | None = None

    def read(self, batch: Batch, name: str) -> Any:
        """The ids of a batch, as an Arrow array of `type`.

        Raises:
            DataError: one is missing, negative, too large or no id at all.
            TextIds: they are not all integers, which only CSV files may surprise with.
        """
        column = batch.column(name)
        kind = arrow_kind(column.type, numbers=False)
        if kind is not None:
            column = cast(column, kind, name, batch.where)
        empty = pc.is_null(column)
        if kind == TEXT:
            empty = pc.or_kleene(empty, pc.equal(column, ""))
        self._refuse(batch, name, column, empty, "is empty; give each row an id, or remove it")
        if self.type == TEXT or not len(column):
            return pc.cast(column, self.type)
        if kind == TEXT:
            column = self._integers(batch, name, column)
        negative = pc.less(column, 0)
        try:
            self._refuse(batch, name, column, negative, "is negative; integer ids start at 0")
        except DataError as error:
            if not self._guess:
                raise
            # it may be text after all
            self._negative = self._negative or error
        return column

    def finish(self) -> None:
        """To be called after the last batch.

        Raises:
            DataError: an integer was negative.
        """
        if self._negative is not None:
            raise self._negative

    def _integers(self, batch: Batch, name: str, text: Any) -> Any:
        integers = plain_integers(text)
        if integers is not None:
            return integers
        if self._guess:
            raise TextIds
        values = text.to_pylist()
        row = next((r for r, one in enumerate(values) if not _is_plain(one)), 0)
        other = next(iter(self._typed.values()))
        found = f"{batch.where(row)}: {name} {values[row]!r} is no plain integer"
        raise DataError(f"{found}, {other.name} of {other.table.files[0]} is int64; use one kind")

    def _refuse(self, batch: Batch, name: str, column: Any, mask: Any, why: str) -> None:
        row = first_true(mask)
        if row >= 0:
            raise DataError(f"{batch.where(row)}: {name} {column[row].as_py()!r} {why}")


def _is_plain(text: str) -> bool:
    return bool(re.fullmatch(r"0|-?[1-9]\d*", text)) and -_MAX_INT64 <= int(text) <= _MAX_INT64


def _typed_columns(columns: list[IdColumn]) -> dict[Any, IdColumn]:
    """{type: the first column that is of it by its file}, of which there is at most one."""
    typed: dict[Any, IdColumn] = {}
    for column in columns:
        kinds: dict[Any, str] = {}
        for file, of in column.table.types(column.name).items():
            kind = arrow_kind(of, numbers=False)
            if kind is None:
                found = f"{file}: column {column.name!r} is {of}"
                raise DataError(f"{found}; it must be integers or strings")
            kinds.setdefault(kind, file)
        if len(kinds) > 1:
            found = " and ".join(f"{kind} in {file}" for kind, file in kinds.items())
            raise DataError(f"column {column.name!r} is {found}; write it as one type")
        for kind in kinds:
            typed.setdefault(kind, column)
    if len(typed) > 1:
        found = " and ".join(
            f"{column.name} of {column.table.files[0]} is {kind}" for kind, column in typed.items()
        )
        raise DataError(f"{found}; ids are integers everywhere or strings everywhere")
    return typed


def cast(column: Any, kind: Any, name: str, where: Where) -> Any:
    """An array as int64, float64 or TEXT.

    Raises:
        DataError: an integer is past int64, or text is no UTF-8.
    """
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


def read_times(column: Any, name: str, where: Where) -> Any:
    """A column of integers, dates or timestamps as int64; the latter in microseconds.

    Raises:
        DataError: a value is missing or none of these.
    """
    kind, types = column.type, pa.types
    if types.is_integer(kind):
        times = cast(column, pa.int64(), name, where)
    elif types.is_date(kind) or types.is_timestamp(kind):
        times = pc.cast(pc.cast(column, pa.timestamp("us"), safe=False), pa.int64())
    elif arrow_kind(kind, numbers=False) == TEXT:
        times = _times_in_text(pc.cast(column, TEXT), name, where)
    elif types.is_null(kind):
        times = column
    else:
        found = f"{where(0)} and on: column {name!r} is {kind}"
        raise DataError(f"{found}; times are integers, dates or timestamps")
    if times.null_count:
        raise missing(where(first_true(pc.is_null(times))), name)
    return times


def _times_in_text(column: Any, name: str, where: Where) -> Any:
    row = first_true(pc.equal(column, ""))
    if row >= 0:
        raise missing(where(row), name)
    integers = plain_integers(column)
    if integers is not None:
        return integers
    try:
        return pc.cast(pc.cast(column, pa.timestamp("us")), pa.int64())
    except pa.ArrowInvalid as error:
        found = " ".join(str(error).split())
        raise DataError(f"{where(0)} and on: column {name!r}: {found}") from None


class EdgeStage(NamedTuple):
    """Checked edges on local disk, in the order of the files.

    Attributes:
        path: of a Parquet file of src, dst (ids), and weight, attr and time where there are.
        rows: where each row came from.
        num_rows: of all files.
        like: no edges, with the columns that these have.
    """

    path: Path
    rows: Rows
    num_rows: int
    like: EdgeColumns

    def batches(self) -> Iterator[Any]:
        """The record batches."""
        yield from staged_batches(self.path)

    def example(self, row: int, src: object, dst: object) -> str:
        """Names an edge as a person finds it."""
        return f"{self.rows.where(row)}: {src} -> {dst}"


def staged_batches(path: Path) -> Iterator[Any]:
    """The record batches of a staged table."""
    with pq.ParquetFile(path, memory_map=False) as file:
        for group in range(file.num_row_groups):
            yield from file.read_row_group(group, use_threads=False).to_batches()


class StageWriter:
    """Record batches into a Parquet file on local disk, which DuckDB reads in parallel; a context.

    Not even compressed: it is read once or twice, soon, on the same machine.
    """

    def __init__(self, path: Path) -> None:
        self._file = pa.OSFile(str(path), "wb")
        self._writer: Any = None

    def write(self, columns: dict[str, Any]) -> None:
        """Appends a batch; all batches have the same columns."""
        batch = pa.RecordBatch.from_pydict(columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._file, batch.schema, compression="none", use_dictionary=False,
                write_statistics=False,
            )  # fmt: skip
        self._writer.write_batch(batch, row_group_size=_GROUP_ROWS)

    def __enter__(self) -> "StageWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file.close()


def stage_edges(
    table: TableFiles,
    roles: EdgeRoles,
    ids: IdReader,
    *,
    path: Path,
    stage: Stage,
    see: Callable[[Any], None],
    rows: int = 1 << 20,
) -> EdgeStage:
    """Reads the edge table once, checks it, and writes what is needed to `path`.

    Args:
        table: the files.
        roles: what the columns are.
        ids: how ids are read.
        path: of the stage.
        stage: told of each batch.
        see: told of each array of ids.
        rows: of a batch.

    Raises:
        DataError: a value is wrong; the message names file, row and value.
        TextIds: see `IdReader`.
    """
    counter, num_rows = RowCounter(), 0
    with StageWriter(path) as writer:
        for batch in table.batches(list(roles.columns()), numbers=roles.numbers(), rows=rows):
            counter.see(batch)
            if batch.columns.num_rows:
                columns = edge_columns(batch, roles, ids)
                see(columns["src"])
                see(columns["dst"])
                writer.write(columns)
            num_rows += batch.columns.num_rows
            stage.add(rows=batch.columns.num_rows, bytes_=batch.read)
    return EdgeStage(path, counter.rows(), num_rows, no_edges(roles))


def no_edges(roles: EdgeRoles) -> EdgeColumns:
    """No edges, with the columns that edges of `roles` have."""
    return EdgeColumns(
        weight=None if roles.weight is None else np.empty(0, np.float32),
        attr=np.empty((0, len(roles.attrs)), np.float32) if roles.attrs else None,
        attr_names=roles.attrs,
        time=None if roles.time is None else np.empty(0, np.int64),
    )


def edge_columns(batch: Batch, roles: EdgeRoles, ids: IdReader) -> dict[str, Any]:
    """Checked src and dst (ids), and weight, attr and time where there are, of at least one row.

    Raises:
        DataError: a value is wrong; the message names file, row and value.
        TextIds: see `IdReader`.
    """
    columns = {"src": ids.read(batch, roles.src), "dst": ids.read(batch, roles.dst)}
    if roles.weight is not None:
        columns["weight"] = _numbers(batch, roles.weight, "weight").ravel()
    if roles.attrs:
        blocks = [_numbers(batch, name, "edge_attrs") for name in roles.attrs]
        flat = pa.array(np.concatenate(blocks, axis=1).ravel())
        columns["attr"] = pa.FixedSizeListArray.from_arrays(flat, len(blocks))
    if roles.time is not None:
        columns["time"] = read_times(batch.column(roles.time), roles.time, batch.where)
    return columns


def _numbers(batch: Batch, name: str, option: str) -> Any:
    mend = f"name a column of numbers with {option}, or rename this one"
    return arrow_block(batch.column(name), name, where=batch.where, width=1, mend=mend)


def carried(batch: Any, like: EdgeColumns) -> EdgeColumns:
    """What the edges of a staged batch carry."""

    def column(name: str) -> Any:
        return batch.column(batch.schema.get_field_index(name))

    attr = None
    if like.attr is not None:
        width = like.attr.shape[1]
        attr = column("attr").flatten().to_numpy().reshape(-1, width)
    return EdgeColumns(
        weight=None if like.weight is None else column("weight").to_numpy(),
        attr=attr,
        attr_names=like.attr_names,
        time=None if like.time is None else column("time").to_numpy(),
    )
