"""The files of a table, Parquet or CSV, as a stream of record batches in order.

Nothing here holds more than a few batches, and every batch knows its file and row, so that what is
wrong in it can be named.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dnformer import storage
from dnformer.data.features import TEXT
from dnformer.errors import DataError

_COMPRESSIONS = {".csv": None, ".csv.gz": "gzip", ".csv.zst": "zstd"}
# a column chunk of a large row group is read in pieces of this size
_PARQUET_BUFFER = 4 << 20
_CSV_BLOCK = 8 << 20
# Arrow's own text of a number; words such as NA are none
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|nan|inf|-inf|\+inf")


class Batch(NamedTuple):
    """Consecutive rows of one file.

    Attributes:
        columns: a pyarrow.RecordBatch of the columns asked for.
        file: the file.
        start: rows before them in this file.
        offset: rows before them in the whole table.
        read: bytes of the file read since the batch before.
    """

    columns: Any
    file: str
    start: int
    offset: int
    read: int

    def where(self, row: int) -> str:
        """Names a row of the batch."""
        return f"{self.file} row {self.start + row + 1}"

    def column(self, name: str) -> Any:
        """The array of a column, a dictionary's values in place."""
        array = self.columns.column(self.columns.schema.get_field_index(name))
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        return array


class Piece(NamedTuple):
    """Consecutive rows of one file, which can be read without what is before them.

    Attributes:
        file: the file.
        rows: how many, where the file says it.
        groups: row groups of a Parquet file, from the first to one past the last; None: all of it.
        start: rows before them in this file.
    """

    file: str
    rows: int | None
    groups: tuple[int, int] | None = None
    start: int = 0


@dataclass(frozen=True)
class TableFiles:
    """The files of a table; `name` stands for all of them, `header` has the first one's columns."""

    name: str
    files: list[str]
    header: list[str]
    is_csv: bool
    schemas: dict[str, Any] = field(repr=False, default_factory=dict)
    num_rows: dict[str, int] = field(repr=False, default_factory=dict)

    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(storage.size(file) for file in self.files)

    def check(self, columns: dict[str, str], *, same_header: bool = False) -> None:
        """Refuses a file without one of `columns` ({column: option that names it})."""
        for file in self.files:
            header = self.schemas[file].names
            for name, option in columns.items():
                require(name, option, header, file)
            if same_header and set(header) != set(self.header):
                odd = ", ".join(sorted(set(header) ^ set(self.header)))
                found = f"{file}: other columns than in {self.files[0]}: {odd}"
                raise DataError(f"{found}; choose features")

    def types(self, name: str) -> dict[str, Any]:
        """{file: Arrow type of a column}, of Parquet files with rows; of a dictionary's values."""
        types = {}
        for file, rows in self.num_rows.items():
            found = self.schemas[file].field(name).type
            found = found.value_type if pa.types.is_dictionary(found) else found
            if rows and not pa.types.is_null(found):
                types[file] = found
        return types

    def batches(
        self, columns: Sequence[str], *, numbers: Sequence[str] = (), rows: int = 1 << 20
    ) -> Iterator[Batch]:
        """All rows in order, in batches of at most `rows` where the files are Parquet.

        Args:
            columns: names of those to read.
            numbers: which of them hold numbers; in CSV all others are text.
            rows: of a batch.

        Raises:
            DataError: a file cannot be read, or there are no rows at all.
        """
        read = 0
        files = (Piece(file, None) for file in self.files)
        for batch in self.read_pieces(files, columns, numbers=numbers, rows=rows):
            yield batch
            read += batch.columns.num_rows
        if not read:
            raise self.empty()

    def empty(self) -> DataError:
        """The error of a table without rows."""
        return DataError(f"{self.name}: no rows; the table must have at least one")

    def pieces(self, rows: int) -> Iterator[Piece]:
        """All files cut into pieces of about `rows` rows; CSV files and row groups stay whole."""
        for file in self.files:
            known = self.num_rows.get(file)
            if known is None or known <= rows:
                yield Piece(file, known)
            else:
                yield from _cut(file, rows)

    def read_pieces(
        self,
        pieces: Iterable[Piece],
        columns: Sequence[str],
        *,
        numbers: Sequence[str] = (),
        rows: int = 1 << 20,
        offset: int = 0,
    ) -> Iterator[Batch]:
        """The rows of consecutive pieces as `batches` has them, with `offset` rows before them."""
        for piece in pieces:
            start = piece.start
            for batch, read in _read(piece.file, list(columns), numbers, rows, groups=piece.groups):
                yield Batch(batch, piece.file, start, offset, read)
                start += batch.num_rows
                offset += batch.num_rows


@dataclass(frozen=True)
class Rows:
    """Rows of several files counted through: `starts[k]` is the first of file k."""

    files: list[str]
    starts: list[int]

    def where(self, row: int) -> str:
        """Names a row of the table."""
        k = max(k for k, start in enumerate(self.starts) if start <= row)
        return f"{self.files[k]} row {row - self.starts[k] + 1}"


class RowCounter:
    """Learns from the batches of a table where each file begins."""

    def __init__(self) -> None:
        self._starts: dict[str, int] = {}

    def see(self, batch: Batch) -> None:
        """Takes note of a batch."""
        self._starts.setdefault(batch.file, batch.offset - batch.start)

    def rows(self) -> Rows:
        """What was learnt."""
        return Rows(list(self._starts), list(self._starts.values()))


def open_table(patterns: Sequence[str]) -> TableFiles:
    """The files that match `patterns`, in the order of the patterns and by name within each.

    Raises:
        DataError: there is none, they are of two kinds, or one cannot be read.
    """
    files = [file for pattern in patterns for file in _files(pattern)]
    name = ", ".join(patterns)
    if len({is_csv(file) for file in files}) > 1:
        raise DataError(f"{name}: Parquet and CSV files; a table has files of one kind")
    twice = next((file for at, file in enumerate(files) if file in files[:at]), None)
    if twice is not None:
        raise DataError(f"{name}: {twice} is meant twice; name each file once")
    known = {file: _schema(file) for file in files}
    schemas = {file: schema for file, (schema, _) in known.items()}
    num_rows = {file: rows for file, (_, rows) in known.items() if rows is not None}
    return TableFiles(name, files, schemas[files[0]].names, is_csv(files[0]), schemas, num_rows)


def _files(pattern: str) -> list[str]:
    files = storage.glob(pattern)
    inside = storage.list_names(pattern) if files == [pattern] else []
    if inside and inside != [pattern.rsplit("/", 1)[-1]]:
        raise DataError(f"{pattern} is a folder; give its files, as in {pattern}/*.parquet")
    return files


def is_csv(file: str) -> bool:
    """Whether the name is that of a CSV file and not of a Parquet file."""
    return _compression(file) != "parquet"


def _compression(file: str) -> str | None:
    """How a CSV file is compressed; "parquet" for a Parquet file."""
    if file.endswith((".parquet", ".pq")):
        return "parquet"
    for ending, compression in _COMPRESSIONS.items():
        if file.endswith(ending):
            return compression
    raise DataError(f"{file}: the name must end in .parquet, {', '.join(_COMPRESSIONS)}")


def require(name: str, option: str, header: list[str], file: str) -> None:
    """Refuses a header that has no column `name`, or two."""
    if header.count(name) == 1:
        return
    if name in header:
        raise DataError(f"{file}: {header.count(name)} columns {name!r}; rename all but one")
    near = difflib.get_close_matches(name, header, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    shown = ", ".join(header[:8]) + (", ..." if len(header) > 8 else "")
    found = f"{file}: no column {name!r}{hint}; it has {shown}"
    raise DataError(f"{found}; name the column with {option}")


@contextmanager
def _opened(file: str) -> Iterator[tuple[Any, Any]]:
    """(content, decompressed, and the file under it); what Arrow can't read is a DataError."""
    compression = _compression(file)
    try:
        with storage.open_read(file) as stream:
            if compression in ("parquet", None):
                yield stream, stream
            else:
                yield pa.input_stream(stream, compression=compression), stream
    except (pa.ArrowException, OSError) as error:
        found = " ".join(str(error).split())
        kind = "CSV" if is_csv(file) else "Parquet"
        raise DataError(f"{file}: cannot be read as {kind}: {found}") from None


def _schema(file: str) -> tuple[Any, int | None]:
    """Names and types of the columns, and the number of rows where the file says it."""
    with _opened(file) as (stream, _):
        if not is_csv(file):
            parquet = pq.ParquetFile(stream)
            return parquet.schema_arrow, parquet.metadata.num_rows
        # a ragged row among the first ones is named when the file is read
        lenient = pa_csv.ParseOptions(invalid_row_handler=lambda row: "skip")
        # with threads it would go on reading ahead, and could abort the interpreter at its end
        # (apache/arrow#43604)
        alone = pa_csv.ReadOptions(use_threads=False)
        with pa_csv.open_csv(stream, read_options=alone, parse_options=lenient) as reader:
            return reader.schema, None


def _cut(file: str, rows: int) -> Iterator[Piece]:
    """Pieces of a Parquet file, of whole row groups."""
    with _opened(file) as (stream, _):
        metadata = pq.ParquetFile(stream).metadata
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    first = held = start = 0
    for group, count in enumerate(counts):
        held += count
        if held >= rows or group == len(counts) - 1:
            yield Piece(file, held, (first, group + 1), start)
            first, held, start = group + 1, 0, start + held


def _read(
    file: str,
    columns: list[str],
    numbers: Sequence[str],
    rows: int,
    *,
    groups: tuple[int, int] | None = None,
) -> Iterator[tuple[Any, int]]:
    """(batch, bytes read for it) of one file, or of some row groups of it."""
    with _opened(file) as (stream, under):
        if is_csv(file):
            read = 0
            for batch in _csv_batches(file, stream, columns, numbers):
                now = max(read, under.tell())
                yield batch, now - read
                read = now
            return
        # a buffer ahead would hold the whole file
        parquet = pq.ParquetFile(stream, buffer_size=_PARQUET_BUFFER, pre_buffer=False)
        size = storage.size(file)
        chosen = None if groups is None else list(range(*groups))
        for batch in parquet.iter_batches(batch_size=rows, columns=columns, row_groups=chosen):
            # it is read here and there: where the reader stands says nothing
            yield batch, size * batch.num_rows // parquet.metadata.num_rows


def _csv_batches(
    file: str, stream: Any, columns: list[str], numbers: Sequence[str]
) -> Iterator[Any]:
    types = {name: pa.float64() if name in numbers else TEXT for name in columns}
    try:
        with pa_csv.open_csv(
            stream,
            read_options=pa_csv.ReadOptions(block_size=_CSV_BLOCK),
            convert_options=_convert(types),
        ) as reader:
            yield from reader
        return
    except pa.ArrowInvalid as error:
        problem = error
    _refuse_csv(file, columns, numbers)
    raise DataError(f"{file}: cannot be read as CSV: {' '.join(str(problem).split())}")


def _convert(types: dict[str, Any]) -> Any:
    return pa_csv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=False
    )


def _refuse_csv(file: str, columns: list[str], numbers: Sequence[str]) -> None:
    """Names the row of a CSV file that Arrow could not read, if that can be found out."""
    ragged: list[Any] = []

    def collect(row: Any) -> str:
        ragged.append(row)
        return "skip"

    with _opened(file) as (stream, _):
        reader = pa_csv.open_csv(
            stream,
            read_options=pa_csv.ReadOptions(use_threads=False),  # else rows have no number
            parse_options=pa_csv.ParseOptions(invalid_row_handler=collect),
            convert_options=_convert(dict.fromkeys(columns, TEXT)),
        )
        start = 1
        with reader, suppress(StopIteration):
            while not ragged:
                batch = reader.read_next_batch()
                if not ragged:
                    _refuse_text(file, start, batch, numbers)
                start += batch.num_rows
    if ragged:
        row = ragged[0]
        found = f"{file} row {row.number - 1}: {row.actual_columns} values"
        raise DataError(f"{found}, expected {row.expected_columns} as in the first line; mend it")


def _refuse_text(file: str, start: int, batch: Any, numbers: Sequence[str]) -> None:
    for name in numbers:
        column = batch.column(batch.schema.get_field_index(name))
        for at, text in enumerate(column.to_pylist(), start=start):
            if text and not _NUMBER.fullmatch(text):
                found = f"{file} row {at}: {name} is {text!r}, not a number"
                raise DataError(f"{found}; mend it, or leave the column out")
