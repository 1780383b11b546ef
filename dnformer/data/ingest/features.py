"""Features read a batch at a time: from columns of the node table, or from a file by position."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, BinaryIO, final

import numpy as np
import numpy.typing as npt

from dnformer import storage
from dnformer.data.features import Where, arrow_block, finite
from dnformer.data.ingest.table_files import Batch, TableFiles, open_table
from dnformer.errors import DataError

Block = npt.NDArray[np.float32]

# what is before the first row wanted is passed over in steps of so many
_SKIPPED_ROWS = 1 << 20


class FeatureReader(ABC):
    """Gives the features of each batch of the node table."""

    @abstractmethod
    def read(self, batch: Batch) -> Block | None:
        """float32 `[n, F]`; None where there are none."""

    @abstractmethod
    def finish(self, num_nodes: int, nodes: str) -> None:
        """To be called after the last batch; refuses features without a node."""


@final
class ColumnFeatures(FeatureReader):
    """Columns of numbers, or one column of lists."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._width = None if len(names) == 1 else 1  # a list column stands alone

    def read(self, batch: Batch) -> Block | None:
        """float32 `[n, F]`.

        Raises:
            DataError: a value is missing, no number or not finite, or a list has another length.
        """
        if not self._names:
            return None
        blocks = []
        for name in self._names:
            column = batch.column(name)
            blocks.append(arrow_block(column, name, where=batch.where, width=self._width))
            self._width = blocks[-1].shape[1]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)

    def finish(self, num_nodes: int, nodes: str) -> None:
        """Each row has its features."""


@final
class PositionedFeatures(FeatureReader):
    """Rows of a file of their own: row i belongs to row i of the node table.

    Args:
        file: .npy, or a URI or glob of Parquet or CSV files.
        names: its columns; None: all.
        start: the first row to read.
    """

    def __init__(self, file: str, names: list[str] | None, *, start: int = 0) -> None:
        self._file = file
        if file.endswith(".npy"):
            self._blocks = _npy(file, start)
        else:
            self._blocks = _table(open_table([file]), names, start)
        self._held: Block | None = None
        self._read = start

    def read(self, batch: Batch) -> Block | None:
        """float32 `[n, F]`.

        Raises:
            DataError: the file has fewer rows than the node table, or a value is wrong.
        """
        wanted = batch.columns.num_rows
        pieces: list[Block] = []
        while wanted and (block := self._next()) is not None:
            taken, rest = block[:wanted], block[wanted:]
            self._held = rest if len(rest) else None
            pieces.append(taken)
            wanted -= len(taken)
            self._read += len(taken)
        if wanted:
            raise DataError(
                f"{self._file}: {self._read} rows, and {batch.where(batch.columns.num_rows - 1)} "
                "is past them; row i belongs to row i of the node table"
            )
        return np.concatenate(pieces) if pieces else None

    def _next(self) -> Block | None:
        block = self._held if self._held is not None else next(self._blocks, None)
        self._held = None
        return block

    def finish(self, num_nodes: int, nodes: str) -> None:
        """Refuses a file with more rows than the node table."""
        if self._next() is not None:
            raise DataError(
                f"{self._file}: more rows than the {num_nodes} of {nodes}; row i belongs to row i "
                "of the node table"
            )


def _table(table: TableFiles, names: list[str] | None, start: int) -> Iterator[Block]:
    columns = table.header if names is None else names
    table.check(dict.fromkeys(columns, "features"), same_header=names is None)
    reader = ColumnFeatures(columns)
    pieces, offset = list(table.pieces(_SKIPPED_ROWS)), 0
    while pieces and pieces[0].rows is not None and offset + pieces[0].rows <= start:
        offset += pieces.pop(0).rows or 0
    for batch in table.read_pieces(pieces, columns, numbers=columns, rows=1 << 13, offset=offset):
        ahead = max(start - batch.offset, 0)
        if ahead < batch.columns.num_rows:
            block = reader.read(batch)
            assert block is not None
            yield block[ahead:]


def _npy(file: str, start: int) -> Iterator[Block]:
    """Blocks of the rows of a .npy file from `start`, of which nothing but numbers is read."""
    with storage.open_read(file) as stream:
        shape, dtype = _npy_header(file, stream)
        rows = max(1, (8 << 20) // max(shape[1] * dtype.itemsize, 1))
        stream.seek(min(start, shape[0]) * shape[1] * dtype.itemsize, os.SEEK_CUR)
        for first in range(start, shape[0], rows):
            count = min(rows, shape[0] - first)
            content = stream.read(count * shape[1] * dtype.itemsize)
            if len(content) < count * shape[1] * dtype.itemsize:
                raise DataError(f"{file}: it ends before row {shape[0]}; copy it again")
            block = np.frombuffer(content, dtype).reshape(count, shape[1])
            yield finite(block, where=_rows_from(file, first))


def _rows_from(file: str, first: int) -> Where:
    return lambda row: f"{file} row {first + row + 1}"


def _npy_header(file: str, stream: BinaryIO) -> tuple[tuple[int, int], np.dtype[Any]]:
    lib = np.lib.format
    try:
        read = {(1, 0): lib.read_array_header_1_0, (2, 0): lib.read_array_header_2_0}
        shape, fortran, dtype = read[lib.read_magic(stream)](stream)
    except (ValueError, KeyError) as error:
        raise DataError(f"{file}: no .npy file ({error})") from None
    if len(shape) != 2 or dtype.kind not in "fiub":
        found = f"{file} is {dtype} of shape {list(shape)}"
        raise DataError(f"{found}; give real numbers of shape [num_nodes, F]")
    if fortran:
        raise DataError(f"{file} is in Fortran order; save np.ascontiguousarray(x)")
    return (shape[0], shape[1]), dtype
