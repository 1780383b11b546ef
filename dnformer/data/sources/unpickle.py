"""Reads the pickles of Planetoid's `ind.*` files without running anything that they name.

A pickle may call whatever `find_class` returns, so it returns only dict, defaultdict, list and
the passive stand-ins below: numpy and scipy are called by us, after the pickle has ended, on
parts that we checked. All that a hostile pickle can do is use up our memory or stack.
"""

import io
import pickle
import re
import struct
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dnformer.data.features import csr_from_parts
from dnformer.errors import DataError

_NUMBER = re.compile(r"b1|[iu][1248]|f[248]")


def unpickle(content: bytes, *, name: str) -> Any:
    """The numpy array, scipy CSR matrix or dict that the pickle `content` of file `name` holds.

    Raises:
        DataError: it names anything but arrays, CSR matrices and containers, or is damaged.
    """
    try:
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
        if isinstance(value, _Array):
            return value.checked()
        if isinstance(value, _Csr):
            data, indices, indptr = (value.part(key) for key in ("data", "indices", "indptr"))
            return csr_from_parts(data, indices, indptr, value.shape(), name=name)
    except DataError:
        raise
    except pickle.UnpicklingError as error:
        found = " ".join(str(error).split())
        raise DataError(f"{name}: {found}; only arrays and lists of numbers are read") from None
    except _DAMAGE as error:
        found = " ".join(f"{type(error).__name__}: {error}".split())
        found = f"{name}: the pickle is damaged ({found})"
        raise DataError(f"{found}; fetch the file again") from None
    if type(value) not in (dict, defaultdict):
        raise DataError(f"{name}: holds a {type(value).__name__}, not an array or a dict of lists")
    return value


# whatever the pickle machine and our stand-ins raise on bytes that make no sense
_DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    struct.error,
    TypeError,
    ValueError,
)


class _Dtype:
    """Stands for numpy.dtype: a code such as "f4" and a byte order."""

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        self.code = str(code)
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = {"<": "<", ">": ">", "=": "=", "|": "="}[state[1]]

    def checked(self) -> np.dtype[Any]:
        if not _NUMBER.fullmatch(self.code):
            raise pickle.UnpicklingError(f"holds an array of {self.code!r}")
        return np.dtype(self.order + self.code)


class _Array:
    """Stands for numpy.ndarray: keeps its state as it is."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def checked(self) -> npt.NDArray[Any]:
        _, shape, dtype, is_fortran, content = self.state
        if not isinstance(dtype, _Dtype):
            raise pickle.UnpicklingError("holds an array without a type")
        number = dtype.checked()
        if isinstance(content, str):  # Python 2 wrote bytes as a string
            content = content.encode("latin1")
        if type(content) is not bytes or not _is_shape(shape):
            raise pickle.UnpicklingError("holds an array whose content is not plain numbers")
        array = np.frombuffer(content, dtype=number)
        array = array.reshape(shape, order="F" if is_fortran else "C")
        return array.astype(number.newbyteorder("="))


class _Csr:
    """Stands for scipy's csr_matrix: keeps its attributes as they are."""

    state: Mapping[str, Any] = {}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.state = state

    def part(self, key: str) -> npt.NDArray[Any]:
        part = self.state[key]
        if not isinstance(part, _Array):
            raise pickle.UnpicklingError(f"holds a CSR matrix whose {key} is no array")
        return part.checked()

    def shape(self) -> tuple[int, ...]:
        shape = self.state["_shape"]
        if not _is_shape(shape) or len(shape) != 2:
            raise pickle.UnpicklingError(f"holds a CSR matrix of shape {shape!r:.40}")
        return tuple(shape)


def _is_shape(shape: object) -> bool:
    return type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape)


def _reconstruct(subtype: object) -> _Array:
    """Stands for numpy's: an array to be filled by its state. The shape asked for is ignored."""
    if subtype is not _Array:
        raise pickle.UnpicklingError(f"holds an array of class {subtype!r:.60}")
    return _Array()


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("scipy.sparse.csr", "csr_matrix"): _Csr,
    ("scipy.sparse._csr", "csr_matrix"): _Csr,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "dict"): dict,
    ("builtins", "dict"): dict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


# The one in C allocates as many memo slots as a damaged byte says, up to 64 GB.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            # a new function each time: a pickle may set attributes of what it was given
            return lambda subtype, shape, code: _reconstruct(subtype)
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"asks for {module}.{name}") from None
