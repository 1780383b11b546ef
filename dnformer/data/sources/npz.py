"""Arrays in a .npz file, read without pickle: all of them at once, or one as a stream."""

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from dnformer import storage
from dnformer.errors import DataError

# what zipfile and numpy raise for bytes that are none of theirs
_UNREADABLE = (
    ValueError, TypeError, SyntaxError, LookupError, MemoryError, OverflowError, OSError, EOFError,
    NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_READ_BYTES = 1 << 20


def load_npz(uri: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of the file, by name.

    Raises:
        DataError: there is no such file, or it holds anything but plain arrays.
    """
    content = storage.read_bytes(uri)
    with _readable(uri):
        with zipfile.ZipFile(io.BytesIO(content)):  # np.load would take a lone array too
            pass
        with np.load(io.BytesIO(content), allow_pickle=False) as parts:
            return {key: np.asarray(parts[key]) for key in parts.files}


@contextmanager
def _readable(uri: str) -> Iterator[None]:
    """What zipfile and numpy raise in the block, as a DataError that names the file."""
    try:
        yield
    except _UNREADABLE as error:
        found = f"{uri}: no npz file of plain arrays ({type(error).__name__}: {error})"
        raise DataError(f"{found}; fetch it again") from None


class ArrayHeader(NamedTuple):
    """What an array in a file is; `by_column` where its first dimension runs fastest."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool


def npz_headers(uri: str) -> dict[str, ArrayHeader]:
    """The headers of the file's arrays, by name, without their content.

    Raises:
        DataError: there is no such file, or it holds anything but plain arrays.
    """
    headers = {}
    with storage.open_read(uri) as file, _readable(uri), zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                headers[name.removesuffix(".npy")] = _header(member)
    return headers


def _header(member: Any) -> ArrayHeader:
    version = npy.read_magic(member)
    if version == (1, 0):
        shape, by_column, dtype = npy.read_array_header_1_0(member)
    else:
        shape, by_column, dtype = npy.read_array_header_2_0(member)
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    return ArrayHeader(shape, dtype, by_column)


def npz_rows(uri: str, key: str, rows: int) -> Iterator[npt.NDArray[Any]]:
    """The array `key` `[M, ...]` in pieces of `rows` rows, the last with what is left.

    Raises:
        DataError: the file or the array is not there, is damaged, or is stored by column.
    """
    with _members(uri, key, 1) as (header, (member,)):
        if header.by_column and len(header.shape) > 1:
            raise DataError(f"{uri}: {key} is stored by column; save it with np.ascontiguousarray")
        width = int(np.prod(header.shape[1:], dtype=np.int64))
        for first in range(0, header.shape[0], rows):
            count = min(rows, header.shape[0] - first)
            with _readable(uri):
                piece = _numbers(member, header.dtype, count * width)
            yield piece.reshape(count, *header.shape[1:])
        with _readable(uri):
            _end(member)


def npz_pairs(uri: str, key: str, columns: int) -> Iterator[npt.NDArray[Any]]:
    """The array `key` `[2, M]` in pieces of `columns` columns, whichever way it is stored.

    Raises:
        DataError: the file or the array is not there, or is damaged.
    """
    with _members(uri, key, 2) as (header, (one, other)):
        size = header.shape[1]
        if not header.by_column:
            with _readable(uri):
                _skip(other, size * header.dtype.itemsize)
        for first in range(0, size, columns):
            count = min(columns, size - first)
            with _readable(uri):
                if header.by_column:
                    piece = _numbers(one, header.dtype, 2 * count).reshape(count, 2).T
                else:
                    both = [_numbers(member, header.dtype, count) for member in (one, other)]
                    piece = np.stack(both)
            yield piece
        with _readable(uri):
            _end(one if header.by_column else other)


@contextmanager
def _members(uri: str, key: str, times: int) -> Iterator[tuple[ArrayHeader, list[Any]]]:
    """`times` streams of an array's content, each of a file of its own: zipfile shares one lock."""
    with ExitStack() as stack:
        members = []
        for _ in range(times):
            file: BinaryIO = stack.enter_context(storage.open_read(uri))
            with _readable(uri):
                archive = stack.enter_context(zipfile.ZipFile(file))
                members.append(stack.enter_context(archive.open(f"{key}.npy")))
                header = _header(members[-1])
        yield header, members


def _numbers(member: Any, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    # a zip member's read may give less than was asked for
    content = bytearray()
    wanted = count * dtype.itemsize
    while len(content) < wanted:
        piece = member.read(wanted - len(content))
        if not piece:
            raise EOFError("it ends too early")
        content += piece
    return np.frombuffer(content, dtype=dtype)


def _skip(member: Any, size: int) -> None:
    while size:
        piece = member.read(min(size, _READ_BYTES))
        if not piece:
            raise EOFError("it ends too early")
        size -= len(piece)


def _end(member: Any) -> None:
    # zipfile compares the checksum where it finds the end
    if member.read(1):
        raise ValueError("more values than its shape says")
