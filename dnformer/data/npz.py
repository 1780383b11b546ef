"""Arrays in a .npz file, read without pickle."""

import io
import zipfile
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from dnformer import storage
from dnformer.errors import DataError

# what zipfile and numpy raise for bytes that are none of theirs
_UNREADABLE = (
    ValueError, TypeError, SyntaxError, LookupError, MemoryError, OverflowError, OSError, EOFError,
    NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def load_npz(uri: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of the file, by name.

    Raises:
        DataError: there is no such file, or it holds anything but plain arrays.
    """
    content = storage.read_bytes(uri)
    try:
        with zipfile.ZipFile(io.BytesIO(content)):  # np.load would take a lone array too
            pass
        with np.load(io.BytesIO(content), allow_pickle=False) as parts:
            return {key: np.asarray(parts[key]) for key in parts.files}
    except _UNREADABLE as error:
        found = f"{uri}: no npz file of plain arrays ({type(error).__name__}: {error})"
        raise DataError(f"{found}; fetch it again") from None
